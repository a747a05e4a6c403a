"""The store in a folder: its lease is that of a process; what is mapped outlives its file; damage is found."""

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

from dagster_divorder.errors import DamagedFileError, StoreBusyError
from dagster_divorder.store.base import STATE
from dagster_divorder.store.disk import explain_os_error
from dagster_divorder.store.local import LocalStore
from dagster_divorder.store.stages import StageFiles
from dagster_divorder.store.state import State, keep_copy, load_state, mend_state, save_state, signed
from dagster_divorder.store.view import Fragment
from dagster_divorder.units import BYTES


@pytest.fixture
def store(tmp_path: Path) -> LocalStore:
    return LocalStore(tmp_path / "store").open()


def test_a_result_under_another_fragments_name_is_refused(store: LocalStore) -> None:
    files = StageFiles(store, "token_counts", "key")
    for fragment, length in (("one", 1), ("two", 2)):
        files.put(fragment, {"lengths": np.array([length])})
    one, two = (files.present()[fragment] for fragment in ("one", "two"))
    moved = two.replace("two", "one")
    store.local(one).unlink()
    store.local(two).rename(store.local(moved))
    with pytest.raises(
        DamagedFileError, match=r"one\..* is damaged: the content of lengths has another hash"
    ):
        files.column([Fragment("one", "", 1)], "lengths")
    with pytest.raises(DamagedFileError, match=r"one\..* is damaged"):
        list(files.each([Fragment("one", "", 1)]))
    with pytest.raises(
        DamagedFileError, match=r"one\..* is damaged: the content of lengths has another hash"
    ):
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
    assert "continues from the copy" in str(mend_state(store))
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
    assert re.search(r"[\d.,]+ [MGT]B (that )?are free there", said)
    if share > 1:
        sizes = re.findall(r"([\d.,]+) ([MGT]B)", said)
        takes, free = (float(number.replace(",", "")) * BYTES[unit] for number, unit in sizes[:2])
        assert takes > free
    else:
        assert "takes about" not in said and "at least" not in said
    assert ("the output and what is written beside it take more than the" in said) == (0 < share < 1)
