"""The store: a name is absent or complete; damage is found; one run at a time."""

from __future__ import annotations

import errno
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from dagster_divorder.errors import DamagedFileError, StoreBusyError, StoreError
from dagster_divorder.store.base import STATE, TEMPORARY
from dagster_divorder.store.local import LocalStore, explain_os_error
from dagster_divorder.store.stages import StageFiles
from dagster_divorder.store.state import State, keep_copy, load_state, mend_state, save_state, signed
from dagster_divorder.store.view import Fragment


@pytest.fixture
def store(tmp_path: Path) -> LocalStore:
    return LocalStore(tmp_path / "store").open()


def test_put_read_list(store: LocalStore) -> None:
    store.put("a/x", b"1")
    store.put("a/y", [b"2", b"3"])
    store.put("a/z", lambda file: file.write(b"4"))
    assert store.list("a") == ["a/x", "a/y", "a/z"]
    assert [store.read(name) for name in store.list("a")] == [b"1", b"23", b"4"]
    assert store.list("nowhere") == []


def test_put_of_an_existing_name_changes_nothing_unless_asked(store: LocalStore) -> None:
    store.put("x", b"old")
    store.put("x", b"new")
    assert store.read("x") == b"old"
    store.put("x", b"new", replace=True)
    assert store.read("x") == b"new"


def test_a_failed_put_leaves_the_old_file_and_no_other(store: LocalStore) -> None:
    store.put("x", b"old")

    def fail(file: object) -> None:
        file.write(b"half")  # type: ignore[attr-defined]
        raise RuntimeError("broken off")

    with pytest.raises(RuntimeError, match="broken off"):
        store.put("x", fail, replace=True)
    assert store.read("x") == b"old"
    assert [name for name in os.listdir(store.root) if name.startswith(TEMPORARY)] == []


def test_half_written_files_are_not_listed(store: LocalStore) -> None:
    (store.root / "a").mkdir()
    (store.root / f"a/{TEMPORARY}123").write_bytes(b"half")
    assert store.list("a") == []


def test_sealed_files_are_found_by_key_and_checked_when_read(store: LocalStore) -> None:
    name = store.put_hashed("stage/key", "fragment", b"content", "bin")
    assert store.hashed("stage/key") == {"fragment": name}
    assert store.read_verified(name) == b"content"
    store.local(name).write_bytes(b"conteNt")
    with pytest.raises(StoreError, match=r"fragment.*damaged.*delete the file"):
        store.read_verified(name)


@pytest.mark.parametrize(
    "place", ["stage/key/other.{}.bin", "stage/other/one.{}.bin", "stage/key/one.{}.png"]
)
def test_a_sealed_file_under_another_name_is_refused(store: LocalStore, place: str) -> None:
    name = store.put_hashed("stage/key", "one", b"content", "bin")
    moved = place.format(name.split(".")[-2])
    store.put(moved, store.read(name))
    with pytest.raises(DamagedFileError, match=r"damaged: its name and content hash to"):
        store.read_verified(moved)


def test_a_result_under_another_fragments_name_is_refused(store: LocalStore) -> None:
    files = StageFiles(store, "token_counts", "key")
    for fragment, length in (("one", 1), ("two", 2)):
        files.put(fragment, {"lengths": np.array([length])})
    one, two = (files.present()[fragment] for fragment in ("one", "two"))
    moved = two.replace("two", "one")
    store.local(one).unlink()
    store.local(two).rename(store.local(moved))
    with pytest.raises(DamagedFileError, match=r"one\..* is damaged: lengths does not hash"):
        files.column([Fragment("one", "", 1)], "lengths")
    with pytest.raises(DamagedFileError, match=r"one\..* is damaged"):
        list(files.each([Fragment("one", "", 1)]))
    with pytest.raises(DamagedFileError, match=r"one\..* is damaged: lengths does not hash"):
        list(files.mapped([Fragment("one", "", 1)], "lengths"))


def test_mapped_arrays_outlive_their_files_and_a_short_file_is_noticed(store: LocalStore) -> None:
    files, one = StageFiles(store, "token_counts", "key"), Fragment("one", "", 3)
    ids = np.arange(3000, dtype=np.uint16)
    files.put("one", {"lengths": np.array([1000] * 3), "ids": ids})
    mapped = list(files.mapped([one], "ids"))
    path = store.local(files.present()["one"])
    data = path.read_bytes()
    path.unlink()
    np.testing.assert_array_equal(mapped, [ids])
    for short in (data[:-1], data[:20], b""):
        path.write_bytes(short)
        with pytest.raises(DamagedFileError, match=r"one\..* is damaged"):
            list(files.mapped([one], "ids"))


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{}",
        signed(b"[]"),
        signed(b'{"receipts":5}'),
        signed(b'{"receipts":{},"results":{},"outputs":{}}')[:-1] + b" }",
    ],
)
def test_a_state_that_is_not_what_was_written_is_refused_and_mended(store: LocalStore, data: bytes) -> None:
    state = State(outputs={"/out": ["order.npy"]})
    save_state(store, state)
    keep_copy(store)
    store.put(STATE, data, replace=True)
    with pytest.raises(DamagedFileError, match=r"state\.json is damaged or gone; run again"):
        load_state(store)
    assert "goes on from its copy" in str(mend_state(store))
    assert load_state(store) == state
    assert mend_state(store) is None


def test_a_state_that_is_gone_is_missed_where_there_is_a_copy(store: LocalStore) -> None:
    assert load_state(store) == State()
    save_state(store, State(outputs={"/out": []}))
    keep_copy(store)
    store.delete(STATE)
    with pytest.raises(DamagedFileError):
        load_state(store)
    store.delete(*store.list("states"))
    assert load_state(store) == State()


def test_a_missing_file_is_named(store: LocalStore) -> None:
    with pytest.raises(StoreError, match="gone is missing"):
        store.read("gone")


def test_a_store_of_another_version_is_refused(store: LocalStore) -> None:
    store.put("format.json", b'{"version": 999}', replace=True)
    with pytest.raises(StoreError, match=r"version 999.*reads version 4"):
        LocalStore(store.root).open()


@pytest.mark.slow
def test_a_second_run_is_refused_or_waits(store: LocalStore) -> None:
    code = (
        "import sys; from dagster_divorder.store.local import LocalStore\n"
        "with LocalStore(sys.argv[1]).lease():\n"
        "    print('held', flush=True); sys.stdin.readline()\n"
    )
    holder = subprocess.Popen(
        [sys.executable, "-c", code, str(store.root)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert holder.stdout is not None and holder.stdin is not None
    assert holder.stdout.readline() == "held\n"
    refused = pytest.raises(StoreBusyError, match=rf"in use by another run \(process {holder.pid}\)")
    with refused, store.lease(wait=False):
        pass
    said: list[str] = []

    def release(message: str) -> None:
        said.append(message)
        assert holder.stdin is not None
        holder.stdin.close()

    with store.lease(on_wait=release):
        assert holder.wait(timeout=30) == 0
    assert "waiting for it to end" in said[0]


@pytest.mark.slow
def test_the_lease_of_a_killed_process_is_free_at_once(store: LocalStore) -> None:
    code = (
        "import sys, subprocess; from dagster_divorder.store.local import LocalStore\n"
        "with LocalStore(sys.argv[1]).lease():\n"
        # A child that outlives its parent must not keep the lock.
        "    child = subprocess.Popen(['cat'], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL)\n"
        "    print(child.pid, flush=True); sys.stdin.readline()\n"
    )
    holder = subprocess.Popen(
        [sys.executable, "-c", code, str(store.root)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert holder.stdout is not None
    child = int(holder.stdout.readline())
    try:
        holder.kill()
        holder.wait(timeout=30)
        with store.lease(wait=False):
            pass
    finally:
        os.kill(child, 9)


@pytest.mark.parametrize("share", [0.0, 0.5, 0.999, 1.5])
def test_a_full_disk_never_takes_less_than_is_free(tmp_path: Path, share: float) -> None:
    free = shutil.disk_usage(tmp_path).free
    full = OSError(errno.ENOSPC, "No space left on device")
    said = str(explain_os_error(full, tmp_path / "file", int(share * free), "the output"))
    assert re.search(r"[\d.,]+ MB (that )?are free there", said)
    if share > 1:
        takes, there = (float(number.replace(",", "")) for number in re.findall(r"([\d.,]+) MB", said)[:2])
        assert takes > there
    else:
        assert "takes about" not in said and "at least" not in said
    assert ("the output and what is written beside it take more than the" in said) == (0 < share < 1)


def test_scratch_is_empty_and_gone_at_the_end(store: LocalStore) -> None:
    with pytest.raises(KeyError), store.scratch() as one, store.scratch() as other:
        assert one != other
        assert list(one.iterdir()) == []
        (one / "model").mkdir()
        raise KeyError
    assert store.folders("scratch") == []


def test_what_a_killed_process_left_in_scratch_is_cleared_and_nothing_else(store: LocalStore) -> None:
    left = store.root / "scratch" / f"{TEMPORARY}0123456789abcdef"
    (left / "deep").mkdir(parents=True)
    (left / "deep/weights").write_bytes(b"1")
    theirs = store.root / "scratch" / "theirs"
    theirs.mkdir()
    store.put("x", b"1")
    store.clear_scratch()
    assert store.folders("scratch") == ["scratch/theirs"]
    assert store.exists("x")
