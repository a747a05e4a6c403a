"""Frozen prefixes and targets that move: paths, their laws, what the orders make of them, and bad tables."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy.sparse import csr_matrix, vstack

from dagster_divorder.core.order import STRATEGIES, Targets, order
from dagster_divorder.core.order.arguments import make_task
from dagster_divorder.core.order.problem import Problem
from dagster_divorder.core.order.targets import (
    fitted_shares,
    path_back,
    reached_at,
    straight_path,
    target_path,
)
from dagster_divorder.errors import InputError
from tests.conftest import examples
from tests.twins import order as slow_order

GROUPS = np.repeat([0, 1], [40, 10])
GREEDY = ["balanced", "f1", "f2", "f3"]


def sequences(items: int, seed: int = 0, length: int = 2048) -> csr_matrix:
    """Packed sequences of equal length: four documents each, of a cluster and a length bin; sizes differ by seed."""
    random = np.random.default_rng(seed)
    clusters = random.choice(40, (items, 4), p=random.dirichlet(np.ones(40)))
    bins = random.choice(10, (items, 4), p=random.dirichlet(5 * np.ones(10)))
    cuts = np.sort(random.integers(1, length, (items, 3)), axis=1)
    tokens = np.diff(cuts, axis=1, prepend=0, append=length)
    columns = np.concatenate([clusters, 40 + bins], axis=1)
    rows = np.arange(items).repeat(8)
    return csr_matrix((np.tile(tokens, 2).ravel(), (rows, columns.ravel())), shape=(items, 50))


def problem_of(counts: csr_matrix, targets: Targets | None = None, groups: NDArray = GROUPS) -> Problem:
    return make_task(
        counts,
        groups,
        strategy="f3",
        targets=targets,
    ).problem


def curriculum(counts: csr_matrix, progress: list[float], factors: list[float]) -> Targets:
    """Half of the clusters are wanted `factors` times as much as they are there."""
    share = np.asarray(counts.sum(axis=0), float).ravel()
    shares = np.where((np.arange(50) % 2 == 0) & (GROUPS == 0), np.array(factors)[:, np.newaxis], 1.0) * share
    return Targets(progress=np.array(progress), shares=shares / slow_order.group_sums(shares, GROUPS))


def deviations(made: NDArray, counts: csr_matrix, path) -> NDArray:
    """L2 norm of T - X after every item, float64 (M,)."""
    totals = np.cumsum(counts[made].toarray(), axis=0)
    tokens = totals[:, GROUPS == 0].sum(axis=1).astype(float)
    return np.linalg.norm(totals - reached_at(path, GROUPS, tokens), axis=1)


@pytest.fixture(scope="module")
def corpus() -> csr_matrix:
    return sequences(4_000)


def test_a_straight_path_is_the_wholes_mix(corpus):
    problem = problem_of(corpus)
    tokens = np.array([0.0, 1000.0, 4_000 * 2048.0])
    share = problem.whole.values / (4_000 * 2048)
    np.testing.assert_allclose(
        reached_at(straight_path(problem), GROUPS, tokens), tokens[:, np.newaxis] * share
    )


@given(data=st.data(), seed=st.integers(0, 2**32))
@settings(deadline=None, max_examples=examples(15))
def test_fitted_shares_place_everything_and_sum_to_one(data, seed):
    random = np.random.default_rng(seed)
    groups = np.array([0, 1, 0, 1, 0])
    inside = random.random(data.draw(st.integers(0, 3)))
    progress = np.concatenate([[0.0], np.sort(inside), [1.0]])
    shares = random.uniform(0.1, 1.0, (len(progress), 5))
    targets = Targets(progress=progress, shares=shares / slow_order.group_sums(shares, groups))
    totals = random.uniform(1.0, 100.0, 5)
    fitted = fitted_shares(targets, groups, totals)
    np.testing.assert_allclose(slow_order.group_sums(fitted, groups), 1.0, atol=1e-6)
    np.testing.assert_allclose(
        np.trapezoid(fitted, progress, axis=0), totals / slow_order.group_sums(totals, groups), atol=1e-6
    )
    # Only rows and columns were scaled: the ratio of odds of any two rows and values of a group stays.
    odds = [table[0, 0] * table[-1, 2] / (table[0, 2] * table[-1, 0]) for table in (fitted, targets.shares)]
    np.testing.assert_allclose(*odds, rtol=1e-9)


def test_a_target_path_is_the_integral_of_its_shares(corpus):
    problem = problem_of(corpus, curriculum(corpus, [0, 0.3, 0.5, 1], [3, 1, 1, 0.2]))
    path, shares = (
        target_path(problem),
        fitted_shares(problem.targets, problem.groups, problem.whole.values),
    )
    fine = np.linspace(0, 1, 4001)
    sigma = np.stack([np.interp(fine, problem.targets.progress, column) for column in shares.T], axis=1)
    steps = 0.5 * (sigma[1:] + sigma[:-1]) * np.diff(fine)[:, np.newaxis]
    expected = np.cumsum(steps, axis=0) * slow_order.group_sums(problem.whole.values, GROUPS)
    reached = reached_at(path, GROUPS, fine[1:] * 4_000 * 2048)
    np.testing.assert_allclose(reached, expected, rtol=1e-3, atol=1.0)
    np.testing.assert_allclose(reached[-1], problem.whole.values, rtol=1e-6)


@pytest.mark.parametrize("moving", [False, True], ids=["straight", "curriculum"])
def test_the_path_back_never_falls_and_meets_the_target(corpus, moving):
    targets = curriculum(corpus, [0, 1], [2, 0.5]) if moving else None
    problem = problem_of(corpus, targets)
    skewed = np.flatnonzero(corpus[:, 3].toarray().ravel() == 0)[:1200]
    rest = problem.part(np.setdiff1d(np.arange(4_000), skewed), placed=problem.part(skewed).totals())
    path = path_back(rest)
    tokens = np.linspace(1200 * 2048, 4_000 * 2048, 300)
    reached = reached_at(path, GROUPS, tokens)
    assert (np.diff(reached, axis=0) >= -1e-6).all()
    np.testing.assert_allclose(reached[0], rest.placed.values, atol=1e-6)
    np.testing.assert_allclose(reached[-1], problem.whole.values, rtol=1e-9)
    np.testing.assert_allclose(reached[:, GROUPS == 0].sum(axis=1), tokens, rtol=1e-9)
    # Cluster 3 was left out; it has caught up long before the end.
    late = slice(-60, None)
    wanted = reached_at(target_path(problem), GROUPS, tokens)[late]
    np.testing.assert_allclose(reached[late], wanted, rtol=0.02)


@pytest.mark.parametrize("strategy", GREEDY)
@pytest.mark.parametrize("other_mix", [False, True], ids=["same mix", "another mix"])
def test_what_is_frozen_stays_and_the_rest_ends_as_a_fresh_order_does(corpus, strategy, other_mix):
    """Order, consume 30 %, append 30 %, order again."""
    frozen = order(corpus, GROUPS, strategy=strategy)[:1200]
    counts = csr_matrix(vstack([corpus, sequences(1200, seed=3 if other_mix else 0)]))
    grown = order(counts, GROUPS, strategy=strategy, frozen=frozen)
    assert grown[:1200].tolist() == frozen.tolist()
    assert sorted(grown) == list(range(5200))
    if strategy in ("f1", "f2"):
        counts = csr_matrix(counts.toarray() * (GROUPS == 0))
    path = straight_path(problem_of(counts))
    fresh = deviations(order(counts, GROUPS, strategy=strategy), counts, path)
    last = slice(-1500, None)
    assert deviations(grown, counts, path)[last].mean() < 1.1 * fresh[last].mean()


def test_everything_frozen_leaves_nothing_to_order(corpus):
    frozen = np.random.default_rng(0).permutation(4_000)
    assert order(corpus, GROUPS, frozen=frozen).tolist() == frozen.tolist()


@pytest.mark.parametrize("strategy", ["balanced", "f3"])
def test_targets_that_move_are_followed_as_closely_as_ones_that_stay(corpus, strategy):
    targets = curriculum(corpus, [0, 0.4, 1], [2, 1, 0.7])
    path = target_path(problem_of(corpus, targets))
    moving = deviations(order(corpus, GROUPS, strategy=strategy, targets=targets), corpus, path)
    staying = deviations(order(corpus, GROUPS, strategy=strategy), corpus, straight_path(problem_of(corpus)))
    random = deviations(order(corpus, GROUPS, strategy="random"), corpus, path)
    assert moving.mean() < 1.3 * staying.mean()
    assert moving.mean() < 0.1 * random.mean()


GOOD = csr_matrix(np.array([[1, 0, 2], [0, 3, 1]]))
EVEN = [[0.5, 0.5, 1.0], [0.5, 0.5, 1.0]]


@pytest.mark.parametrize(
    ("progress", "shares", "message"),
    [
        pytest.param([0.0], [[0.5, 0.5, 1.0]], r"\(1,\)", id="one row"),
        pytest.param([0.0, 1.0], [[0.5, 0.5]] * 2, r"\(2, 2\).*\(P, 3\)", id="a share too few"),
        pytest.param([0.1, 1.0], EVEN, r"\[0\.1, 1\.0\].*rising from 0 to 1", id="does not begin at 0"),
        pytest.param([0.0, 0.9], EVEN, r"\[0\.0, 0\.9\]", id="does not end at 1"),
        pytest.param([0.0, 0.5, 0.5, 1.0], EVEN * 2, "rising", id="does not rise"),
        pytest.param([0.0, np.nan, 1.0], [*EVEN, EVEN[0]], "rising", id="NaN progress"),
        pytest.param(
            [0.0, 1.0], [[1.5, -0.5, 1.0], EVEN[0]], "-0.5 of trait value 1 at progress 0", id="negative"
        ),
        pytest.param([0.0, 1.0], [EVEN[0], [0.5, np.nan, 1.0]], "nan of trait value 1", id="NaN share"),
        pytest.param(
            [0.0, 1.0], [EVEN[0], [0.5, 0.4, 1.0]], "group 0 at progress 1.0 sum to 0.9", id="not a share"
        ),
        pytest.param(
            [0.0, 1.0], [[1.0, 0.0, 1.0]] * 2, "value 1 .* has 3 tokens but a target", id="never wanted"
        ),
    ],
)
def test_a_bad_table_is_named(progress, shares, message):
    targets = Targets(progress=np.array(progress), shares=np.array(shares))
    with pytest.raises(InputError, match=message):
        order(GOOD, [0, 0, 1], targets=targets)


def test_a_table_without_room_for_a_value_is_named():
    # Value 0 has nine tenths of the tokens and may be placed only at the very beginning.
    counts = csr_matrix(np.diag([90, 10]))
    targets = Targets(
        progress=np.array([0.0, 0.1, 1.0]), shares=np.array([[0.5, 0.5], [0.0, 1.0], [0.0, 1.0]])
    )
    with pytest.raises(InputError, match=r"value [01] has 0\.[19] of its group's tokens and room for"):
        order(counts, [0, 0], targets=targets)


def test_a_target_for_a_value_without_tokens_is_shared_among_the_others():
    counts = csr_matrix(np.array([[4, 0, 0], [0, 4, 0]] * 50))
    targets = Targets(progress=np.array([0.0, 1.0]), shares=np.array([[0.6, 0.2, 0.2], [0.2, 0.6, 0.2]]))
    fitted = fitted_shares(targets, np.zeros(3, int), np.array([200.0, 200.0, 0.0]))
    assert (fitted[:, 2] == 0).all()
    assert sorted(order(counts, [0, 0, 0], targets=targets)) == list(range(100))


@pytest.mark.parametrize("strategy", GREEDY)
def test_items_without_tokens_are_ordered_along_targets_and_behind_a_prefix(strategy):
    targets = Targets(progress=np.array([0.0, 1.0]), shares=np.array([[0.5, 0.5, 1.0]] * 2))
    counts = csr_matrix((6, 3))
    assert sorted(order(counts, [0, 0, 1], strategy=strategy, targets=targets)) == list(range(6))
    assert order(counts, [0, 0, 1], strategy=strategy, frozen=[4, 1]).tolist()[:2] == [4, 1]


@pytest.mark.parametrize(
    ("frozen", "message"),
    [
        pytest.param([0, 1, 0], "3 items of 2", id="longer than the corpus"),
        pytest.param([1, 1], "item 1 twice", id="twice"),
        pytest.param([2], "item 2; there are 2", id="not there"),
        pytest.param([-1], "item -1", id="negative"),
        pytest.param([0.5], "float64", id="not whole"),
        pytest.param([[0]], r"\(1, 1\)", id="not a list"),
    ],
)
def test_a_bad_prefix_is_named(frozen, message):
    with pytest.raises(InputError, match=message):
        order(GOOD, [0, 0, 1], frozen=frozen)


def test_a_part_keeps_the_target_of_the_whole(corpus):
    problem = problem_of(corpus)
    part = problem.part(np.array([5, 3]))
    assert part.items == 2
    assert part.whole is problem.whole
    np.testing.assert_array_equal(part.totals().values, corpus[[5, 3]].toarray().sum(axis=0))
    assert part.totals().items == 2
    norm = np.linalg.norm(corpus[[5, 3]].toarray()[:, GROUPS == 0], axis=1).sum()
    assert part.totals().norms == pytest.approx(norm)
    assert replace(part, placed=part.totals()).first_group().placed.values.shape == (40,)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_strategy_follows_targets_or_refuses_them(strategy):
    random = np.random.default_rng(0)
    counts = csr_matrix(np.eye(2, dtype=int)[random.integers(0, 2, 4_000)])
    targets = Targets(progress=np.array([0.0, 1.0]), shares=np.array([[0.9, 0.1], [0.1, 0.9]]))
    arguments = {"strategy": strategy, "sequence_length": 10, "batch": 10, "scores": np.zeros(4_000)}
    if not STRATEGIES[strategy].follows_targets:
        with pytest.raises(InputError, match=f"strategy is '{strategy}', which does not follow targets"):
            order(counts, [0, 0], targets=targets, **arguments)
        return
    first = counts[order(counts, [0, 0], targets=targets, **arguments)][:400, 0].sum()
    assert first > 300
