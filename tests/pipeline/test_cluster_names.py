"""Clusters as people see them: their names and examples, the map, that it stays put and becomes a sidecar."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from dagster_divorder import load_results, run_all
from dagster_divorder.corpus.stored import EXAMPLE_CHARACTERS, beginnings, records_by_text
from dagster_divorder.engine.progress import Silent
from dagster_divorder.settings import Settings
from dagster_divorder.stages import GRAPH, open_run
from dagster_divorder.stages.topics import cluster_map
from dagster_divorder.stages.topics import cluster_names as module
from dagster_divorder.stages.topics.cluster_map import load_map
from dagster_divorder.stages.topics.cluster_names import load_named, load_names
from dagster_divorder.store.local import LocalStore
from dagster_divorder.store.stages import StageFiles
from dagster_divorder.store.state import Receipt
from dagster_divorder.store.view import View
from tests.conftest import TOPICS, small_settings, topic_records, write_jsonl
from tests.pipeline.runs import Make


def records(per_topic: int, seed: int = 0) -> list[dict[str, Any]]:
    """Texts that are mostly words of all topics, with a burst of two of their own topic's."""
    random = np.random.default_rng(seed)
    made = []
    for topic, words in TOPICS.items():
        for number in range(per_topic):
            own = np.repeat(random.choice(words.split(), 2, replace=False), 4)
            said = random.permutation([*random.choice(["the", "and", "of", "with", "for"], 20), *own])
            made.append({"text": f"{number + 1000 * seed}\n\n" + "  ".join(said), "topic": topic})
    return made


def named(settings: Settings) -> dict[str, Any]:
    """Names and examples of the clusters."""
    run_all(settings, Silent(), GRAPH.needed(settings, "clusters"))
    return load_named(open_run(settings))


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Settings:
    folder = tmp_path_factory.mktemp("names")
    write_jsonl(folder / "docs.jsonl", records(50))
    settings = small_settings(folder, order={"traits": {"cluster": 1.0, "topic": 1.0}})
    run_all(settings, Silent())
    return settings


def test_results_carry_the_names(made: Settings) -> None:
    names = load_names(open_run(made))
    documents = load_results(made.store.path).documents
    assert documents["cluster_name"].tolist() == [names[label] for label in documents["cluster"]]
    for name, of in documents.groupby("cluster_name", observed=True):
        topic = of["topic"].mode()[0]
        assert (of["topic"] == topic).mean() > 0.9, "the corpus is one that k-means solves"
        assert set(name.split(", ")) <= set(TOPICS[topic].split()), (name, topic)


def test_the_table_describes_every_cluster(made: Settings) -> None:
    documents = load_results(made.store.path).documents
    texts = [record["text"] for record in records(50)]
    run, examples = open_run(made), named(made)["examples"]
    rows = GRAPH["clusters"].show(run, run.receipt("clusters"))["cluster_sizes"].rows
    assert [row["cluster"] for row in rows] == list(range(4))
    assert sum(row["share"] for row in rows) == pytest.approx(1)
    for row, example in zip(rows, examples, strict=True):
        own = documents[documents["cluster"] == row["cluster"]]
        assert row["documents"] == len(own)
        assert row["mean_distance"] == pytest.approx(own["cluster_distance"].mean(), abs=1e-6)
        # The sample has all documents.
        nearest = own["cluster_distance"].idxmin()
        assert row["example"] == example == " ".join(texts[nearest].split())[:EXAMPLE_CHARACTERS]


def test_texts_without_words_still_have_names_and_examples(tmp_path: Path) -> None:
    write_jsonl(tmp_path / "docs.jsonl", [{"text": f"{number} {number * 7} !"} for number in range(40)])
    settings = small_settings(tmp_path, clusters={"k": 3})
    found = named(settings)
    assert found["names"] == [f"cluster {label}" for label in range(len(found["names"]))]
    assert all(found["examples"])


def test_the_sample_is_spread_over_the_clusters(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a large cluster and a small one, half of the sample each as far as the small one goes."""
    monkeypatch.setattr(module, "sample_size", lambda clusters: 14)
    sampled: list[int] = []

    def reading(store: Any, view: Any, rows: np.ndarray, characters: int) -> Any:
        sampled.extend(rows.tolist())
        return beginnings(store, view, rows, characters)

    monkeypatch.setattr(module, "beginnings", reading)
    texts = [f"{word} {at}" for word, count in (("wave", 50), ("oven", 4)) for at in range(count)]
    write_jsonl(tmp_path / "docs.jsonl", [{"text": text} for text in texts])
    vectors = np.repeat(np.eye(2, dtype=np.float32), [50, 4], axis=0)
    np.save(tmp_path / "own.npy", vectors + np.random.default_rng(0).normal(0, 0.01, vectors.shape))
    own = {"kind": "external", "path": tmp_path / "own.npy"}
    named(small_settings(tmp_path, clusters={"k": 2}, embedding=own))
    assert np.bincount(np.array(sampled) >= 50).tolist() == [10, 4]


RECORDS = topic_records(20)
MORE = topic_records(6, start=200)


class Corpus:
    """One input file and runs up to cluster_map on it."""

    def __init__(self, path: Path, settings: Settings) -> None:
        self.path = path
        self.settings = settings
        self.store = LocalStore(settings.store.path)

    def run(self, records: list[dict[str, Any]]) -> Receipt:
        write_jsonl(self.path, records)
        self.receipts = run_all(self.settings, Silent(), GRAPH.needed(self.settings, "cluster_map"))
        return self.receipts["cluster_map"]

    def shown(self) -> dict[str, np.ndarray]:
        return load_map(open_run(self.settings))

    def places(self) -> dict[tuple[int, int], bytes]:
        """By id, the place of each document on the map."""
        shown = self.shown()
        return {tuple(i): xy.tobytes() for i, xy in zip(shown["ids"].tolist(), shown["xy"], strict=True)}

    def documents(self) -> tuple[list[tuple[int, int]], np.ndarray]:
        """Ids and clusters of all documents, by rising id."""
        view = View.load(self.store, self.receipts["raw_docs"].files["view"])
        records = open_run(self.settings).records
        ids, rows = records.fragments.column(view.fragments, "text"), records_by_text(records, view)
        files = StageFiles(self.store, "clusters", self.receipts["clusters"].key)
        return [tuple(i) for i in ids[rows].tolist()], files.column(view.fragments, "labels")[rows]


@pytest.fixture
def corpus(tmp_path: Path, make_settings: Make) -> Corpus:
    return Corpus(tmp_path / "docs.jsonl", make_settings(refit={"clusters": "never"}, engine={"workers": 1}))


def test_every_document_is_on_the_map_with_its_cluster(corpus: Corpus) -> None:
    receipt = corpus.run(RECORDS)
    ids, labels = corpus.documents()
    shown = corpus.shown()
    assert [tuple(i) for i in shown["ids"].tolist()] == ids and len(ids) == 80
    assert np.array_equal(shown["labels"], labels)
    assert np.isfinite(shown["xy"]).all()
    assert receipt.figures["documents"] == receipt.figures["new_documents"] == 80
    assert receipt.figures["fitted"] == "first run on this store"
    table = pq.read_table(corpus.store.local(receipt.files["map"])).to_pylist()
    assert [row["doc_id"] for row in table] == [f"{high:016x}{low:016x}" for high, low in ids]
    assert [(row["x"], row["y"]) for row in table] == [tuple(xy) for xy in shown["xy"].tolist()]
    names = load_names(open_run(corpus.settings))
    assert [(row["cluster"], row["name"]) for row in table] == [(c, names[c]) for c in labels]
    assert corpus.store.read_verified(receipt.files["picture"]).startswith(b"\x89PNG")


def test_documents_keep_their_places_until_a_fifth_has_changed(
    corpus: Corpus, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cluster_map, "DOCUMENTS", 30)
    corpus.run(RECORDS)
    before = corpus.places()
    assert list(before) == corpus.documents()[0][:30]
    receipt = corpus.run([*RECORDS, *MORE[:8], RECORDS[0]])
    assert corpus.places() == before and receipt.figures["fitted"].startswith("no: kept")
    assert (receipt.figures["of_documents"], receipt.figures["on_map"]) == (88, 30)
    # Deleted documents leave the map, and the others stay.
    corpus.run(RECORDS[10:])
    after = corpus.places()
    assert after.items() < before.items()
    assert "of the documents have changed" in corpus.run(RECORDS + MORE).figures["fitted"]
    assert list(corpus.places()) == corpus.documents()[0][:30]


def test_documents_without_a_word_have_places_too(corpus: Corpus) -> None:
    corpus.run([*RECORDS, {"text": " "}, {"text": "\n"}, {"text": "?"}])
    assert len(corpus.places()) == 83 and np.isfinite(corpus.shown()["xy"]).all()
