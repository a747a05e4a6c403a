"""Corpora of several small fragments, each with its settings file, store and output in one folder; small disks."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import orjson
import pytest

from dagster_divorder.settings import load_settings
from dagster_divorder.store.manifests import EXPORT_MANIFEST, file_at
from dagster_divorder.store.objects import store_at
from dagster_divorder.store.state import load_receipt
from tests.conftest import small_toml, topic_records, write_jsonl

CONFIG = small_toml(
    input={"paths": ["in"]},
    engine={"workers": 1},
    order={"frozen_tokens": 0, "traits": {"cluster": 1, "length": 1, "source": 1}},
    exports={"formats": ["parquet", "megatron"], "path": "exports"},
)


def make_corpus(folder: Path, files: int = 6) -> Path:
    """A folder with an input of `files` files of 40 records; the settings file in it."""
    for number in range(files):
        write_jsonl(folder / f"in/{number}.jsonl", topic_records(10, start=10 * number))
    config = folder / "divorder.toml"
    config.write_text(CONFIG)
    return config


def output_of(config: Path) -> dict[str, Any]:
    """Every file of the output and of the exports, manifests without what depends on when and where they were made."""
    folder = config.parent / "curated"
    found: dict[str, Any] = {path.name: path.read_bytes() for path in sorted(folder.iterdir())}
    for folder in sorted((config.parent / "exports").glob("[!_]*")):
        manifest = orjson.loads(file_at(folder, EXPORT_MANIFEST).read_bytes())
        # The plan names the input's folder, and names of files the plan.
        tag = manifest["key"][:8]
        for path in sorted([*folder.iterdir(), *file_at(folder, EXPORT_MANIFEST).parent.iterdir()]):
            found[f"{path.parent.name}/{path.name.replace(tag, 'TAG')}"] = path.read_bytes().replace(
                tag.encode(), b"TAG"
            )
        for part in ("key", "plan", "store", "check", "prefix"):
            del manifest[part]
        manifest["files"] = {name.replace(tag, "TAG"): entry for name, entry in manifest["files"].items()}
        found[f"_{folder.name}/manifest.json"] = manifest
    meta = orjson.loads(found["curated_meta.json"])
    # The key hashes the output's path; each store has an id of its own.
    for name in ("key", "store", "check", "date"):
        del meta[name]
    meta["input"]["files"] = [Path(path).name for path in meta["input"]["files"]]
    return {**found, "curated_meta.json": meta}


def differing(config: Path, expected: dict[str, Any]) -> list[str]:
    """What of the output is not as expected: files, and keys of the manifest."""
    found = output_of(config)
    files = [name for name in sorted({*found, *expected}) if found.get(name) != expected.get(name)]
    if files != ["curated_meta.json"]:
        return files
    one, other = found["curated_meta.json"], expected["curated_meta.json"]
    return [
        f"{name}: {one.get(name)} and {other.get(name)}" for name in one if one.get(name) != other.get(name)
    ]


def was_written(config: Path) -> bool:
    """Whether the last run has written the output."""
    receipt = load_receipt(store_at(load_settings(config, {}).store.path), "curated_output")
    assert receipt is not None
    return bool(receipt.figures["written"])


@pytest.fixture
def config(tmp_path: Path) -> Path:
    return make_corpus(tmp_path)


@pytest.fixture
def mount(tmp_path: Path) -> Iterator[Callable[..., Path]]:
    """Mounts a tmpfs of some bytes at a new folder, read-only if asked (after `fill(folder)`)."""
    mounted: list[Path] = []

    def make(name: str, size: int) -> Path:
        folder = tmp_path / name
        folder.mkdir()
        command = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            pytest.skip(f"a tmpfs cannot be mounted here: {done.stderr.strip()}")
        mounted.append(folder)
        return folder

    yield make
    for folder in mounted:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)
