"""What the parts of a document share: the closed form of a planted model, and where there is nothing to learn."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dagster_divorder.core.vectors.shared_topic import topic_map
from tests.conftest import examples

DIMS = 6


def planted(pairs: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Pairs of x = m + y + e, and the covariances S of y and E of e."""
    rng = np.random.default_rng(seed)
    mix = rng.normal(size=(DIMS, 3))
    own = rng.normal(size=(DIMS, DIMS))
    topic = rng.normal(size=(pairs, 3)) @ mix.T + 5.0
    noise = rng.normal(size=(2, pairs, DIMS)) @ own.T
    return topic + noise[0], topic + noise[1], mix @ mix.T, own @ own.T


def test_it_is_the_expectation_of_what_is_shared() -> None:
    first, second, shared, own = planted(200_000)
    found = topic_map(first, second)
    # A row vector x - m times this is the expectation of y; distances are those of coordinates in which E is one.
    expectation = np.linalg.solve(shared + own, shared)
    expected = expectation @ np.linalg.inv(own) @ expectation.T
    np.testing.assert_allclose(found @ found.T, expected, atol=0.03 * np.abs(expected).max())


def test_columns_fall_and_what_is_not_shared_comes_to_nothing() -> None:
    first, second, shared, own = planted(50_000)
    # In coordinates of unit noise, a column is as long as the share of its direction that is expected to be shared.
    found = np.linalg.norm(np.linalg.cholesky(own).T @ topic_map(first, second), axis=0)
    ratio = np.sort(np.linalg.eigvals(np.linalg.solve(own, shared)).real)[::-1]
    assert (ratio[3:] < 1e-9).all()
    np.testing.assert_allclose(found, ratio / (1 + ratio), atol=0.02)
    assert (np.diff(found) < 1e-3).all()


@settings(max_examples=examples(15), deadline=None)
@given(st.integers(0, 40), st.integers(0, 2**32), st.sampled_from([1.0, 1e-6, 1e6]))
def test_few_pairs_give_a_usable_map_whichever_part_comes_first(pairs: int, seed: int, scale: float) -> None:
    first, second = (scale * part for part in planted(pairs, seed)[:2])
    found, turned = topic_map(first, second), topic_map(second, first)
    assert np.isfinite(found).all()
    assert np.linalg.matrix_rank(found) == DIMS
    np.testing.assert_allclose(
        found @ found.T, turned @ turned.T, rtol=1e-6, atol=1e-9 * np.square(found).max()
    )


@pytest.mark.parametrize(
    "part", [np.zeros((0, 3)), np.ones((1, 3)), np.ones((9, 3)), np.eye(3)[[0, 1, 2, 0, 1, 2]]]
)
def test_parts_that_do_not_differ_teach_nothing(part: np.ndarray) -> None:
    np.testing.assert_array_equal(topic_map(part, part), np.eye(3))


def test_empty_columns_do_no_harm() -> None:
    first, second, *_ = planted(500)
    wide = [np.column_stack([part, np.zeros((len(part), 2))]) for part in (first, second)]
    assert np.isfinite(topic_map(*wide)).all()
    with_them = wide[0] @ topic_map(*wide)
    without = first @ topic_map(first, second)
    close = np.corrcoef(
        np.linalg.norm(np.diff(with_them, axis=0), axis=1), np.linalg.norm(np.diff(without, axis=0), axis=1)
    )
    assert close[0, 1] > 0.99
