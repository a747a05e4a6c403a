"""Clustering: assignment against its twin, laws of assignment, fits of every odd sample."""

import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal
from threadpoolctl import threadpool_limits

from dagster_divorder.core.seeds import small_seed
from dagster_divorder.core.topics import cluster
from dagster_divorder.core.topics.cluster import ClusterFit, assign, fit
from dagster_divorder.errors import InputError
from tests.conftest import examples
from tests.twins import pool as slow_pool


def unit(rows):
    return (rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-12)).astype(np.float32)


def clusters_of(centre, centroids):
    return ClusterFit(
        centre=np.asarray(centre, np.float32),
        centroids=np.asarray(centroids, np.float32),
        mean_distance=0.5,
    )


def planted(n=600, dims=12, groups=5, noise=0.15, seed=0):
    """Unit vectors around `groups` directions of falling frequency, and the direction of each."""
    rng = np.random.default_rng(seed)
    truth = np.sort(rng.integers(0, groups * (groups + 1) // 2, n))
    truth = rng.permutation(np.searchsorted(np.cumsum(np.arange(groups, 0, -1)), truth, side="right"))
    return unit(rng.normal(size=(groups, dims))[truth] + noise * rng.normal(size=(n, dims))), truth


@pytest.mark.slow
@settings(max_examples=examples(15), deadline=None)
@given(st.integers(1, 12), st.integers(1, 6), st.integers(1, 7), st.integers(0, 1000))
def test_assignment_equals_the_exhaustive_search(n, dims, k, seed):
    rng = np.random.default_rng(seed)
    vectors, centroids = unit(rng.normal(size=(n, dims))), unit(rng.normal(size=(k, dims)))
    centre = (0.3 * rng.normal(size=dims)).astype(np.float32)
    labels, distances = assign(vectors, clusters_of(centre, centroids))
    expected_labels, expected_distances = slow_pool.nearest(vectors, centre, centroids)
    assert (labels.dtype, distances.dtype) == (np.int32, np.float32)
    assert_array_equal(labels, expected_labels)
    assert_allclose(distances, expected_distances, atol=1e-6)


@pytest.fixture(scope="module")
def hard():
    """Vectors with many close calls, in a shape where matrix products of different batches differ in their last
    bits."""
    rng = np.random.default_rng(0)
    centroids = unit(rng.normal(size=(130, 384)))
    centroids[70:] = unit(centroids[:60] + 1e-7 * rng.normal(size=(60, 384)))
    return unit(rng.normal(size=(1500, 384))), clusters_of(0.01 * rng.normal(size=384), centroids)


@pytest.mark.parametrize("rows", [1, 7, 999])
def test_the_batch_does_not_change_a_label_or_distance(hard, rows):
    vectors, clusters = hard
    labels, distances = assign(vectors, clusters)
    order = np.random.default_rng(rows).permutation(len(vectors))
    parts = [assign(vectors[order[at : at + rows]], clusters) for at in range(0, len(vectors), rows)]
    assert np.concatenate([part[0] for part in parts]).tobytes() == labels[order].tobytes()
    assert np.concatenate([part[1] for part in parts]).tobytes() == distances[order].tobytes()


def test_neither_threads_nor_blocks_change_the_bytes(hard, monkeypatch):
    vectors, clusters = hard
    with threadpool_limits(limits=1):
        labels, distances = assign(vectors, clusters)
    monkeypatch.setattr(cluster, "BLOCK_SCORES", 1000)
    with threadpool_limits(limits=2):
        again = assign(vectors, clusters)
    assert (again[0].tobytes(), again[1].tobytes()) == (labels.tobytes(), distances.tobytes())


def test_the_first_of_equal_centroids_is_taken():
    same = np.float32([[0.6, 0.8]])
    assert assign(same, clusters_of([0, 0], np.repeat(same, 3, axis=0)))[0].tolist() == [0]


def test_a_vector_at_the_centre_or_of_zeros_has_distance_one():
    clusters = clusters_of([0.6, 0.8], [[1, 0], [0, 1]])
    labels, distances = assign(np.float32([[0.6, 0.8]]), clusters)
    assert (labels.tolist(), distances.tolist()) == ([0], [1.0])
    labels, distances = assign(np.zeros((1, 2), np.float32), clusters_of([0, 0], [[1, 0]]))
    assert (labels.tolist(), distances.tolist()) == ([0], [1.0])


def test_vectors_that_cannot_be_assigned_are_refused():
    clusters = clusters_of([0, 0], [[1, 0]])
    with pytest.raises(InputError, match=r"\(1, 3\) and the centroids 2 dims"):
        assign(np.ones((1, 3), np.float32), clusters)
    with pytest.raises(InputError, match="vector 1 holds NaN"):
        assign(np.float32([[1, 0], [np.nan, 0]]), clusters)


@pytest.mark.parametrize("centre", [True, False], ids=["centred", "plain"])
def test_planted_groups_are_found_largest_first(centre):
    vectors, truth = planted()
    found = fit(vectors, 5, centre=centre)
    labels, distances = assign(vectors, found)
    assert_array_equal(labels, truth)
    assert (np.diff(np.bincount(labels)) <= 0).all()
    assert_allclose(found.mean_distance, distances.mean(dtype=np.float64))
    assert_allclose(np.linalg.norm(found.centroids, axis=1), 1, atol=1e-5)
    assert found.centre.any() == centre


@pytest.mark.slow
def test_the_same_seed_gives_the_same_bytes_whatever_the_threads():
    vectors, _ = planted(2000, 384, 130, noise=1.0)
    with threadpool_limits(limits=1):
        one = fit(vectors, 50, seed=3)
    with threadpool_limits(limits=2):
        two = fit(vectors, 50, seed=3)
    for name, value in dataclasses.asdict(one).items():
        assert np.array_equal(value, dataclasses.asdict(two)[name]), name
    assert fit(vectors, 50, seed=4).centroids.tobytes() != one.centroids.tobytes()


def test_a_larger_sample_is_thinned_by_the_seed(monkeypatch):
    monkeypatch.setattr(cluster, "POINTS_PER_CENTROID", 20)
    vectors, _ = planted()
    thinned = np.sort(np.random.default_rng(0).choice(600, 100, replace=False))
    assert_array_equal(fit(vectors, 5).centroids, fit(vectors[thinned], 5).centroids)
    whole = fit(vectors, 5, most=600)
    assert_allclose(whole.mean_distance, assign(vectors, whole)[1].mean(dtype=np.float64))


def test_fewer_distinct_vectors_than_clusters_are_their_own_centroids():
    distinct = unit(np.random.default_rng(0).normal(size=(3, 6)))
    found = fit(distinct[[0, 0, 0, 0, 1, 1, 2]], 5)
    labels, distances = assign(distinct, found)
    assert labels.tolist() == [0, 1, 2]
    assert distances.max() < 1e-6


@pytest.mark.parametrize("n", [1, 50])
def test_vectors_all_alike_make_one_cluster_at_distance_zero(n):
    found = fit(np.tile(np.float32([0.6, 0.8]), (n, 1)), 30)
    assert len(found.centroids) == 1
    assert found.mean_distance < 1e-6
    assert assign(np.float32([[0.8, -0.6]]), found)[1][0] > 0.9


def test_vectors_without_any_direction_make_one_cluster():
    found = fit(np.zeros((10, 4), np.float32), 3)
    assert len(found.centroids) == 1
    assert found.mean_distance == 1.0


@pytest.mark.parametrize("centre", [True, False], ids=["centred", "plain"])
def test_empty_documents_do_no_harm(centre):
    vectors, _ = planted()
    vectors[::50] = 0.0
    found = fit(vectors, 6, centre=centre)
    labels, _ = assign(vectors, found)
    assert np.isfinite(found.centroids).all()
    assert len(set(labels[::50].tolist())) == 1


def test_clusters_that_end_up_empty_are_dropped(monkeypatch):
    class Kmeans:
        def __init__(self, *args, **options): ...

        def train(self, points):
            self.centroids = np.float32([*np.eye(3), [-1, 0, 0]])

    monkeypatch.setattr("faiss.Kmeans", Kmeans)
    found = fit(unit(np.abs(np.random.default_rng(0).normal(size=(60, 3)))), 4, centre=False)
    assert len(found.centroids) == 3


def test_impossible_fits_are_refused():
    vectors, _ = planted(20)
    for bad, k, message in [
        (vectors[:0], 3, "at least one row"),
        (vectors, 0, "k is 0"),
        (vectors * np.nan, 3, "NaN"),
    ]:
        with pytest.raises(InputError, match=message):
            fit(bad, k)


def test_any_seed_of_the_settings_can_be_used() -> None:
    sample = np.random.default_rng(0).normal(size=(40, 4)).astype(np.float32)
    found = [fit(sample, 3, seed=seed).centroids for seed in (2**31, 2**63 - 1, 2**63 - 1)]
    assert np.array_equal(found[1], found[2])
    assert small_seed(2**31 - 1) == 2**31 - 1
    assert len({small_seed(2**31 + more) for more in range(100)}) == 100
