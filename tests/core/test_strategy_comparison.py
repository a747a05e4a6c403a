"""Strategies compared at both scales: pairs, their measures, and what they cost."""

import numpy as np
import pytest

from dagster_divorder.core.evidence.strategy_comparison import Cost, compare_strategies
from dagster_divorder.core.order import order
from dagster_divorder.core.order.items import document_items
from tests.twins import metrics as slow_metrics

RNG = np.random.default_rng(0)
TOKENS = RNG.integers(0, 60, 400)
TRAITS = {
    "cluster": np.sort(RNG.integers(0, 6, 400)).astype(np.int32),
    "length": (TOKENS // 20).astype(np.int32),
}
SIZES = {"cluster": 6, "length": 3}


def compared(documents=("original", "balanced"), sequences=("original", "random"), **options):
    return list(
        compare_strategies(
            TOKENS,
            TRAITS,
            SIZES,
            documents=documents,
            sequences=sequences,
            sequence_length=50,
            batch=4,
            **options,
        )
    )


def test_every_pair_in_order():
    found = compared()
    assert [(one.documents, one.sequences) for one in found] == [
        ("original", "original"),
        ("original", "random"),
        ("balanced", "original"),
        ("balanced", "random"),
    ]
    assert {one.diversity.tokens for one in found} == {int(TOKENS.sum())}
    assert all(one.document_cost.seconds >= 0 and one.sequence_cost.peak_bytes is None for one in found)


def test_the_order_of_sequences_changes_batches_and_not_sequences():
    as_packed, shuffled, *_ = compared()
    assert as_packed.diversity.split == shuffled.diversity.split
    assert (
        shuffled.diversity.batch_shares["cluster"].mean_tv
        < as_packed.diversity.batch_shares["cluster"].mean_tv * 0.7
    )


def test_flush_counts_the_documents_in_their_order_as_the_first_seed_does():
    found = compared(("original", "round_robin", "bin_packing"), ("original", "balanced"))
    labels = TRAITS["cluster"]
    for one in found:
        order = order_of(TOKENS, labels, one.documents)
        counts = slow_metrics.distinct_flush(TOKENS[order], labels[order], 50)
        flush = one.diversity.flush
        assert (flush.count, flush.mean) == (len(counts), pytest.approx(np.mean(counts)))
        assert (flush.min, flush.std) == (min(counts), pytest.approx(np.std(counts)))


def order_of(tokens, labels, strategy):
    items = document_items(tokens, {"cluster": labels, "length": TRAITS["length"]})
    return order(items, strategy=strategy, sequence_length=50)


def test_traits_without_a_weight_are_measured_and_not_balanced():
    (both,) = compared(("balanced",), ("balanced",))
    (one,) = compared(("balanced",), ("balanced",), weights={"cluster": 1.0})
    assert set(one.diversity.batch_shares) == {"cluster", "length"}
    assert one.diversity.prefix.mean > both.diversity.prefix.mean


def test_the_same_seed_gives_the_same_figures():
    one, two = compared(("random",), ("random",), seed=3)[0], compared(("random",), ("random",), seed=3)[0]
    assert one.diversity.to_dict() == two.diversity.to_dict()
    other = compared(("random",), ("random",), seed=4)[0]
    assert other.diversity.prefix.mean != one.diversity.prefix.mean


def test_the_meter_sees_each_strategy_once():
    calls = []

    def meter(function):
        result = function()
        calls.append(len(result))
        return result, Cost(1.5, 7)

    found = compared(meter=meter)
    sequences = -(-int(TOKENS.sum()) // 50)
    assert calls == [400, sequences - 1, sequences - 1] * 2
    assert {(one.document_cost, one.sequence_cost) for one in found} == {(Cost(1.5, 7), Cost(1.5, 7))}


@pytest.mark.parametrize(
    "tokens", [[], [0, 0], [5], [3, 0, 4]], ids=["none", "no token", "one", "less than one"]
)
def test_a_corpus_without_a_full_sequence(tokens):
    n = len(tokens)
    (found,) = compare_strategies(
        np.array(tokens, np.int64),
        {"cluster": np.zeros(n, np.int32)},
        {"cluster": 1},
        documents=("balanced",),
        sequences=("balanced",),
        sequence_length=50,
        batch=4,
    )
    assert found.diversity.tokens == sum(tokens)
