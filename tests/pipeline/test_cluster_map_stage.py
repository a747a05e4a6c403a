"""cluster_map on real files: what is on the map, that it stays put, and that it becomes a sidecar."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from dagster_divorder import run_all
from dagster_divorder.corpus.sample import records_by_text
from dagster_divorder.engine.progress import Silent
from dagster_divorder.settings import Settings
from dagster_divorder.stages import GRAPH, open_run
from dagster_divorder.stages.topics import cluster_map
from dagster_divorder.stages.topics.cluster_map import ClusterMap, load_map
from dagster_divorder.stages.topics.cluster_names import load_names
from dagster_divorder.store.local import LocalStore
from dagster_divorder.store.stages import StageFiles
from dagster_divorder.store.state import Receipt
from dagster_divorder.store.view import View
from tests.conftest import topic_records, write_jsonl

Make = Callable[..., Settings]
RECORDS = topic_records(20)
MORE = topic_records(6, start=200)


class Corpus:
    """One input file and runs up to cluster_map on it."""

    def __init__(self, path: Path, settings: Settings) -> None:
        self.path = path
        self.settings = settings
        self.store = LocalStore(settings.store.path)

    def run(self, records: list[dict[str, Any]] | None = None, *asked: Any) -> Receipt:
        if records is not None:
            write_jsonl(self.path, records)
        settings = self.settings.refitting(*asked)
        self.receipts = run_all(settings, Silent(), GRAPH.needed(settings, "cluster_map"))
        return self.receipts["cluster_map"]

    def shown(self) -> ClusterMap:
        return load_map(open_run(self.settings))

    def places(self) -> dict[tuple[int, int], bytes]:
        """By id, the place of each document on the map."""
        shown = self.shown()
        return {tuple(i): xy.tobytes() for i, xy in zip(shown.ids.tolist(), shown.xy, strict=True)}

    def documents(self) -> tuple[list[tuple[int, int]], np.ndarray]:
        """Ids and clusters of all documents, by rising id."""
        view = View.load(self.store, self.receipts["raw_docs"].files["view"])
        records = open_run(self.settings).records
        ids, rows = records.text_ids(view.fragments), records_by_text(records, view)
        files = StageFiles(self.store, "clusters", self.receipts["clusters"].key)
        return [tuple(i) for i in ids[rows].tolist()], files.column(view.fragments, "labels")[rows]


@pytest.fixture
def make_corpus(tmp_path: Path, make_settings: Make) -> Callable[..., Corpus]:
    def make(**sections: Any) -> Corpus:
        chosen = make_settings(
            input={"paths": [str(tmp_path / "docs.jsonl")]},
            refit={"clusters": "never"},
            engine={"workers": 1},
            **sections,
        )
        return Corpus(tmp_path / "docs.jsonl", chosen)

    return make


@pytest.fixture
def corpus(make_corpus: Callable[..., Corpus]) -> Corpus:
    return make_corpus()


def test_every_document_is_on_the_map_with_its_cluster(corpus: Corpus) -> None:
    receipt = corpus.run(RECORDS)
    ids, labels = corpus.documents()
    shown = corpus.shown()
    assert [tuple(i) for i in shown.ids.tolist()] == ids and len(ids) == 80
    assert np.array_equal(shown.labels, labels)
    assert np.isfinite(shown.xy).all()
    assert receipt.figures["documents"] == receipt.figures["new_documents"] == 80
    assert receipt.figures["fitted"] == "first run on this store"
    table = pq.read_table(corpus.store.local(receipt.files["map"])).to_pylist()
    assert [row["doc_id"] for row in table] == [f"{high:016x}{low:016x}" for high, low in ids]
    assert [(row["x"], row["y"]) for row in table] == [tuple(xy) for xy in shown.xy.tolist()]
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


def test_it_is_fitted_again_on_request_and_for_other_settings(corpus: Corpus) -> None:
    corpus.run(RECORDS)
    before = corpus.places()
    receipt = corpus.run(RECORDS + MORE, "cluster_map")
    assert receipt.figures["fitted"] == "asked for by --refit cluster_map"
    assert receipt.figures["new_documents"] == 104
    assert corpus.places() != before
    now = corpus.places()
    assert corpus.run().figures["new_documents"] == 0
    assert corpus.places() == now
    corpus.settings = corpus.settings.model_copy(update={"seed": 5})
    assert corpus.run().figures["fitted"] == "seed 0 -> 5"
    assert corpus.places() != now


def test_documents_without_a_word_have_places_too(corpus: Corpus) -> None:
    corpus.run([*RECORDS, {"text": " "}, {"text": "\n"}, {"text": "?"}])
    assert len(corpus.places()) == 83 and np.isfinite(corpus.shown().xy).all()
