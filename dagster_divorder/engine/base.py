"""One function over many items, on this machine or on several; memory that runs out, and is given back.

Guarantee: results come in the order of the items and equal a plain loop's, for any engine and number of workers, if the
function depends only on its item. So the engine is in no stage's key.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import re
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from functools import partial
from typing import Any, TypeAlias, TypedDict, TypeVar, Unpack

from dagster_divorder.engine.progress import Advance

Item = TypeVar("Item")
Result = TypeVar("Result")
Submit: TypeAlias = "Callable[[Any], Callable[[], Any]]"
"""Starts the call for an item; returns a function that waits for its result. Results are taken in order."""

SPARE = 2
"""Calls that wait for a worker here, so that none is idle while the caller uses a result."""


class Needs(TypedDict, total=False):
    """Needs of the calls of a function.

    workers: most calls at once; with one, and no GPUs of other machines, all calls run in this process.
    threads: for the libraries of a call, 1 by default. 0: the function itself uses `count_workers(0)` threads: on this
        machine all, in one call at a time; on other machines one a call.
    gpus: GPUs of one machine, for the exclusive use of a call. memory: bytes that a call needs, for Ray.
    environment: variables of the worker processes; by default `MEMORY_VARIABLES`, which keep them small.
    """

    workers: int | None
    threads: int
    gpus: int
    memory: int
    environment: Mapping[str, str] | None


class Engine(ABC):
    """Calls functions on items. Workers must be able to import the functions; functions, items and results are
    pickled. workers: most calls that run at once, each with one thread. gpus: for calls."""

    workers: int
    gpus: int
    is_remote: bool

    def each(
        self,
        function: Callable[..., Result],
        items: Sequence[Item],
        *,
        advance: Advance | None = None,
        **needs: Unpack[Needs],
    ) -> Iterator[Result]:
        """`function(item)` for every item, in order; buffers a few more results than workers.

        advance: called in this process with the numbers that a call reports through the keyword `advance` of its
        function: during the call or, from other machines, with its result. Raises WorkerError: a worker died.
        Errors of the function are raised unchanged."""
        asked = needs.get("workers")
        most = min(self._room(needs), len(items), len(items) if asked is None else asked)
        if most <= 1 and not (self.is_remote and needs.get("gpus")):
            yield from map(partial(function, advance=advance) if advance else function, items)
            return
        started: deque[Callable[[], Result]] = deque()
        with self._workers(function, most, needs, advance) as submit:
            for item in items:
                started.append(submit(item))
                if len(started) >= most + SPARE * (not self.is_remote):
                    yield started.popleft()()
            while started:
                yield started.popleft()()

    @abstractmethod
    def _room(self, needs: Needs) -> int:
        """The most calls that may be started at once."""

    @abstractmethod
    def _workers(
        self, function: Callable[..., Any], most: int, needs: Needs, advance: Advance | None
    ) -> AbstractContextManager[Submit]:
        """Workers for at most this many calls at once; no call runs after the exit."""

    def close(self) -> None:  # noqa: B027
        """Frees the engine's resources."""


def ahead(items: Generator[Item, None, None]) -> Generator[Item, None, None]:
    """The same items; the next one is computed in another thread while the caller uses the last one. For work that
    releases the interpreter's lock. `items` is closed at the end, even an early one; its errors are raised here."""
    with ThreadPoolExecutor(1, thread_name_prefix="divorder-ahead") as thread:
        try:
            coming = thread.submit(next, items, None)
            while (item := coming.result()) is not None:
                coming = thread.submit(next, items, None)
                yield item
        finally:
            thread.submit(items.close)


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


def give_back_memory() -> None:
    """Returns freed memory to the system; it may be several hundred MB."""
    import pyarrow as pa

    pa.default_memory_pool().release_unused()
    with contextlib.suppress(OSError, AttributeError):  # only glibc has it
        ctypes.CDLL("libc.so.6").malloc_trim(0)
