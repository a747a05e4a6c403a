"""Whether a proxy of gradients tells documents apart as whole ones do: against slow twins."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import spearmanr

from dagster_divorder.core.evidence.gradient_proxy import choice, rank_agreement
from dagster_divorder.core.mix.selection import choose, spokes


def cosines(vectors: np.ndarray) -> np.ndarray:
    units = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    return units @ units.T


def test_rank_agreement_is_the_mean_of_spearmans_of_each_document() -> None:
    vectors = np.random.default_rng(0).normal(size=(30, 40))
    proxy, whole = cosines(vectors[:, :10]), cosines(vectors)
    slow = [spearmanr(np.delete(proxy[row], row), np.delete(whole[row], row)).statistic for row in range(30)]
    assert rank_agreement(proxy, whole) == pytest.approx(np.mean(slow))
    assert 0.2 < rank_agreement(proxy, whole) < 0.8
    assert rank_agreement(whole, whole) == pytest.approx(1)
    assert np.isnan(rank_agreement(np.ones((4, 4)), np.ones((4, 4))))


def test_a_choice_by_cosines_is_the_choice_by_the_vectors() -> None:
    vectors = np.random.default_rng(1).normal(size=(40, 12)).astype(np.float32)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    weights = spokes(vectors, np.arange(40)).weights
    found = choice(cosines(vectors.astype(float)), 0.5)
    assert np.array_equal(found, choose(weights, np.ones(40, np.int64), 20))
