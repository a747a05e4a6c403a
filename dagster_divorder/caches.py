"""This machine's folder for caches."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from dagster_divorder.errors import InputError


def cache_folder() -> Path:
    """This user's folder for caches: divorder in $XDG_CACHE_HOME or ~/.cache. If that is not writable, as in many
    containers: divorder-UID in the temporary folder. Raises InputError: neither is writable, or the folder in the
    temporary folder belongs to another user."""
    try:
        home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
        if _is_writable(home / "divorder"):
            return home / "divorder"
    except RuntimeError:  # a user without a home
        pass
    try:
        folder = Path(tempfile.gettempdir(), f"divorder-{os.getuid()}")
        # Files in the cache are trusted, and some are compiled code.
        if _is_writable(folder) and not folder.is_symlink() and folder.stat().st_uid == os.getuid():
            return folder
    except OSError:  # no temporary folder at all
        folder = Path("the temporary folder")
    raise InputError(
        f"neither the home folder nor {folder} is writable by this user alone; set XDG_CACHE_HOME to a folder for "
        f"caches"
    )


def _is_writable(folder: Path) -> bool:
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=folder).close()
    except OSError:
        return False
    return True
