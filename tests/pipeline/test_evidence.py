"""The certificate, the comparison of strategies and what drifts, on real files: what is measured, once, of sequences
as a trainer reads them, and what is said of it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pytest

from dagster_divorder import run_all, run_stage
from dagster_divorder.cli import main
from dagster_divorder.core.measure import Feature
from dagster_divorder.engine.progress import Silent
from dagster_divorder.errors import MissingStageError
from dagster_divorder.pipeline.run import Run
from dagster_divorder.settings import Settings, load_settings
from dagster_divorder.stages import open_run
from dagster_divorder.stages.evidence import strategy_comparison
from dagster_divorder.stages.measure import stationarity
from dagster_divorder.stages.measure.diversity_metrics import load_metrics, load_verdict, remedy
from dagster_divorder.stages.measure.stationarity import load_stationarity
from dagster_divorder.stages.mix.repeats import load_stream
from dagster_divorder.stages.order.packed_sequences import load_packed
from dagster_divorder.stages.order.sequence_order import load_sequence_order
from dagster_divorder.stages.order.traits import load_traits
from dagster_divorder.store.stages import StageFiles
from tests.conftest import over, small_settings, topic_records, write_jsonl
from tests.twins.metrics import bucket


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A corpus whose store every test here shares: what is the same is computed once."""
    return write_jsonl(tmp_path_factory.mktemp("evidence") / "docs.jsonl", topic_records(200))


def settings_of(corpus: Path, **sections: dict[str, Any]) -> Settings:
    return small_settings(corpus.parent, **{"sequence": {"length": 64, "batch": 4}, **sections})


def metrics_of(settings: Settings) -> dict[str, dict[str, Any]]:
    run_all(settings, Silent())
    return load_metrics(open_run(settings))


def test_balanced_beats_shuffling_and_the_original_order_does_not(corpus: Path) -> None:
    balanced = settings_of(corpus, order={"traits": {"cluster": 1.0}})
    run_all(balanced, Silent())
    found = load_verdict(open_run(balanced)).check
    assert found.passed and {c.trait for c in found.comparisons} == {"cluster"}
    assert {c.window for c in found.comparisons} >= {"batch", "batch across the seam"}
    as_it_is = settings_of(
        corpus,
        order={"strategy": "original", "traits": {"cluster": 1.0}},
        sequence={"length": 64, "batch": 4, "strategy": "original"},
    )
    with pytest.raises(MissingStageError, match="made with other settings"):
        load_verdict(open_run(as_it_is))
    run_all(as_it_is, Silent())
    found = load_verdict(open_run(as_it_is)).check
    # Topics lie in blocks: the last batch and the first one are of one topic each.
    assert not found.passed and {"batch", "batch across the seam"} <= set(found.failed["cluster"])
    metrics = metrics_of(as_it_is)
    assert metrics["sequences"]["seam"]["cluster"]["worst"] > 0.6
    assert metrics["sequences_random"]["seam"]["cluster"]["worst"] < 0.6


@pytest.mark.parametrize(
    ("sections", "said"),
    [
        ({"sequence": {"strategy": "random"}}, "sequence.strategy is 'random'"),
        ({"order": {"strategy": "stratified"}}, "order.strategy is 'stratified'"),
        ({"packing": {"method": "cluster_packed"}}, "packing.method = 'cluster_packed'"),
        ({}, "more weight in order.traits"),
    ],
    ids=["sequences", "documents", "cluster_packed", "balanced"],
)
def test_a_failed_check_says_what_to_change(corpus: Path, sections: dict[str, Any], said: str) -> None:
    assert said in remedy(settings_of(corpus, **sections))


def test_one_command_prints_the_comparison_of_any_corpus(
    corpus: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without a settings file, and with no output made."""
    monkeypatch.chdir(corpus.parent)
    for key, value in {
        "INPUT__PATHS": str(corpus),
        "STORE__PATH": "store",
        "ADVANCED__VOCAB_SIZE": "512",
        "CLUSTERS__K": "4",
        "SEQUENCE__LENGTH": "128",
        "SEQUENCE__BATCH": "4",
    }.items():
        monkeypatch.setenv(f"DIVORDER_{key}", value)
    monkeypatch.setattr(strategy_comparison, "SEQUENCES", ("original",))
    monkeypatch.setenv("DIVORDER_SEQUENCE__STRATEGY", "original")
    assert main(["compare"]) == 0
    said = capsys.readouterr().out
    stored = open_run(load_settings()).rows("strategy_comparison", "table")
    assert {row["documents"] for row in stored} == set(strategy_comparison.DOCUMENTS)
    nearest = [row["batch TV of cluster"] for row in stored]
    assert nearest == sorted(nearest)
    lines = said.partition("\ncomparison\n")[2].splitlines()[1 : 1 + len(stored)]
    assert [line.split()[0] for line in lines] == [row["documents"] for row in stored]
    assert main(["compare", "--json"]) == 0
    assert orjson.loads(capsys.readouterr().out)["strategy_comparison"]["comparison"] == stored
    assert not (corpus.parent / "data").exists()


def test_the_comparison_measures_the_pipelines_own_order(
    corpus: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Same corpus, strategies and seed: the settings' own pair, always compared, is what the stages made."""
    for name in ("DOCUMENTS", "SEQUENCES"):
        monkeypatch.setattr(strategy_comparison, name, ())
    settings = settings_of(corpus)
    figures = metrics_of(settings)["sequences"]
    run_stage("strategy_comparison", settings, Silent())
    (row,) = open_run(settings).rows("strategy_comparison", "table")
    assert row["distinct clusters a sequence"] == figures["distinct"]["cluster"]["mean"]
    assert row["worst share of cluster"] == figures["windows"]["batch"]["cluster"]["worst"]
    assert row["mean prefix deviation, tokens"] == figures["prefix"]["mean"]


def drift_settings(folder: Path, **sections: Any) -> Settings:
    base = {
        "order": {"traits": {"length": 1.0}},
        "input": {"source_field": "source"},
        "sequence": {"length": 64, "batch": 8},
    }
    return small_settings(folder, **over(base, sections))


@pytest.fixture(scope="module")
def drifting(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("stationarity")
    records = topic_records(60)
    # A long document, and records that share a text.
    records[7]["text"] = " ".join(record["text"] for record in records[:40])
    write_jsonl(folder / "docs.jsonl", [*records, records[3], records[200]])
    return folder


@pytest.fixture(params=[False, True], ids=["documents", "documents with an end-of-text token"])
def features(drifting: Path, request: pytest.FixtureRequest) -> tuple[Run, dict[str, Feature]]:
    settings = drift_settings(drifting, packing={"end_of_text": request.param})
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


def test_it_is_measured_once_whatever_evidence_comes_later(drifting: Path, tmp_path: Path) -> None:
    np.save(tmp_path / "vectors.npy", np.random.default_rng(0).normal(size=(242, 6)).astype(np.float32))
    settings = drift_settings(
        drifting,
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
