"""MDS and litdata beyond their layout, which `test_formats.py` reads; `tests/trainers/test_isolated.py` compares their
files with those of their own writers."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from dagster_divorder.write.exports import FORMATS
from dagster_divorder.write.exports.rows import Options
from tests.write.exports.made import TAG, Folder, rows_of


@pytest.mark.parametrize("name", ["mds", "litdata"])
def test_files_are_as_large_as_asked(name: str, tmp_path: Path) -> None:
    folder = Folder(tmp_path)
    FORMATS[name].write(rows_of([2400], index=False), folder, Options(tag=TAG, shard_bytes=2000))  # type: ignore[arg-type]
    *full, _ = [entry["bytes"] for file, entry in folder.entries.items() if file != "index.json"]
    assert len(full) > 1
    assert all(2000 - 24 < size <= 2000 for size in full)


def test_litdata_is_fetched_anew_when_its_rows_change(tmp_path: Path) -> None:
    def updated_at(seed: int) -> str:
        FORMATS["litdata"].write(
            rows_of([40], index=False, seed=seed), Folder(tmp_path), Options(tag=TAG, shard_bytes=200)
        )  # type: ignore[arg-type]
        value: str = json.loads((tmp_path / "index.json").read_bytes())["updated_at"]
        return value

    assert updated_at(1) == updated_at(1) != updated_at(2)
