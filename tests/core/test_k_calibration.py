"""How many clusters: the silhouettes, and the rule."""

import numpy as np
import pytest
from numpy.testing import assert_allclose
from sklearn.metrics import silhouette_score

from dagster_divorder.core.topics.k_calibration import recommended, silhouette
from dagster_divorder.core.vectors.unit import unit_rows


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


@pytest.mark.parametrize("clusters", [2, 5, 150], ids=["two", "five", "many of one"])
def test_silhouettes_are_those_of_scikit_learn_by_cosine(clusters):
    rng = np.random.default_rng(0)
    labels = rng.integers(0, clusters, 400)
    vectors = unit_rows(
        (rng.normal(size=(clusters, 16))[labels] + rng.normal(size=(400, 16))).astype(np.float32)
    )
    vectors[7] = 0
    assert_allclose(
        silhouette(vectors, labels), silhouette_score(vectors, labels, metric="cosine"), atol=1e-6
    )


def test_labels_that_nobody_has_change_nothing():
    vectors = unit_rows(np.random.default_rng(0).normal(size=(40, 4)).astype(np.float32))
    labels = np.arange(40) % 3
    assert silhouette(vectors, labels) == silhouette(vectors, 2 * labels)


def test_equal_vectors_have_no_silhouette():
    assert silhouette(np.ones((4, 1), np.float32), np.array([0, 0, 1, 1])) == 0


@pytest.mark.parametrize("labels", [[0, 0, 0], [0, 1, 2], [0]], ids=["one", "all apart", "one document"])
def test_where_there_is_no_silhouette_it_is_zero(labels):
    vectors = np.eye(3, dtype=np.float32)[: len(labels)]
    assert silhouette(vectors, np.array(labels)) == 0
