"""k_calibration on real files: it finds planted topics, says what the pipeline then does, and is kept while the corpus
stays much the same."""

from __future__ import annotations

from itertools import permutations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.metrics import silhouette_samples

from dagster_divorder import load_results, run_all
from dagster_divorder.engine.progress import Silent
from dagster_divorder.settings import Settings
from dagster_divorder.stages import GRAPH
from tests.conftest import TOPICS, over, small_settings, write_jsonl

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
    return small_settings(folder, **over({"clusters": {"k": VALUES}}, sections))


def test_planted_topics_are_found_and_what_is_measured_is_then_made(tmp_path: Path) -> None:
    """Over four topics; some records are copies."""
    records = planted(50)
    write_jsonl(tmp_path / "docs.jsonl", [*records, *records[:30]])
    settings = settings_of(tmp_path)
    receipts = run_all(settings, Silent())
    report = receipts["k_calibration"].figures
    assert (report["recommended"], receipts["clusters"].figures["k"]) == (4, 4)
    assert report["documents"] == report["new_documents"] == 230
    assert report["measured_documents"] == 200, "different texts"
    assert report["fitted"] == "first run on this store"
    rows = receipts["k_calibration"].facts["rows"]
    assert [row["k"] for row in rows] == [row["clusters"] for row in rows] == list(VALUES)
    assert report["best_silhouette"] == max(row["silhouette"] for row in rows)

    (row,) = (row for row in rows if row["recommended"])
    results = load_results(settings.store.path)
    first = ~results.documents["doc_id"].duplicated().to_numpy()
    labels = results.documents["cluster"].to_numpy()[first]
    vectors = np.asarray(results.embeddings)[first]
    sizes = np.bincount(labels)
    assert row["k"] == 4
    assert (row["smallest"], row["median"], row["largest"]) == (sizes.min(), np.median(sizes), sizes.max())
    # Pooled by idf, so seen from the centre of the sample, which is here all documents.
    expected = silhouette_samples(vectors - vectors.mean(axis=0), labels, metric="cosine").mean()
    assert row["silhouette"] == pytest.approx(expected, abs=1e-5)


def test_it_is_measured_again_once_enough_documents_have_changed(tmp_path: Path) -> None:
    settings = settings_of(tmp_path)
    stages = GRAPH.needed(settings, "clusters")
    records = planted(50, topics=("sea", "kitchen", "garden"))

    def reports(of: list[dict[str, Any]]) -> tuple[dict[str, Any], dict[str, Any]]:
        write_jsonl(tmp_path / "docs.jsonl", of)
        receipts = run_all(settings, Silent(), stages)
        return receipts["k_calibration"].figures, receipts["clusters"].figures

    calibration, clustered = reports(records)
    assert (calibration["recommended"], clustered["k"]) == (3, 3)
    records += planted(30, seed=1, topics=("sea",))
    calibration, clustered = reports(records)
    assert calibration["fitted"] == "no: kept (first run on this store)"
    assert (calibration["documents"], calibration["measured_documents"]) == (180, 150)
    assert (calibration["new_documents"], clustered["k"], clustered["new_documents"]) == (0, 3, 30)
    records += planted(20, topics=("rail",))
    calibration, clustered = reports(records)
    assert calibration["fitted"] == "25% of the documents have changed since"
    assert (calibration["recommended"], calibration["new_documents"], clustered["k"]) == (4, 200, 4)
    assert clustered["fitted"] == "what it reads has changed"
    calibration, clustered = reports(records)
    assert calibration["fitted"] == "no: kept (25% of the documents have changed since)"
    assert (calibration["new_documents"], clustered["new_documents"]) == (0, 0)


COPIES = [
    f"{start} {one} {other}" for start in "abc" for one, other in permutations(["wave", "tide", "oven"], 2)
]
"""Eighteen documents, of which two have each vector: the same words, in another order."""


@pytest.mark.parametrize(
    ("texts", "tried", "note"),
    [
        (
            ["one wave", "two boats", "three gulls"],
            [3],
            "5, 9, 12 not tried: there are only 3 different texts",
        ),
        (["the same text"] * 4, [1], "5, 9, 12 not tried: there are only 1 different texts"),
        (
            COPIES,
            [5, 9],
            "12 left out: it gives no more clusters than a smaller number",
        ),
    ],
    ids=["three documents", "one document", "nine vectors"],
)
def test_a_corpus_too_small_for_a_number_is_told(
    tmp_path: Path, texts: list[str], tried: list[int], note: str
) -> None:
    settings = settings_of(tmp_path, clusters={"k": (5, 9, 12)}, sequence={"length": 8192, "batch": 256})
    write_jsonl(tmp_path / "docs.jsonl", [{"text": text} for text in texts])
    receipts = run_all(settings, Silent(), GRAPH.needed(settings, "clusters"))
    calibration = receipts["k_calibration"]
    assert calibration.figures["recommended"] == receipts["clusters"].figures["k"] == tried[-1]
    assert calibration.figures["notes"][0] == note
    assert [row["k"] for row in calibration.facts["rows"]] == tried
