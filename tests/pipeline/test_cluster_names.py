"""Names and examples of clusters on real files: what they say, and when they change."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dagster_divorder import load_results, run_all
from dagster_divorder.corpus.sample import EXAMPLE_CHARACTERS, beginnings
from dagster_divorder.engine.progress import Silent
from dagster_divorder.settings import Settings
from dagster_divorder.stages import GRAPH, open_run
from dagster_divorder.stages.topics import cluster_names as module
from dagster_divorder.stages.topics.cluster_names import EXAMPLES, load_named, load_names
from tests.conftest import TOPICS, write_jsonl

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


def named(settings: Settings) -> dict[str, Any]:
    """Names and examples of the clusters."""
    run_all(settings, Silent(), GRAPH.needed(settings, "clusters"))
    return load_named(open_run(settings))


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Settings:
    folder = tmp_path_factory.mktemp("names")
    write_jsonl(folder / "docs.jsonl", records(50))
    settings = settings_of(folder)
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
    for row, lines in zip(rows, examples, strict=True):
        own = documents[documents["cluster"] == row["cluster"]]
        assert row["documents"] == len(own)
        assert row["mean_distance"] == pytest.approx(own["cluster_distance"].mean(), abs=1e-6)
        # The sample has all documents.
        nearest = own.sort_values("cluster_distance").index[:EXAMPLES]
        assert lines == [" ".join(texts[at].split())[:EXAMPLE_CHARACTERS] for at in nearest]
        assert row["example"] == lines[0]


def test_texts_without_words_still_have_names_and_examples(tmp_path: Path) -> None:
    write_jsonl(tmp_path / "docs.jsonl", [{"text": f"{number} {number * 7} !"} for number in range(40)])
    settings = settings_of(tmp_path, clusters={"k": 3}, fields=[])
    found = named(settings)
    assert found["names"] == [f"cluster {label}" for label in range(len(found["names"]))]
    assert all(found["examples"])


def test_examples_that_begin_alike_are_shown_once(tmp_path: Path) -> None:
    same = [{"text": "bread and butter " * 20 + str(number)} for number in range(30)]
    write_jsonl(tmp_path / "docs.jsonl", [*same, {"text": "tide and sail"}])
    found = named(settings_of(tmp_path, clusters={"k": 2}, fields=[]))
    assert [("bread and butter " * 20)[:EXAMPLE_CHARACTERS]] in found["examples"]


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
    settings = settings_of(tmp_path, clusters={"k": 2}, fields=[])
    own = {"kind": "external", "path": tmp_path / "own.npy"}
    named(settings.model_copy(update={"embedding": settings.embedding.model_validate(own)}))
    assert np.bincount(np.array(sampled) >= 50).tolist() == [10, 4]
