"""The features that are looked at are those of the sequences as a trainer reads them, and nothing is measured twice."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pytest

from dagster_divorder import run_all, run_stage
from dagster_divorder.core.measure import Feature
from dagster_divorder.core.measure import stationarity as core_stationarity
from dagster_divorder.engine.progress import Silent
from dagster_divorder.pipeline.run import Run, run_checks
from dagster_divorder.settings import Settings
from dagster_divorder.stages import GRAPH, open_run
from dagster_divorder.stages.measure import stationarity
from dagster_divorder.stages.measure.stationarity import load_stationarity
from dagster_divorder.stages.mix.repeats import load_stream
from dagster_divorder.stages.order.packed_sequences import load_packed
from dagster_divorder.stages.order.sequence_order import load_sequence_order
from dagster_divorder.stages.order.traits import load_traits
from dagster_divorder.store.stages import StageFiles
from tests.conftest import topic_records, write_jsonl
from tests.twins.metrics import bucket


def settings_of(folder: Path, **sections: Any) -> Settings:
    defaults: dict[str, Any] = {
        "order": {"traits": {"length": 1.0}},
        "input": {"paths": [str(folder / "docs.jsonl")], "source_field": "source"},
        "store": {"path": folder / "store"},
        "output": {"path": folder / "curated", "sidecars": ()},
        "advanced": {"vocab_size": 512, "token_dims": 8},
        "clusters": {"k": 4},
        "sequence": {"length": 64, "batch": 8},
    }
    for name, section in sections.items():
        defaults[name] = {**defaults.get(name, {}), **section}
    return Settings(**defaults)


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("stationarity")
    records = topic_records(60)
    # A long document, and records that share a text.
    records[7]["text"] = " ".join(record["text"] for record in records[:40])
    write_jsonl(folder / "docs.jsonl", [*records, records[3], records[200]])
    return folder


@pytest.fixture(params=[False, True], ids=["documents", "documents with an end-of-text token"])
def features(corpus: Path, request: pytest.FixtureRequest) -> tuple[Run, dict[str, Feature]]:
    settings = settings_of(corpus, packing={"end_of_text": request.param})
    run_all(settings, Silent())
    run = open_run(settings)
    sample, *_ = stationarity.load_sample(run, load_stream(run))
    return run, {feature.name: feature for feature in stationarity.features(run, load_traits(run), sample)}


def tokens_of(run: Run) -> Iterator[list[tuple[int, int]]]:
    """Of each full sequence, in the order of training: (document, token id) for each of its tokens."""
    view, files = run.view, run.files("token_counts")
    ids, lengths = files.columns(view.fragments, "ids", "lengths")
    starts = np.cumsum(lengths) - lengths
    packed = load_packed(run)
    for sequence in load_sequence_order(run)[0].tolist():
        if packed.padding[sequence]:
            continue
        held = []
        for at in range(packed.indptr[sequence], packed.indptr[sequence + 1]):
            document, start = packed.document[at], packed.start[at]
            row = document
            end = min(start + packed.length[at], lengths[row])
            held += [(int(document), int(token)) for token in ids[starts[row] + start : starts[row] + end]]
        yield held


def test_features_are_those_of_the_tokens(features: tuple[Run, dict[str, Feature]]) -> None:
    """Token by token, with nothing of the code that makes them."""
    run, found = features
    view, traits = run.view, load_traits(run)
    shallow = run.receipt("shallow_embeddings")
    vectors = StageFiles(run.store, shallow.stage, shallow.key).column(view.fragments, "vectors")
    lines = Path(run.settings.input.paths[0]).read_bytes().splitlines()
    topics = [orjson.loads(line)["source"] for line in lines]
    in_sequences: dict[int, set[int]] = {}
    rows = list(tokens_of(run))
    for at, row in enumerate(rows):
        for document, _ in row:
            in_sequences.setdefault(document, set()).add(at)
    assert {feature.values.shape[0] for feature in found.values()} == {len(rows)}
    long = [document for document, places in in_sequences.items() if len(places) >= 10]
    assert long and found["parts of long documents"].values.shape[1] == len(long)
    # Columns come in any order.
    by_source = [
        [sum(topics[document] == value for document, _ in row) for row in rows] for value in set(topics)
    ]
    assert sorted(found["source"].values.toarray().T.tolist()) == sorted(by_source)
    for at, row in enumerate(rows):
        documents = [document for document, _ in row]
        expected = np.bincount(traits.codes["cluster"][documents], minlength=traits.sizes()["cluster"])
        mix = found["cluster"].values[at].toarray().ravel()
        assert (np.pad(mix, (0, len(expected) - len(mix))) == expected).all()
        words = np.bincount([bucket(token, 12) for _, token in row], minlength=1 << 12)
        assert (found["words"].values[at].toarray().ravel() == words).all()
        mean = vectors[documents].mean(axis=0)
        assert found["shallow vectors"].values[at] == pytest.approx(mean, abs=1e-5)
        single = found["sequences of one cluster"].values[at].sum()
        assert single == (len(set(traits.codes["cluster"][documents])) == 1)
    # What the order balanced is not looked at, but for vectors.
    assert {name: feature.seen for name, feature in found.items()} == {
        **dict.fromkeys(("cluster", "sequences of one cluster", "parts of long documents"), False),
        **{"source": False, "words": False, "shallow vectors": True},
    }


def test_it_is_measured_once_whatever_evidence_comes_later(corpus: Path, tmp_path: Path) -> None:
    np.save(tmp_path / "vectors.npy", np.random.default_rng(0).normal(size=(242, 6)).astype(np.float32))
    settings = settings_of(
        corpus,
        embedding={"kind": "external", "path": tmp_path / "vectors.npy"},
        store={"path": tmp_path / "store"},
        output={"path": tmp_path / "curated"},
    )
    first = run_all(settings, Silent())
    for stage in ("base_model", "token_counts", "shallow_embeddings"):
        run_stage(stage, settings, Silent())
    run_stage("diversity_metrics", settings, Silent())
    later = run_all(settings, Silent())
    for stage in ("diversity_metrics", "stationarity"):
        assert (later[stage].version, later[stage].files) == (first[stage].version, first[stage].files)
        assert later[stage].figures["new_documents"] == 0
    names = {of.feature for of in load_stationarity(open_run(settings)).features}
    assert "external vectors" in names and "shallow vectors" not in names
    assert later["curated_output"].figures["written"] is False


def test_what_phases_ask_for_is_no_drift(corpus: Path) -> None:
    first = {"sea.example": 0.7, "rail.example": 0.1, "kitchen.example": 0.1, "garden.example": 0.1}
    phases = [{"until": 0.5, "weights": first}, {"weights": "natural"}]
    settings = settings_of(corpus, mixing={"phase": phases})
    run_all(settings, Silent())
    found = run_checks(GRAPH, settings, stage="diversity_metrics")["nothing_drifts"]
    assert found.passed and "inside its 2 stretches" in found.text, found.text
    run = open_run(settings)
    sample, *_ = stationarity.load_sample(run, load_stream(run))
    features = stationarity.features(run, load_stream(run).traits, sample)
    assert not core_stationarity(features, len(sample), batch=8).passed, "in one stretch"
