"""strategy_comparison: one table of all pairs of strategies, for documents and for sequences, on this corpus.

No other stage reads it. The pairs are DOCUMENTS and `order.strategy` x SEQUENCES
and `sequence.strategy`. Records are packed by `concat`
(not at all with `packing.method = "none"`). Orders are compared with the corpus's own mix; targets and frozen tokens
are ignored. Strategies run one after another in this process, with kernels compiled before. Seconds are wall time. Peak
memory is the rise of this process's memory, which already holds the items to order.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

from dagster_divorder.core.evidence.strategy_comparison import ComparedPair, Cost, compare_strategies, timed
from dagster_divorder.core.measure.tables import drift_columns
from dagster_divorder.engine.memory import with_peak_memory
from dagster_divorder.pipeline.run import Run
from dagster_divorder.pipeline.stage import Made, Shown, Table, Text, WholeCorpus
from dagster_divorder.stages.mix.repeats import load_stream, run_counter, stream_reads
from dagster_divorder.stages.order.sequence_order import vector_sums
from dagster_divorder.stages.topics.components import space_reads
from dagster_divorder.store.state import Receipt
from dagster_divorder.view.measures import SHARE_OF_CLUSTER, TV_OF_CLUSTER, summary_row
from dagster_divorder.view.strategies import conclusions

Result = TypeVar("Result")

DOCUMENTS = ("original", "random", "round_robin", "stratified", "bin_packing", "balanced")
SEQUENCES = ("original", "random", "balanced")
"""Strategies that are always compared, for documents and for sequences."""

DEVIATIONS = (TV_OF_CLUSTER, SHARE_OF_CLUSTER, "mean prefix deviation, tokens")
"""Columns that are also in the summary of diversity_metrics."""


def load_comparison(run: Run) -> list[dict[str, Any]]:
    """One row per pair of strategies; see `row`."""
    return run.rows("strategy_comparison", "table")


def _compare_strategies(run: Run) -> Made:
    settings, stream = run.settings, load_stream(run)
    traits = stream.traits
    documents = dict.fromkeys([*DOCUMENTS, settings.order.strategy])
    sequences = dict.fromkeys([*SEQUENCES, settings.sequence.strategy])
    pairs = len(documents) * len(sequences)
    rows = []
    with run.progress("comparing strategies", pairs, "pairs") as advance:
        for outcome in compare_strategies(
            traits.tokens,
            traits.codes,
            traits.sizes(),
            documents=tuple(documents),
            sequences=tuple(sequences),
            sequence_length=settings.sequence.length,
            batch=settings.sequence.batch,
            weights=settings.order.traits,
            packs=settings.packing.packs,
            count=run_counter(run, stream.record_of) if settings.masked else None,
            seed=settings.seed,
            options=settings.strategy_options,
            vectors=partial(vector_sums, run),
            drift=True,
            meter=_metered,
        ):
            rows.append(row(outcome))
            advance(1)
    return Made({"table": rows}, figures={"pairs": pairs})


def _metered(function: Callable[[], Result]) -> tuple[Result, Cost]:
    (result, cost), peak = with_peak_memory(lambda: timed(function))
    return result, Cost(cost.seconds, peak)


def row(outcome: ComparedPair) -> dict[str, Any]:
    """One row of the table, as in Diversity-Ordered Training: distinct clusters a sequence, deviations, cost. Flush: as
    Diversity-Ordered Training counts; a document that does not fit starts a new sequence. Values are None if the corpus
    is smaller than a batch."""
    diversity = outcome.diversity
    summary = summary_row("", diversity, ["cluster"])
    peaks = [cost.peak_bytes for cost in (outcome.document_cost, outcome.sequence_cost)]
    return {
        "documents": outcome.documents,
        "sequences": outcome.sequences,
        "distinct clusters a sequence": diversity.split.mean,
        "fewest": int(diversity.split.min),
        "std": diversity.split.std,
        "distinct clusters, flush": diversity.flush.mean,
        "fewest, flush": int(diversity.flush.min),
        "std, flush": diversity.flush.std,
        **{name: summary[name] for name in DEVIATIONS},
        **drift_columns(outcome.drift),
        "seconds, documents": outcome.document_cost.seconds,
        "seconds, sequences": outcome.sequence_cost.seconds,
        "peak memory, MB": None if None in peaks else max(peak for peak in peaks if peak is not None) / 1e6,
    }


def _show_strategy_comparison(run: Run, receipt: Receipt) -> Shown:
    """Conclusions, and the comparison as two tables that each fit a page: diversity and deviations; drift and cost."""
    rows, pair = load_comparison(run), ("documents", "sequences")
    last = [*rows[0]].index(DEVIATIONS[-1]) + 1 if rows else 0
    rest = [{name: row[name] for name in (*pair, *[*row][last:])} for row in rows]
    return {
        "conclusions": Text("\n\n".join(conclusions(rows))),
        "comparison": Table([dict([*row.items()][:last]) for row in rows]),
        "drift_and_cost": Table(rest),
    }


STRATEGY_COMPARISON = WholeCorpus(
    name="strategy_comparison",
    version=4,
    description="Which strategy to use. Diversity, deviations, drift, seconds and memory of all pairs of strategies, "
    "for documents and for sequences, on this corpus.",
    reads=lambda settings: ("raw_docs", *space_reads(settings), "traits", *stream_reads(settings)),
    settings=("order", "packing", "sequence", "input", "chats", "seed"),
    compute=_compare_strategies,
    show=_show_strategy_comparison,
)
