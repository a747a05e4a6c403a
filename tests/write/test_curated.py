"""An output folder: whole or not at all, one store's, and nothing in it that this store has not written is touched."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import orjson
import pytest

from dagster_divorder.errors import InputError
from dagster_divorder.settings import Settings
from dagster_divorder.settings.sections import Heldout, Output, Selection
from dagster_divorder.stages.output.curated_output import check_format
from dagster_divorder.store.base import TEMPORARY
from dagster_divorder.store.local import LocalStore
from dagster_divorder.store.manifests import manifest_check
from dagster_divorder.store.output_manifests import MANIFEST, read_manifest
from dagster_divorder.write.curated import (
    BESIDE,
    OutputFolder,
    refuse_foreign_files,
    remove_beside,
    write_beside,
)

ABOUT: dict[str, Any] = {
    "meta_version": 3,
    "key": "0" * 32,
    "counts": {"records": 1, "documents": 1},
}


@pytest.fixture
def store(tmp_path: Path) -> LocalStore:
    return LocalStore(tmp_path / "store").open()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "output").mkdir()
    return tmp_path / "output"


def publish(store: LocalStore, folder: Path, *names: str) -> None:
    """An output whose files hold their names."""
    with OutputFolder(store, folder) as output:
        for name in names:
            output.stage(name, lambda file, name=name: file.write(name.encode()))
        output.commit(ABOUT)


def test_leftovers_of_a_killed_run_are_removed_and_nothing_that_looks_alike(
    store: LocalStore, folder: Path
) -> None:
    (folder / f"{TEMPORARY}abc").write_bytes(b"half")
    for other in (".tmp-abc", "..divorder-tmp-", "curated.jsonl~"):
        (folder / other).write_text("mine")
    with OutputFolder(store, folder):
        assert sorted(os.listdir(folder)) == ["..divorder-tmp-", ".tmp-abc", "curated.jsonl~"]


ALWAYS = ["curated.jsonl", "curated-00007.parquet", "order.npy", "rejects.jsonl", MANIFEST]


@pytest.mark.parametrize(
    ("name", "output", "sections"),
    [
        *((name, {}, {}) for name in ALWAYS),
        ("ordering_comparison.png", {"sidecars": ("plot",)}, {}),
        ("heldout.parquet", {}, {"heldout": Heldout(documents=0.1)}),
        ("heldout_removed.jsonl", {}, {"heldout": Heldout(documents=0.1)}),
        ("left_out.parquet", {}, {"selection": Selection(method="random", tokens=1)}),
    ],
)
def test_a_file_of_others_is_refused_where_it_would_be_overwritten(
    name: str, output: dict[str, Any], sections: dict[str, Any], store: LocalStore, folder: Path
) -> None:
    (folder / name).write_text("mine")
    if name not in ALWAYS:
        refuse_foreign_files(store, Settings(output=Output(path=folder, sidecars=())))
    with pytest.raises(
        InputError, match=rf"{name} is there and was not written by this store.*move the file away"
    ):
        refuse_foreign_files(store, Settings(output=Output(path=folder, **output), **sections))
    with pytest.raises(InputError, match="was not written by this store"):
        publish(store, folder, name)
    assert (folder / name).read_text() == "mine"
    assert os.listdir(folder) == [name]


def test_a_page_that_lay_there_before_the_output_is_not_ours(store: LocalStore, folder: Path) -> None:
    (folder / BESIDE[0]).write_text("mine")
    publish(store, folder, "curated.jsonl")
    publish(store, folder, "curated.jsonl")
    with pytest.raises(InputError, match="was not written by this store"):
        write_beside(store, folder, {BESIDE[0]: b"page"})
    assert remove_beside(store) == []
    assert (folder / BESIDE[0]).read_text() == "mine"


def test_an_output_belongs_to_one_store(store: LocalStore, folder: Path, tmp_path: Path) -> None:
    publish(store, folder, "curated.jsonl")
    write_beside(store, folder, {BESIDE[0]: b"page"})
    other = LocalStore(tmp_path / "other").open()
    for attempt in (
        lambda: refuse_foreign_files(other, Settings(output=Output(path=folder))),
        lambda: publish(other, folder, "curated.jsonl"),
        lambda: write_beside(other, folder, {BESIDE[0]: b"other"}),
    ):
        with pytest.raises(InputError, match=f"output of another store, {tmp_path}/store"):
            attempt()
    assert (folder / BESIDE[0]).read_bytes() == b"page"
    # Made anew in its place, or moved, a store goes on with its output.
    shutil.rmtree(store.root)
    again = LocalStore(store.root).open()
    assert again.id != store
    publish(again, folder, "curated.jsonl", "order.npy")
    write_beside(again, folder, {BESIDE[0]: b"again"})
    again.root.rename(tmp_path / "moved")
    publish(LocalStore(tmp_path / "moved").open(), folder, "curated.jsonl")
    assert sorted(os.listdir(folder)) == sorted([MANIFEST, "curated.jsonl", BESIDE[0]])


def test_what_shows_an_output_goes_when_another_replaces_it(store: LocalStore, folder: Path) -> None:
    publish(store, folder, "curated.jsonl")
    write_beside(store, folder, {BESIDE[0]: b"page", BESIDE[3]: b"film"})
    publish(store, folder, "curated.jsonl", "order.npy")
    assert (folder / BESIDE[0]).read_bytes() == b"page", "the same output, written again"
    with OutputFolder(store, folder) as output:
        output.stage("curated.jsonl", lambda file: file.write(b"other"))
        output.commit({**ABOUT, "key": "1" * 32})
    assert sorted(os.listdir(folder)) == ["curated.jsonl", MANIFEST]


def test_an_output_that_was_moved_is_tidied_too(store: LocalStore, folder: Path, tmp_path: Path) -> None:
    publish(store, folder, "a", "b")
    moved = folder.rename(tmp_path / "moved")
    publish(store, moved, "a")
    assert sorted(os.listdir(moved)) == ["a", MANIFEST]


def test_a_damaged_manifest_is_none_and_made_again(store: LocalStore, folder: Path) -> None:
    publish(store, folder, "a")
    whole = (folder / MANIFEST).read_bytes()
    for at in range(len(whole)):
        flipped = bytearray(whole)
        flipped[at] ^= 1 << at % 8
        (folder / MANIFEST).write_bytes(flipped)
        assert read_manifest(folder) is None, bytes(flipped)
    publish(store, folder, "a")
    assert (folder / MANIFEST).read_bytes() == whole


HOSTILE = ["../victim", "/etc/hostname", "..", ".", "", "a/../../victim", "a\0b", "-rf", ".ssh", "a\nb"]


@pytest.mark.parametrize("name", HOSTILE)
def test_a_manifest_with_a_hostile_name_touches_nothing_else(name: str, tmp_path: Path) -> None:
    (tmp_path / "victim").write_text("mine")
    store, folder = LocalStore(tmp_path / "store").open(), tmp_path / "output"
    publish(store, folder, "a", "b")
    manifest = read_manifest(folder)
    assert manifest is not None
    forged = manifest | {"files": {name: {"bytes": 4, "sha256": "00"}}}
    (folder / MANIFEST).write_bytes(orjson.dumps(forged | {"check": manifest_check(forged)}))
    publish(store, folder, "a")
    assert sorted(os.listdir(tmp_path)) == ["output", "store", "victim"]
    assert (tmp_path / "victim").read_text() == "mine"
    assert Path("/etc/hostname").exists()


def test_lines_without_a_schema_are_not_written_as_parquet() -> None:
    with pytest.raises(InputError, match=r"output\.format = 'parquet' needs Parquet input"):
        check_format("jsonl", Output(format="parquet"))
    for kind, form in (("jsonl", "auto"), ("jsonl", "jsonl"), ("parquet", "parquet"), ("parquet", "jsonl")):
        check_format(kind, Output(format=form))
