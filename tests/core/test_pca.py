"""Principal components: the kernel against its twin, what a fit is, and that a batch changes no byte."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose
from threadpoolctl import threadpool_limits

from dagster_divorder.core.vectors.pca import Pca, fit, project
from dagster_divorder.errors import InputError
from tests.conftest import examples
from tests.twins import project as slow_project


def spread(n=400, dims=12, seed=0):
    """Vectors whose variance falls from axis to axis of a random basis, around a mean that is not zero."""
    rng = np.random.default_rng(seed)
    basis, _ = np.linalg.qr(rng.normal(size=(dims, dims)))
    points = rng.normal(size=(n, dims)) * 0.5 ** np.arange(dims)
    return (points @ basis.T + rng.normal(size=dims)).astype(np.float32), basis


shapes = st.tuples(st.integers(0, 9), st.integers(1, 7), st.integers(0, 1000))


@settings(max_examples=examples(15), deadline=None)
@given(shapes, st.integers(1, 7))
def test_a_projection_equals_its_twin(shape, components):
    n, dims, seed = shape
    rng = np.random.default_rng(seed)
    mean, axes = rng.normal(size=dims), rng.normal(size=(dims, components))
    vectors = rng.normal(size=(n, dims)).astype(np.float32)
    mean[:] = mean.astype(np.float32)
    vectors[::4] = mean
    found = project(vectors, Pca(mean=mean, axes=axes))
    assert_allclose(found, slow_project.project_rows(vectors, mean, axes), atol=1e-6)
    assert not found[::4].any()


@pytest.mark.slow
@settings(max_examples=examples(20), deadline=None)
@given(st.integers(1, 40), st.integers(0, 1000), st.integers(1, 3))
def test_neither_the_batch_nor_threads_change_a_byte(rows, seed, threads):
    vectors, _ = spread(100, 70, seed)
    pca = fit(vectors, 9)
    whole = project(vectors, pca)
    order = np.random.default_rng(seed).permutation(len(vectors))
    with threadpool_limits(limits=2):
        parts = [
            project(vectors[order[at : at + rows]], pca, threads=threads) for at in range(0, len(order), rows)
        ]
    assert np.concatenate(parts).tobytes() == whole[order].tobytes()


def test_the_axes_are_the_directions_of_most_variance():
    vectors, basis = spread(20_000)
    found = fit(vectors, 3)
    assert_allclose(np.abs((found.axes * basis[:, :3]).sum(axis=0)), 1, atol=0.01)
    assert_allclose(found.axes.T @ found.axes, np.eye(3), atol=1e-9)
    assert_allclose(found.mean, vectors.mean(axis=0, dtype=np.float64), atol=1e-6)
    projected = project(vectors, found)
    assert_allclose(np.linalg.norm(projected, axis=1), 1, atol=1e-6)


def test_the_same_sample_gives_the_same_bytes_whatever_the_threads():
    vectors, _ = spread(3000, 130)
    with threadpool_limits(limits=1):
        one = fit(vectors, 20)
    with threadpool_limits(limits=2):
        two = fit(vectors, 20)
    assert one.axes.tobytes() == two.axes.tobytes()
    assert (np.abs(one.axes).max(axis=0) == one.axes.max(axis=0)).all()


@pytest.mark.parametrize("n", [1, 5])
def test_vectors_all_alike_have_no_direction(n):
    vectors = np.tile(np.float32([0.6, 0.8]), (n, 1))
    found = fit(vectors, 1)
    assert not project(vectors, found).any()
    assert np.isfinite(project(np.float32([[1, 0]]), found)).all()


def test_vectors_that_are_not_finite_stay_visible():
    vectors, _ = spread(20, 4)
    found = fit(vectors, 2)
    assert np.isnan(project(np.float32([[1, np.nan, 0, 0]]), found)).all()
    assert np.isnan(project(np.float32([[1, np.inf, 0, 0]]), found)).all()


@pytest.mark.parametrize(("n", "dims", "most"), [(5, 12, 5), (40, 12, 12), (1, 4, 1)])
def test_there_are_no_more_components_than_vectors_or_dims(n, dims, most):
    vectors, _ = spread(n, dims)
    found = fit(vectors, most + 1)
    assert found.axes.shape == (dims, most)
    assert found.axes.tobytes() == fit(vectors, most).axes.tobytes()


def test_vectors_that_are_not_finite_are_refused():
    vectors, _ = spread(5, 12)
    with pytest.raises(InputError, match="NaN"):
        fit(vectors * np.nan, 2)
