"""Measures of an order, and what lies where along it: by hand, against every single token, and inputs at the edges."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dagster_divorder.core.measure import (
    Measures,
    average,
    cluster_mix,
    compare_errors,
    error_curves,
    measure,
    packed_counts,
)
from dagster_divorder.core.measure.along import SAMPLED, binned, quantiles_along
from dagster_divorder.core.measure.windows import Counts, off_schedule, shuffled_inside
from dagster_divorder.core.order.schedule import SHAPES
from dagster_divorder.core.packing import Pieces, pack
from tests.conftest import examples
from tests.twins import metrics as twin

laws = settings(max_examples=examples(40), deadline=None)

runs = st.lists(st.tuples(st.integers(0, 4), st.integers(0, 2)), max_size=4)
"""(counted tokens, value) of each run of a sequence."""


def counts_of(sequences: list[list[tuple[int, int]]], n_values: int) -> Counts:
    flat = [run for sequence in sequences for run in sequence]
    indptr = np.cumsum([0, *(len(sequence) for sequence in sequences)])
    tokens, codes = (np.array([run[column] for run in flat], np.int64) for column in (0, 1))
    return Counts.of(indptr, codes, tokens, n_values)


def documents(
    order: np.ndarray, tokens: np.ndarray, codes: np.ndarray, *, length: int, batch: int
) -> Measures:
    """Of documents in an order, packed by `concat`."""
    packed = pack(Pieces(order, np.zeros_like(order), tokens[order]), sequence_length=length)
    counts = packed_counts(packed, {"cluster": codes}, {"cluster": int(codes.max(initial=0)) + 1})
    return measure(counts, np.arange(len(packed)), batch=batch, sequence_length=length)


@laws
@given(st.lists(runs, min_size=1, max_size=12), st.integers(1, 3), st.integers(1, 4), st.data())
def test_every_measure_equals_its_twin(sequences, epochs, batch, data):
    """Of sequences with any numbers of counted tokens, in one stretch or more, over epochs."""
    many = len(sequences)
    stretch = np.sort(data.draw(st.lists(st.integers(0, 2), min_size=many, max_size=many)))
    random = np.random.default_rng(many)
    orders = np.stack([shuffled_inside(stretch, random) for _ in range(epochs)])
    measured = measure({"trait": counts_of(sequences, 3)}, orders, batch=batch, stretch=stretch)
    found, errors = measured.figures, measured.errors["trait"]

    tokens = [
        np.concatenate([np.full(n, value, np.int64) for n, value in sequence] or [np.zeros(0, np.int64)])
        for sequence in sequences
    ]
    gaps = twin.token_gaps(tokens, stretch.tolist(), 3)

    def off(places: list[int]) -> np.ndarray:
        """By how many tokens of each value the sequences at these places are off, over all epochs and one more."""
        return sum((gaps[of].sum(axis=0) for of in np.tile(orders.ravel(), 2)[places]), np.zeros(3))

    def share_error(places: list[int]) -> float:
        size = sum(len(tokens[of]) for of in np.tile(orders.ravel(), 2)[places])
        return float(np.abs(off(places)).max() / max(size, 1))

    every = range(epochs * many)
    for window, size in (("sequence", 1), ("batch", batch), ("10 batches", 10 * batch)):
        told = found["windows"][window]["trait"]
        expected = [share_error([*range(at, at + size)]) for at in every if at + size <= len(every)]
        expected = expected if len(every) > size else [0.0]
        assert told == pytest.approx({"mean": np.mean(expected), "worst": max(expected)}, abs=1e-9)
    if many > batch:
        across = [
            share_error([*range(end - before, end - before + batch)])
            for end in range(many, len(every) + 1, many)
            for before in range(batch + 1)
        ]
        assert found["seam"]["trait"] == pytest.approx(
            {"mean": np.mean(across), "worst": max(across)}, abs=1e-9
        )
    full = [[*range(at, at + batch)] for at in range(0, many // batch * batch, batch)]
    sizes = [max(1, sum(len(tokens[of]) for of in orders[0][places])) for places in full]
    variation = [np.abs(off(places)).sum() / 2 / size for places, size in zip(full, sizes, strict=True)]
    expected = {"mean": np.mean(variation or 0.0), "worst": max(variation, default=0.0)}
    assert found["batch_tv"]["trait"] == pytest.approx(expected, abs=1e-9)
    assert errors.batch[0] == pytest.approx([np.linalg.norm(off(places)) for places in full], abs=1e-4)
    reached = [np.linalg.norm(off([*range(at + 1)])) for at in range(many)]
    assert errors.cumulative[0] == pytest.approx(reached, abs=1e-4)
    assert found["prefix"]["worst"] == pytest.approx(max(reached), abs=1e-6)
    values = [len({value for _, value in sequences[of]}) for of in orders[0]]
    assert found["distinct"]["trait"] == pytest.approx(
        {"mean": np.mean(values), "least": min(values), "spread": np.std(values)}
    )
    assert (found["tokens"], found["batches"]) == (sum(map(len, tokens)), many // batch)
    assert orjson.loads(orjson.dumps(found)) == found


def test_trillions_of_tokens_are_counted_exactly():
    """Whole numbers above 2**53 are no floats."""
    factor = 10**12
    tokens, codes = factor * np.array([4, 4, 8, 16]) + np.array([0, 0, 0, 1]), np.array([0, 1, 0, 1])
    counts = Counts.of(np.arange(5), codes, tokens, 2)
    found = measure({"trait": counts}, np.arange(4), batch=2).figures
    assert found["tokens"] == 32 * factor + 1
    assert found["batch_tv"]["trait"]["worst"] == pytest.approx(0.125, abs=0.02)
    assert found["prefix"]["l2"][-1] <= 1e-9 * factor


@pytest.mark.parametrize("sequences", [0, 1, 3])
def test_nothing_to_measure_gives_zeros(sequences):
    """Without tokens, or without a batch."""
    counts = Counts.of(np.arange(sequences + 1), np.zeros(sequences, int), np.zeros(sequences, int), 1)
    found = measure({"trait": counts}, np.arange(sequences), batch=4).figures
    nothing = {"mean": 0.0, "worst": 0.0}
    assert found["batch_tv"]["trait"] == found["seam"]["trait"] == nothing
    assert all(by_trait["trait"] == nothing for by_trait in found["windows"].values())
    assert (found["tokens"], found["batches"], found["prefix"]["mean"]) == (0, 0, 0.0)


def test_an_order_of_a_part_is_measured_against_that_part():
    counts = Counts.of(np.arange(5), np.array([0, 1, 0, 2]), np.array([5, 5, 5, 90]), 3)
    found = measure({"trait": counts}, np.array([0, 1, 1, 0]), batch=2).figures
    assert found["batch_tv"]["trait"]["worst"] == 0.0
    assert found["tokens"] == 20


def test_average_is_the_mean_of_every_figure_and_keeps_all_errors():
    random = np.random.default_rng(0)
    tokens, codes = random.integers(1, 40, 300), random.integers(0, 5, 300)
    one, two = (documents(random.permutation(300), tokens, codes, length=30, batch=4) for _ in range(2))
    mean = average([one, two])
    for name in ("mean", "worst"):
        both = [of.figures["batch_tv"]["cluster"][name] for of in (one, two)]
        assert mean.figures["batch_tv"]["cluster"][name] == pytest.approx(np.mean(both))
    assert mean.figures["sequences"] == one.figures["sequences"]
    assert mean.figures["prefix"]["l2"] == pytest.approx(
        np.mean([of.figures["prefix"]["l2"] for of in (one, two)], axis=0)
    )
    assert len(mean.errors["cluster"].cumulative) == 2
    assert average([one, one]).figures == one.figures
    # Orders that are packed apart may differ by a step.
    fewer = documents(random.permutation(300), tokens, codes, length=31, batch=4)
    both = average([one, fewer]).errors["cluster"]
    assert both.cumulative.shape == (2, fewer.figures["sequences"])


def test_errors_are_counted_against_the_best_of_the_shuffles():
    codes = np.tile(np.arange(4), 250)
    ones, random = np.ones(1000, np.int64), np.random.default_rng(0)
    ours, *shuffled = (
        documents(order, ones, codes, length=10, batch=5)
        for order in (np.arange(1000), *(random.permutation(1000) for _ in range(3)))
    )
    mine, theirs = ours.errors["cluster"], average(shuffled).errors["cluster"]
    assert theirs.cumulative.shape == (3, 100) and theirs.batch.shape == (3, 20)
    told = compare_errors(mine, theirs)
    compared = (mine.cumulative[0] > 0) | (theirs.cumulative > 0).all(axis=0)
    assert told["cumulative"]["steps"] == compared[:-1].sum() > 90
    assert told["batch"]["better"] == (mine.batch[0] < theirs.batch.min(axis=0)).mean()
    assert told["batch"]["worst"] <= told["batch"]["shuffled_least"] == theirs.batch.min()
    curves = error_curves(mine, theirs)
    assert len(curves["batch"]["shuffled"]) == 3 and len(curves["batch"]["ours"]) == 20
    nothing = documents(np.arange(100), ones[:100], 0 * codes[:100], length=10, batch=5).errors["cluster"]
    told = compare_errors(nothing, nothing)
    assert told["cumulative"]["better"] is None and told["batch"]["steps"] == 0


@given(st.lists(st.tuples(st.integers(0, 30), st.integers(0, 3)), min_size=1, max_size=25), st.integers(1, 9))
@settings(max_examples=examples(25), deadline=None)
def test_slices_hold_what_the_tokens_one_by_one_hold(rows, columns):
    tokens, codes = np.array(rows, np.int64).T
    total = int(tokens.sum())
    # In units of 1 / columns tokens, a column is as many as there are tokens.
    expected = [
        np.bincount(inside, minlength=4) for inside in twin.token_windows(columns * tokens, codes, total or 1)
    ]
    mix = cluster_mix(tokens, codes, 4, columns)
    assert mix == pytest.approx(np.array(expected or np.zeros((columns, 4))) / max(total, 1), abs=1e-6)


def test_the_distance_to_a_schedule_is_that_of_the_batches_means_by_token():
    rank, tokens = np.array([0.1, 0.3, np.nan, 0.9, np.nan]), np.array([1, 3, 50, 2, 7])
    # Means 0.25 and 0.9, of 4 and 2 tokens, in the middle of tokens 0 to 4 and 4 to 56; the last batch has no rank.
    off = off_schedule(rank, tokens, SHAPES["rise"], np.array([0, 2, 4, 5]))
    assert off == pytest.approx((abs(0.25 - 2 / 63) * 4 + abs(0.9 - 30 / 63) * 2) / 6)


@given(st.lists(st.integers(0, 50), max_size=200), st.integers(1, 60))
def test_every_window_is_in_one_bin(values: list[int], bins: int) -> None:
    found = binned(values, bins)
    assert len(found.at) == min(bins, len(values))
    if not values:
        return
    edges = [at * len(values) // len(found.at) for at in range(len(found.at) + 1)]
    for at, (first, last) in enumerate(pairwise(edges)):
        part = values[first:last]
        assert found.mean[at] == pytest.approx(np.mean(part))
        assert (found.low[at], found.high[at]) == (min(part), max(part))
        assert found.at[at] == pytest.approx((first + last) / 2 / len(values))
        assert abs(len(part) - len(values) / len(found.at)) < 1


@given(st.lists(st.tuples(st.integers(0, 30), st.integers(0, 5)), max_size=40), st.integers(1, 7))
def test_quantiles_are_those_of_the_tokens_one_by_one(of: list[tuple[int, int]], columns: int) -> None:
    tokens, values = np.array(of, np.int64).reshape(-1, 2).T
    quantiles = np.array([0.1, 0.5, 0.9])
    found = quantiles_along(tokens, values, columns, quantiles)
    assert found.shape == (columns, 3)
    # Every run of tokens has a share of the sample that is its own but for a token.
    off = len(of) / SAMPLED
    # A `columns`-th of a token at a time, so that the slices' edges are whole.
    for column, part in enumerate(np.repeat(values, tokens * columns).reshape(columns, -1)):
        if not len(part):
            assert np.isnan(found[column]).all()
            continue
        low, high = (np.quantile(part, quantiles + side, method="inverted_cdf") for side in (-off, off))
        assert (low <= found[column]).all() and (found[column] <= high).all()
