"""The Vendi score from Gram matrices, and joint selection: their laws, against the kernel of all pairs, budgets."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dagster_divorder.core.measure import vendi as module
from dagster_divorder.core.measure.vendi import each_block, gram, spectrum, vendi
from dagster_divorder.core.mix import selection
from dagster_divorder.core.mix.selection import choose, diversity_gradient, log_root, semdedup, spokes
from tests.conftest import examples
from tests.twins import metrics as twin

seeds = st.integers(0, 2**32 - 1)
quick = settings(max_examples=examples(12), deadline=None)


def unit(seed: int, count: int, dims: int) -> np.ndarray:
    vectors = np.random.default_rng(seed).normal(size=(count, dims))
    return (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32)


@quick
@given(seeds, st.integers(1, 40), st.integers(1, 12))
def test_equals_the_kernel_of_all_pairs_within_its_bounds(seed: int, count: int, dims: int) -> None:
    vectors, random = unit(seed, count, dims), np.random.default_rng(seed)
    weights, rows = random.random(count) + 0.01, random.integers(0, count, count)
    found = vendi(gram(vectors, rows, weights))
    assert found == pytest.approx(twin.vendi(vectors[rows], weights), rel=1e-5)
    assert 1 - 1e-6 <= found <= min(count, dims) * (1 + 1e-6)


def test_its_extremes() -> None:
    assert vendi(gram(np.eye(5, dtype=np.float16), np.arange(5))) == pytest.approx(5)
    alike = np.zeros((4, 3), np.float32)
    alike[:, 0] = (1, 1, -1, 1)
    assert vendi(gram(alike, np.arange(4))) == pytest.approx(1)
    zeros = np.concatenate([np.eye(5, dtype=np.float32), np.zeros((3, 5), np.float32)])
    assert vendi(gram(zeros, np.arange(8))) == pytest.approx(5)
    assert vendi(gram(zeros, np.arange(5, 8))) == 1


def test_blocks_come_in_order_and_bytes_do_not_depend_on_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    vectors, rows = unit(1, 1000, 16), np.random.default_rng(2).permutation(1000)
    monkeypatch.setattr(module, "BLOCK", 16 * 32)
    parts = list(each_block(vectors, rows, lambda part, block: (part.start, block)))
    assert [start for start, _ in parts] == list(range(0, 1000, 32))
    assert (np.concatenate([block for _, block in parts]) == vectors[rows]).all()
    several = gram(vectors, rows)
    monkeypatch.setattr("joblib.cpu_count", lambda: 1)
    assert gram(vectors, rows).tobytes() == several.tobytes()


def clumped(seed: int, count: int = 300, dims: int = 8) -> np.ndarray:
    """Nine in ten vectors near one axis, the others anywhere."""
    vectors = unit(seed, count, dims)
    vectors[: count * 9 // 10] *= 0.1
    vectors[: count * 9 // 10, 0] += 1
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


@quick
@given(seeds)
def test_the_gradient_is_that_of_finite_differences(seed: int) -> None:
    vectors = unit(seed, 12, 5)
    weights = np.random.default_rng(seed).random(12) + 0.1
    weights /= weights.sum()

    def entropy(weights: np.ndarray) -> float:
        values = np.linalg.eigvalsh((vectors.T.astype(np.float64) * weights) @ vectors)
        return float(-(values * np.log(values)).sum())

    found = diversity_gradient(vectors, log_root(*spectrum(gram(vectors, np.arange(12), weights))))
    step = 1e-6 * np.eye(12)
    differences = [(entropy(weights + one) - entropy(weights - one)) / 2e-6 for one in step]
    assert found == pytest.approx(differences, abs=1e-3)


@quick
@given(seeds)
def test_no_step_goes_downhill_and_weights_are_shares(seed: int) -> None:
    found = spokes(clumped(seed), np.arange(300), steps=8, tolerance=0, rate=0.5)
    assert len(found.objective) == 9
    assert (np.diff(found.objective) >= -1e-6).all()
    assert found.weights.min() >= 0
    assert found.weights.sum() == pytest.approx(1)


def test_what_is_chosen_is_more_diverse_than_at_random() -> None:
    vectors, rows = clumped(3), np.arange(300)
    ones = np.ones(300, int)

    def score(chosen: np.ndarray) -> float:
        return vendi(gram(vectors, np.flatnonzero(chosen)))

    spread = choose(spokes(vectors, rows).weights, ones, 30)
    assert spread.sum() == 30
    assert score(spread) > 1.3 * score(choose(np.random.default_rng(0).random(300), ones, 30))
    # Of a part of the rows, in any order: those alone.
    some = np.arange(299, 0, -3)
    assert len(spokes(vectors, some).weights) == len(some)


@settings(max_examples=examples(40), deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 3), st.integers(1, 9)), min_size=1, max_size=30), st.integers(0, 120)
)
def test_a_budget_is_filled_by_score_as_far_as_anything_fits(
    items: list[tuple[int, int]], budget: int
) -> None:
    scores = np.array([score for score, _ in items], float)
    sizes = np.array([size for _, size in items])
    chosen = choose(scores, sizes, budget)
    left = budget
    for at in sorted(range(len(items)), key=lambda at: (-scores[at], at)):
        assert chosen[at] == (sizes[at] <= left)
        left -= sizes[at] * chosen[at]
    ones = np.ones(len(items), int)
    assert choose(scores, ones, budget).sum() == min(budget, len(items))


def test_semdedup_is_the_distance_to_those_before_in_the_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(selection, "CLUSTER", 64)
    vectors = unit(5, 256, 6)
    rows = np.concatenate([np.arange(256), np.arange(40)])
    apart = semdedup(vectors, rows)
    # Of each pair of copies one is at no distance of the other.
    assert ((apart[:40] < 1e-6) | (apart[256:] < 1e-6)).all()
    assert (choose(apart, np.ones(296, int), 256)[:40] != choose(apart, np.ones(296, int), 256)[256:]).all()
    # In each cluster there is a first.
    assert 2 <= (apart == 2).sum() <= 4
