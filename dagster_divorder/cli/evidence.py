"""Commands that compare orders: compare, prove."""

from __future__ import annotations

import argparse
import csv
import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from dagster_divorder.cli.runs import epoch_lines
from dagster_divorder.cli.verb import Verb, settings_of
from dagster_divorder.errors import InputError, SettingsError
from dagster_divorder.settings import Settings
from dagster_divorder.view.answer import Answer, Line, Part, TextTable


def compare(settings: Settings, *, details: bool, only_csv: bool, plot: Path | None) -> Answer:
    """Make strategy_comparison and its inputs; its conclusions, and a table of the pairs of strategies.

    details: every measure of each pair. only_csv: only these, as CSV. plot: PNG file for a picture of the trade-off.
    """
    from dagster_divorder.stages import GRAPH, open_run, run_all
    from dagster_divorder.stages.evidence.strategy_comparison import load_comparison
    from dagster_divorder.store.local import write_atomically
    from dagster_divorder.view.measures import as_shown
    from dagster_divorder.view.strategies import by_batches, conclusions, draw, four_columns

    receipts = run_all(settings, stages=GRAPH.needed(settings, "strategy_comparison"))
    rows = by_batches(load_comparison(open_run(settings)))
    sentences = conclusions(rows)
    data, ran = {"conclusions": sentences, "comparison": rows}, (settings, receipts)
    if only_csv:
        return Answer([_as_csv(rows)], data, ran=ran)
    if plot:
        write_atomically(plot, draw(rows))
    table = [as_shown(row) for row in rows] if details else four_columns(rows)
    return Answer(
        [
            *(Line(sentence, "strong") for sentence in sentences),
            "",
            f"{receipts['raw_docs'].figures['documents']:,} documents, {receipts['token_counts'].figures['tokens']:,} "
            f"tokens; packed by concat into sequences of {settings.sequence.length:,} tokens, batches of "
            f"{settings.sequence.batch:,}, {receipts['clusters'].figures['k']} clusters",
            *epoch_lines(receipts["repeats"].figures if "repeats" in receipts else None, settings),
            "",
            TextTable(table),
            *(
                [f"picture: {plot}"]
                if plot
                else ["every measure: --details or --csv; a picture: --plot FILE.png"]
            ),
        ],
        data,
        ran=ran,
    )


LINES = """[curriculum]
score = "quality"    # a numeric field of the input, difficulty, length, ...; strength = 0 leaves the plan as it is"""


def compare_curricula(settings: Settings, *, details: bool, only_csv: bool, plot: Path | None) -> Answer:
    """Make curriculum_comparison and its inputs; its conclusions, and a table of the shapes. Options as of `compare`.

    Raises:
        SettingsError: `curriculum.score` is unset.
    """
    from dagster_divorder.stages import GRAPH, open_run, run_all
    from dagster_divorder.stages.evidence.curriculum_comparison import load_curricula
    from dagster_divorder.store.local import write_atomically
    from dagster_divorder.view.curricula import conclusions, draw, in_short, meanings
    from dagster_divorder.view.measures import as_shown
    from dagster_divorder.view.words import count

    if settings.curriculum.score is None:
        raise SettingsError(
            f"`compare --curricula` needs a score to follow; put these lines into the settings file:\n\n{LINES}"
        )
    receipts = run_all(settings, stages=GRAPH.needed(settings, "curriculum_comparison"))
    rows, scores = load_curricula(open_run(settings)), receipts["scores"].figures
    sentences = conclusions(rows)
    data, ran = {"conclusions": sentences, "comparison": rows}, (settings, receipts)
    if only_csv:
        return Answer([_as_csv(rows)], data, ran=ran)
    if plot:
        write_atomically(plot, draw(rows))
    sequences, missing = receipts["packed_sequences"].facts["sequences"], scores["missing"]
    table = [as_shown(row) for row in rows] if details else in_short(rows)
    return Answer(
        [
            *(Line(sentence, "strong") for sentence in sentences),
            "",
            f"{count(sequences, 'sequence')} of {settings.sequence.length:,} tokens, batches of "
            f"{settings.sequence.batch:,}, along {settings.curriculum.score}"
            + (
                f"; {missing:,} of {scores['records']:,} records have none, and are spread evenly"
                if missing
                else ""
            ),
            *_mixed_sequences(settings),
            "",
            TextTable(table),
            *([f"picture: {plot}"] if plot else ["all digits: --csv or --json; a picture: --plot FILE.png"]),
            *(Line(f"  {line}", "quiet") for line in meanings()),
        ],
        data,
        ran=ran,
    )


def _mixed_sequences(settings: Settings) -> list[str]:
    """What it means for a comparison that sequences hold documents of unlike scores."""
    if settings.curriculum.strength == 1.0 or not settings.packing.packs:
        return []
    return [
        f"The plan's sequences are packed at curriculum.strength = {settings.curriculum.strength:g}, from documents of "
        "unlike scores, so that no shape can follow its schedule closely; at 1 documents of near scores share one."
    ]


def prove(settings: Settings, *, details: bool) -> Answer:
    """Make training_evidence and its inputs; its verdict and a table. details: every figure, order and source.

    Raises:
        InputError: `evidence.tokens` is unset.
    """
    from dagster_divorder.stages import GRAPH, open_run, run_all
    from dagster_divorder.stages.evidence.training_evidence import load_evidence
    from dagster_divorder.view.evidence import order_rows, rate_rows, schedule_rows, source_rows

    if settings.evidence.tokens is None:
        raise InputError(
            "evidence.tokens is unset, so that nothing is trained; set it to the tokens of an epoch, such as "
            "4_000_000, and heldout.documents to what is validated on, such as 0.01"
        )
    receipts = run_all(settings, stages=GRAPH.needed(settings, "training_evidence"))
    summary = load_evidence(open_run(settings))
    rows = order_rows(summary)
    first, *verdict = summary["verdict"]
    columns = ("order", "held-out loss", "less shuffled")
    in_short = TextTable([{name: row[name] for name in columns} for row in rows])
    parts: list[Part] = [Line(first, "strong"), *verdict, *summary["notes"], "", in_short]
    if not details:
        parts += ["", "what happened on the way, and every source: --details"]
    else:
        # Orders are columns here, since the figures do not fit into a line.
        by_figure = [
            {"figure": name, **{row["order"]: row[name] for row in rows}}
            for name in rows[0]
            if name not in columns
        ]
        parts += ["", TextTable(by_figure), "", TextTable(source_rows(summary))]
        parts += ["", "*: differs from the same sequences shuffled beyond noise"]
        parts += ["", TextTable(schedule_rows(summary))]
        if rates := rate_rows(summary):
            parts += ["", TextTable(rates)]
    return Answer(parts, summary, ran=(settings, receipts))


def _as_csv(rows: Sequence[Mapping[str, Any]]) -> str:
    text = io.StringIO()
    table = csv.DictWriter(text, list(rows[0]), lineterminator="\n")
    table.writeheader()
    table.writerows(rows)
    return text.getvalue().rstrip("\n")


def _add_compare(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--curricula",
        action="store_true",
        help="every shape of schedules of `curriculum.score`, in place of pairs",
    )
    parser.add_argument("--details", action="store_true", help="every measure of each pair")
    parser.add_argument("--csv", action="store_true", help="only these, as CSV")
    parser.add_argument("--plot", type=Path, metavar="FILE", help="write a PNG file of the trade-off")


def _add_details(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--details", action="store_true", help="also every figure of each order, and every source"
    )


VERBS = (
    Verb(
        "compare",
        "runs and measures every pair of the strategies in `comparison`",
        "divorder compare",
        "about as long as a run; more pairs, longer",
        lambda options: (compare_curricula if options.curricula else compare)(
            settings_of(options), details=options.details, only_csv=options.csv, plot=options.plot
        ),
        _add_compare,
        runs=True,
    ),
    Verb(
        "prove",
        "trains small models in several orders (`evidence`), and says which differences are beyond noise",
        "divorder prove",
        "minutes to hours; says how long before it starts",
        lambda options: prove(settings_of(options), details=options.details),
        _add_details,
        runs=True,
    ),
)
