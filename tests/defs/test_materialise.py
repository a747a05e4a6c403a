"""What a run reports: figures, tables and pictures on every asset, and data versions that change only with the data."""

from __future__ import annotations

import base64
import functools
import io
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import dagster as dg
import numpy as np
import orjson
import pytest
from dagster._core.definitions.data_version import CachingStaleStatusResolver, StaleStatus
from dagster._core.loader import LoadingContextForTest
from PIL import Image

from dagster_divorder.defs.stage import PICTURE_BYTES, PICTURE_WIDTH, picture
from dagster_divorder.engine.progress import Log
from dagster_divorder.pipeline.graph import needed, upstream
from dagster_divorder.settings import Settings, load_settings
from tests.conftest import topic_records, write_jsonl
from tests.defs.conftest import metadata_of, versions_of

Load = Callable[[], dg.Definitions]

FIGURES = {
    "documents",
    "new_documents",
    "reused_documents",
    "seconds",
    "documents_per_second",
    "changed",
    "stored_files",
}


def execute(defs: dg.Definitions, instance: dg.DagsterInstance, *assets: str) -> Any:
    """Run assets, by default all of them, in this process."""
    job = defs.resolve_implicit_global_asset_job_def()
    selection = [dg.AssetKey(asset) for asset in assets] or None
    run = job.execute_in_process(instance=instance, asset_selection=selection)
    assert run.success
    return run


def unsynced(defs: dg.Definitions, instance: dg.DagsterInstance) -> set[str]:
    """The assets that the UI shows as out of step with what they are made from."""
    graph = defs.resolve_asset_graph()
    resolver = CachingStaleStatusResolver(instance, graph, LoadingContextForTest(instance))
    return {
        key.to_user_string()
        for key in graph.materializable_asset_keys
        if resolver.get_status(key) != StaleStatus.FRESH
    }


def pictures(metadata: dict[str, Any]) -> dict[str, bytes]:
    """The pictures inside an asset's metadata, by name."""
    found = {}
    for name, value in metadata.items():
        if isinstance(value, dg.MarkdownMetadataValue):
            match = re.fullmatch(r"!\[(.+)\]\(data:image/png;base64,(.+)\)", str(value.value))
            if match:
                found[name] = base64.b64decode(match[2])
    return found


def test_every_asset_reports_figures_and_a_second_run_changes_nothing(load: Load, config: Path) -> None:
    defs, settings = load(), load_settings(config)
    with dg.DagsterInstance.ephemeral() as instance:
        first = execute(defs, instance)
        made = metadata_of(first)
        assert set(made) == set(upstream(settings))
        for name, metadata in made.items():
            assert set(metadata) >= FIGURES, name
            assert metadata["changed"].value is True, name
            for what, png in pictures(metadata).items():
                assert len(png) <= PICTURE_BYTES, (name, what)
            for record in metadata["stored_files"].records:
                assert Path(str(record.data["path"])).exists(), (name, record)
        check_evidence(made, settings)
        second = execute(defs, instance)
        assert versions_of(second) == versions_of(first)
        for name, metadata in metadata_of(second).items():
            assert metadata["new_documents"].value == 0, name
            assert metadata["changed"].value is False, name
        assert unsynced(defs, instance) == set()


def check_evidence(made: dict[str, dict[str, Any]], settings: Settings) -> None:
    """What tables and pictures of the assets show."""
    orders = [record.data for record in made["diversity_metrics"]["orders"].records]
    assert list(orders[0]) == ["figure", "original", "random", "curated", "sequences random", "sequences"]
    assert {"distinct clusters a sequence", "batch TV, clusters"} <= {row["figure"] for row in orders}
    measures = [record.data for record in made["diversity_metrics"]["measures"].records]
    windows = {"sequence", "sequence (flush)", "batch", "batch (anywhere)", "prefix", "corpus"}
    assert {row["window"] for row in measures} >= windows
    assert {row["trait"] for row in measures} >= {"cluster", "length"}
    assert pictures(made["diversity_metrics"])["ordering_comparison"]
    pairs = len(settings.comparison.documents) * len(settings.comparison.sequences)
    assert len(made["strategy_comparison"]["comparison"].records) == pairs
    (file,) = (record.data for record in made["raw_docs"]["input_files"].records)
    assert (file["records"], file["rejected"]) == (120, 0)
    shares = [record.data["share"] for record in made["clusters"]["cluster_sizes"].records]
    assert sum(shares) == pytest.approx(1, abs=0.01)
    files = [record.data["file"] for record in made["curated_output"]["output_files"].records]
    assert "curated.jsonl" in files
    assert made["curated_output"]["output_folder"].value == str(settings.output.path)


@pytest.fixture
def curated(load: Load, config: Path) -> Any:
    """An instance on which `curate` has run, and the run's data versions."""
    defs = load()
    with dg.DagsterInstance.ephemeral() as instance:
        run = defs.resolve_job_def("curate").execute_in_process(instance=instance)
        assert run.success
        yield defs, instance, versions_of(run)


def test_appended_documents_are_seen_downstream_and_a_pinned_fit_is_not(curated: Any, config: Path) -> None:
    defs, instance, before = curated
    stages = set(needed(load_settings(config)))
    assert unsynced(defs, instance).isdisjoint(stages)
    with open(config.parent / "docs.jsonl", "ab") as file:
        file.write(orjson.dumps(topic_records(1, start=99)[0]) + b"\n")
    assert unsynced(defs, instance).isdisjoint(stages)  # until the input has been read
    run = execute(defs, instance, "raw_docs")
    assert metadata_of(run)["raw_docs"]["new_documents"].value == 1
    assert unsynced(defs, instance) & stages == {"base_model", "token_counts", "curated_output"}
    # The bootstrap model is pinned: looked at, and the same, so what only it feeds stays as it was.
    base_model = execute(defs, instance, "base_model")
    assert versions_of(base_model)["base_model"] == before["base_model"]
    assert unsynced(defs, instance) & stages == {"token_counts", "curated_output"}
    curate = defs.resolve_job_def("curate").execute_in_process(instance=instance)
    made = metadata_of(curate)
    for stage in ("token_counts", "shallow_embeddings", "clusters", "curated_output"):
        assert made[stage]["new_documents"].value == 1, stage
    assert {stage for stage, version in versions_of(curate).items() if version == before[stage]} == {
        "base_model"
    }
    assert unsynced(defs, instance).isdisjoint(stages)


def test_an_append_without_a_record_leaves_everything_fresh(curated: Any, config: Path) -> None:
    defs, instance, before = curated
    with open(config.parent / "docs.jsonl", "ab") as file:
        file.write(b"\n  \n")
    run = execute(defs, instance, "raw_docs")
    assert versions_of(run)["raw_docs"] == before["raw_docs"]
    assert unsynced(defs, instance).isdisjoint(needed(load_settings(config)))


def test_edited_settings_show_their_stage_as_stale_and_what_follows_once_it_has_run(
    curated: Any, load: Load, config: Path
) -> None:
    _, instance, _ = curated
    config.write_text(config.read_text().replace("k = 4", "k = 3"))
    defs = load()
    stages = needed(load_settings(config))
    assert "clusters" in unsynced(defs, instance)
    assert unsynced(defs, instance).isdisjoint(needed(load_settings(config), "shallow_embeddings"))
    execute(defs, instance, "clusters")
    assert "clusters" not in unsynced(defs, instance)
    assert "greedy_order" in unsynced(defs, instance)
    assert "token_counts" not in unsynced(defs, instance) & set(stages)


def test_refused_records_are_shown_where_they_lie(load: Load, config: Path) -> None:
    file = write_jsonl(config.parent / "docs.jsonl", topic_records(30))
    with open(file, "ab") as opened:
        opened.write(orjson.dumps({"body": "no text here"}) + b"\n")
    with dg.DagsterInstance.ephemeral() as instance:
        (reject,) = metadata_of(execute(load(), instance, "raw_docs"))["raw_docs"]["first_rejects"].records
    assert reject.data["line"] == 121
    assert reject.data["reason"] == "no field 'text'"
    assert reject.data["begins"] == '{"body":"no text here"}'


def test_progress_and_what_was_new_are_in_the_log_of_the_run(
    load: Load, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dagster_divorder.defs.stage.Log", functools.partial(Log, seconds=0.0))
    defs = load()
    with dg.DagsterInstance.ephemeral() as instance:
        run = execute(defs, instance, "raw_docs", "base_model", "token_counts")
        entries = instance.all_logs(run.run_id)
    said = [entry.user_message for entry in entries if not entry.is_dagster_event]
    assert any(line.startswith("reading records: 120 records") for line in said)
    assert any(line.startswith("tokenising: 120 of 120 documents (100%)") for line in said)
    assert any(line.startswith("token_counts: 120 documents, 120 new, 0 reused") for line in said)


@pytest.mark.parametrize("side", [40, 300, 700])
def test_a_picture_on_the_page_is_of_bounded_size(tmp_path: Path, side: int) -> None:
    noise = np.random.default_rng(0).integers(0, 256, (side, 2 * side, 3), dtype=np.uint8)
    noise[200:, 200:] = 0
    file = tmp_path / "noise.png"
    Image.fromarray(noise).save(file)
    (shown,) = pictures({"noise": picture(file, "noise")}).values()
    assert len(shown) <= PICTURE_BYTES
    width, height = Image.open(io.BytesIO(shown)).size
    assert width <= PICTURE_WIDTH
    assert width == pytest.approx(2 * height, abs=2)
    assert (shown == file.read_bytes()) == (side == 40)
