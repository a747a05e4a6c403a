"""Commands that compare orders: `compare` and `prove`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dagster_divorder.cli.verb import Verb, settings_of
from dagster_divorder.errors import InputError
from dagster_divorder.view.answer import Answer, Line, TextTable

if TYPE_CHECKING:
    from dagster_divorder.settings import Settings


def compare(settings: Settings) -> Answer:
    """Make strategy_comparison and its inputs. Shows the pairs of strategies, nearest batches first."""
    from dagster_divorder.stages import GRAPH, open_run, run_all
    from dagster_divorder.stages.evidence.strategy_comparison import DISTINCT, load_comparison
    from dagster_divorder.summary import repeats_lines
    from dagster_divorder.view.measures import TV_OF_CLUSTER, as_shown

    receipts = run_all(settings, stages=GRAPH.needed(settings, "strategy_comparison"))
    figures = {stage: receipt.figures for stage, receipt in receipts.items()}
    rows = load_comparison(open_run(settings))
    shown = ("documents", "sequences", DISTINCT, TV_OF_CLUSTER, "features that drift")
    table = [as_shown({name: row[name] for name in shown}) for row in rows]
    return Answer(
        [
            f"{figures['raw_docs']['documents']:,} documents, {figures['token_counts']['tokens']:,} tokens; packed by "
            f"concat into sequences of {settings.sequence.length:,} tokens, batches of {settings.sequence.batch:,}, "
            f"{figures['clusters']['k']} clusters",
            *repeats_lines(figures),
            "",
            TextTable(table),
            "every measure: divorder summary strategy_comparison",
        ],
        {"comparison": rows},
    )


def prove(settings: Settings) -> Answer:
    """Make training_evidence and its inputs. Shows its verdict and a table.

    Raises:
        InputError: `evidence.tokens` is unset.
    """
    from dagster_divorder.stages import GRAPH, open_run, run_all
    from dagster_divorder.stages.evidence.training_evidence import evidence_tables, load_evidence

    if settings.evidence.tokens is None:
        raise InputError(
            "evidence.tokens is unset, so nothing is trained; set it to the tokens of an epoch, such as 4_000_000, "
            "and heldout.documents to the share for validation, such as 0.01"
        )
    run_all(settings, stages=GRAPH.needed(settings, "training_evidence"))
    summary = load_evidence(open_run(settings))
    first, *verdict = summary["verdict"]
    return Answer(
        [
            *(Line(first, "strong"), *verdict, *summary["notes"], ""),
            TextTable(evidence_tables(summary)["held-out"]),
            "*: differs from the same sequences shuffled beyond noise",
            "",
            "more about the trainings, and every source: divorder summary training_evidence",
        ],
        summary,
    )


VERBS = (
    Verb(
        "compare",
        "measures every pair of strategies in `comparison`",
        "divorder compare",
        "about as long as a run; grows with the pairs",
        lambda options: compare(settings_of(options)),
    ),
    Verb(
        "prove",
        "trains small models in several orders (`evidence`) and shows which differences exceed noise",
        "divorder prove",
        "minutes to hours; shows the time left",
        lambda options: prove(settings_of(options)),
    ),
)
