"""Clusters: assignment against its twin, fits of every odd sample, their number, their names, two spaces compared. The
map: that it repeats, and that like documents lie together."""

import dataclasses
from itertools import combinations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal
from scipy.sparse import csr_array
from sklearn.metrics import adjusted_rand_score, silhouette_score
from threadpoolctl import threadpool_limits

from dagster_divorder.core.seeds import small_seed
from dagster_divorder.core.topics import cluster
from dagster_divorder.core.topics.agreement import DIFFERENT, SAME, compare, conclude, told_by_words
from dagster_divorder.core.topics.cluster import ClusterFit, assign, fit
from dagster_divorder.core.topics.cluster_map import fit as map_fit
from dagster_divorder.core.topics.k_calibration import recommended, silhouette
from dagster_divorder.core.topics.terms import cluster_names, find_words
from dagster_divorder.core.vectors.unit import unit_rows
from dagster_divorder.errors import InputError
from tests.conftest import examples
from tests.twins import pool as slow_pool


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
    return unit_rows(rng.normal(size=(groups, dims))[truth] + noise * rng.normal(size=(n, dims))), truth


@pytest.mark.slow
@settings(max_examples=examples(15), deadline=None)
@given(st.integers(1, 12), st.integers(1, 6), st.integers(1, 7), st.integers(0, 1000))
def test_assignment_equals_the_exhaustive_search(n, dims, k, seed):
    rng = np.random.default_rng(seed)
    vectors, centroids = unit_rows(rng.normal(size=(n, dims))), unit_rows(rng.normal(size=(k, dims)))
    centre = (0.3 * rng.normal(size=dims)).astype(np.float32)
    labels, distances = assign(vectors, clusters_of(centre, centroids))
    expected_labels, expected_distances = slow_pool.nearest(vectors, centre, centroids)
    assert (labels.dtype, distances.dtype) == (np.int32, np.float32)
    assert_array_equal(labels, expected_labels)
    assert_allclose(distances, expected_distances, atol=1e-6)


@pytest.mark.parametrize("rows", [1, 7, 999])
def test_neither_batches_nor_blocks_nor_threads_change_the_bytes(rows, monkeypatch):
    """Of many close calls, in a shape where matrix products of different batches differ in their last bits."""
    rng = np.random.default_rng(0)
    centroids = unit_rows(rng.normal(size=(130, 384)))
    centroids[70:] = unit_rows(centroids[:60] + 1e-7 * rng.normal(size=(60, 384)))
    vectors, clusters = (
        unit_rows(rng.normal(size=(1500, 384))),
        clusters_of(0.01 * rng.normal(size=384), centroids),
    )
    with threadpool_limits(limits=1):
        labels, distances = assign(vectors, clusters)
    order = np.random.default_rng(rows).permutation(len(vectors))
    monkeypatch.setattr(cluster, "BLOCK_SCORES", 1000)
    with threadpool_limits(limits=2):
        parts = [assign(vectors[order[at : at + rows]], clusters) for at in range(0, len(vectors), rows)]
    assert np.concatenate([part[0] for part in parts]).tobytes() == labels[order].tobytes()
    assert np.concatenate([part[1] for part in parts]).tobytes() == distances[order].tobytes()


def test_the_first_of_equal_centroids_is_taken_and_what_has_no_direction_has_distance_one():
    same, nothing = np.float32([[0.6, 0.8]]), np.zeros((1, 2), np.float32)
    assert assign(same, clusters_of([0, 0], np.repeat(same, 3, axis=0)))[0].tolist() == [0]
    for vector, centre in ((same, same[0]), (nothing, [0, 0])):
        labels, distances = assign(vector, clusters_of(centre, [[1, 0], [0, 1]]))
        assert (labels.tolist(), distances.tolist()) == ([0], [1.0])


def test_impossible_vectors_and_fits_are_refused():
    clusters, vectors = clusters_of([0, 0], [[1, 0]]), np.float32([[1, 0], [np.nan, 0]])
    for refused, message in (
        (lambda: assign(np.ones((1, 3), np.float32), clusters), r"\(1, 3\) and the centroids 2 dims"),
        (lambda: assign(vectors, clusters), "vector 1 holds NaN"),
        (lambda: fit(vectors[:0], 3), "at least one row"),
        (lambda: fit(vectors[:1], 0), "k is 0"),
        (lambda: fit(vectors, 1), "NaN"),
    ):
        with pytest.raises(InputError, match=message):
            refused()


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
        one = fit(vectors, 50, seed=2**63 - 1)
    with threadpool_limits(limits=2):
        two = fit(vectors, 50, seed=2**63 - 1)
    for name, value in dataclasses.asdict(one).items():
        assert np.array_equal(value, dataclasses.asdict(two)[name]), name
    assert fit(vectors, 50, seed=4).centroids.tobytes() != one.centroids.tobytes()
    assert small_seed(2**31 - 1) == 2**31 - 1
    assert len({small_seed(2**31 + more) for more in range(100)}) == 100


def test_a_larger_sample_is_thinned_by_the_seed(monkeypatch):
    monkeypatch.setattr(cluster, "POINTS_PER_CENTROID", 20)
    vectors, _ = planted()
    thinned = np.sort(np.random.default_rng(0).choice(600, 100, replace=False))
    assert_array_equal(fit(vectors, 5).centroids, fit(vectors[thinned], 5).centroids)
    whole = fit(vectors, 5, most=600)
    assert_allclose(whole.mean_distance, assign(vectors, whole)[1].mean(dtype=np.float64))


def test_fewer_distinct_vectors_than_clusters_are_their_own_centroids():
    distinct = unit_rows(np.random.default_rng(0).normal(size=(3, 6)))
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
    without_direction = fit(np.zeros((n, 4), np.float32), 3)
    assert (len(without_direction.centroids), without_direction.mean_distance) == (1, 1.0)


@pytest.mark.parametrize("centre", [True, False], ids=["centred", "plain"])
def test_empty_documents_do_no_harm(centre):
    vectors, _ = planted()
    empty = np.arange(len(vectors)) % 3 == 0
    vectors[empty] = 0.0
    found = fit(vectors, 5 + centre, centre=centre)
    labels, _ = assign(vectors, found)
    assert np.isfinite(found.centroids).all()
    assert len(set(labels[empty].tolist())) == 1
    # Without a direction, their number does not decide which cluster is the largest.
    assert (np.diff(np.bincount(labels if centre else labels[~empty])) <= 0).all()


def test_clusters_that_end_up_empty_are_dropped(monkeypatch):
    class Kmeans:
        def __init__(self, *args, **options): ...

        def train(self, points):
            self.centroids = np.float32([*np.eye(3), [-1, 0, 0]])

    monkeypatch.setattr("faiss.Kmeans", Kmeans)
    found = fit(unit_rows(np.abs(np.random.default_rng(0).normal(size=(60, 3)))), 4, centre=False)
    assert len(found.centroids) == 3


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
    # Labels that nobody has change nothing.
    for numbers in (labels, 2 * labels):
        assert_allclose(
            silhouette(vectors, numbers), silhouette_score(vectors, labels, metric="cosine"), atol=1e-6
        )


@pytest.mark.parametrize("labels", [[0, 0, 0], [0, 1, 2], [0]], ids=["one", "all apart", "one document"])
def test_where_there_is_no_silhouette_it_is_zero(labels):
    vectors = np.eye(3, dtype=np.float32)[: len(labels)]
    assert silhouette(vectors, np.array(labels)) == 0
    assert silhouette(np.ones((4, 1), np.float32), np.array([0, 0, 1, 1])) == 0


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


TOPICS = ("harbour anchor gull reef", "oven yeast crust dough", "soil hedge mulch spade")
FUNCTION = ["the", "and", "that", "with", "from", "this"]


def topical(per_topic: int = 40, seed: int = 0) -> tuple[list[str], np.ndarray]:
    """Texts that are mostly function words, with a burst of two words of their topic, in a random order."""
    random = np.random.default_rng(seed)
    texts, labels = [], []
    for label, words in enumerate(TOPICS):
        for _ in range(per_topic):
            own = random.choice(words.split(), 2, replace=False)
            texts.append(" ".join(random.permutation([*random.choice(FUNCTION, 40), *np.repeat(own, 3)])))
            labels.append(label)
    order = random.permutation(len(texts))
    return [texts[at] for at in order], np.array(labels)[order]


def terms_of(texts: list[str], labels: np.ndarray, clusters: int) -> list[list[str]]:
    """The words of the name of each cluster, without its number."""
    names = cluster_names(*find_words(pa.array(texts, pa.large_string())), labels, clusters)
    assert len(set(names)) == len(names) == clusters
    return [name.split(" (cluster")[0].split(", ") for name in names]


def test_clusters_are_named_by_their_topics_and_not_by_function_words() -> None:
    texts, labels = topical()
    for topic, terms in zip(TOPICS, terms_of(texts, labels, 3), strict=True):
        assert len(terms) == 3 and set(terms) <= set(topic.split())


def test_words_in_all_of_a_clusters_documents_give_way_to_others() -> None:
    texts, labels = topical()
    headed = [
        f"pagina {text} pagina" if label == 0 else text for text, label in zip(texts, labels, strict=True)
    ]
    assert set(terms_of(headed, labels, 3)[0]) <= set(TOPICS[0].split())


def test_forms_of_one_word_are_one_term() -> None:
    texts, labels = topical()
    many = [text.replace("anchor anchor", "anchor anchors") for text in texts]
    assert any("anchors" in text for text in many)
    terms = terms_of(many, labels, 3)[0]
    assert sum(term.startswith("anchor") for term in terms) == 1


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("Straße STRAßE", {"straße": 1}),
        ("1,204 B2B x _self_ n_samples mp3 2월", {"self": 1, "samples": 1, "mp": 1}),
        ("don't l'eau", {"don": 1, "eau": 1}),
        ("x" * 41 + " " + "y" * 40, {"y" * 40: 1}),
        ("хлеб ХЛЕБ", {"хлеб": 1}),
        ("हिन्दी", {"हिन्दी": 1}),
        ("cafe\u0301 caf\u00e9", {"caf\u00e9": 1}),
        ("면적은 1,234", {"면적은": 1}),
        ("烏克蘭的日", {"烏克": 1, "蘭的": 1}),
        ("コマンドを表示する", {"コマンド": 1, "表示": 1}),
        ("", {}),
    ],
)
def test_what_counts_as_a_word(text: str, words: dict[str, int]) -> None:
    used, vocabulary = find_words(pa.array([text], pa.large_string()))
    assert dict(zip(vocabulary, used.sum(axis=0).tolist(), strict=True)) == words


def test_pairs_of_characters_that_overlap_are_one_term() -> None:
    # Half of the cluster: words in all of its documents say little.
    texts = [["在烏克蘭。", "天地玄黃"][at % 2] for at in range(30)] + ["宇宙洪荒"] * 60
    terms = terms_of(texts, np.repeat([0, 1, 2], 30), 3)[0]
    assert not any(set(one) & set(other) for one, other in combinations(terms, 2)), terms


def test_clusters_without_words_and_of_the_same_words_have_their_numbers() -> None:
    texts = pa.array(["salt bread"] * 6 + ["", "1 2"], pa.string())
    names = cluster_names(*find_words(texts), np.array([0, 0, 0, 2, 2, 2, 3, 1]), 5)
    assert names[1:2] + names[3:] == ["cluster 1", "cluster 3", "cluster 4"]
    assert names[2] == f"{names[0]} (cluster 2)"


@settings(max_examples=examples(25), deadline=None)
@given(st.integers(0, 1000), st.permutations(range(4)))
def test_the_number_of_a_cluster_changes_none_of_its_terms(seed: int, numbers: list[int]) -> None:
    texts, labels = topical(8, seed)
    before = terms_of(texts, labels, 4)[:3]
    after = terms_of(texts, np.array(numbers)[labels], 4)
    assert [after[number] for number in numbers[:3]] == before


@pytest.mark.slow
def test_a_map_repeats_follows_the_seed_and_has_like_documents_together():
    vectors, of = planted(500)
    fitted = map_fit(vectors, seed=3)
    assert map_fit(vectors, seed=3).tobytes() == fitted.tobytes()
    assert map_fit(vectors, 4).tobytes() != fitted.tobytes()
    assert fitted.dtype == np.float32 and fitted.shape == (500, 2)
    apart = np.linalg.norm(fitted[:, None] - fitted[None], axis=2)
    np.fill_diagonal(apart, np.inf)
    assert (of[np.argsort(apart, axis=1)[:, :5]] == of[:, None]).mean() > 0.97


@pytest.mark.slow
@pytest.mark.parametrize("n", [1, 2, 3, 16])
@pytest.mark.parametrize(
    "make",
    [
        lambda n: planted(n)[0],
        lambda n: np.ones((n, 4), np.float32),
        lambda n: np.arange(n, dtype=np.float32)[:, None],
    ],
    ids=["planted", "all equal", "one dim"],
)
@pytest.mark.filterwarnings("error")
def test_few_and_equal_documents_have_places(n, make):
    small = map_fit(make(n), seed=0)
    assert small.shape == (n, 2) and np.isfinite(small).all()


@pytest.mark.slow
def test_vectors_without_a_place_are_refused():
    bad = planted(4)[0]
    bad[2, 1] = np.nan
    with pytest.raises(InputError, match="NaN or infinity"):
        map_fit(bad, 0)
    with pytest.raises(InputError, match="at least one row"):
        map_fit(np.zeros((0, 4), np.float32), 0)
