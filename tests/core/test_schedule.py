"""Schedules of a score: the papers' orders, written slowly, and the laws of due times and windows."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dagster_divorder.core.order import schedule
from dagster_divorder.core.order.schedule import SHAPES, due_times, windows_of
from tests.conftest import examples

every_shape = pytest.mark.parametrize("shape", SHAPES)
laws = settings(max_examples=examples(40), deadline=None)


def by_due_time(shape, scores, tokens=10, begin=0.0):
    """The items along a shape or its pieces, int64 (items,)."""
    sizes, pieces = np.broadcast_to(tokens, len(scores)), SHAPES[shape] if isinstance(shape, str) else shape
    due = due_times(np.asarray(scores, float), sizes, pieces, begin=begin)
    return np.argsort(due, kind="stable")


def laid(shape, scores, **how):
    return np.asarray(scores, float)[by_due_time(shape, scores, **how)].tolist()


@pytest.mark.parametrize("items", [1, 7, 12, 101])
@pytest.mark.parametrize("turning", [False, True])
@pytest.mark.parametrize("folds", [1, 2, 5])
def test_fold_and_zigzag_are_those_of_the_papers(items, folds, turning):
    ranked = np.random.default_rng(items).permutation(items)
    pieces = np.array([(1.0, 0.0) if turning and number % 2 else (0.0, 1.0) for number in range(folds)])
    layers = [sorted(ranked)[number::folds] for number in range(folds)]
    expected = [of[::-1] if turning and number % 2 else of for number, of in enumerate(layers)]
    assert laid(pieces, ranked) == list(itertools.chain(*expected))
    assert laid("rise", ranked) == sorted(ranked) == laid("fall", ranked)[::-1]


def test_folds_of_long_and_short_items_have_their_share_of_the_tokens():
    random = np.random.default_rng(8)
    tokens, scores = np.ceil(random.lognormal(5, 2, 5_000)), random.random(5_000)
    made = by_due_time("fold", scores, tokens)
    falls = np.flatnonzero(np.diff(scores[made]) < 0) + 1
    assert np.allclose(np.cumsum(tokens[made])[falls - 1] / tokens.sum(), [0.2, 0.4, 0.6, 0.8], atol=0.01)


@every_shape
def test_equal_scores_come_in_random_order(shape):
    made = by_due_time(shape, np.full(3_000, 2.5))
    assert abs(np.corrcoef(made, np.arange(3_000))[0, 1]) < 4 / np.sqrt(3_000)
    assert (np.diff(made) == 1).mean() < 0.01


@pytest.mark.parametrize("tokens", [[0, 8] * 250, [1, 1, 1, 97, 1, 0, 1, 1]], ids=["none", "huge"])
def test_items_without_tokens_and_huge_ones_have_places_of_their_own(tokens):
    scores = np.random.default_rng(5).permutation(len(tokens))
    assert laid("rise", scores, tokens=tokens) == sorted(scores)


@every_shape
def test_the_rest_continues_the_schedule_where_training_stands(shape):
    scores = np.random.default_rng(4).permutation(2_000).astype(float)
    left = scores[by_due_time(shape, scores)][700:]
    again = np.array(laid(shape, left, begin=0.35))
    # What is left is spread over the ranks that the schedule still asks for.
    assert np.abs(again - left).max() <= 5
    # Windows are shares of all of training.
    number = windows_of(np.arange(500.0), np.ones(500), SHAPES["rise"], 0.1, begin=0.5)
    assert number.tolist() == np.arange(5).repeat(100).tolist()


@every_shape
@given(st.lists(st.integers(0, 40) | st.just(10**5), min_size=1), st.sampled_from([0.05, 0.15]))
@laws
def test_windows_are_runs_of_due_times_and_cross_no_jump(shape, tokens, window):
    sizes, scores = np.array(tokens), np.random.default_rng(len(tokens)).random(len(tokens))
    number = windows_of(scores, sizes, SHAPES[shape], window)
    order = by_due_time(shape, scores, sizes)
    along = number[order]
    assert along[0] == 0 and set(np.diff(along)) <= {0, 1}
    total = max(1, sizes.sum())
    assert (np.bincount(number, sizes) <= 1.5 * window * total + sizes.max()).all()
    middles = (np.cumsum(sizes[order]) - sizes[order] / 2) / total
    for jump in (0.2, 0.4, 0.6, 0.8) if shape == "fold" and sizes.any() else ():
        before, after = along[middles < jump - 1e-4], along[middles > jump + 1e-4]
        assert not set(before) & set(after)


@every_shape
def test_windows_have_their_share_and_of_items_without_a_score_an_even_part(shape):
    random = np.random.default_rng(1)
    scores = np.where(random.random(4_000) < 0.2, np.nan, random.random(4_000))
    number = windows_of(scores, np.full(4_000, 10), SHAPES[shape], 0.05)
    assert np.bincount(number) / 4_000 == pytest.approx(0.05, rel=0.3)
    missing = np.bincount(number, np.isnan(scores)) / np.bincount(number)
    assert np.abs(missing - np.isnan(scores).mean()).max() < 0.02
    # The others follow the schedule as if they were alone.
    made = scores[by_due_time(shape, scores)]
    assert made[~np.isnan(made)].tolist() == laid(shape, scores[~np.isnan(scores)])


@pytest.mark.parametrize(
    ("batch", "sequence", "folds", "share"),
    [
        (1e-3, 1e-5, 1, 1 / 32),  # a 32nd of training
        (1e-2, 1e-5, 1, 4e-2),  # 4 batches at least
        (1e-4, 1e-6, 1, 64e-4),  # 64 batches at most
        (1e-3, 1e-5, 16, 1 / 64),  # a quarter of the ranks at most
        (1e-4, 1e-3, 1, 0.064),  # 64 sequences at least
        (1e-4, 1e-2, 1, 1 / 8),  # an eighth at least of short trainings, which have fewer
    ],
)
def test_the_share_of_a_window(batch, sequence, folds, share):
    assert schedule.window_share(batch, sequence, np.array([(0.0, 1.0)] * folds)) == pytest.approx(share)


def test_ranks_are_by_token_and_equal_for_equal_scores():
    ranks = schedule.token_ranks(np.array([3.0, 1.0, np.nan, 2.0, 2.0]), np.array([1, 2, 5, 4, 1]))
    assert np.allclose(ranks, [7.5 / 8, 1 / 8, np.nan, 4.5 / 8, 4.5 / 8], equal_nan=True)
