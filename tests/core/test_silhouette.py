"""The silhouette: against scikit-learn on any data, and its corners."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal
from threadpoolctl import threadpool_limits

from dagster_divorder.core.topics import silhouette as module
from dagster_divorder.core.topics.silhouette import silhouette
from dagster_divorder.errors import InputError
from tests.conftest import examples


def in_batches(vectors, labels, size):
    def passes():
        for at in range(0, len(vectors), size):
            yield vectors[at : at + size], labels[at : at + size]

    return passes


def of(vectors, labels, k=None, size=1000, centre=None):
    labels = np.asarray(labels, np.int32)
    return silhouette(
        in_batches(np.asarray(vectors, np.float32), labels, size), k or int(labels.max()) + 1, centre
    )


def by_cluster(samples, labels, k):
    return np.bincount(labels, samples, k) / np.maximum(np.bincount(labels, minlength=k), 1)


@st.composite
def clusterings(draw):
    """Vectors of any length in any clusters, with copies and zero vectors among them."""
    rng = np.random.default_rng(draw(st.integers(0, 10_000)))
    n, dims, k = draw(st.integers(3, 60)), draw(st.integers(1, 12)), draw(st.integers(2, 7))
    spread = draw(st.sampled_from([0.05, 0.5, 5.0]))
    labels = rng.integers(0, k, n).astype(np.int32)
    vectors = rng.normal(size=(k, dims))[labels] + spread * rng.normal(size=(n, dims))
    vectors *= np.exp(rng.normal(size=(n, 1)))
    for _ in range(draw(st.integers(0, 3))):
        vectors[rng.integers(n)] = vectors[rng.integers(n)]
    if draw(st.booleans()):
        vectors[rng.integers(n)] = 0
    return vectors.astype(np.float32), labels, k


@settings(max_examples=examples(80), deadline=None)
@given(clusterings(), st.sampled_from(["origin", "mean", "a vector"]))
def test_it_is_the_silhouette_of_scikit_learn_from_any_centre(case, seen_from):
    from sklearn.metrics import silhouette_samples

    vectors, labels, k = case
    centre = {"origin": np.zeros_like(vectors[0]), "mean": vectors.mean(axis=0), "a vector": vectors[0]}[
        seen_from
    ]
    found = of(vectors, labels, k, centre=centre)
    distinct = len(np.unique(labels))
    if not 2 <= distinct < len(labels):
        return
    expected = silhouette_samples(vectors.astype(np.float64) - centre, labels, metric="cosine")
    assert_allclose(found.mean, expected.mean(), atol=2e-9)
    assert_allclose(found.by_cluster, by_cluster(expected, labels, k), atol=2e-9)
    assert_array_equal(found.sizes, np.bincount(labels, minlength=k))


@pytest.fixture(scope="module")
def hard():
    """Many clusters nearly alike, in a shape where products of different batches differ in their last bits."""
    rng = np.random.default_rng(0)
    middles = rng.normal(size=(130, 384))
    middles[70:] = middles[:60] + 1e-7 * rng.normal(size=(60, 384))
    labels = rng.integers(0, 130, 1500).astype(np.int32)
    return (middles[labels] + rng.normal(size=(1500, 384))).astype(np.float32), labels


@pytest.mark.slow
@pytest.mark.parametrize("rows", [1, 7, 64, 999])
def test_the_batches_do_not_change_a_byte(hard, rows, monkeypatch):
    vectors, labels = hard
    whole = of(vectors, labels, size=1500)
    assert whole.by_cluster.tobytes() == of(vectors, labels, size=rows).by_cluster.tobytes()
    monkeypatch.setattr(module, "BLOCK_SCORES", 1000)
    with threadpool_limits(limits=1):
        again = of(vectors, labels, size=rows)
    assert (again.mean, again.by_cluster.tobytes()) == (whole.mean, whole.by_cluster.tobytes())


def test_empty_clusters_and_a_single_one_count_for_nothing():
    vectors, labels = [[1, 0], [1, 0.1], [0, 1], [0.1, 1]], [0, 0, 2, 2]
    found = of(vectors, labels, 5)
    assert found.by_cluster[[1, 3, 4]].tolist() == [0, 0, 0]
    assert found.mean == pytest.approx(of(vectors, [0, 0, 1, 1]).mean)
    assert of(vectors, [0, 0, 0, 0]).mean == 0


def test_copies_are_at_no_distance():
    """Their mean distances are rounding noise, which must not decide."""
    vectors = np.tile(np.random.default_rng(0).normal(size=(1, 50)), (9, 1))
    assert of(vectors, [0, 1, 2] * 3).mean == 0


def test_what_cannot_be_scored_is_refused():
    with pytest.raises(InputError, match="there is no vector"):
        silhouette(lambda: iter([]), 3)
    with pytest.raises(InputError, match="vector 2 holds NaN"):
        of([[1, 0], [0, 1], [np.nan, 1]], [0, 1, 1], size=2)
    with pytest.raises(InputError, match=r"labels run from 0 to 5; expected them in \[0, 2\)"):
        of([[1, 0], [0, 1]], [0, 5], 2)
    with pytest.raises(InputError, match=r"\(2, 2\) and labels \(1,\)"):
        silhouette(lambda: iter([(np.ones((2, 2), np.float32), np.zeros(1, np.int32))]), 1)
    with pytest.raises(InputError, match=r"\(2, 2\) and labels \(2,\); expected \(n, 3\)"):
        of([[1, 0], [0, 1]], [0, 1], centre=np.zeros(3))
