"""Commands that compare orders: compare, prove."""

from __future__ import annotations

from dagster_divorder.cli.runs import epoch_lines
from dagster_divorder.cli.verb import Verb, settings_of
from dagster_divorder.errors import InputError
from dagster_divorder.settings import Settings
from dagster_divorder.view.answer import Answer, Part, TextTable


def compare(settings: Settings) -> Answer:
    """Make strategy_comparison and what it needs; its table, a pair of strategies a line."""
    from dagster_divorder.pipeline import Run, run_all
    from dagster_divorder.stages import GRAPH
    from dagster_divorder.stages.strategy_comparison import load_comparison
    from dagster_divorder.store.connect import store_of
    from dagster_divorder.view.measures import as_shown

    receipts = run_all(settings, stages=GRAPH.needed(settings, "strategy_comparison"))
    rows = load_comparison(Run(settings, store_of(settings.store)))
    return Answer(
        [
            f"{receipts['raw_docs'].figures['documents']:,} documents, {receipts['token_counts'].figures['tokens']:,} "
            f"tokens; packed by concat into sequences of {settings.sequence.length:,} tokens, batches of "
            f"{settings.sequence.batch:,}, {receipts['clusters'].figures['k']} clusters",
            *epoch_lines(receipts["repeats"].figures if "repeats" in receipts else None),
            "",
            TextTable([as_shown(row) for row in rows]),
        ],
        {"comparison": rows},
    )


def prove(settings: Settings) -> Answer:
    """Make training_evidence and what it needs; its verdict and tables.

    Raises:
        InputError: `evidence.tokens` is unset.
    """
    from dagster_divorder.pipeline import Run, run_all
    from dagster_divorder.stages import GRAPH
    from dagster_divorder.stages.training_evidence import load_evidence
    from dagster_divorder.store.connect import store_of
    from dagster_divorder.view.evidence import order_rows, rate_rows, source_rows

    if settings.evidence.tokens is None:
        raise InputError(
            "evidence.tokens is unset, so that nothing is trained; set it to the tokens of an epoch, such as "
            "4_000_000, and heldout.share to what is validated on, such as 0.01"
        )
    run_all(settings, stages=GRAPH.needed(settings, "training_evidence"))
    summary = load_evidence(Run(settings, store_of(settings.store)))
    rates = rate_rows(summary)
    by_rate: list[Part] = ["", TextTable(rates)] if rates else []
    return Answer(
        [
            *summary["verdict"],
            *summary["notes"],
            "",
            TextTable(order_rows(summary)),
            "",
            TextTable(source_rows(summary)),
            "",
            "*: differs from the same sequences shuffled beyond noise",
            *by_rate,
        ],
        summary,
    )


VERBS = (
    Verb(
        "compare",
        "runs every pair of the strategies in `comparison`, and measures each",
        "divorder compare",
        "about as long as a run; more pairs, longer",
        lambda options: compare(settings_of(options)),
    ),
    Verb(
        "prove",
        "trains small models in several orders (`evidence`), and says which differences are beyond noise",
        "divorder prove",
        "minutes to hours; says how long before it starts",
        lambda options: prove(settings_of(options)),
    ),
)
