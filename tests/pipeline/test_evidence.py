"""The certificate and the comparison of strategies on real files: what is measured, and what is said of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pytest

from dagster_divorder import run_all, run_stage
from dagster_divorder.cli import main
from dagster_divorder.core.measure import WINDOWS
from dagster_divorder.engine.progress import Silent
from dagster_divorder.errors import MissingStageError
from dagster_divorder.settings import Settings, load_settings
from dagster_divorder.stages import open_run
from dagster_divorder.stages.evidence import strategy_comparison
from dagster_divorder.stages.evidence.strategy_comparison import load_comparison
from dagster_divorder.stages.measure.diversity_metrics import load_metrics, load_verdict, remedy
from dagster_divorder.stages.order.packed_sequences import load_packed
from dagster_divorder.stages.order.sequence_order import load_sequence_order
from dagster_divorder.stages.order.traits import load_traits
from dagster_divorder.view.strategies import by_batches, conclusions
from dagster_divorder.view.words import points
from tests.conftest import topic_records, write_jsonl


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A corpus whose store every test here shares: what is the same is computed once."""
    return write_jsonl(tmp_path_factory.mktemp("evidence") / "docs.jsonl", topic_records(200))


def settings_of(corpus: Path, **sections: dict[str, Any]) -> Settings:
    sections = {"sequence": {"length": 64, "batch": 4}, **sections}
    return Settings(
        input={"paths": [str(corpus)]},
        store={"path": corpus.parent / "store"},
        output={"path": corpus.parent / "curated", "sidecars": ()},
        advanced={"vocab_size": 512, "token_dims": 8},
        clusters={"k": 4},
        **sections,
    )


def metrics_of(settings: Settings) -> dict[str, dict[str, Any]]:
    run_all(settings, Silent())
    return load_metrics(open_run(settings))


def test_the_sequences_that_are_measured_are_those_that_are_left(corpus: Path) -> None:
    """Token by token: the stream as a trainer reads it, and every window of it."""
    settings = settings_of(corpus)
    metrics, run = metrics_of(settings), open_run(settings)
    figures = metrics["sequences"]
    packed, epochs, labels = load_packed(run), load_sequence_order(run), load_traits(run).codes["cluster"]
    stream = np.concatenate(
        [
            np.repeat(labels[packed.document[runs]], packed.length[runs])
            for s in epochs[0]
            for runs in [slice(packed.indptr[s], packed.indptr[s + 1])]
        ]
    )
    assert len(stream) == figures["tokens"]
    before = np.cumsum(np.vstack([np.zeros(4), np.eye(4)[stream]]), axis=0)
    share = before[-1] / len(stream)
    edges = np.append(np.arange(0, len(stream), 64), len(stream))
    for window, size in zip(WINDOWS, (1, 4, 40), strict=True):
        tokens = edges[size:] - edges[:-size]
        inside = before[edges[size:]] - before[edges[:-size]]
        worst = np.abs(inside / tokens[:, np.newaxis] - share).max()
        assert figures["windows"][window]["cluster"]["worst"] == pytest.approx(worst, abs=1e-12)
    distinct = [len(set(stream[at : at + 64].tolist())) for at in range(0, len(stream), 64)]
    assert figures["distinct"]["cluster"]["mean"] == pytest.approx(np.mean(distinct))


def test_balanced_beats_shuffling_and_the_original_order_does_not(corpus: Path) -> None:
    balanced = settings_of(corpus, order={"traits": {"cluster": 1.0}})
    run_all(balanced, Silent())
    found = load_verdict(open_run(balanced)).sequences
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
    found = load_verdict(open_run(as_it_is)).sequences
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
    *lines, _ = capsys.readouterr().out.strip("\n").splitlines()
    assert any("sequences of 128 tokens, batches of 4, 4 clusters" in line for line in lines)
    stored = by_batches(load_comparison(open_run(load_settings())))
    assert lines[: len(conclusions(stored))] == conclusions(stored)
    assert {row["documents"] for row in stored} == set(strategy_comparison.DOCUMENTS)
    shown = [
        [
            row["documents"],
            "original",
            f"{row['distinct clusters a sequence']:.2f}",
            points(row["batch TV of cluster"]),
        ]
        for row in stored
    ]
    assert [line.split() for line in lines[-len(shown) :]] == shown
    assert [row[3] for row in shown] == sorted((row[3] for row in shown), key=float)
    assert main(["compare", "--json"]) == 0
    assert orjson.loads(capsys.readouterr().out)["comparison"] == stored
    assert main(["summary", "strategy_comparison"]) == 0
    assert "mean prefix deviation" in capsys.readouterr().out
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
    (row,) = load_comparison(open_run(settings))
    assert row["distinct clusters a sequence"] == figures["distinct"]["cluster"]["mean"]
    assert row["worst share of cluster"] == figures["windows"]["batch"]["cluster"]["worst"]
    assert row["mean prefix deviation, tokens"] == figures["prefix"]["mean"]
