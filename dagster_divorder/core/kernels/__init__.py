"""Hot loops, compiled by numba; only these modules import it on loading. Slow twins: tests/twins.

Numba keeps compiled functions beside a module, or below the home folder. If it can write to neither (a read-only
container, a user without a home), it refuses to compile at all, so this module gives it a folder.
"""

from __future__ import annotations

import os
import warnings
from typing import Any

import numba

from dagster_divorder.caches import cache_folder


def _finds_a_folder(file: str) -> bool:
    """Whether numba finds a folder for a module's compiled functions."""
    scope: dict[str, Any] = {}
    exec(compile("def probe(): pass", file, "exec"), scope)
    try:
        numba.njit(cache=True)(scope["probe"])
    except RuntimeError:
        return False
    return True


# numba's own file stands for the packages beside it that also compile functions, such as umap-learn.
if not (_finds_a_folder(__file__) and _finds_a_folder(numba.__file__)):
    folder = cache_folder() / "numba"
    if not folder.exists():
        warnings.warn(
            f"numba can write neither beside the packages nor to the home folder, and keeps compiled functions in "
            f"{folder}: the first run compiles them, for half a minute. Set NUMBA_CACHE_DIR to a folder that stays",
            stacklevel=1,
        )
        folder.mkdir(parents=True, exist_ok=True)
    # The variable is for worker processes; this process has read it already.
    os.environ["NUMBA_CACHE_DIR"] = numba.config.CACHE_DIR = str(folder)  # type: ignore[attr-defined]
