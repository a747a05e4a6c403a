"""Hot loops, compiled by numba. Only these modules import numba when loaded. Slow twins: tests/twins.

Numba keeps compiled functions beside a module, or below the home folder. If it can write to neither (a read-only
container, a user without a home), it refuses to compile at all, so this module gives it a folder.
"""

from __future__ import annotations

import contextlib
import os
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import numba
import xxhash

from dagster_divorder.caches import cache_folder
from dagster_divorder.errors import SettingsError

Function = TypeVar("Function", bound=Callable[..., Any])

if numba.config.DISABLE_JIT:  # type: ignore[attr-defined]
    raise SettingsError(
        "NUMBA_DISABLE_JIT is set, but DivOrder's loops need compiled functions: as Python they take hours, and whole "
        "numbers of 64 bits overflow otherwise. Unset it; to debug a loop, read its slow twin in tests/twins"
    )


def _cache_folder_of(file: str) -> Path | None:
    """The folder in which numba keeps a module's compiled functions; None if numba finds none."""
    scope: dict[str, Any] = {}
    exec(compile("def probe(): pass", file, "exec"), scope)
    try:
        return Path(str(numba.njit(cache=True)(scope["probe"]).stats.cache_path))
    except RuntimeError:
        return None


def _drop_stale(folder: Path) -> None:
    """Removes functions that were compiled from other sources. Numba checks only the file of a function itself: it
    would keep old versions of functions that this one calls, and fails on a type that no longer exists."""
    digest = xxhash.xxh3_128()
    for source in sorted(Path(__file__).parent.glob("*.py")):
        digest.update(source.read_bytes())
    mark = folder / "sources.txt"
    try:
        if mark.read_text() == digest.hexdigest():
            return
    except FileNotFoundError:
        pass
    for compiled in [*folder.glob("*.nbi"), *folder.glob("*.nbc")]:
        compiled.unlink(missing_ok=True)
    folder.mkdir(parents=True, exist_ok=True)
    mark.write_text(digest.hexdigest())


# numba's own file stands for other packages that compile functions, such as umap-learn.
if not (_cache_folder_of(__file__) and _cache_folder_of(numba.__file__)):
    folder = cache_folder() / "numba"
    if not folder.exists():
        warnings.warn(
            f"numba can write neither beside the packages nor to the home folder, and keeps compiled functions in "
            f"{folder}: the first run spends half a minute compiling them. Set NUMBA_CACHE_DIR to a folder that stays",
            stacklevel=1,
        )
        folder.mkdir(parents=True, exist_ok=True)
    # The variable is for worker processes; this process has already read it.
    os.environ["NUMBA_CACHE_DIR"] = numba.config.CACHE_DIR = str(folder)  # type: ignore[attr-defined]
if kept := _cache_folder_of(__file__):
    # Nothing can be removed from a read-only folder, such as an image's.
    with contextlib.suppress(OSError):
        _drop_stale(kept)

# A dictionary, because numba's annotations leave these options out.
_options: dict[str, Any] = {"cache": True, "nogil": True, "no_cfunc_wrapper": True}


def kernel(function: Function) -> Function:
    """Compiles a function at its first call, once for this machine; without a wrapper for C, which nothing calls."""
    return numba.njit(**_options)(function)


def kernel_part(function: Function) -> Function:
    """Like `kernel`, for a function that only kernels call: without a wrapper for Python, which compiles slowly."""
    return numba.njit(**_options | {"no_cpython_wrapper": True})(function)
