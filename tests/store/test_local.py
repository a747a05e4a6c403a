"""The store in a folder: its lock is that of a process; what is mapped outlives its file; damage is found."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from dagster_divorder.errors import DamagedFileError
from dagster_divorder.store.local import LocalStore
from dagster_divorder.store.stages import StageFiles
from dagster_divorder.store.view import Fragment


@pytest.fixture
def store(tmp_path: Path) -> LocalStore:
    return LocalStore(tmp_path / "store").open()


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


@pytest.mark.slow
def test_the_lock_of_a_killed_process_is_free_at_once(store: LocalStore) -> None:
    code = (
        "import sys, subprocess; from dagster_divorder.store.local import LocalStore\n"
        "with LocalStore(sys.argv[1]).lock():\n"
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
        with store.lock(wait=False):
            pass
    finally:
        os.kill(child, 9)
