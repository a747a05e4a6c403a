"""Folders at every kind of place: what lies there, and outputs, which are whole or not at all, this store's own, never
a mixture that is taken for one, and nothing in them that this store has not written is touched."""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path
from typing import Any

import obstore
import orjson
import pytest
from obstore.exceptions import GenericError

from dagster_divorder.errors import InputError, StoreError
from dagster_divorder.settings import Settings
from dagster_divorder.settings.places import Place, Url
from dagster_divorder.settings.sections import Heldout, Output, Selection
from dagster_divorder.store import folders
from dagster_divorder.store.folder import TEMPORARY
from dagster_divorder.store.folders import folder_at
from dagster_divorder.store.local import LocalStore
from dagster_divorder.store.manifests import EXPORT_MANIFEST, manifest_check
from dagster_divorder.store.output_manifests import MANIFEST, is_whole, read_manifest
from dagster_divorder.store.sources import Source
from dagster_divorder.verify import damaged_file
from dagster_divorder.write.curated import (
    BESIDE,
    OutputFolder,
    refuse_foreign_files,
    refuse_strangers,
    remove_beside,
    tidy,
    write_beside,
)
from tests.store.remote import OBJECTS, objects, put

on_objects = pytest.mark.parametrize("place", OBJECTS, indirect=True)


@pytest.fixture
def store(tmp_path: Path) -> LocalStore:
    return LocalStore(tmp_path / "store").open()


def publish(
    store: LocalStore, place: Place, files: dict[str, bytes], key: str = "0", manifest: str = EXPORT_MANIFEST
) -> dict[str, Any]:
    with OutputFolder(store, place, manifest=manifest) as output:
        for name, data in files.items():
            output.stage(name, lambda file, data=data: file.write(data))
        return output.commit({"key": key * 32})


def test_a_folder_tells_what_lies_in_it(place: Place) -> None:
    folder = folder_at(place)
    assert folder.entries(str(place)) == {} and folder.sizes() == {}
    put(folder.where("a.bin"), b"one")
    put(folder.where("deep/b.bin"), b"three")
    put(folder.where("_/manifest.json"), b"{}")
    folder = folder_at(place)
    entries = folder.entries(str(place))
    assert (
        sorted(entries) == ["a.bin", "deep"]
        and entries["deep"] == "folder"
        and isinstance(entries["a.bin"], Source)
    )
    assert folder.entry(folder.where("a.bin")) == entries["a.bin"]
    assert not isinstance(folder.entry(folder.where("deep")), Source)
    assert folder.entry(folder.where("none")) == "neither"
    assert folder.sizes() == {"a.bin": 3, "_/manifest.json": 2}
    assert sorted(folder.contents()) == ["_/manifest.json", "a.bin", "deep"]
    assert folder.read("deep/b.bin") == b"three" and folder.source("a.bin").name == "a.bin"
    with pytest.raises(FileNotFoundError):
        folder.read("none")


def test_an_output_is_the_same_wherever_it_lies(place: Place, store: LocalStore, tmp_path: Path) -> None:
    files = {"train-0.bin": bytes(range(256)) * 40_000, "train-1.bin": b"", "_/tokenizer.json": b"{}"}
    remote, here = publish(store, place, files), publish(store, tmp_path / "out", files)
    assert remote == here
    assert objects(place) == objects(tmp_path / "out")
    assert {path.name for path in (tmp_path / "_out").iterdir()} == {"tokenizer.json", "manifest.json"}
    assert (read_manifest(place, EXPORT_MANIFEST) or {}) == here
    assert is_whole(place, remote["files"], EXPORT_MANIFEST) and damaged_file(place, remote["files"]) is None
    publish(store, place, {"train-1.bin": b"other"})
    assert sorted(objects(place)) == [EXPORT_MANIFEST, "train-1.bin"]
    assert not is_whole(place, remote["files"], EXPORT_MANIFEST)
    assert f"{place}/train-0.bin cannot be read (" in (damaged_file(place, remote["files"]) or "")
    put(f"{place}/train-1.bin", b"otheR")
    assert "was altered" in (
        damaged_file(place, (read_manifest(place, EXPORT_MANIFEST) or {})["files"]) or ""
    )


def test_a_failed_write_leaves_the_old_output_and_nothing_else(place: Place, store: LocalStore) -> None:
    publish(store, place, {"train-0.bin": b"old"})
    before = objects(place)
    with pytest.raises(RuntimeError), OutputFolder(store, place, manifest=EXPORT_MANIFEST) as output:
        output.stage("train-0.bin", lambda file: file.write(b"new"))
        # A bucket receives files only when all are written.
        is_local = isinstance(place, Path)
        assert any(name.startswith(TEMPORARY) for name in objects(place)) == is_local

        def broken(file: Any) -> None:
            file.write(b"x" * 1000)
            raise RuntimeError

        output.stage("train-1.bin", broken)
    assert objects(place) == before


@on_objects
@pytest.mark.parametrize("sent", [0, 1, 2])
def test_a_commit_that_broke_off_is_never_taken_for_an_output(
    place: Url, store: LocalStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sent: int
) -> None:
    old = publish(store, place, {"train-0.bin": b"old 0", "train-1.bin": b"old 1", "train-2.bin": b"old 2"})[
        "files"
    ]
    put_object, done = obstore.put, []

    def breaks(*given: Any, **more: Any) -> None:
        if len(done) == sent:
            raise GenericError("it broke")
        done.append(given)
        put_object(*given, **more)

    with monkeypatch.context() as patched, pytest.raises(StoreError, match="it broke"):
        # One at a time, so that the number says which.
        patched.setattr(folders, "_FILES_AT_ONCE", 1)
        patched.setattr(obstore, "put", breaks)
        publish(store, place, {"train-0.bin": b"new 0", "train-1.bin": b"new 1"})
    # The first upload marks the manifest as replaced; from then on nobody takes it for one.
    assert (read_manifest(place, EXPORT_MANIFEST) is None) == (sent > 0)
    assert (read_manifest(place, EXPORT_MANIFEST, replaced=True) or {})["files"] == old
    assert (damaged_file(place, old) is None) == (sent < 2)
    with pytest.raises(InputError, match="holds the output of another store"):
        refuse_strangers(LocalStore(tmp_path / "other").open(), place, bool, EXPORT_MANIFEST)
    new = publish(store, place, {"train-0.bin": b"new 0", "train-1.bin": b"new 1"})["files"]
    assert is_whole(place, new, EXPORT_MANIFEST) and sorted(objects(place)) == [
        EXPORT_MANIFEST,
        "train-0.bin",
        "train-1.bin",
    ]


def test_what_others_wrote_stays(place: Place, store: LocalStore) -> None:
    put(f"{place}/order.npy", b"mine")
    with pytest.raises(
        InputError, match=rf"{re.escape(str(place))}/order\.npy is there and was not written by this store"
    ):
        refuse_foreign_files(store, Settings(output=Output(path=place)))
    publish(store, place, {"train-0.bin": b"x"})
    write_beside(store, place, {BESIDE[0]: b"page", BESIDE[3]: b"film"})
    publish(store, place, {"train-0.bin": b"x"})
    assert objects(place)[BESIDE[0]] == b"page", "the same output, written again"
    others = ["..divorder-tmp-", ".tmp-abc", "curated.jsonl~"]
    for name in (f"{TEMPORARY}0", *others):
        put(f"{place}/{name}", b"left by a kill, or mine")
    tidy(store, place, ["train-0.bin"], EXPORT_MANIFEST)
    assert objects(place)["order.npy"] == b"mine"
    put(f"{place}/{TEMPORARY}abc", b"half")
    publish(store, place, {"train-0.bin": b"y"}, key="1")
    assert remove_beside(store) == []
    assert sorted(objects(place)) == sorted([EXPORT_MANIFEST, "order.npy", "train-0.bin", *others])


def test_an_output_under_other_names_leaves_the_old_one_whole_until_its_manifest_comes(
    place: Place, store: LocalStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = publish(store, place, {"train-a.bin": b"old", "_/tokenizer.json": b"{}"})
    folder = type(folder_at(place))
    publishing = folder.publish

    def killed(self: Any, staged: Any, last: str, *rest: Any) -> None:
        publishing(self, {name: new for name, new in staged.items() if name != last}, "train-b.bin", ())
        raise KeyboardInterrupt

    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(folder, "publish", killed)
        publish(store, place, {"train-b.bin": b"new", "_/tokenizer.json": b"{}"})
    assert read_manifest(place, EXPORT_MANIFEST) == old and damaged_file(place, old["files"]) is None
    publish(store, place, {"train-b.bin": b"new", "_/tokenizer.json": b"{}"})
    assert sorted(folder_at(place).contents()) == [EXPORT_MANIFEST, "_/tokenizer.json", "train-b.bin"]


@pytest.mark.parametrize("shared", [False, True])
def test_half_written_files_of_other_runs_on_a_bucket_stay(
    shared: bool, store: LocalStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(LocalStore, "shared", shared)
    folder, theirs = folder_at(tmp_path / "place"), f"{TEMPORARY}{'e' * 16}"
    put(f"{folder.place}/{theirs}", b"of another run")
    publish(store, folder.place, {"a.bin": b"new"})
    assert (theirs in folder.sizes()) == shared


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "output").mkdir()
    return tmp_path / "output"


def publish_names(store: LocalStore, folder: Path, *names: str) -> None:
    """An output whose files hold their names."""
    publish(store, folder, {name: name.encode() for name in names}, manifest=MANIFEST)


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
        publish_names(store, folder, name)
    assert (folder / name).read_text() == "mine"
    assert os.listdir(folder) == [name]


def test_a_page_that_lay_there_before_the_output_is_not_ours(store: LocalStore, folder: Path) -> None:
    (folder / BESIDE[0]).write_text("mine")
    publish_names(store, folder, "curated.jsonl")
    publish_names(store, folder, "curated.jsonl")
    with pytest.raises(InputError, match="was not written by this store"):
        write_beside(store, folder, {BESIDE[0]: b"page"})
    assert remove_beside(store) == []
    assert (folder / BESIDE[0]).read_text() == "mine"


def test_an_output_belongs_to_one_store(store: LocalStore, folder: Path, tmp_path: Path) -> None:
    publish_names(store, folder, "curated.jsonl")
    write_beside(store, folder, {BESIDE[0]: b"page"})
    other = LocalStore(tmp_path / "other").open()
    for attempt in (
        lambda: refuse_foreign_files(other, Settings(output=Output(path=folder))),
        lambda: publish_names(other, folder, "curated.jsonl"),
        lambda: write_beside(other, folder, {BESIDE[0]: b"other"}),
    ):
        with pytest.raises(InputError, match=f"output of another store, {tmp_path}/store"):
            attempt()
    assert (folder / BESIDE[0]).read_bytes() == b"page"
    # Made anew in its place, or moved, a store goes on with its output.
    shutil.rmtree(store.root)
    again = LocalStore(store.root).open()
    assert again.id != store
    publish_names(again, folder, "curated.jsonl", "order.npy")
    write_beside(again, folder, {BESIDE[0]: b"again"})
    again.root.rename(tmp_path / "moved")
    publish_names(LocalStore(tmp_path / "moved").open(), folder, "curated.jsonl")
    assert sorted(os.listdir(folder)) == sorted([MANIFEST, "curated.jsonl", BESIDE[0]])


def test_an_output_that_was_moved_is_tidied_too(store: LocalStore, folder: Path, tmp_path: Path) -> None:
    publish_names(store, folder, "a", "b")
    moved = folder.rename(tmp_path / "moved")
    publish_names(store, moved, "a")
    assert sorted(os.listdir(moved)) == ["a", MANIFEST]


def test_a_damaged_manifest_is_none_and_made_again(store: LocalStore, folder: Path) -> None:
    publish_names(store, folder, "a")
    whole = (folder / MANIFEST).read_bytes()
    for at in range(len(whole)):
        flipped = bytearray(whole)
        flipped[at] ^= 1 << at % 8
        (folder / MANIFEST).write_bytes(flipped)
        assert read_manifest(folder) is None, bytes(flipped)
    publish_names(store, folder, "a")
    assert (folder / MANIFEST).read_bytes() == whole


HOSTILE = ["../victim", "/etc/hostname", "..", ".", "", "a/../../victim", "a\0b", "-rf", ".ssh", "a\nb"]


@pytest.mark.parametrize("name", HOSTILE)
def test_a_manifest_with_a_hostile_name_touches_nothing_else(name: str, tmp_path: Path) -> None:
    (tmp_path / "victim").write_text("mine")
    store, folder = LocalStore(tmp_path / "store").open(), tmp_path / "output"
    publish_names(store, folder, "a", "b")
    manifest = read_manifest(folder)
    assert manifest is not None
    forged = manifest | {"files": {name: {"bytes": 4, "sha256": "00"}}}
    (folder / MANIFEST).write_bytes(orjson.dumps(forged | {"check": manifest_check(forged)}))
    publish_names(store, folder, "a")
    assert sorted(os.listdir(tmp_path)) == ["output", "store", "victim"]
    assert (tmp_path / "victim").read_text() == "mine"
    assert Path("/etc/hostname").exists()
