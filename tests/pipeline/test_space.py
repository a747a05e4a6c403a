"""The space that documents are clustered in: principal components as a pinned fit, and what hangs on it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pytest

from dagster_divorder import run_all
from dagster_divorder.engine.progress import Silent
from dagster_divorder.pipeline.plan import make_plan
from dagster_divorder.pipeline.run import Run
from dagster_divorder.settings import Settings
from dagster_divorder.stages import GRAPH, open_run
from dagster_divorder.stages.topics import centroids
from dagster_divorder.stages.topics.centroids import load_clusters
from dagster_divorder.stages.topics.components import load_space
from tests.conftest import topic_records, write_jsonl

Make = Callable[..., Settings]


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    return write_jsonl(tmp_path / "docs.jsonl", topic_records(20))


def cluster(settings: Settings) -> dict[str, Any]:
    """The figures of clusters, its key, and the hashes of the fits that it rests on."""
    made = run_all(settings, Silent(), GRAPH.needed(settings, "clusters"))
    fits = {name: made[name] for name in ("shallow_components", "centroids") if name in made}
    return {
        **made["clusters"].figures,
        "key": made["clusters"].key,
        "fits": {name: fit.version for name, fit in fits.items()},
    }


def opened(settings: Settings) -> Run:
    return open_run(settings)


def test_vectors_are_seen_along_their_components(corpus: Path, make_settings: Make) -> None:
    settings = make_settings(embedding={"pca": 3})
    report = cluster(settings)
    assert (report["vectors"], report["pca"]) == ("shallow_embeddings", 3)
    assert 0.2 < report["explained_variance"] < 1
    assert report["pca_fitted"] == "to 80 documents (first run on this store)"
    assert sum(report["cluster_sizes"]) == 80
    run = opened(settings)
    space, view = load_space(run), run.view
    clusters = load_clusters(run)
    assert clusters.centroids.shape == (4, 3)
    assert not clusters.centre.any(), "components have taken the mean away"
    whole = np.concatenate([vectors for _, vectors in space.each(view.fragments)])
    assert whole.dtype == np.float32
    assert np.allclose(np.linalg.norm(whole, axis=1), 1, atol=1e-6)
    for rows in (np.arange(80)[::-7], np.array([5, 5, 79, 0]), np.array([3])):
        assert space.rows(view, rows).tobytes() == whole[rows].tobytes()


def test_components_are_fitted_again_with_the_clusters(corpus: Path, make_settings: Make) -> None:
    auto, never = (make_settings(embedding={"pca": 3}, refit={"clusters": how}) for how in ("auto", "never"))
    first = cluster(auto)
    write_jsonl(corpus, topic_records(40))
    kept = cluster(never)
    assert (kept["pca_fitted"], kept["new_documents"]) == (first["pca_fitted"], 80)
    assert {plan.stage: plan.scope for plan in make_plan(GRAPH, auto).stages}["clusters"] == "all"
    grown = cluster(auto)
    assert grown["pca_fitted"] == ("to 160 documents (the corpus has grown from 80 to 160 documents since)")
    assert grown["new_documents"] == 160
    # Fitted to the same documents they are the same.
    asked = cluster(auto.refitting("clusters"))
    assert asked["pca_fitted"] == "to 160 documents (asked for by --refit clusters)"
    assert (asked["key"], asked["new_documents"]) == (grown["key"], 0)


def test_a_plan_knows_the_components(corpus: Path, make_settings: Make) -> None:
    settings = make_settings(embedding={"pca": 3})

    def clusters(settings: Settings) -> tuple[str, int]:
        (stage,) = [stage for stage in make_plan(GRAPH, settings).stages if stage.stage == "clusters"]
        return stage.scope, stage.documents

    assert clusters(settings) == ("all", 80)
    run_all(settings, Silent())
    assert {stage.scope for stage in make_plan(GRAPH, settings).stages} == {"nothing"}
    write_jsonl(corpus, [*topic_records(20), *topic_records(1, start=90)])
    assert clusters(settings) == ("new", 4)
    assert clusters(make_settings(embedding={"pca": 2})) == ("all", 84)
    meta = orjson.loads((settings.output.path / "curated_meta.json").read_bytes())
    assert meta["space"]["pca"] == 3


def test_there_are_no_more_components_than_dims_or_documents_and_a_note_says_so(
    corpus: Path, make_settings: Make
) -> None:
    clipped = cluster(make_settings(embedding={"pca": 17}))
    assert clipped["pca"] == 16
    assert clipped["pca_note"] == (
        "17 principal components are asked for, but 80 documents of 16 dims have only 16"
    )
    write_jsonl(corpus, topic_records(2))
    clipped = cluster(make_settings(embedding={"pca": 9}))
    assert (clipped["pca"], clipped["new_documents"]) == (8, 8)
    assert "but 8 documents of 16 dims have only 8" in clipped["pca_note"]
    report = cluster(make_settings(embedding={"pca": 8}))
    assert report["hint"] is None and report["pca_note"] is None


def test_more_dims_than_documents_without_components_come_with_a_hint(
    corpus: Path, make_settings: Make
) -> None:
    assert cluster(make_settings())["hint"] is None
    write_jsonl(corpus, topic_records(3))
    assert cluster(make_settings(clusters={"k": 3}))["hint"] == (
        "16 dims for 12 documents; embedding.pca = 6 may give clearer clusters"
    )


def test_another_recommended_number_of_clusters_is_a_reason_to_fit(
    corpus: Path, make_settings: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    auto = make_settings(clusters={"k": [2, 4]})
    stages = GRAPH.needed(auto, "clusters")
    first = run_all(auto, Silent(), stages)
    recommended = first["k_calibration"].figures["recommended"]
    assert first["clusters"].figures["k"] == recommended
    assert first["centroids"].upstream["k_calibration"] == first["k_calibration"].version
    monkeypatch.setattr(centroids, "_count", lambda run: recommended - 1)
    again = run_all(auto, Silent(), stages)
    assert (again["clusters"].figures["k"], again["clusters"].figures["new_documents"]) == (
        recommended - 1,
        80,
    )
    assert again["centroids"].figures["fitted"] == "what it reads has changed"
    # The fit to as many clusters as before is pinned still.
    monkeypatch.setattr(centroids, "_count", lambda run: recommended)
    back = run_all(auto, Silent(), stages)
    assert (back["clusters"].version, back["clusters"].figures["new_documents"]) == (
        first["clusters"].version,
        0,
    )
