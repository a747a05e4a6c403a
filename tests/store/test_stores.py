"""The store in a folder, on objects in this process and on an S3 server: a name is absent or complete and keeps its
bytes; damage is found."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from dagster_divorder.errors import DamagedFileError, StoreError
from dagster_divorder.settings.places import Place
from dagster_divorder.store import folders
from dagster_divorder.store.base import FORMAT_FILE, FORMAT_VERSION, Store
from dagster_divorder.store.folder import TEMPORARY
from dagster_divorder.store.folders import folder_at
from dagster_divorder.store.objects import store_at
from tests.store.remote import OBJECTS, put

pytestmark = pytest.mark.parametrize("place", ["folder", *OBJECTS], indirect=True)

Process = Callable[[], Store]


@pytest.fixture
def process(place: Place) -> Process:
    """The store as another process sees it, on a machine of its own."""
    return lambda: store_at(place)


@pytest.fixture
def store(process: Process) -> Iterator[Store]:
    """A store whose lock is held."""
    store = process()
    with store.lock():
        yield store.open()


def test_a_name_keeps_its_bytes_and_large_ones_go_in_parts(
    store: Store, process: Process, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(folders, "PARTS_FROM", 1 << 20)
    for name, data in (("views/small.bin", b"old"), ("views/large.bin", b"old" * (1 << 20))):
        store.put(name, memoryview(np.frombuffer(data, np.uint8)))
        store.put(name, data.replace(b"old", b"new"))
        assert store.read(name) == process().read(name) == data


def test_a_failed_put_leaves_nothing(store: Store, place: Place) -> None:
    def fail(file: Any) -> None:
        file.write(b"half")
        raise RuntimeError("broken off")

    with pytest.raises(RuntimeError, match="broken off"):
        store.put("views/x.bin", fail)
    assert not folder_at(place).entries(store.where("views"))


def test_half_written_files_are_not_listed(store: Store) -> None:
    put(store.where(f"views/{TEMPORARY}{'0' * 16}"), b"half")
    assert store.list("views") == []
    assert f"views/{TEMPORARY}{'0' * 16}" in store.files()


def test_strangers_files_are_nobodys_business(store: Store) -> None:
    name = store.put_hashed("views", "key", b"content", "bin")
    put(store.where("theirs/picture.jpg"), b"x")
    assert {stored for stored in store.files() if "/" in stored} == {name}


def test_hashed_files_are_found_by_key_and_checked_when_read(store: Store, process: Process) -> None:
    name = store.put_hashed("views", "key", b"content", "bin")
    assert store.hashed("views") == {"key": name}
    assert store.read_verified(name) == b"content"
    put(store.where(name), b"conteNt")
    with pytest.raises(StoreError, match=r"key.*damaged.*delete this file and run again"):
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


def test_a_store_is_made_where_nothing_is_and_nowhere_else(process: Process, place: Place) -> None:
    assert process().open(create=False).id == "" and folder_at(place).entries(str(place)) == {}
    one, two = process().open(), process().open()
    assert len(one.id) == 32 and one.id == two.id
    assert list(one.files()) == [FORMAT_FILE]


@pytest.mark.parametrize("create", [True, False])
def test_a_place_with_others_files_is_no_store(process: Process, place: Place, create: bool) -> None:
    put(f"{place}/holiday/picture.jpg", b"x")
    with pytest.raises(StoreError, match=r"\(holiday\) and is not a store; expected a"):
        process().open(create=create)


@pytest.mark.parametrize(
    "data",
    [
        b'{"format": "divorder store", "version": 4, "id": "%032d"}' % 0,
        b'{"not": "ours"}',
        b"\0not json",
        b'{"format": "divorder store", "version": %d}' % FORMAT_VERSION,
    ],
)
def test_what_is_no_store_of_this_version_is_refused(process: Process, place: Place, data: bytes) -> None:
    put(f"{place}/{FORMAT_FILE}", data)
    with pytest.raises(StoreError, match="damaged, of another program, or of a version"), process().lock():
        pass
    assert folder_at(place).read(FORMAT_FILE) == data
