"""ordering_report: one HTML file beside the output that shows the result and the evidence.

It needs the same stages as an output. It shows the evidence that exists for these settings and this corpus, and lists
the commands that make the rest. `ordering_report.html`, and `cluster_cloud.png` if there is a map, are written to
`output.path` completely or not at all; the output's manifest does not list them.

The page is made again only if something that it shows has changed. Times and memory of stages differ from run to run,
so neither key nor version includes them: a page shows the figures of the run that made it.

Letters: N records, J trait values, C slices of the dataset, S sequences.
Cost: a few passes over the records for each order; O(N log N) for the lengths.
Memory: some 80 bytes a record beside C J numbers.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from dagster_divorder.core.arrow import is_number
from dagster_divorder.core.measure import cluster_mix
from dagster_divorder.core.measure.along import quantiles_along
from dagster_divorder.core.order.traits import column_codes
from dagster_divorder.errors import MissingStageError, without_secrets
from dagster_divorder.pipeline.graph import OUTPUT
from dagster_divorder.pipeline.run import Run, stage_row
from dagster_divorder.pipeline.stage import (
    DECIDES_NOTHING,
    RUN_FIGURES,
    File,
    Link,
    Made,
    Shown,
    WholeCorpus,
    given_settings,
    versions,
)
from dagster_divorder.settings import Settings
from dagster_divorder.stages import EVIDENCE
from dagster_divorder.stages.corpus.fields import built_in, load_fields
from dagster_divorder.stages.measure.diversity_metrics import load_verdict, read_in_order
from dagster_divorder.stages.mix.repeats import TrainingStream, load_stream, run_counter
from dagster_divorder.stages.order.bin_edges import load_edges
from dagster_divorder.stages.order.packed_sequences import load_packed
from dagster_divorder.stages.output.curated_output import load_manifest
from dagster_divorder.stages.topics.cluster_names import load_names
from dagster_divorder.stages.topics.clusters import cluster_sizes
from dagster_divorder.store.state import Receipt
from dagster_divorder.view.drawing import OTHERS, cluster_colours
from dagster_divorder.view.report import sections
from dagster_divorder.view.report.html import Section
from dagster_divorder.view.report.sections import TraitAlong
from dagster_divorder.view.verdict import Verdict
from dagster_divorder.view.words import fixed, number
from dagster_divorder.write.curated import write_beside

PAGE = "ordering_report.html"
CLOUD = "cluster_cloud.png"
SHOWN = tuple(
    name
    for name in Settings.model_fields
    if name not in {*DECIDES_NOTHING, "output", "exports", "engine", "evidence"}
)
"""Sections of settings that the page shows."""
LENGTH_QUANTILES = (0.1, 0.25, 0.5, 0.75, 0.9)
LENGTH_COLUMNS = 100
"""Slices of the dataset in the chart of lengths."""
COLUMNS = (60, 120)
"""Fewest and most slices of a bar and of a strip, so that each is some pixels wide. In between, a slice is a batch."""
COLOURED = 60
"""Most clusters with a colour and a row of their own; all smaller clusters share one."""
KEPT = 20
"""Most values of any other category with a row of their own."""
LAST_RUN = {"documents": number, "new": number, "reused": number, "seconds": fixed}
"""Columns of the table of the last run, and how they are shown."""
CHOSEN = ("subset_selection", "repeats", "packed_sequences")
"""Stages on the way to an output that have a section if they show something."""


def _write_ordering_report(run: Run) -> Made:
    (evidence, missing), manifest, verdict = at_hand(run), load_manifest(run), load_verdict(run)
    shown = _sections(run, manifest, verdict, evidence, missing)
    trained_tokens = run.receipt("token_counts").figures.get("trained_tokens")
    page = sections.report(manifest, verdict, trained_tokens, shown)
    figures = {
        "path": str(run.settings.output.path / PAGE),
        "bytes": len(page),
        "beside": [CLOUD] if "cluster_map" in evidence else [],
        "check": " ".join(verdict.sentences),
        "better_than_shuffling": verdict.passed if verdict.compared else None,
        "missing": list(missing),
    }
    files = {"page": File(page, "html")}
    if "cluster_map" in evidence:
        files["cloud"] = File(run.read("cluster_map", "picture"), "png")
    return Made(files, {"beside": figures["beside"]}, figures)


def _publish_report(run: Run, receipt: Receipt) -> None:
    files = {PAGE: run.store.read_verified(receipt.files["page"])}
    if CLOUD in receipt.facts["beside"]:
        files[CLOUD] = run.store.read_verified(receipt.files["cloud"])
    write_beside(run.store, run.settings.output.path, files)


def at_hand(run: Run) -> tuple[dict[str, Receipt], dict[str, str]]:
    """(stage -> receipt of its evidence for these settings and this corpus; stage -> why its evidence is missing)."""
    evidence, missing = {}, {}
    for stage in EVIDENCE:
        try:
            evidence[stage] = run.receipt(stage)
        except MissingStageError as error:
            if run.graph[stage].when(run.settings):
                missing[stage] = str(error).partition(";")[0]
    return evidence, missing


def _asked(settings: Settings) -> dict[str, str]:
    """The shown settings that are not at their defaults, by name."""
    shown: dict[str, Any] = {}
    for section, values in given_settings(settings).items():
        if section in SHOWN:
            keys = values if isinstance(values, dict) else {"": values}
            shown |= {f"{section}.{key}".rstrip("."): value for key, value in keys.items()}
    return {
        name: without_secrets(value if isinstance(value, str) else json.dumps(value, ensure_ascii=False))
        for name, value in shown.items()
    }


def _sections(
    run: Run,
    manifest: Mapping[str, Any],
    verdict: Verdict,
    evidence: Mapping[str, Receipt],
    missing: Mapping[str, str],
) -> list[Section]:
    """All sections, in reading order. evidence, missing: see `at_hand`."""
    settings, graph, k = run.settings, run.graph, manifest["k"]
    stream = load_stream(run)
    traits, orders = stream.traits, read_in_order(run)
    tokens_of, packed = run_counter(run, stream.record_of), load_packed(run)
    total = int(traits.counted.sum())
    columns = max(1, min(total, int(np.clip(len(packed) // settings.sequence.batch, *COLUMNS))))

    def along(
        trait: str, codes: np.ndarray, names: Sequence[str], most: int, others: str
    ) -> tuple[TraitAlong, np.ndarray]:
        """(where the values with the most tokens lie in each order, and all `others` as one; these values)."""
        sizes = np.zeros(len(names), np.int64)
        np.add.at(sizes, codes, traits.counted)
        kept = np.argsort(-sizes, kind="stable")[: min(most, int((sizes > 0).sum()))]
        place, left = np.full(len(names), len(kept), np.int32), int((sizes > 0).sum()) - len(kept)
        place[kept] = np.arange(len(kept))
        rows = [names[value] for value in kept.tolist()] + ([f"{left:,} {others}"] if left else [])
        mixes = {
            name: cluster_mix(tokens_of(runs), place[codes[runs.document]], len(kept) + 1, columns)
            for name, runs in orders.items()
        }
        shown = {name: mix[:, : max(1, len(rows))] for name, mix in mixes.items()}
        return TraitAlong(trait, rows, shown), kept

    clusters, kept = along("cluster", traits.codes["cluster"], load_names(run), COLOURED, "smaller clusters")
    colours = np.concatenate([cluster_colours(k)[kept], [OTHERS]])[: len(clusters.names)]
    sizes = cluster_sizes(run)
    documents = sizes[kept].tolist()
    categories = [
        along(field, codes, names, KEPT, "other values")[0]
        for field, (codes, names) in _categories(run, stream).items()
    ]
    lengths = {
        name: quantiles_along(runs.length, traits.tokens[runs.document], LENGTH_COLUMNS, LENGTH_QUANTILES)
        for name, runs in orders.items()
    }
    rows = [
        stage_row(name, run.receipt(name).figures)
        for name in graph.needed(settings, "ordering_report", *evidence)
        if graph[name].asset and name != "ordering_report"
    ]
    chosen = [run.receipt(stage) for stage in CHOSEN if graph[stage].when(settings)]
    of_stages = [
        _of_stage(run, receipt, shown)
        for receipt in (*chosen, *evidence.values())
        if (shown := graph[receipt.stage].show(run, receipt))
    ]
    windows, cluster_table, drift = (
        dict(graph[stage].show(run, run.receipt(stage)))
        for stage in ("diversity_metrics", "clusters", "stationarity")
    )
    before = {name: windows.pop(name) for name in ("bars", "distinct")}
    del windows["verdict"]  # the page begins with it
    alone = int((np.diff(packed.indptr) == 1).sum())
    return [
        Section(
            "before-and-after",
            "Before and after",
            "The same documents from the first token to the last. If one colour fills a column, training sees one "
            f"cluster for a long time. Below: how many of the {k:,} clusters a sequence holds. {alone:,} sequences "
            "hold a single document, in any order. Colours are those of the table of clusters below.",
            before,
        ),
        sections.along_training(lengths, categories),
        Section("windows", "Windows of training", graph["diversity_metrics"].description, windows),
        Section("drift", "What drifts", graph["stationarity"].description, drift),
        sections.clusters(
            clusters, colours, [*documents, int(sizes.sum()) - sum(documents)], k, cluster_table
        ),
        *of_stages,
        sections.last_run(
            [{**row, **{name: show(row[name]) for name, show in LAST_RUN.items()}} for row in rows],
            _asked(settings),
            {stage: (EVIDENCE[stage], why) for stage, why in missing.items()},
        ),
    ]


def _of_stage(run: Run, receipt: Receipt, shown: Shown) -> Section:
    stage = run.graph[receipt.stage]
    # Times and numbers of new documents are left out, because they differ from run to run.
    figures = {
        name: "; ".join(value) if name == "notes" else value
        for name, value in receipt.figures.items()
        if name not in {*RUN_FIGURES, *shown} and (name == "notes" or isinstance(value, (str, float, int)))
    }
    title = EVIDENCE.get(stage.name, stage.name.replace("_", " "))
    anchor = stage.name.replace("_", "-")
    return Section(anchor, title[0].upper() + title[1:], stage.description, {**shown, **figures})


def _categories(run: Run, stream: TrainingStream) -> dict[str, tuple[np.ndarray, Sequence[str]]]:
    """The source and the balanced fields that are not numeric: codes int32 (M,), names by code."""
    traits, settings = stream.traits, run.settings
    categories: dict[str, tuple[np.ndarray, Sequence[str]]] = {}
    for field in dict.fromkeys([settings.input.source_field, *settings.order.traits]):
        if field is None or field in built_in(settings):
            continue
        if field in load_edges(run) and is_number(load_fields(run, field).column(field).type):
            continue
        if field in traits.codes:
            categories[field] = traits.codes[field], traits.names[field]
        else:
            coded = column_codes(load_fields(run, field).column(field), bins=1, name=f"field {field!r}")
            categories[field] = coded.codes[stream.record_of], coded.names
    return categories


def _decided_by(run: Run) -> dict[str, Any]:
    output = run.receipt(OUTPUT).key
    evidence, missing = at_hand(run)
    stages = ("clusters", "cluster_names", "diversity_metrics", "stationarity", "traits", "repeats")
    return {
        "asked": _asked(run.settings),
        "path": str(run.settings.output.path),
        **versions(run, *stages),
        "output": output,
        "evidence": {stage: receipt.version for stage, receipt in evidence.items()},
        "missing": missing,
    }


ORDERING_REPORT = WholeCorpus(
    name="ordering_report",
    version=14,
    description="A report to send to others: one HTML file beside the output. Comparison with shuffling, before and "
    "after, windows, drift, clusters, settings, and evidence. It opens in any browser, without a network.",
    reads=(
        *("raw_docs", "centroids", "clusters", "cluster_names", "bin_edges", "traits", "repeats"),
        *("greedy_order", "packed_sequences", "sequence_order", "stationarity", "diversity_metrics", OUTPUT),
    ),
    settings=(*SHOWN, "input.paths", "input.max_reject_share", "order.frozen_tokens", "order.append"),
    decided_by=_decided_by,
    quotes=True,
    publish=_publish_report,
    doing="drawing the report",
    compute=_write_ordering_report,
    show=lambda run, receipt: {"path": Link(run.settings.output.path / PAGE)},
)
