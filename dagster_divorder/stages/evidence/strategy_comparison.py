"""strategy_comparison: one table of all pairs of strategies, for documents and for sequences, on this corpus.

No other stage reads it. The pairs are DOCUMENTS and `order.strategy` x SEQUENCES and `sequence.strategy`. Documents are
ordered and packed by `concat` (not at all with `packing.method = "none"`), then the sequences are ordered; a partial
last sequence stays last. Orders are compared with the corpus's own mix; targets and frozen tokens are ignored.
Strategies run one after another in this process, with kernels compiled before. Seconds are wall time. Peak memory is
the rise of this process's memory, which already holds the items to order.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from dagster_divorder.core.measure import Feature, Stationarity, stationarity
from dagster_divorder.core.measure.runs import RunCounter
from dagster_divorder.core.measure.sequence_features import SequenceRuns, sequence_features
from dagster_divorder.core.measure.stationarity import sampled_places
from dagster_divorder.core.order import order
from dagster_divorder.core.order.items import Items, document_items
from dagster_divorder.core.order.strategies import STRATEGIES
from dagster_divorder.core.packing import PackedSequences, Pieces, pack, sequence_counts, with_all_tokens
from dagster_divorder.core.packing.coordinates import with_coordinates
from dagster_divorder.pipeline.run import Run
from dagster_divorder.pipeline.stage import Made, Shown, Table, Text, WholeCorpus
from dagster_divorder.settings import Settings
from dagster_divorder.stages.measure.diversity_metrics import Trained
from dagster_divorder.stages.mix.repeats import TrainingStream, load_stream, run_counter, stream_reads
from dagster_divorder.stages.order.sequence_order import vector_sums
from dagster_divorder.stages.topics.components import space_reads
from dagster_divorder.store.state import Receipt
from dagster_divorder.view.measures import SHARE_OF_CLUSTER, TV_OF_CLUSTER, drift_columns, summary_row
from dagster_divorder.view.strategies import conclusions

DOCUMENTS = ("original", "random", "round_robin", "stratified", "bin_packing", "balanced")
SEQUENCES = ("original", "random", "balanced")
"""Strategies that are always compared, for documents and for sequences."""

DEVIATIONS = (TV_OF_CLUSTER, SHARE_OF_CLUSTER, "mean prefix deviation, tokens")
"""Columns that are also in the summary of diversity_metrics."""
LOOKED_AT = 1 << 13
"""Most sequences that the drift test uses, in whole batches."""
WARM_UP = 64
"""Items that a strategy orders before it is timed, to exclude compilation."""


class _Ordered(NamedTuple):
    """An order int64 (M,), and its wall time in seconds."""

    order: np.ndarray
    seconds: float


def load_comparison(run: Run) -> list[dict[str, Any]]:
    """One row per pair of strategies, as in Diversity-Ordered Training: distinct clusters a sequence, deviations, drift
    and cost. Flush: as its script counts. Values are None if the corpus is smaller than a batch."""
    return run.rows("strategy_comparison", "table")


def _compare_strategies(run: Run) -> Made:
    settings, stream = run.settings, load_stream(run)
    documents = dict.fromkeys([*DOCUMENTS, settings.order.strategy])
    sequences = dict.fromkeys([*SEQUENCES, settings.sequence.strategy])
    rows: list[dict[str, Any]] = []
    count, items = run_counter(run, stream.record_of), len(documents) * len(sequences)
    with run.progress("comparing strategies", items, "pairs") as advance:
        for of_documents in documents:
            laid = _order(_documents(settings, stream, of_documents), settings, of_documents)
            packed = _packed(settings, stream, laid.order)
            flush = flush_clusters(stream, laid.order, settings.sequence.length)
            sums = vector_sums(run, packed)
            of_packed = _sequences(settings, stream, packed, count, sums)
            for of_sequences in sequences:
                ordered = _order(of_packed, settings, of_sequences)
                drift = _drift(settings, stream, packed, ordered.order, sums, count)
                last = np.arange(len(ordered.order), len(packed))
                read = np.concatenate([ordered.order, last])[np.newaxis]
                one_stretch = np.zeros(len(packed), np.int64)
                figures = (
                    Trained(packed, read, one_stretch)
                    .measures(stream, count, settings.sequence.batch)
                    .figures
                )
                pair = {"documents": of_documents, "sequences": of_sequences}
                rows.append(pair | _row(figures, flush, drift, laid, ordered))
                advance(1)
    return Made({"table": rows}, figures={"pairs": len(rows)})


def _documents(settings: Settings, stream: TrainingStream, strategy: str) -> Items:
    traits, weights = stream.traits, settings.order.traits
    balanced = {trait: codes for trait, codes in traits.codes.items() if trait in weights}
    fills = "sequence_length" in STRATEGIES[strategy].reads
    return document_items(
        traits.tokens if fills else traits.counted, balanced, weights, lengths=traits.tokens
    )


def _packed(settings: Settings, stream: TrainingStream, laid: np.ndarray) -> PackedSequences:
    return pack(
        Pieces(laid, np.zeros_like(laid), stream.traits.tokens[laid]),
        method="concat" if settings.packing.packs else "none",
        sequence_length=settings.sequence.length,
    )


def _sequences(
    settings: Settings, stream: TrainingStream, packed: PackedSequences, count: RunCounter, sums: np.ndarray
) -> Items:
    """Those to order: a partial last sequence stays last."""
    traits, weights = stream.traits, settings.order.traits
    balanced = {trait: codes for trait, codes in traits.codes.items() if trait in weights}
    counts, groups = sequence_counts(packed, balanced, traits.sizes(), count(packed))
    items = Items(counts, groups, np.array([weights[trait] for trait in balanced]))
    items = with_all_tokens(items, packed, balanced, traits.sizes())
    full = len(packed) - int(settings.packing.packs and len(packed) > 0 and packed.padding[-1] > 0)
    return with_coordinates(items, packed, sums).part(0, full)


def _order(items: Items, settings: Settings, strategy: str) -> _Ordered:
    def ordered(part: Items) -> _Ordered:
        begin = time.perf_counter()
        found = order(
            part,
            strategy=strategy,
            seed=settings.seed,
            sequence_length=settings.sequence.length,
            batch=settings.sequence.batch,
            **settings.strategy_options(strategy),
        )
        return _Ordered(found, time.perf_counter() - begin)

    ordered(items.part(0, min(WARM_UP, items.counts.shape[0])))
    return ordered(items)


def flush_clusters(stream: TrainingStream, laid: np.ndarray, length: int) -> np.ndarray:
    """Distinct clusters of each sequence as the script of Diversity-Ordered Training packs: a document that does not
    fit closes the open sequence, if this holds tokens; one longer than a sequence fills sequences alone, and its rest
    stays open."""
    counts: list[int] = []
    met: set[int] = set()
    filled = 0
    tokens, clusters = stream.traits.tokens[laid], stream.traits.codes["cluster"][laid]
    for size, cluster in zip(tokens.tolist(), clusters.tolist(), strict=True):
        if filled + size <= length:
            filled += size
        else:
            counts += [len(met)] * (filled > 0) + [1] * (size // length)
            filled, met = size % length, set()
            if not filled:
                continue
        met.add(cluster)
    return np.array(counts + [len(met)] * bool(met), np.int64)


def _drift(
    settings: Settings,
    stream: TrainingStream,
    packed: PackedSequences,
    ordered: np.ndarray,
    sums: np.ndarray,
    count: RunCounter,
) -> Stationarity:
    traits, batch = stream.traits, settings.sequence.batch
    sample = ordered[sampled_places(len(ordered), batch, LOOKED_AT)]
    runs = SequenceRuns.of(packed, sample, traits.tokens, count)
    features = [*sequence_features(runs, traits.codes, set(settings.order.traits))]
    features.append(Feature("vectors", "vector", sums[sample]))
    return stationarity(features, len(sample), batch=batch, seed=settings.seed)


def _row(
    figures: Mapping[str, Any], flush: np.ndarray, drift: Stationarity, laid: _Ordered, ordered: _Ordered
) -> dict[str, Any]:
    summary, distinct = summary_row("", figures, ["cluster"]), figures["distinct"]["cluster"]
    return {
        "distinct clusters a sequence": distinct["mean"],
        "fewest": distinct["least"],
        "std": distinct["spread"],
        "distinct clusters, flush": float(flush.mean()) if len(flush) else 0.0,
        "fewest, flush": int(flush.min()) if len(flush) else 0,
        "std, flush": float(flush.std()) if len(flush) else 0.0,
        **{name: summary[name] for name in DEVIATIONS},
        **drift_columns(drift),
        "seconds, documents": laid.seconds,
        "seconds, sequences": ordered.seconds,
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
    version=5,
    description="Which strategy to use. Diversity, deviations, drift, seconds and memory of all pairs of strategies, "
    "for documents and for sequences, on this corpus.",
    reads=lambda settings: ("raw_docs", *space_reads(settings), "traits", *stream_reads(settings)),
    settings=("order", "packing", "sequence", "input", "chats", "seed"),
    compute=_compare_strategies,
    show=_show_strategy_comparison,
)
