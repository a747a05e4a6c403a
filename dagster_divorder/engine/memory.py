"""Memory: what there is, memory errors, and returning freed memory."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import re
from collections.abc import Iterator
from pathlib import Path, PurePosixPath


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error of Python, torch or the system's loader means that memory or addresses ran out."""
    if isinstance(error, MemoryError) or (isinstance(error, OSError) and error.errno == errno.ENOMEM):
        return True
    words = (
        r"can't allocate memory|cannot allocate memory|not enough memory|out of memory|CUBLAS_STATUS_ALLOC_FAILED|"
        r"bad_alloc|can't start new thread|failed to map segment"
    )
    kinds = RuntimeError | ImportError
    return isinstance(error, kinds) and re.search(words, str(error), re.IGNORECASE) is not None


def main_memory() -> int:
    """Bytes of main memory that this process may use: the machine's (4 GB if unknown), or a container's lower quota."""
    try:
        machine = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError):
        machine = 4 << 30
    return min([machine, *memory_quotas()])


def memory_quotas(
    groups: Path = Path("/proc/self/cgroup"), mounted: Path = Path("/sys/fs/cgroup")
) -> Iterator[int]:
    """Bytes that this process's control groups (version 2) and their parents allow; empty without any (macOS). Inside
    a container the paths may be the machine's; the topmost visible group is then the container's."""
    with contextlib.suppress(OSError):
        for line in groups.read_text().splitlines():
            if line.startswith("0::/"):
                group = PurePosixPath(line[4:])
                for part in (group, *group.parents):
                    with contextlib.suppress(OSError, ValueError):  # no such file, or "max"
                        yield int((mounted / part / "memory.max").read_text())


BUDGET = main_memory() // 12
"""Bytes that a step may hold at once beside its blocks. All sizes that follow the machine's memory are shares of it. A
size that decides a result's bytes is a constant where it is used (docs/decisions/house.md)."""
MAPPED_BYTES = BUDGET
"""Bytes of stored ids that an export maps at once."""
MEASURED_BYTES = BUDGET // 8
"""Largest bytes of an order for measuring two orders at a time."""
MODEL_BYTES = BUDGET * 3
"""Bytes of all batches of a model that run in parallel on a CPU."""


def give_back_memory() -> None:
    """Returns freed memory to the system; it may be several hundred MB."""
    import pyarrow as pa

    pa.default_memory_pool().release_unused()
    with contextlib.suppress(OSError, AttributeError):  # only glibc has it
        ctypes.CDLL("libc.so.6").malloc_trim(0)
