"""Schedules of a score: the papers' orders, written slowly, and the laws of due times and windows."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import linear_sum_assignment

from dagster_divorder.core.order import schedule
from dagster_divorder.core.order.schedule import SHAPES, bordered, due_times, folded, windows_of
from tests.conftest import examples
from tests.twins import schedule as twin

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
@pytest.mark.parametrize("folds", [1, 2, 3, 5])
def test_fold_and_zigzag_are_those_of_the_papers(items, folds, turning):
    ranked = np.random.default_rng(items).permutation(items)
    assert laid(folded(folds, turning=turning), ranked) == twin.fold(sorted(ranked), folds, turning=turning)
    assert laid("rise", ranked) == sorted(ranked) == laid("fall", ranked)[::-1]


@pytest.mark.parametrize("items", [3, 40, 97])
@pytest.mark.parametrize("turning", [False, True])
@pytest.mark.parametrize(
    ("sections", "ratio", "folds"),
    [(2, 0.225, 3), (3, 0.075, 2), (1, 0.2, 2), (4, 0.0, 3), (3, 0.4, 2), (5, 0.1, 4), (2, 1.0, 2)],
)
def test_stair_and_saw_are_those_of_the_papers(items, sections, ratio, folds, turning):
    ranked = np.random.default_rng(items).permutation(items)
    expected = twin.sections(sorted(ranked), sections, ratio, folds, turning=turning)
    assert laid(bordered(sections, ratio, folds, turning=turning), ranked) == expected


def test_segments_take_their_ends_of_the_ranking():
    parts = np.split(np.array(laid("segment", np.arange(4000.0))), [400, 3600])
    assert np.concatenate([np.sort(part) for part in parts]).tolist() == list(range(4000))
    for part in filter(len, parts):
        assert abs(np.corrcoef(part, np.arange(len(part)))[0, 1]) < 0.3


@given(ranks=st.lists(st.integers(0, 20), min_size=2, max_size=6), items=st.integers(1, 24))
@laws
def test_points_are_followed_as_well_as_items_allow(ranks, items):
    """Against the best assignment of ranks to places, in mean square of the distance from the asked rank."""
    at, asked = np.linspace(0, 1, len(ranks)), np.array(ranks) / 20
    points = np.column_stack([at[:-1], at[1:], asked[:-1], asked[1:]])
    made = laid(points, np.random.default_rng(items).permutation(items))
    ranks, at = (np.arange(items) + 0.5) / items, (np.arange(items * 64) + 0.5) / (items * 64)
    # Each place asks for the ranks of all of its moments.
    moments = schedule.asked_rank(points, at).reshape(items, 64)
    cost = ((ranks[:, np.newaxis, np.newaxis] - moments) ** 2).mean(axis=2)
    least = cost[linear_sum_assignment(cost)].sum()
    # A line has a whole number of items in each stretch of ranks, so items stand at most as many places from their due
    # time as there are points.
    assert cost[np.array(made, int), np.arange(items)].sum() <= least + (len(points) + 1) ** 2 / items + 1e-9


def test_folds_of_long_and_short_items_have_their_share_of_the_tokens():
    random = np.random.default_rng(8)
    tokens, scores = np.ceil(random.lognormal(5, 2, 5_000)), random.random(5_000)
    made = by_due_time(folded(4), scores, tokens)
    falls = np.flatnonzero(np.diff(scores[made]) < 0) + 1
    assert np.allclose(np.cumsum(tokens[made])[falls - 1] / tokens.sum(), [0.25, 0.5, 0.75], atol=0.01)


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
    if shape == "segment":
        left, again = (np.sort(part[-200:]) for part in (left, again))
    # What is left is spread over the ranks that the schedule still asks for.
    assert np.abs(again - left).max() <= 5
    # Windows are shares of all of training.
    number = windows_of(np.arange(500.0), np.ones(500), folded(1), 0.1, begin=0.5)
    assert number.tolist() == np.arange(5).repeat(100).tolist()


# Progress at which shapes jump from one rank to another by default.
JUMPS = {"fold": [0.2, 0.4, 0.6, 0.8], "stair": [0.425, 0.575], "segment": [0.1, 0.9]}


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
    if shape != "segment":
        assert (np.bincount(number, sizes) <= 1.5 * window * total + sizes.max()).all()
    middles = (np.cumsum(sizes[order]) - sizes[order] / 2) / total
    for jump in JUMPS.get(shape, []) if sizes.any() else []:
        before, after = along[middles < jump - 1e-4], along[middles > jump + 1e-4]
        assert not set(before) & set(after)


@every_shape
def test_windows_have_their_share_and_of_items_without_a_score_an_even_part(shape):
    random = np.random.default_rng(1)
    scores = np.where(random.random(4_000) < 0.2, np.nan, random.random(4_000))
    number = windows_of(scores, np.full(4_000, 10), SHAPES[shape], 0.05)
    # A flat stretch is one window.
    shares = [0.1, 0.8, 0.1] if shape == "segment" else 0.05
    assert np.bincount(number) / 4_000 == pytest.approx(shares, rel=0.3)
    assert len(np.unique(number)) == 3 or np.bincount(number).min() > 0.75 * 200
    missing = np.bincount(number, np.isnan(scores)) / np.bincount(number)
    assert np.abs(missing - np.isnan(scores).mean()).max() < 0.02
    if shape != "segment":  # The others follow the schedule as if they were alone.
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
    assert schedule.window_share(batch, sequence, folded(folds)) == pytest.approx(share)


def test_ranks_are_by_token_and_equal_for_equal_scores():
    ranks = schedule.token_ranks(np.array([3.0, 1.0, np.nan, 2.0, 2.0]), np.array([1, 2, 5, 4, 1]))
    assert np.allclose(ranks, [7.5 / 8, 1 / 8, np.nan, 4.5 / 8, 4.5 / 8], equal_nan=True)
