"""ordering_report: one HTML file next to the output that shows what was asked, what came of it, and the evidence.

It needs what an output needs. Evidence of other stages is in it where it is there for these settings and this corpus;
what is not is named, with the command that makes it. `ordering_report.html`, and `cluster_cloud.png` where there is a
map, are written to `output.path` whole or not at all; the output's manifest does not list them.

`page` is made again only when something that it shows has changed. Times and memory of stages are shown, and differ
from run to run, so neither key nor version covers them: a page shows those of the run that made it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import orjson

from dagster_divorder.errors import MissingStageError
from dagster_divorder.pipeline.diversity_metrics import load_metrics, remedy, verdicts
from dagster_divorder.pipeline.graph import OUTPUT, needed
from dagster_divorder.pipeline.report import evidence, order
from dagster_divorder.pipeline.report.windows import worst_windows
from dagster_divorder.pipeline.run import Run, content_hash
from dagster_divorder.pipeline.space import chosen_kind
from dagster_divorder.pipeline.targets import warnings_of
from dagster_divorder.store.curated import read_manifest, write_beside
from dagster_divorder.store.receipts import Receipt

if TYPE_CHECKING:
    from dagster_divorder.view.report.section import Section
    from dagster_divorder.view.report.verdict import Judgement

PAGE = "ordering_report.html"
CLOUD = "cluster_cloud.png"
USES = (OUTPUT, "diversity_metrics", "clusters")
MADE = ("page", "picture", "about")
"""Files in the store: the page, a small picture of the order, and what is said of the page in its receipt."""


def run(run: Run) -> Receipt:
    settings = run.settings
    uses = {stage: run.receipt(stage).version for stage in USES}
    manifest = _manifest(run)
    found, missing = at_hand(run)
    uses |= {stage: receipt.version for stage, receipt in found.items()}
    shown = [manifest["key"], manifest["delta"], manifest["input"]["files"], missing]
    key = content_hash(settings.recipe("ordering_report"), uses, shown)
    folder = f"stages/ordering_report/{key}"
    made = run.store.sealed(folder)
    reused = all(name in made for name in MADE)
    if not reused:
        run.progress.note("drawing the report")
        page, picture, about = _draw(run, manifest, found, missing)
        made = {
            "page": run.store.seal(folder, "page", page, "html"),
            "picture": run.store.seal(folder, "picture", picture, "png"),
            "about": run.store.seal(folder, "about", orjson.dumps(about), "json"),
        }
    files = {PAGE: made["page"]}
    if "cluster_map" in found:
        files[CLOUD] = found["cluster_map"].files["picture"]
    write_beside(
        run.store, settings.output.path, {name: run.store.unseal(file) for name, file in files.items()}
    )
    documents = manifest["counts"]["documents"]
    return Receipt(
        stage="ordering_report",
        recipe=settings.recipe("ordering_report"),
        key=key,
        version=key,
        uses=uses,
        files={name: made[name] for name in MADE},
        report={
            "documents": documents,
            "new_documents": 0 if reused else documents,
            "reused_documents": documents if reused else 0,
            "path": str(settings.output.path / PAGE),
            "bytes": len(run.store.unseal(made["page"])),
            "beside": [name for name in files if name != PAGE],
            **orjson.loads(run.store.unseal(made["about"])),
        },
    )


def at_hand(run: Run) -> tuple[dict[str, Receipt], dict[str, str]]:
    """(receipts of the evidence that fits these settings and this corpus, why each other one is missing), by stage."""
    found, missing = {}, {}
    for stage in evidence.SHOWS:
        try:
            found[stage] = run.receipt(stage)
        except MissingStageError as error:
            missing[stage] = str(error).partition(";")[0]
    if "cluster_map" in found and "places" not in found["cluster_map"].files:
        missing["cluster_map"] = found["cluster_map"].report["note"].partition(";")[0]
    return found, missing


def _manifest(run: Run) -> dict[str, Any]:
    """The manifest of the output that curated_output made last."""
    folder = run.settings.output.path
    manifest = read_manifest(folder)
    if manifest is None or manifest["key"] != run.receipt(OUTPUT).key:
        raise MissingStageError(
            f"{folder} does not hold the output that {OUTPUT} made last; run it again: divorder run"
        )
    return manifest


def _draw(
    run: Run, manifest: dict[str, Any], found: dict[str, Receipt], missing: dict[str, str]
) -> tuple[bytes, bytes, dict[str, Any]]:
    """The page, the small picture, and what the receipt says of the page."""
    from dagster_divorder.view.report.page import page
    from dagster_divorder.view.report.verdict import section as verdict_section
    from dagster_divorder.view.report.verdict import sentences

    judgement = _judgement(run)
    sections, picture = _sections(run, manifest, judgement, found, missing)
    made = page(
        f"How {manifest['counts']['records']:,} documents were ordered",
        _facts(manifest),
        verdict_section(judgement),
        sections,
        _footer(manifest),
    )
    about = {
        "verdict": " ".join(filter(None, sentences(judgement))),
        "better_than_shuffling": judgement.passed if judgement.compared else None,
        "sections": [section.title for section in sections],
        "left_out": list(missing),
    }
    return made, picture, about


def _judgement(run: Run) -> Judgement:
    from dagster_divorder.view.report.verdict import Judgement

    found = verdicts(run.settings)
    metrics = load_metrics(run.store, run.receipt("diversity_metrics").files["metrics"])
    return Judgement(
        sequences=found["sequences"],
        documents=found["curated"],
        metrics=metrics,
        remedy=remedy(run.settings),
    )


def _sections(
    run: Run,
    manifest: dict[str, Any],
    judgement: Judgement,
    found: dict[str, Receipt],
    missing: dict[str, str],
) -> tuple[list[Section], bytes]:
    """The sections in the order in which they are read, and the small picture."""
    from dagster_divorder.view.report import asked, certificate, errors, left_out, prefix, targets, timings

    of = order.Ordered(run, evidence.cluster_names(run))
    coloured = order.bars(of)
    k = run.receipt("clusters").report["k"]
    wanted = run.settings.order
    sections = [
        asked.section(run.settings, chosen_kind(run), k, manifest["input"]["files"]),
        coloured.section,
        order.distinct(of),
        prefix.section(judgement.metrics, list(wanted.targets)),
        errors.section(judgement.metrics, list(wanted.traits)),
        targets.section(judgement.metrics, warnings_of(judgement.metrics["sequences"]["targets"]))
        if wanted.targets
        else None,
        certificate.section(judgement),
        worst_windows(of, judgement.metrics["sequences"]["windows"]["batch"]),
        order.categories(of),
        order.lengths(of),
        order.clusters(of, coloured, evidence.cloud(of, coloured, found.get("cluster_map"))),
        *(make(run, found[stage]) for stage, make in evidence.SECTIONS.items() if stage in found),
        timings.section(_reports(run, found), manifest["delta"]),
        left_out.section({stage: (evidence.SHOWS[stage], why) for stage, why in missing.items()}),
    ]
    return [section for section in sections if section is not None], coloured.picture


def _reports(run: Run, found: dict[str, Receipt]) -> dict[str, dict[str, Any]]:
    """Reports of the stages of the output, and of the evidence, in the order in which they run."""
    stages = {*needed(run.settings), *found}
    receipts = {
        stage: run.receipt(stage) for stage in needed(run.settings, "ordering_report") if stage in stages
    }
    return {stage: receipt.report for stage, receipt in receipts.items()}


def _facts(manifest: dict[str, Any]) -> str:
    sequence = manifest["sequence"]
    return (
        f"{manifest['counts']['documents']:,} distinct texts · {manifest['tokens']:,} tokens · "
        f"{manifest['k']:,} clusters · {manifest['packing']['sequences']:,} sequences of "
        f"{sequence['length']:,} tokens · batches of {sequence['batch']:,} sequences"
    )


def _footer(manifest: dict[str, Any]) -> list[str]:
    versions = ", ".join(f"{name} {version}" for name, version in manifest["versions"].items())
    return [
        f"Of the output whose curated_meta.json has the key {manifest['key']}, which lists every figure and hash.",
        f"Made with {versions}.",
    ]
