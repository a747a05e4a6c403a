"""Where compiled kernels are kept when numba can write neither beside a module nor to the home folder."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from dagster_divorder.caches import cache_folder
from dagster_divorder.errors import InputError

CODE = """
import numba.core.caching as caching

find = caching.InTreeCacheLocator.from_function.__func__
def find_in_tree(cls, function, file):
    return None if {unwritable!r} in file else find(cls, function, file)
caching.InTreeCacheLocator.from_function = classmethod(find_in_tree)

import numba
import numpy as np
from dagster_divorder.core.kernels.pool import count_documents
frequency = np.zeros(3, np.int64)
count_documents(np.array([0, 2, 2], np.uint32), np.array([0, 2, 3]), frequency)
print(frequency.tolist(), numba.config.CACHE_DIR)
"""


def run_kernel(unwritable: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """A process that calls a kernel, where numba cannot write beside files whose path has this part."""
    return subprocess.run(
        [sys.executable, "-c", CODE.format(unwritable=unwritable)],
        env={**os.environ, "NUMBA_CACHE_DIR": "", **environment},
        capture_output=True,
        text=True,
        check=False,
    )


# umap-learn lies beside numba, and asks it to keep compiled functions too.
@pytest.mark.slow
@pytest.mark.parametrize("unwritable", ["/dagster_divorder/", "/numba/"])
def test_kernels_run_without_a_writable_home_and_it_is_said_once_where_they_are_kept(
    tmp_path: Path, unwritable: str
) -> None:
    nowhere = {"HOME": "/proc/nowhere", "XDG_CACHE_HOME": "/proc/nowhere", "TMPDIR": str(tmp_path)}
    first, second = run_kernel(unwritable, **nowhere), run_kernel(unwritable, **nowhere)
    assert first.returncode == second.returncode == 0, first.stderr
    kept = tmp_path / f"divorder-{os.getuid()}" / "numba"
    assert first.stdout == second.stdout == f"[1, 0, 2] {kept}\n"
    assert list(kept.rglob("*.nbc"))
    assert str(kept) in first.stderr and "NUMBA_CACHE_DIR" in first.stderr
    assert not second.stderr


@pytest.mark.slow
def test_numba_keeps_kernels_where_it_always_does_if_it_can_and_has_to_compile_them() -> None:
    assert run_kernel("nothing").stdout == "[1, 0, 2] \n"
    ran = run_kernel("nothing", NUMBA_DISABLE_JIT="1")
    assert ran.returncode and "SettingsError: NUMBA_DISABLE_JIT is set" in ran.stderr


def test_caches_are_in_the_home_folder_else_in_a_private_temporary_one_that_is_no_link(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert cache_folder() == tmp_path / "home/.cache/divorder"
    monkeypatch.setenv("HOME", "/proc/nowhere")
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    private = cache_folder()
    assert private == tmp_path / f"divorder-{os.getuid()}"
    assert stat.S_IMODE(private.stat().st_mode) == 0o700
    private.symlink_to(private.rename(tmp_path / "elsewhere"))
    with pytest.raises(InputError, match="XDG_CACHE_HOME"):
        cache_folder()
