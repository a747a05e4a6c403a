"""This machine's disk: temporary folders, and errors of the system in plain words."""

from __future__ import annotations

import contextlib
import errno
import shutil
import tempfile
import weakref
from collections.abc import Iterator
from pathlib import Path

from dagster_divorder.errors import DiskFullError, StoreError
from dagster_divorder.units import byte_size

DISK_FULL = (errno.ENOSPC, errno.EDQUOT)
"""Error numbers of a full disk or quota."""


def temporary_folder(owner: object) -> Path:
    """A new folder in the temporary folder (TMPDIR). It is removed with its owner, at the latest when the process
    ends."""
    folder = Path(tempfile.mkdtemp(prefix="divorder-"))
    weakref.finalize(owner, shutil.rmtree, folder, ignore_errors=True)
    return folder


@contextlib.contextmanager
def explaining_full_disk(target: Path) -> Iterator[None]:
    """Turns the error of a full disk into a DiskFullError; other errors stay."""
    try:
        yield
    except OSError as error:
        if error.errno not in DISK_FULL:
            raise
        raise explain_os_error(error, target) from error


@contextlib.contextmanager
def scratch() -> Iterator[Path]:
    """An empty folder in the temporary folder (TMPDIR), removed at the end. Raises DiskFullError: the disk fills up."""
    with tempfile.TemporaryDirectory(prefix="divorder-") as folder, explaining_full_disk(Path(folder)):
        yield Path(folder)


def explain_os_error(error: OSError, target: Path) -> StoreError:
    """An error for an operating system error at a path, in plain words and with the remedy."""
    if error.errno in DISK_FULL:
        free = shutil.disk_usage(next(path for path in (target, *target.parents) if path.is_dir())).free
        return DiskFullError(
            f"no space left for {target}: {byte_size(free)} are free there; free some disk, or move the folder to a "
            "larger disk, then run again: it continues from here"
        )
    if error.errno in (errno.EEXIST, errno.ENOTDIR):
        return StoreError(
            f"{target} cannot be written: {error.filename or target} is a file, expected a folder; "
            "move it away, or set another path"
        )
    if error.errno in (errno.EACCES, errno.EROFS, errno.EPERM):
        return StoreError(f"{target} cannot be written ({error.strerror}); make its folder writable")
    return StoreError(f"{target} cannot be written: {error}")
