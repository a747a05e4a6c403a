"""Folders at every kind of place: what lies there, and outputs, which are whole or not at all, this store's own, never
a mixture that is taken for one."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import obstore
import pytest
from obstore.exceptions import GenericError

from dagster_divorder.errors import InputError, StoreError
from dagster_divorder.settings import Settings
from dagster_divorder.settings.places import Place, Url
from dagster_divorder.settings.sections import Output
from dagster_divorder.store import folders
from dagster_divorder.store.folder import TEMPORARY
from dagster_divorder.store.folders import folder_at
from dagster_divorder.store.local import LocalStore
from dagster_divorder.store.manifests import EXPORT_MANIFEST
from dagster_divorder.store.output_manifests import is_whole, read_manifest
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


def publish(store: LocalStore, place: Place, files: dict[str, bytes]) -> dict[str, Any]:
    with OutputFolder(store, place, manifest=EXPORT_MANIFEST) as output:
        for name, data in files.items():
            output.stage(name, lambda file, data=data: file.write(data))
        return output.commit({"key": "0" * 32})


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
    write_beside(store, place, {BESIDE[0]: b"page"})
    put(f"{place}/{TEMPORARY}0", b"left by a kill")
    tidy(store, place, ["train-0.bin"], EXPORT_MANIFEST)
    assert objects(place)["order.npy"] == b"mine"
    with OutputFolder(store, place, manifest=EXPORT_MANIFEST) as output:
        output.stage("train-0.bin", lambda file: file.write(b"y"))
        output.commit({"key": "1" * 32})
    assert BESIDE[0] not in objects(place) and remove_beside(store) == []
    assert sorted(objects(place)) == [EXPORT_MANIFEST, "order.npy", "train-0.bin"]


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
