"""The store in a folder, on objects in this process and on an S3 server: a name is absent or complete and keeps its
bytes; damage is found; one run at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dagster_divorder.errors import DamagedFileError, StoreError
from dagster_divorder.settings.places import Place, Url
from dagster_divorder.store import folders, objects
from dagster_divorder.store.base import TEMPORARY, Store
from dagster_divorder.store.folders import folder_at
from dagster_divorder.store.head import Head
from dagster_divorder.store.local import LocalStore
from dagster_divorder.store.objects import ObjectStore
from dagster_divorder.store.remote import connect
from dagster_divorder.store.sources import bucket
from tests.store.remote import OBJECTS, put

pytestmark = pytest.mark.parametrize("place", ["folder", *OBJECTS], indirect=True)

Process = Callable[[], Store]


@pytest.fixture
def at(place: Place) -> Place:
    """Where the store lies: objects in memory have no prefix."""
    return Url("s3://bucket") if place == Url("s3://bucket/place") else place


@pytest.fixture
def process(at: Place) -> Process:
    """The store as another process sees it, on a machine of its own."""
    if isinstance(at, Path):
        return lambda: LocalStore(at)
    connected = bucket(at)[0] if at == Url("s3://bucket") else connect(at)
    return lambda: ObjectStore(at, Head(at, connected))


@pytest.fixture
def store(process: Process) -> Iterator[Store]:
    """A store whose lease is held."""
    store = process()
    with store.lease():
        yield store


def test_a_name_keeps_its_bytes_unless_asked_and_large_ones_go_in_parts(
    store: Store, process: Process, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (folders, objects):
        monkeypatch.setattr(module, "PARTS_FROM", 1 << 20)
    for name, data in (("views/small.bin", b"old"), ("views/large.bin", b"old" * (1 << 20))):
        store.put(name, memoryview(np.frombuffer(data, np.uint8)))
        store.put(name, data.replace(b"old", b"new"))
        assert store.read(name) == process().read(name) == data
        store.put(name, b"new", replace=True)
        assert store.read(name) == process().read(name) == b"new"


def test_a_failed_put_leaves_the_old_file_and_no_other(store: Store, at: Place) -> None:
    store.put("views/x.bin", b"old")

    def fail(file: Any) -> None:
        file.write(b"half")
        raise RuntimeError("broken off")

    with pytest.raises(RuntimeError, match="broken off"):
        store.put("views/x.bin", fail, replace=True)
    assert store.read("views/x.bin") == b"old"
    assert list(folder_at(at).entries(store.where("views"))) == ["x.bin"]


def test_half_written_files_are_not_listed(store: Store) -> None:
    put(store.where(f"views/{TEMPORARY}{'0' * 16}"), b"half")
    assert store.list("views") == [] and not store.stats("views")
    assert f"views/{TEMPORARY}{'0' * 16}" in store.files()


def test_strangers_files_are_nobodys_business(store: Store) -> None:
    name = store.put_hashed("views", "key", b"content", "bin")
    put(store.where("theirs/picture.jpg"), b"x")
    assert {stored for stored in store.files() if "/" in stored} == {name}


def test_hashed_files_are_found_by_key_and_checked_when_read(store: Store, process: Process) -> None:
    name = store.put_hashed("views", "key", b"content", "bin")
    assert store.hashed("views") == {"key": name}
    with pytest.raises(DamagedFileError, match=r"views/other\.\* is missing"):
        store.hashed("views")["other"]
    assert store.read_verified(name) == b"content"
    put(store.where(name), b"conteNt")
    with pytest.raises(StoreError, match=r"key.*damaged.*delete it"):
        process().read_verified(name)


@pytest.mark.parametrize("other", ["views/other.{}.bin", "schemas/one.{}.bin", "views/one.{}.png"])
def test_a_hashed_file_under_another_name_is_refused(store: Store, other: str) -> None:
    name = store.put_hashed("views", "one", b"content", "bin")
    moved = store.put(other.format(name.split(".")[-2]), store.read(name))
    with pytest.raises(DamagedFileError, match=r"damaged: its name and content hash to"):
        store.read_verified(moved)


def test_missing_files_are_named(store: Store) -> None:
    with pytest.raises(DamagedFileError, match=r"views/x\.bin is missing; run the pipeline again") as caught:
        store.read("views/x.bin")
    assert caught.value.name == "views/x.bin"
    for look in (store.read, store.local, store.exists, store.list):
        with pytest.raises(StoreError, match="is outside the store"):
            look("../x")


def test_a_store_is_made_where_nothing_is_and_nowhere_else(process: Process, at: Place) -> None:
    assert process().open(create=False).id == "" and folder_at(at).entries(str(at)) == {}
    one, two = process().open(), process().open()
    assert len(one.id) == 32 and one.id == two.id
    with one.lease():
        assert list(one.files()) == [] or list(one.files()) == ["format.json", "lease"]


@pytest.mark.parametrize("create", [True, False])
def test_a_place_with_others_files_is_no_store(process: Process, at: Place, create: bool) -> None:
    put(f"{at}/holiday/picture.jpg", b"x")
    with pytest.raises(StoreError, match=r"\(holiday\)(,| and is) not a store; expected a"):
        process().open(create=create)


@pytest.mark.parametrize(
    ("data", "wrong"),
    [
        (b'{"format": "divorder store", "version": 99, "id": "00"}', "has format version 99"),
        (b'{"not": "ours"}', "damaged or belongs to another program"),
        (b"\0not json", "damaged or belongs to another program"),
    ],
)
def test_what_is_no_store_of_this_version_is_refused(
    process: Process, at: Place, data: bytes, wrong: str
) -> None:
    about_file = process().about_file
    put(f"{at}/{about_file}", data)
    with pytest.raises(StoreError, match=wrong), process().lease():
        pass
    assert folder_at(at).read(about_file) == data


def test_scratch_is_empty_and_gone_at_the_end_and_cleared_after_a_kill(store: Store) -> None:
    with pytest.raises(KeyError), store.scratch() as one, store.scratch() as other:
        assert one != other and list(one.iterdir()) == []
        (one / "model").mkdir()
        raise KeyError
    folder = one.parent
    assert list(folder.iterdir()) == []
    if not isinstance(store, LocalStore):
        return  # temporary files of an object store lie in a folder of this process
    put(folder / f"{TEMPORARY}0123456789abcdef/deep/weights", b"1")
    put(folder / "theirs/file", b"1")
    store.put("views/x.bin", b"1")
    store.clear_scratch()
    assert [path.name for path in folder.iterdir()] == ["theirs"] and store.exists("views/x.bin")
