"""A full disk, as a small tmpfs: the message says what is needed, the old output is whole, one more run goes on.
Folders that cannot be used: read-only, a file in the way."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import orjson
import pytest

from dagster_divorder.store.output_manifests import is_whole
from tests.conftest import topic_records, write_jsonl
from tests.faults.conftest import differing, make_corpus, output_of, was_written
from tests.faults.runner import Runner

DISK = 4 << 20
CONSTANTS = {"buckets": {"MEMORY_BYTES": 20_000, "BUCKET_BYTES": 10_000, "PIECE_BYTES": 0}}
"""With which the output goes through several files and buckets."""


def disk_use(folder: Path) -> int:
    """Bytes that a folder takes on a tmpfs: pages of its files."""
    return sum(-(-path.stat().st_size // 4096) * 4096 for path in folder.rglob("*") if path.is_file())


def fill_but(disk: Path, left: int) -> Path:
    """Fill a disk up to some bytes; the file that does it."""
    ballast = disk / "ballast"
    ballast.write_bytes(b"\0" * max(0, shutil.disk_usage(disk).free - left))
    return ballast


def append(folder: Path) -> None:
    write_jsonl(folder / "in/9.jsonl", topic_records(20, start=700))


def check_refusal(said: str, disk: Path) -> None:
    """The message of a full disk: the file, and what is free."""
    assert "Traceback" not in said
    told = rf"divorder: no space left for {disk}/\S+: [\d.]+ [kM]?B are free there; free some disk"
    assert re.search(told, said), said
    assert list(disk.rglob(".tmp-*")) == []


@pytest.mark.parametrize(("what", "shares"), [("first", (0.0, 0.2, 0.5, 0.8)), ("append", (0.0, 0.5))])
def test_the_store(
    what: str,
    shares: tuple[float, ...],
    tmp_path: Path,
    mount: Callable[..., Path],
    runner: Runner,
    measured: dict[str, Any],
) -> None:
    """Refused at one share of what it takes, a run goes on from there, to the next share and at last to its end."""
    disk = mount("disk", DISK)
    config = make_corpus(tmp_path, files=3)
    config.write_text(config.read_text().replace('path = "store"', f'path = "{disk}/store"'))
    before = None
    if what == "append":
        assert runner.run(config, tmp_path / "log") == 0
        before = output_of(config)
        append(tmp_path)
    free = shutil.disk_usage(disk).free
    for share in shares:
        used = free - shutil.disk_usage(disk).free
        ballast = fill_but(disk, max(0, int(share * measured[f"{what} store"]) - used))
        assert runner.run(config, tmp_path / "log") == 1
        check_refusal((tmp_path / "log.out").read_text(), disk)
        if before:
            assert differing(config, before) == []
        ballast.unlink()
    assert runner.run(config, tmp_path / "log") == 0, (tmp_path / "log.out").read_text()
    assert differing(config, measured[what]) == []


@pytest.mark.parametrize(
    ("kind", "shares"),
    [
        ("jsonl", (0.0, 0.3, 0.95)),
        ("buckets", (0.3, 0.9)),
    ],
)
def test_the_output(
    kind: str, shares: tuple[float, ...], tmp_path: Path, mount: Callable[..., Path], runner: Runner
) -> None:
    disk = mount("disk", DISK)
    constants = CONSTANTS.get(kind, {})
    config = make_corpus(tmp_path, files=3)
    config.write_text(config.read_text().replace('path = "curated"', f'path = "{disk}/curated"'))
    (tmp_path / "curated").symlink_to(disk / "curated")
    assert runner.run(config, tmp_path / "log", constants=constants) == 0, (tmp_path / "log.out").read_text()
    before, takes = output_of(config), disk_use(disk / "curated")
    append(tmp_path)
    for share in shares:
        ballast = fill_but(disk, int(share * takes))
        assert runner.run(config, tmp_path / "log", constants=constants) == 1
        check_refusal((tmp_path / "log.out").read_text(), disk)
        # Exports are written beside the output.
        assert [name for name in differing(config, before) if "/" not in name] == []
        assert is_whole(
            disk / "curated", orjson.loads((disk / "curated/curated_meta.json").read_bytes())["files"]
        )
        ballast.unlink()
    assert runner.run(config, tmp_path / "log", constants=constants) == 0, (tmp_path / "log.out").read_text()
    after = output_of(config)
    assert after["curated_meta.json"]["counts"]["records"] == 200
    # The same bytes as on a disk that was never full.
    shutil.rmtree(disk / "curated")
    assert runner.run(config, tmp_path / "log", constants=constants) == 0
    assert differing(config, after) == []


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory, runner: Runner) -> dict[str, Any]:
    """What the first run and the append make and take on a disk that is large enough."""
    folder = tmp_path_factory.mktemp("measured")
    config = make_corpus(folder, files=3)
    found: dict[str, Any] = {}
    used = 0
    for what in ("first", "append"):
        if what == "append":
            append(folder)
        assert runner.run(config, folder / "log") == 0
        found |= {what: output_of(config), f"{what} store": disk_use(folder / "store") - used}
        used = disk_use(folder / "store")
    return found


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
