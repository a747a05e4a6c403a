"""The map: that it repeats, and that a place is a document's own."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose

from dagster_divorder.core.topics import cluster_map
from dagster_divorder.core.topics.cluster_map import MapFit, fit, place
from dagster_divorder.core.vectors import pca
from dagster_divorder.errors import InputError
from tests.conftest import examples

BLOBS = 6

pytestmark = pytest.mark.slow  # UMAP compiles for ten seconds in each process.


def blobs(n, dims=10, seed=0):
    """Vectors float32 (n, dims) around BLOBS centres, and which one each is of."""
    rng = np.random.default_rng(seed)
    centres = np.random.default_rng(99).normal(size=(BLOBS, dims))
    of = rng.integers(0, BLOBS, n)
    return (centres[of] + 0.25 * rng.normal(size=(n, dims))).astype(np.float32), of


@pytest.fixture(scope="module")
def fitted() -> MapFit:
    return fit(blobs(500)[0], seed=3)


def test_a_new_document_lies_on_the_medoid_of_its_neighbours(fitted):
    vectors = blobs(50, seed=2)[0]
    points = pca.project(vectors, fitted.pca).astype(np.float64)
    for point, xy in zip(points, place(vectors, fitted), strict=True):
        away = np.linalg.norm(fitted.points - point, axis=1)
        near = np.argsort(away)[: cluster_map.NEIGHBOURS]
        costs = [
            sum(np.linalg.norm(fitted.xy[one] - fitted.xy[other]) / away[other] for other in near)
            for one in near
        ]
        at = near[np.linalg.norm(fitted.xy[near] - xy, axis=1).argmin()]
        assert_allclose(fitted.xy[at], xy)
        assert costs[near.tolist().index(at)] <= min(costs) * (1 + 1e-4)


def test_a_map_repeats_and_follows_the_seed(fitted):
    vectors = blobs(500)[0]
    assert fit(vectors, seed=3).xy.tobytes() == fitted.xy.tobytes()
    assert fit(vectors, 4).xy.tobytes() != fitted.xy.tobytes()
    assert fitted.xy.dtype == np.float32 and fitted.xy.shape == (500, 2)


def test_like_documents_lie_together_and_new_ones_among_their_like(fitted):
    old, (vectors, new) = blobs(500)[1], blobs(200, seed=2)
    apart = np.linalg.norm(fitted.xy[:, None] - fitted.xy[None], axis=2)
    np.fill_diagonal(apart, np.inf)
    assert (old[np.argsort(apart, axis=1)[:, :5]] == old[:, None]).mean() > 0.97
    apart = np.linalg.norm(place(vectors, fitted)[:, None] - fitted.xy[None], axis=2)
    assert (old[np.argsort(apart, axis=1)[:, :5]] == new[:, None]).mean() > 0.97


@settings(max_examples=examples(25), deadline=None)
@given(rows=st.lists(st.integers(0, 199), max_size=30))
def test_a_place_depends_on_its_document_alone(fitted, rows):
    vectors = blobs(200, seed=2)[0]
    whole = place(vectors, fitted)
    assert place(vectors[rows], fitted).tobytes() == whole[rows].tobytes()


@pytest.mark.parametrize("n", [1, 2, 3, 16])
@pytest.mark.parametrize(
    "make",
    [
        lambda n: blobs(n)[0],
        lambda n: np.ones((n, 4), np.float32),
        lambda n: np.arange(n, dtype=np.float32)[:, None],
    ],
    ids=["blobs", "all equal", "one dim"],
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
