"""How much memory a call takes, how far this process's resident memory rises above what it was before; and how many
addresses this process may use.

Known weakness: Linux alone can tell what a call takes; and memory that was freed but not given back before the call,
and is used again in it, is not seen: what can be given back is given back first.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from dagster_divorder.engine.local import give_back_memory
from dagster_divorder.errors import MemoryLimitError

Result = TypeVar("Result")

ADDRESSES = 3_000_000_000
"""Bytes of addresses that libraries reserve by the end of the smallest first run, on 2 cores (400 MB of them are
memory). With fewer of them one library raises, another aborts the process, a third waits for ever: which one is
chance."""


def address_limit() -> int | None:
    """Bytes of addresses that this process may use (`ulimit -v`), None where that is not limited."""
    import resource

    limit = resource.getrlimit(resource.RLIMIT_AS)[0]
    return None if limit == resource.RLIM_INFINITY else limit


def need_addresses() -> None:
    """Raise MemoryLimitError where this process may not use ADDRESSES, before a library meets that limit."""
    limit = address_limit()
    if limit is not None and limit < ADDRESSES:
        raise MemoryLimitError(
            f"this process may use {limit / 1e9:.1f} GB of addresses (ulimit -v {limit >> 10}), and the libraries that "
            f"it loads reserve {ADDRESSES / 1e9:.1f} GB, though they use a fraction of it; raise the limit (ulimit -v "
            f"{2 * ADDRESSES >> 10}), or limit memory instead of addresses (a container's quota)"
        )


def with_peak_memory(function: Callable[[], Result]) -> tuple[Result, int | None]:
    """The function's result, and the bytes by which resident memory rose at most; None where that cannot be told."""
    give_back_memory()
    before = _resident("VmRSS") if _reset_peak() else None
    result = function()
    return result, None if before is None else max(_resident("VmHWM") - before, 0)


def _reset_peak() -> bool:
    """Make the kernel forget the peak so far (proc(5), clear_refs)."""
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        return False
    return True


def _resident(field: str) -> int:
    """VmRSS, as it is, or VmHWM, the peak, of this process in bytes."""
    found = re.search(rf"{field}:\s+(\d+) kB", Path("/proc/self/status").read_text())
    return int(found[1]) * 1024 if found else 0
