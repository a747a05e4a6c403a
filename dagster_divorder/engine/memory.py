"""Memory: what this process may use, whether it ran out, what a call takes, and giving it back.

Known weakness: Linux alone can tell what a call takes; and memory that was freed but not given back before the call,
and is used again in it, is not seen: what can be given back is given back first.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path, PurePosixPath
from typing import TypeVar

from dagster_divorder.errors import MemoryLimitError
from dagster_divorder.units import byte_size

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
            f"this process may use {byte_size(limit)} of addresses (ulimit -v {limit >> 10}), and the libraries that "
            f"it loads reserve {byte_size(ADDRESSES)}, though they use a fraction of it; raise the limit (ulimit -v "
            f"{2 * ADDRESSES >> 10}), or limit memory instead of addresses (a container's quota)"
        )


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error says that memory, or the addresses for it, ran out, in any of the words that Python, torch and
    the system's loader have for it."""
    if isinstance(error, MemoryError) or (isinstance(error, OSError) and error.errno == errno.ENOMEM):
        return True
    words = (
        r"can't allocate memory|cannot allocate memory|not enough memory|out of memory|CUBLAS_STATUS_ALLOC_FAILED|"
        r"bad_alloc|can't start new thread|failed to map segment"
    )
    kinds = RuntimeError | ImportError
    return isinstance(error, kinds) and re.search(words, str(error), re.IGNORECASE) is not None


def main_memory() -> int:
    """Bytes of main memory that this process may use: the machine's (4 GB where it cannot be asked), or less where a
    container's quota says so."""
    try:
        machine = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError):
        machine = 4 << 30
    return min([machine, *memory_quotas()])


def memory_quotas(
    groups: Path = Path("/proc/self/cgroup"), mounted: Path = Path("/sys/fs/cgroup")
) -> Iterator[int]:
    """Bytes that the control groups of this process allow, of either version; none where there are none (macOS).

    A group is bound by those above it too. Inside a container the paths may be those of the machine: then the topmost
    group that is seen is the container's.
    """
    with contextlib.suppress(OSError):
        for line in groups.read_text().splitlines():
            _, controllers, group = line.split(":", 2)
            if controllers and "memory" not in controllers.split(","):
                continue
            version_1 = bool(controllers)
            top = mounted / "memory" if version_1 else mounted
            path = PurePosixPath(group.lstrip("/"))
            for part in (path, *path.parents):
                with contextlib.suppress(OSError, ValueError):  # no such file, or "max"
                    yield int(
                        (top / part / ("memory.limit_in_bytes" if version_1 else "memory.max")).read_text()
                    )


def give_back_memory() -> None:
    """Return freed memory to the system, which this process may hold several hundred MB of."""
    import pyarrow as pa

    pa.default_memory_pool().release_unused()
    with contextlib.suppress(OSError, AttributeError):  # glibc alone can
        ctypes.CDLL("libc.so.6").malloc_trim(0)


def with_peak_memory(function: Callable[[], Result]) -> tuple[Result, int | None]:
    """The function's result, and the bytes by which resident memory rose at most; None where that cannot be told."""
    give_back_memory()
    before = resident() if _reset_peak() else None
    result = function()
    return result, None if before is None else max(resident("VmHWM") - before, 0)


def _reset_peak() -> bool:
    """Make the kernel forget the peak so far (proc(5), clear_refs)."""
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        return False
    return True


def resident(field: str = "VmRSS") -> int:
    """VmRSS, as it is, or VmHWM, the peak, of this process in bytes; 0 where that cannot be told."""
    try:
        status = Path("/proc/self/status").read_text()
    except OSError:
        return 0
    found = re.search(rf"{field}:\s+(\d+) kB", status)
    return int(found[1]) * 1024 if found else 0
