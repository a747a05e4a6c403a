"""How many clusters: the rule, and the measures of several clusterings taken in two passes."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_array_equal

from dagster_divorder.core.topics.cluster import ClusterFit, assign, fit
from dagster_divorder.core.topics.k_calibration import NEAR_ZERO, as_good_as, measure, possible, recommended
from dagster_divorder.core.topics.silhouette import silhouette

SILHOUETTES = st.lists(st.floats(-1, 1), min_size=1, max_size=20)


def without_spread(silhouettes):
    """The answer to fits that all agree."""
    return recommended(range(2, 2 + len(silhouettes)), np.repeat([silhouettes], 2, axis=0).T)


@given(SILHOUETTES)
def test_the_highest_of_those_as_good_as_the_best_is_taken(silhouettes):
    (chosen, why), best = without_spread(silhouettes), max(silhouettes)
    assert as_good_as(best) <= silhouettes[chosen] <= best
    assert all(later < as_good_as(best) for later in silhouettes[chosen + 1 :])
    assert bool(why) == (best < NEAR_ZERO)


@given(SILHOUETTES)
def test_it_is_the_highest_within_five_percent_of_a_peak_that_says_something(silhouettes):
    best = max(silhouettes)
    if best >= 0.02:
        near = [at for at, silhouette in enumerate(silhouettes) if silhouette >= best - 0.05 * best]
        assert without_spread(silhouettes)[0] == near[-1]


@pytest.mark.parametrize(
    ("silhouettes", "chosen"),
    [
        ([0.10, 0.20, 0.195, 0.185, 0.1], 2),
        ([0.3], 0),
        ([0.2, 0.2, 0.2], 2),
        ([0.5, 0.4, 0.3], 0),
        ([0.010, 0.0095, 0.0091, 0.008], 2),
        ([0.0, 0.0, 0.0], 2),
        ([-0.2, -0.05, -0.0505, -0.052], 2),
        ([-0.03, -0.02], 1),
    ],
    ids=["peak", "one", "level", "falling", "near zero", "zero", "negative", "negative, rising"],
)
def test_the_tolerance_neither_vanishes_near_zero_nor_turns_below_it(silhouettes, chosen):
    assert without_spread(silhouettes)[0] == chosen


VALUES = (5, 10, 20, 40, 80, 160)
FLAT, PEAK = (0.200, 0.199, 0.197, 0.195, 0.186, 0.185), (0.1, 0.15, 0.2, 0.15, 0.1, 0.05)


@pytest.mark.parametrize(
    ("mean", "spread", "chosen", "why"),
    [
        (PEAK, 0.02, 20, ""),
        (FLAT, 0.0001, 40, ""),
        (FLAT, 0.01, 40, "by 3 fits of each, anything from 5 to 160 may be as good"),
        (PEAK, 0.2, 20, "by 3 fits of each, anything from 20 to 160 may be as good"),
    ],
    ids=["a peak", "flat and sure", "flat", "noise"],
)
def test_a_number_is_clear_where_the_spread_of_the_fits_moves_it_by_no_more_than_a_step(
    mean, spread, chosen, why
):
    # Three fits whose mean and standard deviation are these.
    silhouettes = np.array(mean)[:, None] + spread * np.array([-1.0, 0.0, 1.0])
    at, said = recommended(VALUES, silhouettes)
    assert (VALUES[at], said) == (chosen, why)


def test_there_are_no_more_clusters_than_vectors():
    assert possible((2, 5, 9), 9) == (2, 5, 9)
    assert possible((2, 5, 9), 8) == (2, 5)
    assert possible((5, 9), 3) == (3,)
    assert possible((5,), 0) == (1,)


@pytest.mark.parametrize("sample", [400, 90])
@pytest.mark.parametrize("size", [400, 37])
def test_two_passes_measure_each_clustering_as_it_would_be_alone(size, sample):
    rng = np.random.default_rng(0)
    vectors = (rng.normal(size=(6, 8))[rng.integers(0, 6, 400)] + 0.4 * rng.normal(size=(400, 8))).astype(
        np.float32
    )
    places = rng.permutation(400)
    fits = [fit(vectors, k) for k in (2, 6, 40)]
    told = []

    def batches():
        for at in range(0, 400, size):
            yield places[at : at + size], vectors[places[at : at + size]]

    found = measure(fits, batches, 400, sample, told.append)
    assert sum(told) == 2 * 3 * 400
    for of, clusters in zip(found, fits, strict=True):
        labels, _ = assign(vectors, clusters)
        assert_array_equal(of.labels, labels)
        chosen = places[places < sample]
        alone = silhouette(
            lambda chosen=chosen, labels=labels: iter([(vectors[chosen], labels[chosen])]),
            len(clusters.centroids),
            clusters.centre,
        )
        assert of.silhouette.by_cluster.tobytes() == alone.by_cluster.tobytes()
        assert of.silhouette.mean == alone.mean
        assert of.silhouette.sizes.sum() == sample


@pytest.mark.slow
def test_ten_thousand_clusters_have_labels_of_their_own():
    angles = np.linspace(0, 6, 10_000)
    vectors = np.stack([np.cos(angles), np.sin(angles)], axis=1).astype(np.float32)
    clusters = ClusterFit(
        centre=np.zeros(2, np.float32),
        centroids=vectors,
        sizes=np.ones(10_000, np.int64),
        mean_distance=0.0,
        iterations=0,
        objective=1.0,
        note="",
    )
    (found,) = measure([clusters], lambda: iter([(np.arange(10_000), vectors)]), 10_000, 10_000)
    assert_array_equal(found.labels, np.arange(10_000))
