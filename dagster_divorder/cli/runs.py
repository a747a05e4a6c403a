"""Commands that make an order and show it: plan, run, summary, report, prune."""

from __future__ import annotations

import argparse
import os
import shutil
import webbrowser
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dagster_divorder.cli.verb import Verb, add_refit, settings_of
from dagster_divorder.errors import MissingStageError, SettingsError
from dagster_divorder.units import byte_size
from dagster_divorder.view.answer import Answer, Line, Part, TextTable
from dagster_divorder.view.words import cells

if TYPE_CHECKING:
    from dagster_divorder.pipeline.run import Run
    from dagster_divorder.settings import Settings


Figures = Mapping[str, Mapping[str, Any]]
ROWS, CELL = 20, 60
"""Rows of a stage's table that are printed, and characters of a text in it."""
BROWSERS = ("chromium", "chromium-browser", "google-chrome", "firefox", "xdg-open")


def plan(settings: Settings, *, everything: bool = False, disk: bool) -> Answer:
    """What a run would do, by stage, and the bytes in the store. everything: with all evidence. disk: bytes by part."""
    from dagster_divorder.pipeline.plan import make_plan
    from dagster_divorder.stages import GRAPH

    planned = make_plan(GRAPH, settings, *(GRAPH.upstream(settings) if everything else ()))
    rows = [
        {
            "stage": stage.stage if GRAPH[stage.stage].asset else f"  {stage.stage}",
            "documents": f"{stage.documents:,}",
            "why": stage.why + (f" (unless {stage.unless})" if stage.unless else ""),
        }
        for stage in planned.stages
    ]
    parts: list[Part] = [
        f"{planned.records:,} records in the input, {planned.new_records:,} of them new",
        "",
        TextTable(rows),
    ]
    in_short = f"disk in use: {byte_size(sum(planned.disk.values()))} (by part: --disk)"
    parts += ["", _bytes_by_part("disk in use", planned.disk) if disk else in_short]
    if planned.choice:
        parts += ["", Line(planned.choice, "bad")]
    if planned.moved:
        parts += ["", planned.moved]
    return Answer(parts, asdict(planned))


def run(settings: Settings, stages: Sequence[str] = (), *, details: bool) -> Answer:
    """Runs every stage that an output needs and shows the summary; or runs the named stages, with all that they read,
    and shows these. With DAGSTER_HOME set, Dagster runs them.

    Raises:
        InputError: there is no such stage. SettingsError: the settings do not have a named stage.
    """
    from dagster_divorder.core.order.strategy import one_of
    from dagster_divorder.stages import GRAPH, run_all

    for stage in stages:
        if not GRAPH[one_of("stage", stage, GRAPH)].when(settings):
            raise SettingsError(
                f"these settings have no stage {stage}; expected the settings that it is for, such as "
                "selection.method for subset_selection: divorder.example.toml has every key"
            )
    if os.environ.get("DAGSTER_HOME"):
        from dagster_divorder.defs.home import materialise

        materialise(settings, stages)
    else:
        run_all(settings, stages=GRAPH.needed(settings, *stages) if stages else None)
    return summary(settings, stages, details=details)


def summary(settings: Settings, stages: Sequence[str] = (), *, details: bool = False) -> Answer:
    """The results of the last run: whether and by how much the order beats shuffling, the files for a trainer, and the
    measures. details: also the measures of every order, and new documents and time of every stage. stages: what these
    stages show, instead.

    Raises:
        MissingStageError: the pipeline has not run to its end on this store, or a named stage has no current result.
    """
    from dagster_divorder.pipeline.run import stage_row
    from dagster_divorder.stages import GRAPH, open_run
    from dagster_divorder.stages.measure.diversity_metrics import load_verdict
    from dagster_divorder.stages.mix.consumed import last_change
    from dagster_divorder.view.measures import IN_FULL_ONLY, MEASURES, beside_shuffled
    from dagster_divorder.view.words import TRAIN_ON

    run = open_run(settings)
    if stages:
        return _shown_stages(run, stages)
    figures = _figures_of_the_last_run(run)
    verdict, orders = load_verdict(run), figures["diversity_metrics"]["summary"]
    rows = {row["order"]: row for row in orders}
    measured = beside_shuffled(rows[TRAIN_ON], rows["sequences_random"])
    in_short = [row for row in measured if row.measure not in [MEASURES[name] for name in IN_FULL_ONLY]]
    raw_docs, counted = figures["raw_docs"], figures["token_counts"]
    corpus = {
        **{name: raw_docs[name] for name in ("records", "rejected_records", "partial_lines")},
        "documents": raw_docs["texts"],
        **{name: counted[name] for name in ("tokens", "trained_tokens") if name in counted},
    }
    drift = figures["stationarity"]["claim"] if "stationarity" in figures else None
    for_trainer, files = _for_the_trainer(run, figures, rows)
    mixes = verdict.metrics[TRAIN_ON].get("mixes")
    claim, because = verdict.sentences
    parts: list[Part] = [
        Line(claim, "good" if verdict.passed else "bad" if verdict.compared else "strong"),
        because,
        *([drift] if drift else []),
        *(figures["scores"]["notes"] if "scores" in figures else []),
        "",
        *for_trainer,
        *_mix_along(mixes),
        TextTable([row.shown() for row in in_short]),
        *(Line(f"  {row.measure.label}: {row.measure.meaning}", "quiet") for row in in_short),
        "",
        *_corpus_lines(settings, corpus, figures),
    ]
    rows_of_stages = [stage_row(stage, figures[stage]) for stage in figures if GRAPH[stage].asset]
    if details:
        parts += _details(run, figures, rows_of_stages)
    else:
        parts.append("every order, every stage and its time: divorder summary --details")
    change = last_change(run, by_the_last_run=True)
    parts += [Line(change.sentence, "bad")] if change else []
    return Answer(
        parts,
        {
            "beats_shuffling": verdict.passed if verdict.compared else None,
            "verdict": [claim, because],
            "drift": drift,
            "mixes": mixes,
            "off_schedule": verdict.metrics[TRAIN_ON].get("off_schedule"),
            "measures": [row.data() for row in measured],
            "orders": orders,
            "findings": figures["diversity_metrics"]["findings"],
            "corpus": corpus,
            "sequence_length": settings.sequence.length,
            "batch": settings.sequence.batch,
            "clusters": figures["clusters"]["k"],
            "strategy": figures["greedy_order"]["strategy"],
            **files,
            "reordered": change.sentence if change else None,
            "stages": rows_of_stages,
        },
    )


def _shown_stages(run: Run, stages: Sequence[str]) -> Answer:
    """What named stages show, one after the other.

    Raises:
        InputError: there is no such stage. MissingStageError: a stage has no current result.
    """
    from dagster_divorder.core.order.strategy import one_of
    from dagster_divorder.pipeline.stage import Link, Picture, Table, Text
    from dagster_divorder.stages import GRAPH

    parts: list[Part] = []
    data: dict[str, dict[str, Any]] = {}
    for name in stages:
        stage = GRAPH[one_of("stage", name, GRAPH)]
        receipt = run.receipt(name)
        data[name] = dict(receipt.figures)
        plain = {key: value for key, value in data[name].items() if isinstance(value, (str, int, float))}
        parts += [
            *([""] if parts else []),
            Line(f"{name}: {stage.description}", "strong"),
        ]
        parts += [f"  {key.replace('_', ' ')}: {value}" for key, value in plain.items()]
        for title, shown_part in stage.show(run, receipt).items():
            label = title.replace("_", " ")
            match shown_part:
                case Table(rows):
                    more = f" (the first {ROWS} of {len(rows):,}; --json has all)" if len(rows) > ROWS else ""
                    parts += ["", TextTable(cells(rows[:ROWS], CELL), label + more)]
                    data[name][title] = rows
                case Text(markdown):
                    parts += ["", *markdown.splitlines()]
                case Picture(path, _) | Link(path):
                    parts.append(f"  {label}: {path}")
                    data[name][title] = str(path)
                case number:
                    data[name][title] = number
    return Answer(parts, data)


def _mix_along(mixes: Mapping[str, Any] | None) -> list[Part]:
    """The asked and achieved mix of every stretch, if there are several."""
    from dagster_divorder.view.measures import mix_rows
    from dagster_divorder.view.words import points

    if not mixes:
        return []
    table = TextTable(mix_rows(mixes)[:ROWS], f"{mixes['trait']} along training")
    after = zip(mixes["values"], mixes.get("next", ()), strict=False)
    shares = [f"{value} {points(share)} %" for value, share in after]
    behind = [f"the first batch behind what stays: {', '.join(shares)}"] if shares else []
    return [table, *behind, ""]


def _details(run: Run, figures: Figures, stages: Sequence[Mapping[str, Any]]) -> list[Part]:
    """Every order, tables of a selection and of the records that packing leaves out, and rows of `stage_row`."""
    from dagster_divorder.pipeline.run import stages_table
    from dagster_divorder.pipeline.stage import Table
    from dagster_divorder.stages import GRAPH
    from dagster_divorder.view.measures import side_by_side

    parts: list[Part] = [
        "",
        TextTable(side_by_side(figures["diversity_metrics"]["summary"]), "all orders"),
        *figures["diversity_metrics"]["findings"],
    ]
    for stage in ("subset_selection", "set_diversity", "packed_sequences"):
        tables = GRAPH[stage].show(run, run.receipt(stage)) if stage in figures else {}
        for name, table in tables.items():
            if isinstance(table, Table) and table.rows:
                parts += ["", TextTable(cells(table.rows), f"{name} ({stage})")]
    return [*parts, "", stages_table(stages, "the last run of each stage")]


def _figures_of_the_last_run(run: Run) -> Figures:
    """Figures by stage, with evidence if it is up to date.

    Raises:
        MissingStageError: a needed stage has none.
    """
    from dagster_divorder.pipeline.graph import OUTPUT
    from dagster_divorder.stages import GRAPH
    from dagster_divorder.store.state import load_state

    settings, recorded = run.settings, load_state(run.store).receipts
    needed = [stage for stage in GRAPH.needed(settings, OUTPUT) if GRAPH[stage].asset]
    figures = {
        stage: recorded[stage].figures
        for stage in GRAPH.upstream(settings, among=recorded)
        if stage in recorded and (stage in needed or run.is_current(stage))
    }
    if missing := [stage for stage in needed if stage not in figures]:
        raise MissingStageError(
            f"{', '.join(missing)} never ran on {settings.store.path}; run `divorder run`, or "
            "`dagster asset materialize --select '*' -m dagster_divorder.definitions`"
        )
    return figures


def _for_the_trainer(run: Run, figures: Figures, orders: Figures) -> tuple[list[Part], dict[str, Any]]:
    """(the exports with a trainer's configuration, and the use of the other files; the same as data). orders: rows of
    the summary, by name."""
    from dagster_divorder.settings.places import as_place
    from dagster_divorder.stages.output.exports import records_shape
    from dagster_divorder.verify import lines_of_trainer
    from dagster_divorder.view.measures import MEASURES
    from dagster_divorder.write.curated import RECORDS

    exports, output = figures.get("exports", {}).get("exports", []), figures["curated_output"]
    settings, files = run.settings, _output_files(figures)
    pairs = "pairs" in settings.forms
    parts: list[Part] = []
    if not exports and not pairs:
        parts.append(
            Line('No export is set: set exports.formats, such as ["parquet"], and run again.', "strong")
        )
    for export in exports:
        folder = as_place(export["folder"])
        parts.append(_to_train_on(str(folder), export["bytes"]))
        if isinstance(folder, Path) and not folder.is_dir():
            parts.append("  it is no longer there: run again to write it")
        else:
            parts += lines_of_trainer(run, folder, export["format"])
    if pairs:
        shape = records_shape(run, settings.output.path)
        size = sum(entry["bytes"] for name, entry in output["files"].items() if RECORDS.fullmatch(name))
        parts.append(_to_train_on(shape.path, size))
    else:
        contents = (
            "whole documents in order" if settings.packing.packs else "records in the order of training"
        )
        parts.append(
            f"{output['folder']}/{files[0]} ({'written' if output['written'] else 'unchanged'}) has {contents}, for "
            "tools that do not pack."
        )
    parts += lines_of_trainer(run, settings.output.path, None)
    off = [orders[name]["batch TV, clusters"] for name in ("curated", "sequences", "sequences_random")]
    # A corpus smaller than a batch has no figure.
    if None not in off:
        curated, planned, shuffled = map(MEASURES["batch TV, clusters"].show, off)
        parts.append(
            f"  If a trainer packs it, its batches are {curated} % off the mix; batches of the sequences above, "
            f"{planned} %; of shuffled ones, {shuffled} %."
            if settings.packing.packs
            else f"  If a trainer reads {settings.sequence.batch:,} records a step, its batches are {planned} % off "
            f"the mix; of shuffled ones, {shuffled} %."
        )
    parts += [f"  beside it: {', '.join(files[1:])}", ""]
    facts = {name: output[name] for name in ("folder", "written", "bytes")}
    return parts, {"exports": exports, "output": {**facts, "files": files}}


def _to_train_on(place: str, size: int) -> Line:
    return Line(f"Give your trainer {place} ({byte_size(size)}), unshuffled.", "strong")


def _corpus_lines(settings: Settings, corpus: Mapping[str, int], figures: Figures) -> list[str]:
    """The corpus and the settings of its order."""
    from dagster_divorder.stages.order.pieces import left_out_lines

    cut_short, tokens = corpus["partial_lines"], f"{corpus['tokens']:,} tokens"
    if "trained_tokens" in corpus:
        tokens += f", {corpus['trained_tokens']:,} trained on"
    return [
        f"{corpus['records']:,} records ({corpus['documents']:,} distinct documents, {tokens}), "
        f"{corpus['rejected_records']:,} rejected"
        + (f", {cut_short:,} cut short at the end of a file" if cut_short else ""),
        *epoch_lines(figures.get("repeats"), settings),
        *left_out_lines(figures["packed_sequences"], settings.packing.too_long),
        *filter(None, [figures.get("subset_selection", {}).get("note")]),
        f"sequences of {settings.sequence.length:,} tokens, batches of {settings.sequence.batch:,}, "
        f"{figures['clusters']['k']} clusters, strategy {figures['greedy_order']['strategy']}",
    ]


def _output_files(figures: Figures) -> list[str]:
    """Names of the files in the output folder, documents first."""
    page, films = figures.get("ordering_report"), figures.get("ordering_animation")
    return [
        *figures["curated_output"]["files"],
        "curated_meta.json",
        *([Path(page["path"]).name, *page["beside"]] if page else []),
        *(films["films"] if films else []),
    ]


def epoch_lines(repeats: Mapping[str, Any] | None, settings: Settings) -> list[str]:
    """A line on the records of an epoch, unless each is read once; from the figures of `repeats`."""
    if repeats is None:
        return []
    most, noun = repeats["most_repeats"], "trained tokens" if settings.counts_trained else "tokens"
    return [
        f"an epoch reads {repeats['items']:,} records, {repeats['tokens_trained_on']:,} {noun}: "
        f"{repeats['left_out_records']:,} records are left out, "
        + ("none is repeated" if most < 2 else f"none is read over {most:,} times")
    ]


def report(settings: Settings, *, everything: bool, browse: bool) -> Answer:
    """Runs the stages of an output and makes the report. everything: with all evidence. browse: open the report and the
    films in a browser."""
    from dagster_divorder.settings.places import is_url
    from dagster_divorder.stages import EVIDENCE, GRAPH, run_all
    from dagster_divorder.write.curated import BESIDE

    stage = "ordering_report"
    evidence = [name for name in EVIDENCE if everything and GRAPH[name].when(settings)]
    receipts = run_all(settings, stages=GRAPH.needed(settings, stage, *evidence))
    figures = receipts[stage].figures
    lines = [figures["check"], "", f"{figures['path']} ({byte_size(figures['bytes'])})"]
    if figures["missing"]:
        missing = ", ".join(figures["missing"])
        lines.append(f"missing from it: {missing}; `divorder report --all` makes them")
    if browse and is_url(figures["path"]):
        lines.append("it is at a URL: copy it to this machine to open it")
    elif browse:
        page = Path(figures["path"]).absolute()
        opened = [
            webbrowser.open(path.as_uri())
            for path in (
                page,
                *sorted({*map(page.with_name, BESIDE)}.intersection(page.parent.glob("*.mp4"))),
            )
        ]
        if not all(opened):
            browser = next(filter(shutil.which, BROWSERS), "open")
            lines.append("no browser could be opened, such as without a display; on a machine that has one:")
            lines.append(f"  {browser} {page}")
    return Answer(
        lines,
        {name: figures[name] for name in ("path", "bytes", "better_than_shuffling", "missing")},
    )


def prune(settings: Settings, *, dry_run: bool) -> Answer:
    """Prunes the store. dry_run: only shows what that would free."""
    from dagster_divorder.engine.progress import STANDARD_ERROR
    from dagster_divorder.pipeline.prune import plan_prune
    from dagster_divorder.pipeline.prune import prune as prune_store
    from dagster_divorder.stages import GRAPH
    from dagster_divorder.store.connect import store_of

    store = store_of(settings.store)
    with store.lock(wait=settings.store.wait, on_wait=STANDARD_ERROR.note):
        freed = plan_prune(GRAPH, store.open()) if dry_run else prune_store(GRAPH, store.open())
    parts: list[Part] = [
        _bytes_by_part("would be freed" if dry_run else "freed", freed.bytes),
        f"deleted documents: {freed.documents:,}",
    ]
    if freed.documents and not dry_run:
        parts += [
            "Cluster names, examples and pages beside the output are gone too, because they may contain their words.",
            "The next run makes them again, except pages and films of earlier outputs. A bootstrap base model trained",
            "on these documents still knows some of their words: divorder run --refit model trains another.",
        ]
    return Answer(parts, {"dry_run": dry_run, "bytes": freed.bytes, "documents": freed.documents})


def _bytes_by_part(title: str, sizes: Mapping[str, int]) -> TextTable:
    rows = [*sizes.items(), ("in all", sum(sizes.values()))]
    return TextTable([{"part of the store": part, "size": byte_size(size)} for part, size in rows], title)


def _add_details(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--details", action="store_true", help="also show every order, and every stage and its time"
    )


def _add_stages(parser: argparse.ArgumentParser, does: str) -> None:
    parser.add_argument(
        "stages",
        nargs="*",
        metavar="STAGE",
        help=f"{does}, such as k_calibration; `divorder plan --all` lists them",
    )


def _add_summary(parser: argparse.ArgumentParser) -> None:
    _add_stages(parser, "show what these stages made, instead")
    _add_details(parser)


def _add_run(parser: argparse.ArgumentParser) -> None:
    _add_stages(parser, "make these stages and what they read, and show them")
    _add_details(parser)
    add_refit(parser)


def _add_plan(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--all", action="store_true", help="include all evidence, as report --all and prove make it"
    )
    parser.add_argument("--disk", action="store_true", help="also show the size of each part of the store")
    add_refit(parser)


def _add_report(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--all", action="store_true", help="first make all evidence for the report; takes longer"
    )
    parser.add_argument("--open", action="store_true", help="then open it and the films in a browser")


def _add_prune(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--dry-run", action="store_true", help="only show what it would free")


VERBS = (
    Verb(
        "plan",
        "shows what a run would compute and why; stores nothing",
        "divorder plan",
        "reads the input once",
        lambda options: plan(settings_of(options), everything=options.all, disk=options.disk),
        _add_plan,
    ),
    Verb(
        "run",
        "runs every stage; computes only what is new",
        "divorder run",
        "a minute for 100 MB of text; seconds if nothing is new",
        lambda options: run(settings_of(options), options.stages, details=options.details),
        _add_run,
    ),
    Verb(
        "summary",
        "shows what the last run made",
        "divorder summary --details",
        "a second",
        lambda options: summary(settings_of(options), options.stages, details=options.details),
        _add_summary,
    ),
    Verb(
        "report",
        "runs what an output needs and writes a page of charts beside it",
        "divorder report --open",
        "seconds after a run; --all makes all evidence, minutes",
        lambda options: report(settings_of(options), everything=options.all, browse=options.open),
        _add_report,
    ),
    Verb(
        "prune",
        "removes what the current input and settings do not need",
        "divorder prune --dry-run",
        "seconds",
        lambda options: prune(settings_of(options), dry_run=options.dry_run),
        _add_prune,
    ),
)
