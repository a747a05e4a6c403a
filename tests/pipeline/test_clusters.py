"""Clusters as people see them: names, examples, the map, which stays put. k_calibration finds planted topics and says
what the pipeline then does; ari_comparison, with vectors made for the purpose, what it finds and which space it takes;
each for how long."""

from __future__ import annotations

from itertools import permutations
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from sklearn.metrics import silhouette_samples

from dagster_divorder import load_results, run_all, run_stage
from dagster_divorder.corpus.stored import EXAMPLE_CHARACTERS, beginnings, records_by_text
from dagster_divorder.engine.progress import Silent
from dagster_divorder.pipeline import fit
from dagster_divorder.pipeline.run import Run
from dagster_divorder.pipeline.stage import content_hash
from dagster_divorder.settings import Settings
from dagster_divorder.stages import GRAPH, open_run
from dagster_divorder.stages.topics import cluster_map
from dagster_divorder.stages.topics import cluster_names as module
from dagster_divorder.stages.topics.cluster_map import load_map
from dagster_divorder.stages.topics.cluster_names import load_named, load_names
from dagster_divorder.stages.topics.components import STAGE_OF, chosen_kind
from dagster_divorder.store.local import LocalStore
from dagster_divorder.store.stages import StageFiles
from dagster_divorder.store.state import Receipt
from tests.conftest import TOPICS, small_settings, topic_records, write_jsonl
from tests.pipeline.runs import Make, ran


def test_every_cluster_has_a_name_an_example_and_figures(tmp_path: Path) -> None:
    write_jsonl(tmp_path / "docs.jsonl", planted(50))
    run = ran(small_settings(tmp_path, order={"traits": {"cluster": 1.0, "topic": 1.0}}))
    names, examples = load_names(run), load_named(run)["examples"]
    documents = load_results(run.settings.store.path).documents
    assert documents["cluster_name"].tolist() == [names[label] for label in documents["cluster"]]
    for name, of in documents.groupby("cluster_name", observed=True):
        topic = of["topic"].mode()[0]
        assert (of["topic"] == topic).mean() > 0.9, "the corpus is one that k-means solves"
        assert set(name.split(", ")) <= {topic, *TOPICS[topic].split()}, (name, topic)
    texts = [record["text"] for record in planted(50)]
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


def test_the_sample_is_spread_over_the_clusters(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a large cluster and a small one, half of the sample each as far as the small one goes."""
    monkeypatch.setattr(module, "sample_size", lambda clusters: 14)
    sampled: list[int] = []
    monkeypatch.setattr(module, "beginnings", lambda *of: sampled.extend(of[2].tolist()) or beginnings(*of))
    texts = [f"{word} {at}" for word, count in (("wave", 50), ("oven", 4)) for at in range(count)]
    write_jsonl(tmp_path / "docs.jsonl", [{"text": text} for text in texts])
    vectors = np.repeat(np.eye(2, dtype=np.float32), [50, 4], axis=0)
    np.save(tmp_path / "own.npy", vectors + np.random.default_rng(0).normal(0, 0.01, vectors.shape))
    own = {"kind": "external", "path": tmp_path / "own.npy"}
    load_named(ran(small_settings(tmp_path, clusters={"k": 2}, embedding=own), "clusters"))
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
        return run_all(self.settings, Silent(), GRAPH.needed(self.settings, "cluster_map"))["cluster_map"]

    def shown(self) -> dict[str, np.ndarray]:
        return load_map(open_run(self.settings))

    def places(self) -> dict[tuple[int, int], bytes]:
        """By id, the place of each document on the map."""
        shown = self.shown()
        return {tuple(i): xy.tobytes() for i, xy in zip(shown["ids"].tolist(), shown["xy"], strict=True)}

    def documents(self) -> tuple[list[tuple[int, int]], np.ndarray]:
        """Ids and clusters of all documents, by rising id."""
        run = open_run(self.settings)
        rows = records_by_text(run.records, run.view)
        return [tuple(i) for i in run.index("text")[rows].tolist()], run.column("clusters", "labels")[rows]


@pytest.fixture
def corpus(tmp_path: Path, make_settings: Make) -> Corpus:
    return Corpus(tmp_path / "docs.jsonl", make_settings(refit={"clusters": "never"}, engine={"workers": 1}))


def test_every_document_is_on_the_map_with_its_cluster(corpus: Corpus) -> None:
    """Also those without a word."""
    receipt = corpus.run([*RECORDS, {"text": " "}, {"text": "\n"}, {"text": "?"}])
    ids, labels = corpus.documents()
    shown = corpus.shown()
    assert [tuple(i) for i in shown["ids"].tolist()] == ids and len(ids) == 83
    assert np.array_equal(shown["labels"], labels)
    assert np.isfinite(shown["xy"]).all()
    assert receipt.figures["documents"] == receipt.figures["new_documents"] == 83
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


VALUES = (2, 3, 4, 5, 8, 12)


def planted(per_topic: int, seed: int = 0, topics: tuple[str, ...] = tuple(TOPICS)) -> list[dict[str, Any]]:
    """Records of words drawn from each topic's own: nothing but topics tells them apart."""
    random = np.random.default_rng(seed)
    return [
        {
            "text": "  ".join([topic, *random.choice(TOPICS[topic].split(), random.integers(20, 80))]),
            "topic": topic,
        }
        for topic in topics
        for _ in range(per_topic)
    ]


def test_planted_topics_are_found_and_what_is_measured_is_then_made(tmp_path: Path) -> None:
    """Over four topics; some records are copies."""
    records = planted(50)
    write_jsonl(tmp_path / "docs.jsonl", [*records, *records[:30]])
    settings = small_settings(tmp_path, clusters={"k": VALUES})
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
    settings = small_settings(tmp_path, clusters={"k": VALUES})
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
    settings = small_settings(tmp_path, clusters={"k": (5, 9, 12)}, sequence={"length": 8192, "batch": 256})
    write_jsonl(tmp_path / "docs.jsonl", [{"text": text} for text in texts])
    receipts = run_all(settings, Silent(), GRAPH.needed(settings, "clusters"))
    calibration = receipts["k_calibration"]
    assert calibration.figures["recommended"] == receipts["clusters"].figures["k"] == tried[-1]
    assert calibration.figures["notes"][0] == note
    assert [row["k"] for row in calibration.facts["rows"]] == tried


MOODS = {
    "glad": "merry bright laugh feast song sunny cheer dance smile grin",
    "sad": "grief tears lonely grave sorrow mourn weep gloom loss ache",
    "cross": "shout quarrel temper glare stamp fury growl snap curse rage",
    "calm": "hush still ease gentle breath rest quiet drift slow nap",
}


def moody_records(count: int, start: int = 0) -> list[dict[str, str]]:
    """Texts of a topic and, independently, of a mood: two structures that are as good as each other."""
    random = np.random.default_rng(start)
    made = []
    for number in range(start, start + count):
        topic, mood = (list(of)[random.integers(4)] for of in (TOPICS, MOODS))
        words = [*random.choice(TOPICS[topic].split(), 12), *random.choice(MOODS[mood].split(), 12)]
        made.append({"text": " ".join([topic, mood, str(number), *words])})
    return made


def pointing(texts: list[str], kind: str) -> np.ndarray:
    """Vectors float32 (n, 8) that tell the topics apart, or the moods, or nothing."""
    if kind == "noise":
        groups = np.array([hash_of(text) % 4 for text in texts])
    else:
        names = list(TOPICS if kind == "topics" else MOODS)
        groups = np.array([names.index(text.split()[0 if kind == "topics" else 1]) for text in texts])
    jitter = np.array([[hash_of(text + str(dim)) % 1000 for dim in range(8)] for text in texts]) / 1000
    vectors = np.eye(8)[groups] + 0.3 * (jitter - 0.5)
    return (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32)


def hash_of(text: str) -> int:
    return int(content_hash(text)[:8], 16)


def embed(settings: Settings, **kinds: str) -> Run:
    """The corpus read, and each space given the vectors of a kind; what else they would be made of is only named."""
    raw_docs = run_stage("raw_docs", settings, Silent())
    run = open_run(settings)
    for space, kind in kinds.items():
        stage = STAGE_OF[space]
        files = StageFiles(run.store, stage, content_hash(stage, kind))
        for fragment in run.view.fragments:
            texts = run.records.texts(fragment).to_pylist()
            files.put(fragment.name, {"vectors": pointing(texts, kind)})
        for name in GRAPH.needed(settings, stage)[1:]:
            key = files.key if name == stage else "given"
            run.save(GRAPH[name].receipt(run, key, content_hash(key, raw_docs.version)))
    return run


@pytest.mark.parametrize(
    ("deep", "chosen", "said"),
    [
        ("topics", "shallow", "much the same structure"),
        ("noise", "deep", "likely worth using"),
        ("moods", "deep", "likely worth using"),
    ],
)
def test_deep_vectors_are_taken_for_another_structure_and_a_note_tells_noise(
    tmp_path: Path, deep: str, chosen: str, said: str
) -> None:
    write_jsonl(tmp_path / "docs.jsonl", moody_records(400))
    run = embed(small_settings(tmp_path, embedding={"kind": "auto"}), shallow="topics", deep=deep)
    receipt = run_stage("ari_comparison", run.settings, Silent())
    report = receipt.figures
    assert (report["chosen"], report["k"], report["documents"]) == (chosen, 4, 400)
    assert said in report["conclusion"] and f"ARI {report['ari']:.3f}" in report["conclusion"]
    assert chosen_kind(run) == chosen
    assert (report["ari"] > 0.99) if deep == "topics" else (abs(report["ari"]) < 0.03)
    assert report["overlap"] == ("high" if deep == "topics" else "low")
    told = report["told_by_words"]
    assert told["shallow"] > 0.9 and (abs(told["deep"]) < 0.1 if deep == "noise" else told["deep"] > 0.9)
    assert bool(report["note"]) == (deep == "noise")


@pytest.mark.parametrize("chosen", ["external", "shallow"])
def test_vectors_of_your_own_are_held_against_the_others(tmp_path: Path, chosen: str) -> None:
    """Through the pipeline, as `embedding.kind = "auto"` does it."""
    write_jsonl(tmp_path / "docs.jsonl", moody_records(200))
    texts = [record["text"] for record in moody_records(200)]
    np.save(tmp_path / "own.npy", pointing(texts, "moods" if chosen == "external" else "topics"))
    settings = small_settings(tmp_path, embedding={"kind": "auto", "path": tmp_path / "own.npy"})
    run = embed(settings, shallow="topics")
    stages = GRAPH.needed(settings, "clusters")
    assets = [stage for stage in stages if GRAPH[stage].asset]
    assert assets[-3:] == ["external_embeddings", "ari_comparison", "clusters"]
    assert "deep_embeddings" not in stages
    run_stage("external_embeddings", settings, Silent())
    receipt = run_stage("ari_comparison", run.settings, Silent())
    report = receipt.figures
    assert (report["chosen"], report["spaces"]) == (chosen, ["shallow", "external"])
    assert report["overlap"] == ("low" if chosen == "external" else "high")
    assert set(report["told_by_words"]) == {"shallow", "external"}
    clusters = run_stage("clusters", settings, Silent())
    assert STAGE_OF[chosen] in clusters.upstream


def test_what_is_clustered_stays_when_the_same_space_is_chosen_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fit, "CHANGED", 0.0)
    settings = small_settings(
        tmp_path,
        embedding={"kind": "auto", "path": tmp_path / "own.npy"},
        clusters={"k": 2},
        refit={"clusters": "never"},
    )
    versions = []
    for documents in (100, 108):
        records = moody_records(documents)
        write_jsonl(tmp_path / "docs.jsonl", records)
        np.save(tmp_path / "own.npy", pointing([record["text"] for record in records], "moods"))
        embed(settings, shallow="topics")
        stages = ("external_embeddings", "ari_comparison", "clusters")
        _, compared, clusters = (run_stage(stage, settings, Silent()) for stage in stages)
        versions.append(compared.version)
    assert versions[0] != versions[1]
    assert clusters.figures["fitted"].startswith("no: kept")
    assert clusters.figures["new_documents"] == 8


def test_a_corpus_of_one_document(tmp_path: Path) -> None:
    write_jsonl(tmp_path / "docs.jsonl", moody_records(1))
    run = embed(small_settings(tmp_path, embedding={"kind": "auto"}), shallow="topics", deep="moods")
    receipt = run_stage("ari_comparison", run.settings, Silent())
    assert (receipt.figures["ari"], receipt.figures["chosen"]) == (1.0, "shallow")
