"""How many clusters: the silhouettes, and the rule."""

import numpy as np
import pytest
from numpy.testing import assert_allclose
from sklearn.metrics import silhouette_score
from threadpoolctl import threadpool_limits

from dagster_divorder.core.topics.k_calibration import distances, recommended, silhouette


@pytest.mark.parametrize(
    ("means", "chosen"),
    [
        ([0.10, 0.20, 0.195, 0.185, 0.1], 2),
        ([0.3], 0),
        ([0.2, 0.2, 0.2], 2),
        ([0.5, 0.4, 0.3], 0),
        ([0.0, 0.0, 0.0], 2),
        ([-0.2, -0.05, -0.0505, -0.06], 2),
    ],
    ids=["peak", "one", "level", "falling", "zero", "negative"],
)
def test_the_highest_number_within_five_percent_of_the_peak_is_recommended(means, chosen):
    assert recommended(means) == chosen


def test_silhouettes_are_those_by_cosine_whatever_the_number_of_threads():
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 5, 400)
    vectors = (rng.normal(size=(5, 16))[labels] + rng.normal(size=(400, 16))).astype(np.float32)
    expected = silhouette_score(vectors, labels, metric="cosine")
    assert_allclose(silhouette(distances(vectors), labels), expected, atol=1e-5)
    with threadpool_limits(1):
        alone = distances(vectors)
    assert alone.tobytes() == distances(vectors).tobytes()


@pytest.mark.parametrize("labels", [[0, 0, 0], [0, 1, 2], [0]], ids=["one", "all apart", "one document"])
def test_where_there_is_no_silhouette_it_is_zero(labels):
    vectors = np.eye(3, dtype=np.float32)[: len(labels)]
    assert silhouette(distances(vectors), np.array(labels)) == 0
