"""Names and examples of clusters on real files: what they say, and when they change."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pytest

from dagster_divorder import load_results, run_all
from dagster_divorder.corpus.sample import EXAMPLE_CHARACTERS
from dagster_divorder.engine.progress import Silent
from dagster_divorder.pipeline.prune import prune, remove_superseded
from dagster_divorder.pipeline.run import Run
from dagster_divorder.settings import Settings
from dagster_divorder.stages import GRAPH, open_run
from dagster_divorder.stages.topics import cluster_table as module
from dagster_divorder.stages.topics.cluster_names import _evenly, load_names
from dagster_divorder.stages.topics.cluster_table import EXAMPLES, NEAREST, load_cluster_table
from dagster_divorder.store.local import LocalStore
from dagster_divorder.store.state import load_state
from tests.conftest import TOPICS, copy_fits, write_jsonl

CLUSTERED = GRAPH.needed(Settings(), "clusters")


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


def settings_of(folder: Path, **sections: Any) -> Settings:
    return Settings(
        input={"paths": [str(folder / "docs.jsonl")]},
        store={"path": folder / "store"},
        output={"path": folder / "curated", "sidecars": ()},
        advanced={"vocab_size": 512, "token_dims": 16},
        clusters={"k": 4, **sections.get("clusters", {})},
        order={
            "traits": {"cluster": 1.0, **dict.fromkeys(sections.get("fields", ["topic"]), 1.0)},
        },
        sequence={"length": 128, "batch": 4},
        refit=sections.get("refit", {}),
    )


def table_of(settings: Settings) -> list[dict[str, Any]]:
    run_all(settings, Silent(), CLUSTERED)
    return load_cluster_table(open_run(settings))


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Settings:
    folder = tmp_path_factory.mktemp("names")
    write_jsonl(folder / "docs.jsonl", records(50))
    settings = settings_of(folder)
    run_all(settings, Silent())
    return settings


def test_results_and_manifest_carry_the_names(made: Settings) -> None:
    names = load_names(open_run(made))
    documents = load_results(made.store.path).documents
    assert documents["cluster_name"].tolist() == [names[label] for label in documents["cluster"]]
    meta = orjson.loads((made.output.path / "curated_meta.json").read_bytes())
    assert meta["cluster_names"] == names
    assert len(names) == len(meta["cluster_sizes"])
    for name, of in documents.groupby("cluster_name", observed=True):
        topic = of["topic"].mode()[0]
        assert (of["topic"] == topic).mean() > 0.9, "the corpus is one that k-means solves"
        assert set(name.split(", ")) <= set(TOPICS[topic].split()), (name, topic)


def test_the_table_describes_every_cluster(made: Settings) -> None:
    documents = load_results(made.store.path).documents
    texts = [record["text"] for record in records(50)]
    rows = table_of(made)
    assert [row["cluster"] for row in rows] == list(range(4))
    assert sum(row["share"] for row in rows) == pytest.approx(1)
    for row in rows:
        own = documents[documents["cluster"] == row["cluster"]]
        assert row["documents"] == len(own)
        assert row["mean_distance"] == pytest.approx(own["cluster_distance"].mean(), abs=1e-6)
        nearest = own.assign(high=own["doc_id"].str[:16]).sort_values(["cluster_distance", "high"])[:NEAREST]
        assert row["nearest"] == nearest["doc_id"].tolist()
        assert row["texts"] == [" ".join(texts[at].split())[:EXAMPLE_CHARACTERS] for at in nearest.index]
        assert row["examples"] == row["texts"][:EXAMPLES]


def test_names_stay_when_documents_are_appended_and_only_new_examples_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = settings_of(tmp_path)
    write_jsonl(tmp_path / "docs.jsonl", records(50))
    before = table_of(settings)
    read: list[int] = []
    original = module.first_lines

    def reading(store: LocalStore, view: Any, rows: np.ndarray) -> list[str]:
        read.append(len(rows))
        return original(store, view, rows)

    monkeypatch.setattr(module, "first_lines", reading)
    assert table_of(settings) == before
    assert not read, "nothing is new, nothing is read"
    write_jsonl(tmp_path / "docs.jsonl", [*records(50), *records(10, seed=1)])
    after = table_of(settings)
    assert [row["name"] for row in after] == [row["name"] for row in before]
    known = {one for row in before for one in row["nearest"]}
    assert sum(read) == len({one for row in after for one in row["nearest"]} - known) > 0
    fresh = settings_of(tmp_path).model_copy(
        update={"store": settings.store.model_copy(update={"path": tmp_path / "fresh"})}
    )
    monkeypatch.setattr(module, "load_receipt", lambda store, stage: None)
    copy_fits(tmp_path / "store", tmp_path / "fresh")
    assert table_of(fresh) == after, "what was kept is what is read"


def test_only_a_refit_names_anew(tmp_path: Path) -> None:
    pinned = settings_of(tmp_path, refit={"clusters": "never"})
    write_jsonl(tmp_path / "docs.jsonl", records(50))
    before = [row["name"] for row in table_of(pinned)]
    backwards = [
        {**record, "text": " ".join(word[::-1] for word in record["text"].split())} for record in records(50)
    ]
    write_jsonl(tmp_path / "docs.jsonl", backwards)
    assert [row["name"] for row in table_of(pinned)] == before
    again = pinned.refitting("clusters")
    words = {word[::-1] for words in TOPICS.values() for word in words.split()}
    assert {word for row in table_of(again) for word in row["name"].split(", ")} <= words


def test_texts_without_words_still_have_names_and_examples(tmp_path: Path) -> None:
    write_jsonl(tmp_path / "docs.jsonl", [{"text": f"{number} {number * 7} !"} for number in range(40)])
    settings = settings_of(tmp_path, clusters={"k": 3}, fields=[])
    rows = table_of(settings)
    assert [row["name"] for row in rows] == [f"cluster {row['cluster']}" for row in rows]
    assert all(row["examples"] for row in rows if row["documents"])


def test_examples_that_begin_alike_are_shown_once(tmp_path: Path) -> None:
    same = [{"text": "bread and butter " * 20 + str(number)} for number in range(30)]
    write_jsonl(tmp_path / "docs.jsonl", [*same, {"text": "tide and sail"}])
    rows = table_of(settings_of(tmp_path, clusters={"k": 2}, fields=[]))
    largest = max(rows, key=lambda row: row["documents"])
    assert len(largest["nearest"]) == NEAREST
    assert largest["examples"] == [("bread and butter " * 20)[:EXAMPLE_CHARACTERS]]


def test_the_sample_is_spread_over_the_clusters() -> None:
    labels = np.array([0] * 50 + [1] * 3 + [0] * 50 + [2] * 20)
    chosen = _evenly(labels, 18)
    assert np.bincount(labels[chosen]).tolist() == [8, 3, 7]
    assert (np.diff(chosen) > 0).all()
    for label in range(3):
        own = chosen[labels[chosen] == label]
        assert own.tolist() == np.flatnonzero(labels == label)[: len(own)].tolist(), "the first of each"
    assert _evenly(labels, 1000).tolist() == list(range(123))


def test_what_a_refit_replaces_and_what_other_settings_have_stays_until_prune(tmp_path: Path) -> None:
    def results() -> list[int]:
        folders = ("fits/centroids", "fits/cluster_names", "stages/clusters")
        return [len(store.folders(folder)) for folder in folders]

    write_jsonl(tmp_path / "docs.jsonl", records(50))
    four, three = settings_of(tmp_path), settings_of(tmp_path, clusters={"k": 3})
    table_of(three)
    store = LocalStore(four.store.path)
    # Within the last four views, so that what other settings have is needed.
    for number in range(3):
        # Twice as many documents as at the last fit.
        write_jsonl(tmp_path / "docs.jsonl", records(60 * 2**number, seed=number))
        table_of(four)
        with store.lock():
            remove_superseded(store, GRAPH, CLUSTERED)
        # Centroids are pinned under their settings; names and labels are stored under their centroids.
        assert results() == [2, 2 + number, 2 + number]
        assert len(load_state(store).results["cluster_names"]) == 2 + number
    assert load_names(Run(four, store, GRAPH, Silent()))
    prune(GRAPH, store)
    # Names may quote documents that are gone.
    assert results() == [1, 0, 1]
