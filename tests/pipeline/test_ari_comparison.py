"""ari_comparison on real files, with vectors made for the purpose: what it finds, which space it takes, and for how
long."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dagster_divorder import run_stage
from dagster_divorder.engine.progress import Silent
from dagster_divorder.pipeline import fit
from dagster_divorder.pipeline.run import Run
from dagster_divorder.pipeline.stage import content_hash
from dagster_divorder.settings import Settings
from dagster_divorder.stages import GRAPH, open_run
from dagster_divorder.stages.topics.components import STAGE_OF, chosen_kind
from dagster_divorder.store.stages import StageFiles
from dagster_divorder.store.state import Receipt
from tests.conftest import TOPICS, small_settings, write_jsonl

MOODS = {
    "glad": "merry bright laugh feast song sunny cheer dance smile grin",
    "sad": "grief tears lonely grave sorrow mourn weep gloom loss ache",
    "cross": "shout quarrel temper glare stamp fury growl snap curse rage",
    "calm": "hush still ease gentle breath rest quiet drift slow nap",
}


def records(count: int, start: int = 0) -> list[dict[str, str]]:
    """Texts of a topic and, independently, of a mood: two structures that are as good as each other."""
    random = np.random.default_rng(start)
    made = []
    for number in range(start, start + count):
        topic, mood = (list(of)[random.integers(4)] for of in (TOPICS, MOODS))
        words = [*random.choice(TOPICS[topic].split(), 12), *random.choice(MOODS[mood].split(), 12)]
        made.append({"text": " ".join([topic, mood, str(number), *words])})
    return made


def settings_of(folder: Path, **sections: Any) -> Settings:
    return small_settings(folder, **{"embedding": {"kind": "auto"}, **sections})


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


def compare(run: Run) -> Receipt:
    return run_stage("ari_comparison", run.settings, Silent())


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
    write_jsonl(tmp_path / "docs.jsonl", records(400))
    run = embed(settings_of(tmp_path), shallow="topics", deep=deep)
    receipt = compare(run)
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
    write_jsonl(tmp_path / "docs.jsonl", records(200))
    texts = [record["text"] for record in records(200)]
    np.save(tmp_path / "own.npy", pointing(texts, "moods" if chosen == "external" else "topics"))
    settings = settings_of(
        tmp_path,
        embedding={"kind": "auto", "path": tmp_path / "own.npy"},
    )
    run = embed(settings, shallow="topics")
    stages = GRAPH.needed(settings, "clusters")
    assets = [stage for stage in stages if GRAPH[stage].asset]
    assert assets[-3:] == ["external_embeddings", "ari_comparison", "clusters"]
    assert "deep_embeddings" not in stages
    run_stage("external_embeddings", settings, Silent())
    receipt = compare(run)
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
    settings = settings_of(
        tmp_path,
        embedding={"kind": "auto", "path": tmp_path / "own.npy"},
        clusters={"k": 2},
        refit={"clusters": "never"},
    )
    fits = []
    for documents in (100, 108):
        write_jsonl(tmp_path / "docs.jsonl", records(documents))
        np.save(tmp_path / "own.npy", pointing([record["text"] for record in records(documents)], "moods"))
        embed(settings, shallow="topics")
        made = {
            stage: run_stage(stage, settings, Silent()) for stage in ("external_embeddings", "ari_comparison")
        }
        made["clusters"] = run_stage("clusters", settings, Silent())
        fits.append(made)
    before, after = fits
    assert after["ari_comparison"].version != before["ari_comparison"].version
    assert after["clusters"].figures["fitted"].startswith("no: kept")
    assert after["clusters"].figures["new_documents"] == 8


def test_a_corpus_of_one_document(tmp_path: Path) -> None:
    write_jsonl(tmp_path / "docs.jsonl", records(1))
    receipt = compare(embed(settings_of(tmp_path), shallow="topics", deep="moods"))
    assert (receipt.figures["ari"], receipt.figures["chosen"]) == (1.0, "shallow")
