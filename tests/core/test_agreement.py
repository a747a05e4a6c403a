"""Two clusterings held against each other."""

from itertools import permutations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.sparse import csr_array

from dagster_divorder.core.topics.agreement import DIFFERENT, SAME, match, overlap, told_by_words


@pytest.mark.parametrize(
    ("ari", "tier"),
    [(DIFFERENT - 1e-6, "low"), (DIFFERENT, "moderate"), (SAME, "moderate"), (SAME + 1e-6, "high")],
)
def test_the_tiers_are_those_of_diversity_ordered_training(ari: float, tier: str) -> None:
    assert overlap(ari) == tier


@settings(deadline=None)
@given(st.integers(1, 4), st.integers(1, 5), st.integers(0, 10_000))
def test_matched_clusters_hold_the_most_documents_together(k: int, j: int, seed: int) -> None:
    table = np.random.default_rng(seed).integers(0, 9, (k, j))
    rows, columns = match(table)
    assert len(rows) == len(set(rows.tolist())) == len(set(columns.tolist())) == min(k, j)
    wide = table if k <= j else table.T
    best = max(
        sum(wide[at, to] for at, to in enumerate(chosen))
        for chosen in permutations(range(max(k, j)), min(k, j))
    )
    held = table[rows, columns]
    assert held.sum() == best
    assert (np.diff(held) <= 0).all()


def test_words_tell_topics_and_neither_noise_nor_length() -> None:
    """Documents of 4 topics, each of which uses a quarter of the words three times as often."""
    random = np.random.default_rng(0)
    topics, longer = random.integers(0, 4, 1000), random.integers(0, 4, 1000)
    chance = np.where(np.arange(40) % 4 == topics[:, None], 0.3, 0.1) * (1 + longer[:, None])
    counts = csr_array((random.random((1000, 40)) < chance).astype(int))
    assert told_by_words(counts, topics) > 0.5
    assert told_by_words(counts * 7, topics) == told_by_words(counts, topics)
    for nothing in (longer, random.integers(0, 4, 1000), np.arange(1000)):
        assert abs(told_by_words(counts, nothing)) < 0.05
    assert told_by_words(counts[:1], topics[:1]) == 0.0
