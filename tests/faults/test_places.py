"""Folders that cannot be used: read-only, full, a file in the way. Through the command line."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conftest import topic_records, write_jsonl
from tests.faults.conftest import differing, output_of, was_written
from tests.faults.runner import Runner


def fails(config: Path, runner: Runner) -> str:
    """What a run says that fails as it should, on one line."""
    status = runner.run(config, config.parent / "log")
    said = (config.parent / "log.out").read_text()
    assert status == 1, said
    assert "Traceback" not in said
    return said.splitlines()[-1]


def place(config: Path, key: str, path: Path) -> None:
    """Set store.path or output.path."""
    name = {"store": "store", "output": "curated"}[key]
    config.write_text(config.read_text().replace(f'path = "{name}"', f'path = "{path}"'))


@pytest.mark.parametrize("key", ["store", "output"])
def test_a_read_only_disk(
    key: str, config: Path, tmp_path: Path, mount: Callable[..., Path], runner: Runner
) -> None:
    disk = mount("disk", 4 << 20)
    place(config, key, disk / key)
    (tmp_path / "curated").symlink_to(disk / key) if key == "output" else None
    assert runner.run(config, tmp_path / "log") == 0
    before = output_of(config)
    subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)
    if key == "output":
        assert runner.run(config, tmp_path / "log") == 0 and not was_written(config), "it is up to date"
    write_jsonl(tmp_path / "in/9.jsonl", topic_records(5, start=700))
    said = fails(config, runner)
    assert said.startswith(f"divorder: {disk}/{key}")
    assert "cannot be written (Read-only file system); make its folder writable" in said
    # Exports, which are on another disk, are written beside the output.
    assert [name for name in differing(config, before) if "/" not in name] == []
    subprocess.run(["mount", "-o", "remount,rw", str(disk)], check=True)
    assert runner.run(config, tmp_path / "log") == 0
    assert output_of(config)["curated_meta.json"]["counts"]["records"] == 260


@pytest.mark.parametrize("below", ["", "/below"], ids=["the folder itself", "a folder above it"])
@pytest.mark.parametrize("key", ["store", "output"])
def test_a_file_where_a_folder_should_be(
    key: str, below: str, config: Path, tmp_path: Path, runner: Runner
) -> None:
    file = tmp_path / "file"
    file.write_text("mine")
    place(config, key, Path(f"{file}{below}"))
    said = fails(config, runner)
    assert f"{file}{below} cannot be written" in said
    assert "is a file, expected a folder; move it away, or set another path" in said
    assert file.read_text() == "mine"
