"""The results of the last run in short: whether the order beats shuffling, what to give to a trainer, how the records
that were read add up; and what any stage shows."""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from dagster_divorder.core.order.strategy import one_of
from dagster_divorder.errors import MissingStageError
from dagster_divorder.pipeline.graph import OUTPUT
from dagster_divorder.pipeline.run import Run, stage_row
from dagster_divorder.pipeline.stage import Chart, Link, Picture, Table, Text
from dagster_divorder.settings import Settings
from dagster_divorder.settings.places import Place, as_place
from dagster_divorder.stages import GRAPH, open_run
from dagster_divorder.stages.measure.diversity_metrics import load_verdict
from dagster_divorder.stages.order.packed_sequences import left_out_lines
from dagster_divorder.store.state import load_state
from dagster_divorder.units import byte_size
from dagster_divorder.verify import lines_of_trainer
from dagster_divorder.view.answer import Answer, Line, Part, TextTable, as_text
from dagster_divorder.view.measures import beside_shuffled, definitions, in_short
from dagster_divorder.view.words import TRAIN_ON, cells, count, number
from dagster_divorder.write.curated import RECORDS

Blocks = Sequence[tuple[int, Sequence[Part]]]
"""Texts with their ranks: 0, always shown; others as far as they fit, the lowest first."""
MORE = "what a stage shows, every measure and order: divorder summary diversity_metrics"
Figures = Mapping[str, Mapping[str, Any]]
"""Figures of stages, by stage."""
ROWS, CELL = 20, 60
"""Rows of a stage's table that are shown, and characters of a text in it."""
LINES, COLUMNS, MEASURES_SHOWN = 30, 80, 5
"""Most lines of a summary, on a terminal of so many columns, and most measures in it."""
FITTING = ((4, 5), (3, 5), (2, 5), (2, 3), (2, 2), (1, 1), (0, 1))
"""(highest rank of the texts, rows of measures) of summaries, from the longest to the shortest."""


def summarise(settings: Settings) -> Answer:
    """The results of the last run, in at most 30 lines of 80 columns. The data also have every order, all
    files, and new documents and time of every stage.

    Raises:
        MissingStageError: the pipeline has not run to its end on this store.
    """
    run = open_run(settings)
    figures = _figures_of_the_last_run(run)
    verdict, orders = load_verdict(run), figures["diversity_metrics"]["summary"]
    by_order = {row["order"]: row for row in orders}
    measured = beside_shuffled(by_order[TRAIN_ON], by_order["sequences_random"])
    corpus, mixes = count_records(figures), verdict.metrics[TRAIN_ON].get("mixes")
    drift = figures["stationarity"]["claim"] if "stationarity" in figures else None
    stages = [stage_row(stage, figures[stage]) for stage in figures if GRAPH[stage].asset]
    exports, output = figures.get("exports", {}).get("exports", []), figures["curated_output"]
    page, films = figures.get("ordering_report"), figures.get("ordering_animation")
    names = [*output["files"], "curated_meta.json"]
    names += [Path(page["path"]).name, *page["beside"]] if page else []
    names += films["films"] if films else []
    files = {**{name: output[name] for name in ("folder", "written", "bytes")}, "files": names}
    claim, because = verdict.sentences
    tone: Literal["good", "bad", "strong"] = (
        "good" if verdict.passed else "bad" if verdict.compared else "strong"
    )
    selection, scores = figures.get("subset_selection", {}), figures.get("scores", {})
    left_out = left_out_lines(figures["packed_sequences"], settings.packing.too_long)
    notes = [*left_out, selection.get("note"), *scores.get("notes", [])]
    before: Blocks = [
        (0, [Line(claim, tone), because]),
        (2, [drift] if drift else []),
        (0, [""]),
        *_for_the_trainer(run, exports, output),
        (0, [""]),
    ]
    after: Blocks = [
        (3, definitions(in_short(measured)[:MEASURES_SHOWN])),
        (0, ["", *_corpus_lines(settings, corpus, figures)]),
        *((3, [note]) for note in notes if note),
        (0, [MORE]),
    ]
    return Answer(
        _fitted(before, [row.shown() for row in in_short(measured)], after),
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
            "exports": exports,
            "output": files,
            "stages": stages,
        },
    )


def _fitted(before: Blocks, table: Sequence[Mapping[str, str]], after: Blocks) -> list[Part]:
    """As many blocks around a table, those of low rank first, and rows of it as LINES hold."""
    for most, rows in FITTING:
        parts = [part for rank, block in before if rank <= most for part in block]
        parts += [TextTable(table[:rows]), *(part for rank, block in after if rank <= most for part in block)]
        # In colours tables are wider and higher.
        if as_text(parts, width=COLUMNS, colour=True).count("\n") < LINES:
            break
    return parts


def show_stages(settings: Settings, stages: Sequence[str]) -> Answer:
    """What stages show of their last results, one after the other.

    Raises:
        InputError: there is no such stage. MissingStageError: a stage has no current result.
    """
    run, parts, data = open_run(settings), list[Part](), dict[str, dict[str, Any]]()
    for name in stages:
        stage = GRAPH[one_of("stage", name, GRAPH)]
        receipt = run.receipt(name)
        data[name] = dict(receipt.figures)
        parts += ["", Line(f"{name}: {stage.description}", "strong")]
        for key, value in receipt.figures.items():
            if isinstance(value, (str, int, float)) and value != "":
                shown_value = value if isinstance(value, (str, bool)) else number(value, 4)
                parts.append(f"  {key.replace('_', ' ')}: {shown_value}")
        for title, shown in stage.show(run, receipt).items():
            label = title.replace("_", " ")
            match shown:
                case Table(rows):
                    more = f" (the first {ROWS} of {len(rows):,}; --json has all)" if len(rows) > ROWS else ""
                    parts += ["", TextTable(cells(rows[:ROWS], CELL), label + more)]
                    data[name][title] = rows
                case Text(markdown):
                    parts += ["", *markdown.replace("**", "").splitlines()]
                case Chart(what=what):
                    parts += ["", what]
                case Picture(path, _) | Link(path):
                    parts.append(f"  {label}: {path}")
                    data[name][title] = str(path)
                case figure:
                    parts.append(f"  {label}: {number(figure, 4)}")
                    data[name][title] = figure
    return Answer(parts[1:], data)


def count_records(figures: Figures) -> dict[str, Any]:
    """The records of the last run. `read` is the sum of `rejected_records`, `trained_records` (in a sequence) and all
    of `left_out`, a count by reason; `records` were accepted, `documents` are their distinct texts."""
    raw_docs, tokens = figures["raw_docs"], figures["token_counts"]
    trained, left_out = (
        figures["packed_sequences"]["records"],
        dict(figures.get("repeats", {}).get("left_out", {})),
    )
    # Such as texts without a token, or too long ones that packing.too_long drops.
    left_out["in no sequence"] = raw_docs["records"] - trained - sum(left_out.values())
    return {
        "read": raw_docs["records"] + raw_docs["rejected_records"],
        **{name: raw_docs[name] for name in ("records", "rejected_records", "partial_lines")},
        "documents": raw_docs["texts"],
        "trained_records": trained,
        "left_out": left_out,
        **{name: tokens[name] for name in ("tokens", "trained_tokens") if name in tokens},
    }


def _figures_of_the_last_run(run: Run) -> Figures:
    """Figures by stage, with evidence if it is up to date.

    Raises:
        MissingStageError: a needed stage has none.
    """
    settings, recorded = run.settings, load_state(run.store).receipts
    needed = [stage for stage in GRAPH.needed(settings, OUTPUT) if GRAPH[stage].asset]
    figures = {
        stage: recorded[stage].figures
        for stage in GRAPH.upstream(settings, among=recorded)
        if stage in recorded and (stage in needed or run.is_current(stage))
    }
    if missing := [stage for stage in needed if stage not in figures]:
        # Behind the first stage without a result there is none.
        raise MissingStageError(
            f"{missing[0]} never ran on {settings.store.path}, so there is nothing to sum up; run `divorder run`"
        )
    return figures


def _for_the_trainer(run: Run, exports: Sequence[Mapping[str, Any]], output: Mapping[str, Any]) -> Blocks:
    """What to give to a trainer, the configuration of the one that is set, other exports and the curated file."""
    settings, folder = run.settings, run.settings.output.path
    trainer = settings.exports.trainer

    def give(place: Place, size: int) -> tuple[int, Sequence[Part]]:
        what = f"What {trainer} reads" if trainer else "For its lines set exports.trainer, or"
        head = f"Give your trainer {_here(place)} ({byte_size(size)}), unshuffled."
        verify = f"  divorder verify {shlex.quote(_here(place))}{'' if trainer else ' --trainer NAME'}"
        if place != folder and isinstance(place, Path) and not place.is_dir():
            return 0, [Line(head, "strong"), "  it is no longer there: run again to write it"]
        return 0, [Line(f"{head} {what}:", "strong"), verify]

    of_records = lines_of_trainer(run, folder, None)
    if "pairs" in settings.forms:
        size = sum(entry["bytes"] for name, entry in output["files"].items() if RECORDS.fullmatch(name))
        return [give(folder, size), (1, of_records)]
    contents = "Whole documents" if settings.packing.packs else "Records"
    file = _here(f"{folder}/{next(iter(output['files']))}")
    others = [f"{contents} in the order of training, for tools that do not pack: {file}"]
    if exports[1:]:
        folders = ", ".join(_here(export["folder"]) for export in exports[1:])
        others.insert(0, f"The same for other trainers: {folders}")
    if not exports:
        no_export = 'No export is set: set exports.formats, such as ["parquet"], and run again.'
        return [(0, [Line(no_export, "strong")]), (1, of_records), (4, others)]
    place = as_place(exports[0]["folder"])
    gone = isinstance(place, Path) and not place.is_dir()
    lines = [] if gone else [*lines_of_trainer(run, place, exports[0]["format"]), *of_records]
    return [give(place, exports[0]["bytes"]), (1, lines), (4, others)]


def _here(place: str | Place) -> str:
    """A path below the working directory relative to it, any other place as it is."""
    return os.path.relpath(place) if Path(place).is_relative_to(Path.cwd()) else str(place)


def _corpus_lines(settings: Settings, corpus: Mapping[str, Any], figures: Figures) -> list[str]:
    """How the records add up, and what sequences hold."""
    terms = {
        "trained": corpus["trained_records"],
        **corpus["left_out"],
        "rejected": corpus["rejected_records"],
    }
    numbers = [f"{number:,} {name}" for name, number in terms.items() if number or name == "trained"]
    partial, packed = corpus["partial_lines"], figures["packed_sequences"]
    trained = f" ({packed['trained_tokens']:,} trained on)" if "trained_tokens" in packed else ""
    repeats, again = figures.get("repeats", {"most_repeats": 1}), []
    if (most := repeats["most_repeats"]) > 1:
        again = [f"an epoch reads them {repeats['items']:,} times, none over {most:,} times"]
    return [
        f"{corpus['read']:,} read = {' + '.join(numbers)}; {corpus['documents']:,} different texts",
        *([f"{count(partial, 'line')} more cut short at the end of a file"] if partial else []),
        *again,
        f"{packed['tokens']:,} tokens{trained} in {count(packed['sequences'], 'sequence')} of "
        f"{settings.sequence.length:,}, batches of {settings.sequence.batch:,}",
    ]
