"""Windows against a mix that moves, the seam of epochs, and how well an order follows its targets."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose
from numpy.typing import NDArray

from dagster_divorder.core import measure
from dagster_divorder.core.kernels.moving_windows import moving_deviations
from dagster_divorder.core.measure.moving import achievable_mix, moving_mix, slide_along, wanted_between
from dagster_divorder.core.measure.seam import seams
from dagster_divorder.core.measure.tracking import track
from dagster_divorder.core.measure.window_deviation import windows_in_stream
from dagster_divorder.core.order import Targets
from tests.conftest import examples
from tests.twins import metrics as slow

laws = settings(max_examples=examples(40), deadline=None)


@st.composite
def moving(draw: st.DrawFn) -> tuple[NDArray, NDArray, NDArray, NDArray]:
    """(tokens, codes, progress, shares): documents, some of them empty, and a table that sums to 1."""
    j = draw(st.integers(1, 4))
    documents = draw(st.lists(st.tuples(st.integers(0, 20), st.integers(0, j - 1)), min_size=1, max_size=15))
    inner = draw(st.lists(st.sampled_from([0.1, 0.25, 0.5, 0.7]), unique=True, max_size=2))
    progress = np.array([0.0, *sorted(inner), 1.0])
    random = np.random.default_rng(draw(st.integers(0, 2**32)))
    tokens, codes = np.array([n for n, _ in documents]), np.array([value for _, value in documents], np.int32)
    return tokens, codes, progress, random.dirichlet(np.ones(j), len(progress))


@laws
@given(moving(), st.integers(1, 40), st.integers(0, 2**32))
def test_windows_against_a_moving_mix_equal_their_twin(corpus, longest, seed):
    tokens, codes, progress, shares = corpus
    total = int(tokens.sum())
    random = np.random.default_rng(seed)
    starts = np.sort(random.integers(0, total, 8)) if total else np.zeros(0, np.int64)
    ends = np.maximum.accumulate(np.minimum(starts + random.integers(1, longest + 1, len(starts)), total))
    got = moving_deviations(tokens, codes, moving_mix(progress, shares, total), starts, ends)
    for fast, twin in zip(
        got, slow.moving_deviations(tokens, codes, progress, shares, starts, ends), strict=True
    ):
        assert_allclose(fast, twin, atol=1e-9)


@laws
@given(moving(), st.integers(1, 40))
def test_a_mix_that_moves_nowhere_is_one_that_stays(corpus, window):
    tokens, codes, progress, shares = corpus
    j, total = shares.shape[1], int(tokens.sum())
    if total <= window:
        return
    still = np.tile(np.bincount(codes, tokens, j) / total, (len(progress), 1))
    mix = moving_mix(progress, still, total)
    found = vars(windows_in_stream(tokens, codes, j, window))
    # Of equal windows rounding chooses the first.
    for name, value in found.items() - {("worst_start", found["worst_start"])}:
        assert getattr(windows_in_stream(tokens, codes, j, window, mix), name) == pytest.approx(
            value, abs=1e-9
        )
    order, length = np.arange(len(tokens)), 3
    targets = {"cluster": Targets(progress=progress, shares=still)}
    one, other = (
        measure.measure(
            order, tokens, {"cluster": codes}, {"cluster": j}, sequence_length=length, batch=2, targets=of
        )
        for of in (None, targets)
    )
    for row, same in zip(one.rows(), other.rows(), strict=True):
        if "worst_window" not in str(row["measure"]):
            assert row["value"] == pytest.approx(same["value"], abs=1e-6), row
    assert_allclose(one.errors["cluster"].batch, other.errors["cluster"].batch, atol=1e-3)


def curriculum(asked: tuple[float, float], items: int = 1000, own: float = 0.5) -> tuple[NDArray, Targets]:
    """(codes of one-token documents that follow what can be had, targets for value 0 of 2)."""
    shares = np.array([[a, 1 - a] for a in asked])
    targets = Targets(progress=np.array([0.0, 1.0]), shares=shares)
    mix = achievable_mix(targets, np.array([own, 1 - own]), items)
    wanted = np.cumsum(wanted_between(mix, np.arange(items + 1.0))[:, 0])
    return (np.diff(np.rint(wanted), prepend=0) < 1).astype(np.int32), targets


def test_an_order_that_follows_its_targets_deviates_by_nothing_and_one_that_keeps_the_mix_does():
    codes, targets = curriculum((0.8, 0.2))
    ones = np.ones(len(codes), np.int64)
    mix = achievable_mix(targets, np.array([0.5, 0.5]), len(codes))
    follows, keeps = (
        slide_along(ones, of, mix, 100) for of in (codes, np.tile([0, 1], 500).astype(np.int32))
    )
    assert follows[0] < 0.02
    # The first 100 tokens are to hold 0.8 - 0.03 of value 0, and hold half.
    assert keeps[0] == pytest.approx(0.27, abs=1e-9) and keeps[4] == 0
    assert keeps[1] > 10 * follows[1]


def test_asked_achievable_and_achieved_are_told_apart():
    """Asked 0.8 falling to 0.4 of a value that is 0.3 of the tokens: what can be had is scaled, and comes."""
    codes, targets = curriculum((0.8, 0.4), items=10_000, own=0.3)
    share = (codes == 0).mean()
    assert share == pytest.approx(0.3, abs=1e-3)
    batches, hundredths = track([(np.ones(10_000, np.int64), codes)], 2, targets, [0], 500)
    assert batches.asked.shape == (20, 1) and hundredths.achieved.shape == (1, 100, 1)
    assert hundredths.asked[[0, -1], 0] == pytest.approx([0.798, 0.402])
    assert hundredths.achievable.mean() == pytest.approx(0.3, abs=1e-3)
    assert 0.4 < hundredths.achievable[0, 0] < 0.5 and 0.1 < hundredths.achievable[-1, 0] < 0.2
    told = hundredths.to_dict()
    assert told["off_achievable"]["largest"][0] < 0.02
    assert 0.3 < told["off_asked"]["mean"][0] == pytest.approx(0.3, abs=0.02)
    assert told["off_asked"]["largest"][0] == pytest.approx(0.33, abs=0.03)


@pytest.mark.parametrize("tokens", [0, 3])
def test_tracking_of_next_to_nothing(tokens):
    targets = Targets(progress=np.array([0.0, 1.0]), shares=np.array([[0.5, 0.5], [0.5, 0.5]]))
    stream = np.ones(tokens, np.int64), (np.arange(tokens) % 2).astype(np.int32)
    batches, slices = track([stream], 2, targets, [1], 4)
    assert batches.to_dict()["off_asked"] is None
    assert len(slices.asked) == tokens


@laws
@given(moving(), st.integers(1, 30), st.integers(1, 3))
def test_the_seam_is_every_window_with_tokens_of_both_sides(corpus, window, epochs):
    """Token by token: the last window's tokens and the first one's, laid end to end."""
    tokens, codes, _, shares = corpus
    j = shares.shape[1]
    orders = [np.random.default_rng(epoch).permutation(len(tokens)) for epoch in range(epochs)]
    found = seams([(tokens[order], codes[order]) for order in orders], j, window)
    streams = [np.repeat(codes[order], tokens[order]) for order in orders]
    if tokens.sum() <= window:
        assert found.worst == found.head_tail == 0
        return
    share = np.bincount(streams[0], minlength=j) / tokens.sum()
    worst, apart = [], []
    for before, after in zip(streams, [*streams[1:], streams[0]], strict=True):
        both = np.concatenate([before[-window:], after[:window]])
        inside = [np.bincount(both[at : at + window], minlength=j) / window for at in range(window + 1)]
        worst.append(np.abs(inside - share).max())
        apart.append(np.abs(inside[0] - inside[-1]).sum() / 2)
    assert found.worst == pytest.approx(max(worst), abs=1e-9)
    assert found.head_tail == pytest.approx(np.mean(apart), abs=1e-9)
    assert 0 <= found.mean <= found.worst + 1e-12 and found.mean_tv <= found.worst_tv + 1e-12


def test_the_seam_of_a_mix_that_moves_is_held_against_both_its_ends():
    """The end of a curriculum and its beginning differ, as they are to."""
    codes, targets = curriculum((0.8, 0.2))
    ones = np.ones(len(codes), np.int64)
    mix = achievable_mix(targets, np.array([0.5, 0.5]), len(codes), epochs=2)
    still, along = seams([(ones, codes)], 2, 100), seams([(ones, codes)], 2, 100, mix)
    assert still.head_tail > 0.5 and still.worst > 0.25
    assert along.head_tail < 0.03 and along.worst < 0.03


def diversity(codes: NDArray, *, later: tuple[NDArray, ...] = ()) -> measure.Diversity:
    return measure.measure(
        np.arange(len(codes)),
        np.ones(len(codes), np.int64),
        {"cluster": codes},
        {"cluster": 4},
        sequence_length=10,
        batch=5,
        next_epochs=later,
    )


def test_errors_are_counted_against_the_best_of_the_shuffles():
    codes = np.tile(np.arange(4, dtype=np.int32), 250)
    shuffles = [np.random.default_rng(seed).permutation(codes) for seed in range(3)]
    ours = diversity(codes)
    others = measure.average([diversity(of) for of in shuffles])
    assert others.errors["cluster"].cumulative.shape == (3, 100)
    assert others.errors["cluster"].batch.shape == (3, 20)
    # By hand: of the first 10 tokens 3, 3, 2 and 2 have each value, 2.5 are expected.
    assert ours.errors["cluster"].cumulative[0, 0] == pytest.approx(1.0)
    # Of 50 tokens 13, 13, 12, 12.
    assert ours.errors["cluster"].batch[0] == pytest.approx(np.ones(20), abs=1e-5)
    told = measure.compare_errors(ours.errors["cluster"], others.errors["cluster"])
    assert told["cumulative"]["steps"] == 99
    best = others.errors["cluster"].batch.min(axis=0)
    assert told["batch"]["better"] == (ours.errors["cluster"].batch[0] < best).mean()
    assert told["batch"]["worst"] <= told["batch"]["shuffled_mean"]
    worse = measure.compare_errors(diversity(np.sort(codes)).errors["cluster"], others.errors["cluster"])
    assert worse["cumulative"]["better"] < 0.05 and not worse["cumulative"]["always"]
    curves = measure.error_curves(ours.errors["cluster"], others.errors["cluster"])
    assert len(curves["batch"]["shuffled"]) == 3 and len(curves["batch"]["ours"]) == 20


def test_nothing_is_compared_where_there_is_nothing_to_be_better_at():
    one = measure.measure(
        np.arange(100),
        np.ones(100, np.int64),
        {"cluster": np.zeros(100, int)},
        {"cluster": 1},
        sequence_length=10,
        batch=2,
    )
    told = measure.compare_errors(one.errors["cluster"], measure.average([one] * 3).errors["cluster"])
    assert told["cumulative"]["better"] is None and told["batch"]["steps"] == 0
