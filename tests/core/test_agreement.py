"""Two spaces compared by their clusters."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.sparse import csr_array
from sklearn.metrics import adjusted_rand_score

from dagster_divorder.core.topics.agreement import DIFFERENT, SAME, compare, conclude, told_by_words
from dagster_divorder.errors import InputError
from tests.conftest import examples


@pytest.mark.parametrize(
    ("ari", "tier", "chosen"),
    [
        (DIFFERENT - 1e-6, "low", "deep"),
        (DIFFERENT, "moderate", "shallow"),
        (SAME, "moderate", "shallow"),
        (SAME + 1e-6, "high", "shallow"),
    ],
)
def test_the_rule_is_that_of_diversity_ordered_training(ari: float, tier: str, chosen: str) -> None:
    overlap, taken, why = conclude(ari, "shallow", "deep")
    assert (overlap, taken) == (tier, chosen)
    assert why.startswith(f"ARI {ari:.3f}, ")


def grouped(groups: np.ndarray, dims: int, seed: int) -> np.ndarray:
    noise = np.random.default_rng(seed).normal(size=(len(groups), dims))
    return (3 * np.eye(dims)[groups] + 0.1 * noise).astype(np.float32)


@settings(deadline=None, max_examples=examples(10))
@given(st.integers(2, 4), st.integers(0, 10_000))
def test_two_spaces_of_any_dims_are_compared_by_their_clusters(k: int, seed: int) -> None:
    random = np.random.default_rng(seed)
    first, second = (np.append(np.arange(k), random.integers(0, k, 200)) for _ in range(2))
    found = compare(grouped(first, 5, seed), grouped(second, 9, seed), k)
    figures = found.figures
    assert figures["ari"] == pytest.approx(adjusted_rand_score(first, second), abs=1e-9)
    assert figures["chosen"] == "second"
    assert adjusted_rand_score(found.labels[0], first) == adjusted_rand_score(found.labels[1], second) == 1


def test_the_same_space_is_the_same_structure() -> None:
    vectors = grouped(np.arange(300) % 4, 6, 0)
    figures = compare(vectors, vectors, 4).figures
    assert (figures["ari"], figures["overlap"], figures["chosen"]) == (1.0, "high", "first")
    with pytest.raises(InputError, match="300 and 299 vectors; expected a row a document"):
        compare(vectors, vectors[1:], 4)


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
