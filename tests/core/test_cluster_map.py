"""The map: that it repeats, and that like documents lie together."""

import numpy as np
import pytest

from dagster_divorder.core.topics.cluster_map import fit
from dagster_divorder.errors import InputError

BLOBS = 6

pytestmark = pytest.mark.slow  # UMAP compiles for ten seconds in each process.


def blobs(n, dims=10, seed=0):
    """Vectors float32 (n, dims) around BLOBS centres, and which one each is of."""
    rng = np.random.default_rng(seed)
    centres = np.random.default_rng(99).normal(size=(BLOBS, dims))
    of = rng.integers(0, BLOBS, n)
    return (centres[of] + 0.25 * rng.normal(size=(n, dims))).astype(np.float32), of


@pytest.fixture(scope="module")
def fitted():
    return fit(blobs(500)[0], seed=3)


def test_a_map_repeats_and_follows_the_seed(fitted):
    vectors = blobs(500)[0]
    assert fit(vectors, seed=3).tobytes() == fitted.tobytes()
    assert fit(vectors, 4).tobytes() != fitted.tobytes()
    assert fitted.dtype == np.float32 and fitted.shape == (500, 2)


def test_like_documents_lie_together(fitted):
    of = blobs(500)[1]
    apart = np.linalg.norm(fitted[:, None] - fitted[None], axis=2)
    np.fill_diagonal(apart, np.inf)
    assert (of[np.argsort(apart, axis=1)[:, :5]] == of[:, None]).mean() > 0.97


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
    small = fit(make(n), seed=0)
    assert small.shape == (n, 2) and np.isfinite(small).all()


def test_vectors_without_a_place_are_refused():
    bad = blobs(4)[0]
    bad[2, 1] = np.nan
    with pytest.raises(InputError, match="NaN or infinity"):
        fit(bad, 0)
    with pytest.raises(InputError, match="at least one row"):
        fit(np.zeros((0, 4), np.float32), 0)
