"""Memory: how much a step may hold at once beside its blocks, memory errors, and returning freed memory."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import re


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


MAPPED_BYTES = 1 << 30
"""Bytes of stored ids that an export maps at once."""
MODEL_BYTES = 2 << 30
"""Bytes of all batches of a model that run in parallel on a CPU."""


def give_back_memory() -> None:
    """Returns freed memory to the system; it may be several hundred MB."""
    import pyarrow as pa

    pa.default_memory_pool().release_unused()
    with contextlib.suppress(OSError, AttributeError):  # only glibc has it
        ctypes.CDLL("libc.so.6").malloc_trim(0)
