"""Strategies side by side on one corpus, at both scales: documents ordered by one, their packed sequences by another.

Letters: N documents, S sequences, L tokens a sequence.

Documents are ordered and packed by `concat`, then the sequences are ordered; a partial last sequence stays last. If
records are not packed, each is a sequence, and windows are whole sequences. Every pair of a document strategy and a
sequence strategy is measured against the corpus's mix, without frozen items.
`diversity.flush` counts documents in their order, as a flushing packer would, so it does not depend on the sequence
strategy.
Cost: each document strategy once, each pair one order of sequences and its measures; one order at a time in memory.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dagster_divorder.core.measure import Diversity, measure_packed
from dagster_divorder.core.measure.distinct import distinct_clusters, summarize
from dagster_divorder.core.measure.packed import RunCounter
from dagster_divorder.core.measure.sequence_features import SequenceRuns, sequence_features
from dagster_divorder.core.measure.stationarity import Feature, Stationarity, sampled_places, stationarity
from dagster_divorder.core.order import order
from dagster_divorder.core.order.items import Items, document_items
from dagster_divorder.core.order.strategies import STRATEGIES
from dagster_divorder.core.packing import PackedSequences, Pieces, pack, sequence_counts, with_all_tokens
from dagster_divorder.core.packing.coordinates import with_coordinates

Result = TypeVar("Result")

LOOKED_AT = 1 << 13
"""Most sequences that the drift test uses, in whole batches."""

WARM_UP = 64
"""Items that a strategy orders before it is timed, to exclude compilation."""


@dataclass(frozen=True)
class Cost:
    """seconds: wall time. peak_bytes: additional memory at the peak; None if unknown."""

    seconds: float
    peak_bytes: int | None = None


class Meter(Protocol):
    """Calls a function and returns its result and cost."""

    def __call__(self, function: Callable[[], Result], /) -> tuple[Result, Cost]: ...


def timed(function: Callable[[], Result]) -> tuple[Result, Cost]:
    """A meter that measures only time."""
    begin = time.perf_counter()
    result = function()
    return result, Cost(time.perf_counter() - begin)


@dataclass(frozen=True, eq=False)
class ComparedPair:
    """One pair of strategies: measures of the ordered sequences, their drift (None if not tested), and the cost of each
    order."""

    documents: str
    sequences: str
    diversity: Diversity
    drift: Stationarity | None
    document_cost: Cost
    sequence_cost: Cost


def compare_strategies(
    tokens: ArrayLike,
    traits: Mapping[str, ArrayLike],
    n_values: Mapping[str, int],
    *,
    documents: Sequence[str],
    sequences: Sequence[str],
    sequence_length: int,
    batch: int,
    weights: Mapping[str, float] | None = None,
    packs: bool = True,
    count: RunCounter | None = None,
    seed: int = 0,
    options: Callable[[str], Mapping[str, Any]] = lambda strategy: {},
    vectors: Callable[[PackedSequences], NDArray[np.int64]] | None = None,
    drift: bool = False,
    meter: Meter = timed,
) -> Iterator[ComparedPair]:
    """Yields every pair of `documents` and `sequences` (names of strategies), in that order.

    tokens: int (N,). traits: name -> int codes (N,) in [0, n_values[name]); "cluster" must be one; the first gives
        labels to strategies that need them. weights: name -> number above 0, of the balanced traits; None: all,
        equally.
    packs: whether a sequence may hold several documents.
    count: gives the tokens of each run that shares count, if not all; windows are then whole sequences.
    options: strategy -> its options.
    vectors: from a plan to the vectors of its sequences (`core.packing.coordinates.add_directions`), for strategies
        that use them.
    drift: test for drift, which takes longer than all other measures.
    """
    balanced = {trait: traits[trait] for trait in traits if weights is None or trait in weights}
    arguments = {"seed": seed, "sequence_length": sequence_length, "batch": batch}
    lengths = np.asarray(tokens, np.int64)
    tokens_of = count or (lambda runs: runs.length)
    counted = tokens_of(Pieces(np.arange(len(lengths)), np.zeros_like(lengths), lengths))
    for document_strategy in documents:
        fills = "sequence_length" in STRATEGIES[document_strategy].reads
        items = document_items(lengths if fills else counted, balanced, weights, lengths=lengths)
        laid, document_cost = _order(
            items, document_strategy, {**arguments, **options(document_strategy)}, meter
        )
        packed = pack(
            Pieces(laid, np.zeros_like(laid), lengths[laid]),
            method="concat" if packs else "none",
            sequence_length=sequence_length,
        )
        counts, groups = sequence_counts(packed, balanced, n_values, tokens_of(packed))
        full = len(packed) - int(packs and len(packed) > 0 and packed.padding[-1] > 0)
        flush = summarize(
            distinct_clusters(laid, lengths, traits["cluster"], sequence_length, packer="flush")
        )
        laid_items = Items(counts, groups, np.array([(weights or {}).get(trait, 1.0) for trait in balanced]))
        if (counted < lengths).any():
            laid_items = with_all_tokens(laid_items, packed, balanced, n_values)
        sums = None
        if vectors:
            sums = vectors(packed)
            laid_items = with_coordinates(laid_items, packed, sums)
        rows = laid_items.part(0, full)
        for sequence_strategy in sequences:
            ordered, sequence_cost = _order(
                rows, sequence_strategy, {**arguments, **options(sequence_strategy)}, meter
            )
            whole = np.concatenate([ordered, np.arange(full, len(packed))])
            yield ComparedPair(
                document_strategy,
                sequence_strategy,
                replace(
                    measure_packed(
                        packed,
                        whole,
                        traits,
                        n_values,
                        batch=batch,
                        whole=count is not None or not packs,
                        counted=tokens_of(packed),
                    ),
                    flush=flush,
                ),
                _drift(packed, ordered, traits, lengths, list(balanced), sums, batch, seed, count)
                if drift
                else None,
                document_cost,
                sequence_cost,
            )


def _order(
    items: Items, strategy: str, arguments: Mapping[str, Any], meter: Meter
) -> tuple[NDArray[np.int64], Cost]:
    def run(part: Items) -> NDArray[np.int64]:
        return order(part, strategy=strategy, **arguments)

    run(items.part(0, min(WARM_UP, items.counts.shape[0])))
    return meter(lambda: run(items))


def _drift(
    packed: PackedSequences,
    ordered: NDArray[np.int64],
    traits: Mapping[str, ArrayLike],
    tokens: NDArray[np.int64],
    balanced: list[str],
    vectors: NDArray[np.int64] | None,
    batch: int,
    seed: int,
    count: RunCounter | None,
) -> Stationarity:
    sample = ordered[sampled_places(len(ordered), batch, LOOKED_AT)]
    runs = SequenceRuns.of(packed, sample, tokens, count)
    features = list(sequence_features(runs, traits, tokens, balanced))
    if vectors is not None:
        features.append(Feature("vectors", "vector", vectors[sample]))
    return stationarity(features, len(sample), batch=batch, seed=seed)
