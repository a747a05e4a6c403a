"""How much memory a call takes: how far this process's resident memory rises above what it was before.

Known weakness: Linux alone can tell; and memory that was freed but not given back before the call, and is used again in
it, is not seen: what can be given back is given back first.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from dagster_divorder.engine.local import give_back_memory

Result = TypeVar("Result")


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
