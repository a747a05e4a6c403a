"""k_calibration on real files: it finds planted topics, says what the pipeline then does, and is kept while the corpus
stays much the same."""

from __future__ import annotations

from itertools import permutations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_array_equal
from sklearn.metrics import silhouette_samples

from dagster_divorder import load_results, run_all, run_stage
from dagster_divorder.core.topics.cluster import ClusterFit, fit
from dagster_divorder.engine.progress import Silent
from dagster_divorder.pipeline.checks import run_checks
from dagster_divorder.settings import Settings
from dagster_divorder.stages import GRAPH, open_run
from dagster_divorder.stages.topics import k_calibration as module
from dagster_divorder.stages.topics.components import load_space
from dagster_divorder.stages.topics.k_calibration import load_table, load_vectors
from dagster_divorder.store.local import LocalStore
from dagster_divorder.store.state import Receipt
from tests.conftest import TOPICS, write_jsonl

VALUES = (2, 3, 4, 5, 8, 12)


def planted(per_topic: int, seed: int = 0, topics: tuple[str, ...] = tuple(TOPICS)) -> list[dict[str, Any]]:
    """Records of words drawn from each topic's own: nothing but topics tells them apart."""
    random = np.random.default_rng(seed)
    return [
        {"text": " ".join([topic, *random.choice(TOPICS[topic].split(), random.integers(20, 80))])}
        for topic in topics
        for _ in range(per_topic)
    ]


def settings_of(folder: Path, **sections: Any) -> Settings:
    base: dict[str, Any] = {
        "input": {"paths": [str(folder / "docs.jsonl")]},
        "store": {"path": folder / "store"},
        "output": {"path": folder / "curated", "sidecars": ()},
        "advanced": {"vocab_size": 512, "token_dims": 16},
        "clusters": {"k": VALUES},
        "sequence": {"length": 128, "batch": 4},
    }
    return Settings(
        **{name: {**base.get(name, {}), **sections.get(name, {})} for name in {**base, **sections}}
    )


def table(settings: Settings, receipt: Receipt) -> list[dict[str, Any]]:
    return load_table(LocalStore(settings.store.path), receipt.files["fit"])


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Settings, dict[str, Receipt]]:
    """A run over four topics; some records are copies."""
    folder = tmp_path_factory.mktemp("calibration")
    records = planted(50)
    write_jsonl(folder / "docs.jsonl", [*records, *records[:30]])
    settings = settings_of(folder)
    return settings, run_all(settings, Silent())


def test_planted_topics_are_found_and_clustered(made: tuple[Settings, dict[str, Receipt]]) -> None:
    settings, receipts = made
    report = receipts["k_calibration"].figures
    assert (report["recommended"], receipts["clusters"].figures["k"]) == (4, 4)
    assert report["documents"] == report["new_documents"] == 200
    assert report["fitted"] == "first run on this store"
    rows = table(settings, receipts["k_calibration"])
    assert [row["k"] for row in rows] == list(VALUES)
    assert [row["k"] for row in rows if row["recommended"]] == [4]
    assert report["best_silhouette"] == max(row["silhouette"] for row in rows)
    assert run_checks(GRAPH, settings, stage="clusters")["number_of_clusters_is_clear"].passed
    for row in rows:
        assert 0 <= row["spread"] < 0.1
        assert abs(row["silhouette, as clustered"] - row["silhouette"]) <= 2 * row["spread"]
        assert row["clusters"] == row["k"]
        assert 1 <= row["smallest"] <= row["median"] <= row["largest"]
        assert row["smallest"] * row["k"] <= 200 <= row["largest"] * row["k"]
        distinct = row["distinct clusters a sequence"]
        assert row["share of the clusters"] == distinct / row["clusters"] <= 1
        for name in ("distinct clusters a sequence", "worst share, batch anywhere"):
            times = row[name] / row[f"{name}, shuffled"]
            assert row[f"{name}, times shuffled"] == times
            assert times > 1 if name.startswith("distinct") else times < 1


def test_what_is_measured_is_what_the_pipeline_then_does(made: tuple[Settings, dict[str, Receipt]]) -> None:
    """Silhouette and sizes of the clusters that come out, and the figures of the order that they lead to."""
    settings, receipts = made
    (row,) = (row for row in table(settings, receipts["k_calibration"]) if row["recommended"])
    results = load_results(settings.store.path)
    first = ~results.documents["doc_id"].duplicated().to_numpy()
    labels = results.documents["cluster"].to_numpy()[first]
    vectors = np.asarray(results.embeddings)[first]
    sizes = np.bincount(labels)
    assert (row["smallest"], row["median"], row["largest"]) == (sizes.min(), np.median(sizes), sizes.max())
    # Pooled by idf, so seen from the centre of the sample, which is here all documents.
    expected = silhouette_samples(vectors - vectors.mean(axis=0), labels, metric="cosine").mean()
    assert row["silhouette, as clustered"] == pytest.approx(expected, abs=1e-5)
    sequences = results.metrics.set_index("measure")["sequences"]
    assert row["distinct clusters a sequence"] == sequences["clusters in a sequence, mean"]
    assert 100 * row["worst share, batch anywhere"] == sequences["worst batch anywhere"]


def test_vectors_beyond_the_cap_are_read_fragment_by_fragment(
    made: tuple[Settings, dict[str, Receipt]], monkeypatch: pytest.MonkeyPatch
) -> None:
    settings, _ = made
    run = open_run(settings)
    space = load_space(run)
    kept = load_vectors(run, space)
    assert kept.kept.shape == (200, 16)
    monkeypatch.setattr(module, "HELD_BYTES", 150 * 4 * 16)
    read = load_vectors(run, space)
    assert_array_equal(read.kept, kept.kept[:150])
    for loaded in (kept, read):
        by_place = np.full((200, 16), np.nan)
        for places, vectors in loaded.batches():
            assert np.isnan(by_place[places]).all()
            by_place[places] = vectors
        assert_array_equal(by_place, kept.kept)
    streamed = settings.model_copy(
        update={"clusters": settings.clusters.model_copy(update={"method": "minibatch"})}
    )
    receipt = run_stage("k_calibration", streamed, Silent())
    assert receipt.figures["recommended"] == 4
    assert [row["k"] for row in table(streamed, receipt)] == list(VALUES)


def test_a_sample_limits_the_silhouettes_alone(made: tuple[Settings, dict[str, Receipt]]) -> None:
    settings, receipts = made
    advanced = settings.advanced.model_copy(update={"silhouette_documents": 150})
    sampled = settings.model_copy(update={"advanced": advanced})
    rows, found = (
        table(settings, receipt)
        for receipt in (receipts["k_calibration"], run_stage("k_calibration", sampled, Silent()))
    )
    for whole, part in zip(rows, found, strict=True):
        assert whole["silhouette"] != part["silhouette"] == pytest.approx(whole["silhouette"], abs=0.1)
        of_both = dict.fromkeys(("silhouette", "silhouette, as clustered", "spread"), 0)
        assert {**whole, **of_both} == {**part, **of_both}


def test_it_is_measured_again_once_enough_documents_have_changed(tmp_path: Path) -> None:
    settings = settings_of(tmp_path)
    stages = GRAPH.needed(settings, "clusters")
    records = planted(50, topics=("sea", "kitchen", "garden"))

    def reports(of: list[dict[str, Any]]) -> tuple[dict[str, Any], dict[str, Any]]:
        write_jsonl(tmp_path / "docs.jsonl", of)
        receipts = run_all(settings, Silent(), stages)
        return receipts["k_calibration"].figures, receipts["clusters"].figures

    calibration, clusters = reports(records)
    assert (calibration["recommended"], clusters["k"]) == (3, 3)
    records += planted(30, seed=1, topics=("sea",))
    calibration, clusters = reports(records)
    assert calibration["fitted"] == "no: kept (first run on this store)"
    assert (calibration["documents"], calibration["measured_documents"]) == (180, 150)
    assert (calibration["new_documents"], clusters["k"], clusters["new_documents"]) == (0, 3, 30)
    records += planted(20, topics=("rail",))
    calibration, clusters = reports(records)
    assert calibration["fitted"] == "25% of the documents have changed since"
    assert (calibration["recommended"], calibration["new_documents"], clusters["k"]) == (4, 200, 4)
    assert clusters["fitted"] == "what it reads has changed"
    calibration, clusters = reports(records)
    assert calibration["fitted"] == "no: kept (25% of the documents have changed since)"
    assert (calibration["new_documents"], clusters["new_documents"]) == (0, 0)


COPIES = [
    f"{start} {one} {other}" for start in "abc" for one, other in permutations(["wave", "tide", "oven"], 2)
]
"""Eighteen documents, of which two have each vector: the same words, in another order."""


@pytest.mark.parametrize(
    ("texts", "tried", "recommended", "taken", "note"),
    [
        (
            ["one wave", "two boats", "three gulls"],
            [3],
            "no clear number",
            3,
            "5, 9, 12 not tried: there are only 3 documents",
        ),
        (
            ["the same text"] * 4,
            [1],
            "no clear number",
            1,
            "5, 9, 12 not tried: there are only 1 documents",
        ),
        (
            COPIES,
            [5, 9],
            9,
            9,
            "12 left out: it gives no more clusters than a smaller number (9 clusters of 12: the sample has no more "
            "distinct vectors)",
        ),
    ],
    ids=["three documents", "one document", "nine vectors"],
)
def test_what_is_too_small_for_a_number_is_said(
    tmp_path: Path, texts: list[str], tried: list[int], recommended: int | str, taken: int, note: str
) -> None:
    settings = settings_of(tmp_path, clusters={"k": (5, 9, 12)}, sequence={"length": 8192, "batch": 256})
    write_jsonl(tmp_path / "docs.jsonl", [{"text": text} for text in texts])
    receipts = run_all(settings, Silent(), GRAPH.needed(settings, "clusters"))
    calibration = receipts["k_calibration"]
    assert calibration.figures["recommended"] == recommended
    assert receipts["clusters"].figures["k"] == taken
    assert calibration.figures["notes"][0] == note
    rows = table(settings, calibration)
    assert [row["k"] for row in rows] == tried
    # Less than a batch: nothing can stray.
    assert {row["worst share, batch anywhere"] for row in rows} == {None}


def test_without_topics_it_says_that_no_number_is_clear(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    words = [f"w{at}" for at in range(600)]
    texts = [" ".join(random.choice(words, 200)) for _ in range(300)]
    settings = settings_of(tmp_path, advanced={"vocab_size": 1024, "token_dims": 128})
    write_jsonl(tmp_path / "docs.jsonl", [{"text": text} for text in texts])
    receipts = run_all(settings, Silent(), GRAPH.needed(settings, "clusters"))
    report = receipts["k_calibration"].figures
    assert 0 < report["best_silhouette"] < 0.02
    said = f"the best silhouette is {report['best_silhouette']:.3f}, and below 0.02 clusters hardly separate"
    note = f'no clear number of clusters: {said}; clusters.k = "auto" takes 12'
    assert report["notes"] == [note]
    # The number that is nearest to 30 of those tried, and no row of the table is marked.
    assert (report["recommended"], report["auto_takes"]) == ("no clear number", 12)
    assert receipts["clusters"].figures["k"] == 12
    assert not any(row["recommended"] for row in table(settings, receipts["k_calibration"]))
    found = run_checks(GRAPH, settings, stage="clusters")["number_of_clusters_is_clear"]
    assert not found.passed
    assert found.text == f"N{note[1:]}."


def test_fits_differ_in_seed_and_documents_and_the_first_is_that_of_clusters(
    made: tuple[Settings, dict[str, Receipt]], monkeypatch: pytest.MonkeyPatch
) -> None:
    settings, _ = made
    fitted: list[tuple[int, int, bytes]] = []

    def watch(sample: np.ndarray, k: int, **how: Any) -> ClusterFit:
        fitted.append((k, how["seed"], sample.tobytes()))
        return fit(sample, k, **how)

    monkeypatch.setattr(module, "fit", watch)
    monkeypatch.setattr(module, "most_points", lambda k, algorithm: 20 * k)
    monkeypatch.setattr(module, "FITS", 4)
    run_stage("k_calibration", settings.refitting("k_calibration"), Silent())
    run = open_run(settings)
    vectors = load_vectors(run, load_space(run)).kept
    assert len(fitted) == 4 * len(VALUES)
    for k in VALUES:
        of = sorted(one[1:] for one in fitted if one[0] == k)
        assert [seed for seed, _ in of] == [0, 1, 2, 3]
        # 200 documents: where a fit takes 20 k of them, the next one takes those that follow.
        for number, (_, sample) in enumerate(of if 20 * k < 200 else ()):
            places = np.arange(number * 20 * k, (number + 1) * 20 * k) % 200
            assert sample == vectors[places].tobytes()
        assert of[0][1] == vectors[: 20 * k].tobytes()
