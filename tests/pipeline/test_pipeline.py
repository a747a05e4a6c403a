"""The pipeline on real files: what comes out, and what a second run computes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pytest

from dagster_divorder import load_results, run_all, run_stage
from dagster_divorder.engine.progress import Silent
from dagster_divorder.errors import MissingStageError
from dagster_divorder.settings import Settings
from dagster_divorder.stages import GRAPH
from dagster_divorder.store.output_manifests import is_whole
from dagster_divorder.view.words import ORDERS
from tests.conftest import topic_records, write_jsonl

Make = Callable[..., Settings]
PER_DOCUMENT = ("token_counts", "shallow_embeddings", "clusters")


def run(settings: Settings) -> dict[str, dict[str, Any]]:
    return {stage: receipt.figures for stage, receipt in run_all(settings, Silent()).items()}


def output_bytes(settings: Settings) -> dict[str, bytes]:
    """Every output file but the manifest, whose times differ."""
    return {
        path.name: path.read_bytes()
        for path in settings.output.path.iterdir()
        if path.name != "curated_meta.json"
    }


def meta(settings: Settings) -> dict[str, Any]:
    return orjson.loads((settings.output.path / "curated_meta.json").read_bytes())


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    return write_jsonl(tmp_path / "docs.jsonl", topic_records())


def test_jsonl_comes_out_byte_for_byte_in_the_order(corpus: Path, make_settings: Make) -> None:
    settings = make_settings()
    reports = run(settings)
    lines = corpus.read_bytes().splitlines(keepends=True)
    order = np.load(settings.output.path / "order.npy")
    assert sorted(order.tolist()) == list(range(len(lines)))
    assert order.dtype == np.int64
    assert (settings.output.path / "curated.jsonl").read_bytes() == b"".join(lines[at] for at in order)
    assert (settings.output.path / "rejects.jsonl").read_bytes() == b""
    for stage, report in reports.items():
        figures = {"documents", "new_documents", "reused_documents", "seconds"}
        assert figures <= set(report), stage
    assert is_whole(settings.output.path, meta(settings)["files"])


def test_results_for_notebooks(corpus: Path, make_settings: Make) -> None:
    settings = make_settings(
        input={"source_field": "source"}, order={"traits": {"cluster": 1.0, "score": 1.0}}
    )
    run(settings)
    results = load_results(settings.store.path)
    documents = results.documents
    assert list(documents.columns) == [
        "id",
        "record_id",
        "doc_id",
        "source",
        "tokens",
        "cluster",
        "cluster_name",
        "cluster_distance",
        "position",
        "repeats",
        "score",
    ]
    assert documents["repeats"].tolist() == [1] * 240
    assert documents["source"].tolist() == [record["source"] for record in topic_records()]
    order = np.load(settings.output.path / "order.npy")
    assert documents["position"].to_numpy()[order].tolist() == list(range(240))
    assert documents["record_id"].str.len().unique().tolist() == [32]
    assert isinstance(results.embeddings, np.memmap)
    assert results.embeddings.shape == (240, 16)
    assert np.allclose(np.linalg.norm(results.embeddings, axis=1), 1, atol=1e-5)
    metrics = results.metrics.set_index("measure")
    assert list(metrics)[:2] == ["unit", "better"] and set(ORDERS) < set(metrics)
    held = metrics.loc["clusters in a sequence, mean"]
    assert (
        held["better"] == "more"
        and held["sequences"]
        == orjson.loads((settings.output.path / "curated_meta.json").read_bytes())["diversity"]["sequences"][
            "distinct"
        ]["cluster"]["mean"]
    )
    assert metrics.loc["batch TV of cluster, mean", "unit"] == "%" and metrics["about"].str.len().min() > 10
    assert repr(results) == f"load_results({str(settings.store.path)!r})"
    assert load_results(settings.store.path).embeddings.filename == results.embeddings.filename


def test_stages_alone_need_the_ones_before_them_up_to_date(corpus: Path, make_settings: Make) -> None:
    settings = make_settings()
    with pytest.raises(MissingStageError, match=r'raw_docs has no result.*:"\*raw_docs" selects'):
        run_stage("base_model", settings, Silent())
    run(settings)
    with pytest.raises(
        MissingStageError, match=r'centroids was last made with other settings.*:"\*clusters" selects'
    ):
        run_stage("greedy_order", make_settings(clusters={"k": 3}), Silent())
    write_jsonl(corpus, topic_records(30))
    run_stage("raw_docs", settings, Silent())
    with pytest.raises(MissingStageError, match="was made for an earlier state of raw_docs"):
        run_stage("clusters", settings, Silent())


def test_a_part_is_made_with_one_asset_alone() -> None:
    """Else a fit that is asked for would be made with every asset that reads it."""
    settings = Settings(embedding={"kind": "auto"}, clusters={"k": "auto"})
    needed = GRAPH.needed(settings)
    made = [part for stage in needed if GRAPH[stage].asset for part in GRAPH.step(settings, stage)]
    assert Counter(made) == Counter(needed)
