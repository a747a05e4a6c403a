"""The map: its kernels against their twins and umap-learn, that it repeats, that a place is a document's own."""

import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal

from dagster_divorder.core import cluster_map
from dagster_divorder.core.cluster_map import A, B, MapFit, fit, layout, place
from dagster_divorder.core.kernels import place as kernels
from dagster_divorder.core.pca import project
from dagster_divorder.errors import InputError
from tests.twins import place as slow_place

BLOBS = 6


def blobs(n, dims=10, seed=0):
    """Vectors float32 (n, dims) around BLOBS centres, and which one each is of."""
    rng = np.random.default_rng(seed)
    centres = np.random.default_rng(99).normal(size=(BLOBS, dims))
    of = rng.integers(0, BLOBS, n)
    return (centres[of] + 0.25 * rng.normal(size=(n, dims))).astype(np.float32), of


@pytest.fixture(scope="module")
def fitted() -> MapFit:
    return fit(blobs(500)[0], seed=3)


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 40), st.integers(1, 6), st.integers(0, 1000), st.data())
def test_the_nearest_equal_their_twin(n, dims, seed, data):
    k = data.draw(st.integers(1, n))
    # Small whole numbers: many equal distances, and sums without rounding.
    points = np.random.default_rng(seed).integers(-3, 4, size=(n, dims)).astype(np.float32)
    point = np.random.default_rng(seed + 1).integers(-3, 4, size=dims).astype(np.float32)
    near, distances = np.empty(k, np.int64), np.empty(k)
    kernels.nearest(point, np.ascontiguousarray(points.T), np.empty(n, np.float32), near, distances)
    expected = slow_place.nearest(point, points, k)
    assert_array_equal(near, expected[0])
    assert_allclose(distances, expected[1], rtol=1e-6)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.floats(0.0, 10.0), min_size=2, max_size=20), st.sampled_from([1e-3, 1.0, 1e3]))
def test_memberships_equal_their_twin(distances, scale):
    distances = scale * np.sort(np.round(distances, 3))
    weights = np.empty(len(distances))
    kernels.memberships(distances, weights)
    assert_allclose(weights, slow_place.memberships(distances), atol=1e-3)


@settings(max_examples=15, deadline=None)
@given(st.integers(1, 12), st.integers(0, 1000))
def test_where_a_point_settles_equals_its_twin(k, seed):
    rng = np.random.default_rng(seed)
    xy = rng.normal(scale=4.0, size=(50, 2)).astype(np.float32)
    near, draws = rng.integers(0, 50, k), rng.integers(0, 50, 64)
    weights = rng.random(k) ** 4 + 1e-6
    found = xy[near[0]].copy()
    kernels.settle(weights, near, xy, draws, A, B, found)
    expected = slow_place.settle(xy[near[0]], weights, xy[near], xy[draws], A, B)
    assert_allclose(found, expected, atol=1e-4)


def test_documents_are_placed_where_umap_places_one_at_a_time(fitted):
    """In the plane, so that a difference in what is drawn at random is all that is left."""
    import umap

    points, new = fitted.points, project(blobs(40, seed=1)[0], fitted.pca)
    model = umap.UMAP(n_neighbors=15, a=A, b=B, random_state=0, n_jobs=1).fit(points)
    theirs = np.concatenate([model.transform(point[None]) for point in new])
    on = MapFit(pca=fitted.pca, points=points, xy=np.ascontiguousarray(model.embedding_))
    ours = place(blobs(40, seed=1)[0], on)
    extent = np.ptp(on.xy, axis=0).max()
    apart = np.linalg.norm(ours - theirs, axis=1) / extent
    assert np.median(apart) < 0.02
    assert np.quantile(apart, 0.9) < 0.04
    # The weighted mean that both start from is not it.
    assert np.median(apart) < np.median(np.linalg.norm(ours - starts(new, on), axis=1)) / extent


def starts(points, on):
    def start(point):
        near, distances = slow_place.nearest(point, on.points, 15)
        weights = slow_place.memberships(distances)
        return weights @ on.xy[near] / weights.sum()

    return np.array([start(point) for point in points])


def test_a_map_repeats_and_follows_the_seed(fitted):
    vectors = blobs(500)[0]
    assert fit(vectors, seed=3).xy.tobytes() == fitted.xy.tobytes()
    assert layout(vectors, 3).tobytes() == fitted.xy.tobytes()
    assert layout(vectors, 4).tobytes() != fitted.xy.tobytes()
    assert fitted.xy.dtype == np.float32 and fitted.xy.shape == (500, 2)


def test_like_documents_lie_together_and_new_ones_among_their_like(fitted):
    old, (vectors, new) = blobs(500)[1], blobs(200, seed=2)
    apart = np.linalg.norm(fitted.xy[:, None] - fitted.xy[None], axis=2)
    np.fill_diagonal(apart, np.inf)
    assert (old[np.argsort(apart, axis=1)[:, :5]] == old[:, None]).mean() > 0.97
    apart = np.linalg.norm(place(vectors, fitted)[:, None] - fitted.xy[None], axis=2)
    assert (old[np.argsort(apart, axis=1)[:, :5]] == new[:, None]).mean() > 0.97


@settings(max_examples=25, deadline=None)
@given(rows=st.lists(st.integers(0, 199), max_size=30), threads=st.integers(1, 3))
def test_a_place_depends_on_its_document_alone(fitted, rows, threads):
    vectors = blobs(200, seed=2)[0]
    whole = place(vectors, fitted)
    assert place(vectors[rows], fitted, threads=threads).tobytes() == whole[rows].tobytes()


@pytest.mark.parametrize("n", [1, 2, 3, 4, 5, 16, 40])
@pytest.mark.parametrize(
    "make",
    [
        lambda n: blobs(n)[0],
        lambda n: np.zeros((n, 4), np.float32),
        lambda n: np.ones((n, 4), np.float32),
        lambda n: np.arange(n, dtype=np.float32)[:, None],
        lambda n: np.concatenate([np.zeros((n // 2, 4)), blobs(n - n // 2, 4)[0]]).astype(np.float32),
    ],
    ids=["blobs", "zeros", "all equal", "one dim", "half zeros"],
)
@pytest.mark.filterwarnings("error")
def test_few_and_equal_documents_have_places(n, make):
    vectors = make(n)
    small = fit(vectors, seed=0)
    assert small.xy.shape == (n, 2) and np.isfinite(small.xy).all()
    assert np.isfinite(place(np.concatenate([vectors, vectors + 1]), small)).all()


def test_what_cannot_be_placed_is_refused(fitted):
    bad = blobs(4)[0]
    bad[2, 1] = np.nan
    for refuse in (lambda: fit(bad, 0), lambda: place(bad, fitted)):
        with pytest.raises(InputError, match="NaN or infinity"):
            refuse()
    with pytest.raises(InputError, match="at least one row"):
        fit(np.zeros((0, 4), np.float32), 0)
    with pytest.raises(InputError, match="fit the components again"):
        place(np.zeros((1, 3), np.float32), fitted)
    assert place(np.zeros((0, 10), np.float32), fitted).shape == (0, 2)


def test_without_umap_it_says_what_to_install_and_still_places(fitted, monkeypatch):
    assert cluster_map.why_no_map() is None
    expected = place(blobs(20)[0], fitted)
    monkeypatch.setitem(sys.modules, "umap", None)
    said = cluster_map.why_no_map()
    assert said is not None and "pip install umap-learn" in said
    cluster_map.warm()
    assert_array_equal(place(blobs(20)[0], fitted), expected)
