"""Data versions change only with the data, and what a run says and shows."""

from __future__ import annotations

import io
import re
from collections.abc import Callable
from pathlib import Path

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
from tests.conftest import topic_records
from tests.defs.conftest import metadata_of, pictures, rows_of, versions_of

Load = Callable[[], dg.Definitions]


def test_an_append_changes_versions_downstream_and_a_pinned_fit_keeps_its_own(
    load: Load, config: Path
) -> None:
    curate = load().resolve_job_def("curate")
    with dg.DagsterInstance.ephemeral() as instance:
        before = versions_of(curate.execute_in_process(instance=instance))
        with open(config.parent / "docs.jsonl", "ab") as file:
            file.write(b"\n  \n")  # no record
        again = versions_of(curate.execute_in_process(instance=instance))
        assert {stage for stage in before if again[stage] != before[stage]} <= {"curated_output"}
        with open(config.parent / "docs.jsonl", "ab") as file:
            file.write(orjson.dumps(topic_records(1, start=99)[0]) + b"\n")
        run = curate.execute_in_process(instance=instance)
    metadata, after = metadata_of(run), versions_of(run)
    for stage in ("raw_docs", "token_counts", "shallow_embeddings", "clusters"):
        assert metadata[stage]["new_documents"].value == 1, stage
    assert {stage for stage, version in after.items() if version == before[stage]} == {"base_model"}


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
