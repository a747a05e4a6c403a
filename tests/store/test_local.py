"""The store in a folder: its lock is that of a process; what is mapped outlives its file; damage is found."""

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

from dagster_divorder.errors import DamagedFileError
from dagster_divorder.store.disk import explain_os_error
from dagster_divorder.store.local import LocalStore
from dagster_divorder.store.stages import StageFiles
from dagster_divorder.store.view import Fragment
from dagster_divorder.units import BYTES


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
