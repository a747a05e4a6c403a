"""Data versions change only with the data, and what a run says and shows."""

from __future__ import annotations

import io
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import dagster as dg
import numpy as np
import orjson
import pytest
from PIL import Image

from dagster_divorder.defs.metadata import (
    INLINE_CHARACTERS,
    PICTURE_BYTES,
    PICTURE_WIDTH,
    picture,
    result_metadata,
    table,
)
from dagster_divorder.pipeline.stage import Link, Table
from dagster_divorder.settings import load_settings
from dagster_divorder.stages import GRAPH
from tests.conftest import topic_records
from tests.defs.conftest import execute, metadata_of, pictures, rows_of, unsynced, versions_of

Load = Callable[[], dg.Definitions]


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
    stages = set(GRAPH.needed(load_settings(config)))
    assert unsynced(defs, instance).isdisjoint(stages)
    with open(config.parent / "docs.jsonl", "ab") as file:
        file.write(orjson.dumps(topic_records(1, start=99)[0]) + b"\n")
    assert unsynced(defs, instance).isdisjoint(stages)  # until the input has been read
    run = execute(defs, instance, "raw_docs")
    assert metadata_of(run)["raw_docs"]["new_documents"].value == 1
    assert unsynced(defs, instance) & stages == {"base_model", "token_counts"}
    # The bootstrap model is pinned: looked at, and the same, so what only it feeds stays as it was.
    base_model = execute(defs, instance, "base_model")
    assert versions_of(base_model)["base_model"] == before["base_model"]
    assert unsynced(defs, instance) & stages == {"token_counts"}
    curate = defs.resolve_job_def("curate").execute_in_process(instance=instance)
    metadata = metadata_of(curate)
    for stage in ("token_counts", "shallow_embeddings", "clusters", "curated_output"):
        assert metadata[stage]["new_documents"].value == 1, stage
    assert {stage for stage, version in versions_of(curate).items() if version == before[stage]} == {
        "base_model"
    }
    assert unsynced(defs, instance).isdisjoint(stages)


def test_a_table_too_wide_for_the_page_is_behind_a_link_with_its_words_as_they_are() -> None:
    narrow = [
        {"file": "a.jsonl", "records": 1200, "share": 0.123456},
        {"file": "b", "records": 1, "share": None},
    ]
    shown = table(narrow)
    assert isinstance(shown, dg.TableMetadataValue)
    assert rows_of(shown)[0] == {"file": "a.jsonl", "records": 1200, "share": 0.1235}
    words = "| ![x](http://a.b/c.png) <b>_bold_</b> `code` \\ $x$\n# head | ~no~ &amp;"
    shown = table([{**row, "text": words} for row in narrow])
    assert isinstance(shown, dg.MarkdownMetadataValue) and len(shown.value) >= INLINE_CHARACTERS
    assert rows_of(shown)[0] == {**narrow[0], "share": 0.1235, "text": words.replace("\n", " ")}
    assert not re.search(r"(?<!\\)[<!\[`]", shown.value)


@pytest.mark.parametrize("side", [40, 300])
def test_a_picture_on_the_page_is_of_bounded_size(tmp_path: Path, side: int) -> None:
    noise = np.random.default_rng(0).integers(0, 256, (side, 2 * side, 3), dtype=np.uint8)
    noise[200:, 200:] = 0
    file = tmp_path / "noise.png"
    Image.fromarray(noise).save(file)
    (shown,) = pictures({"noise": picture(file.read_bytes(), "noise")}).values()
    assert len(shown) <= PICTURE_BYTES
    width, height = Image.open(io.BytesIO(shown)).size
    assert width <= PICTURE_WIDTH
    assert width == pytest.approx(2 * height, abs=2)
    assert (shown == file.read_bytes()) == (side == 40)


def test_metadata_says_nothing_twice_and_nothing_without_a_value(tmp_path: Path) -> None:
    figures = {
        "bytes": 59_091,
        "empty": "",
        "none": None,
        "fitted": "no: kept",
        "copies": {"copies": 0, "together": 0},
        "sizes": {"mean": 2.72649, "most": 1200, "unknown": None},
        "hash": "bcf1f58c60ea1e4760656150c6b59cf8",
        "films": ["film.mp4"],
        "folder": str(tmp_path),
        "rejected": 0,
        "share": 0.123456,
    }
    shown = {"output": Link(tmp_path), "rows": Table([]), "share": 0.5}
    assert result_metadata(shown, figures) == {
        "output": dg.MetadataValue.path(str(tmp_path)),
        "share": 0.5,
        "bytes": "59.1 kB",
        "sizes": "mean 2.726, most 1,200",
        "rejected": 0,
    }
    (row,) = rows_of(table([{"file": "a.jsonl", "bytes": 59_091}]))
    assert row == {"file": "a.jsonl", "bytes": "59.1 kB"}
