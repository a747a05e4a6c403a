"""A lost fit, and a fit of another corpus, are noticed and said with what to do."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dagster_divorder import run_all
from dagster_divorder.errors import StoreError
from dagster_divorder.pipeline.plan import make_plan
from dagster_divorder.pipeline.prune import prune
from dagster_divorder.settings import Settings
from dagster_divorder.stages import GRAPH
from dagster_divorder.store.local import LocalStore
from tests.conftest import Notes, topic_records, write_jsonl

Make = Callable[..., Settings]


def run(settings: Settings) -> dict[str, Any]:
    receipts = run_all(settings, Notes(), GRAPH.needed(settings, "curated_output", "cluster_map"))
    return {stage: receipt.version for stage, receipt in receipts.items()}


def lose_fit(store: Path, stage: str) -> Path:
    (fit, *_) = (store / "fits" / stage).iterdir()
    shutil.rmtree(fit)
    return fit


def test_fits_that_were_pruned_are_made_again_without_asking(tmp_path: Path, make_settings: Make) -> None:
    write_jsonl(tmp_path / "docs.jsonl", topic_records(15))
    settings, other = (make_settings(seed=seed) for seed in (0, 1))
    versions = [run(one) for one in (settings, other)]
    prune(GRAPH, LocalStore(settings.store.path))
    assert [run(one) for one in (settings, other)] == versions


def test_prune_does_not_forget_a_fit_that_was_lost(tmp_path: Path, make_settings: Make) -> None:
    write_jsonl(tmp_path / "docs.jsonl", topic_records(15))
    settings = make_settings()
    run_all(settings, Notes())
    lost = lose_fit(settings.store.path, "centroids")
    prune(GRAPH, LocalStore(settings.store.path))
    with pytest.raises(StoreError, match=re.escape(f"fit {lost} is missing")):
        run_all(settings, Notes())


# Another corpus ---------------------------------------------------------------------------------------------------


def test_another_corpus_in_the_same_store_is_said_and_a_refit_is_as_a_fresh_run(
    tmp_path: Path, make_settings: Make
) -> None:
    settings = make_settings()
    stages = GRAPH.needed(settings, "curated_output", "cluster_map")
    write_jsonl(tmp_path / "docs.jsonl", topic_records(30))
    run_all(settings, Notes(), stages)

    other = [{**record, "text": record["text"][::-1]} for record in topic_records(30, start=500)]
    write_jsonl(tmp_path / "docs.jsonl", other)
    planned = {stage.stage: stage.why for stage in make_plan(GRAPH, settings).stages}
    reason = "0% of the fit's documents are left"
    assert planned["base_model"] == f"{reason}; divorder run --refit model makes it again"
    assert planned["centroids"] == reason

    notes = Notes()
    receipts = run_all(settings, notes, stages)
    warning = receipts["base_model"].figures["note"]
    assert warning.startswith("0% of the documents that base_model was made on are left")
    assert "divorder run --refit model" in warning
    assert f"cutting lengths and numeric fields into bins ({reason})" in notes.said
    assert receipts["clusters"].figures["fitted"] == reason
    assert receipts["cluster_map"].figures["fitted"] == "100% of the documents have changed since"
    # Said in every run, until it is asked for.
    again_notes = Notes()
    again = run_all(settings, again_notes, stages)
    assert warning in notes.said
    assert warning in again_notes.said
    assert {receipt.figures["new_documents"] for receipt in again.values()} == {0}
    assert make_plan(GRAPH, settings).stages[1].why == planned["base_model"]

    run_all(settings.refitting("model", "clusters", "cluster_map"), Notes(), stages)
    renewed = run_all(settings, Notes(), stages)
    assert renewed["base_model"].figures["note"] is None
    places = {"store": {"path": tmp_path / "fresh"}, "output": {"path": tmp_path / "new"}}
    fresh = run_all(make_settings(**places), Notes(), stages)
    for stage in ("token_counts", "clusters", "cluster_map", "greedy_order", "sequence_order"):
        assert renewed[stage].version == fresh[stage].version, stage
