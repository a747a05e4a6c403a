"""The interface of engines: one function over many items, on this machine or on several.

Guarantee: results come in the order of the items and equal a plain loop's, for any engine and number of workers, if the
function depends only on its item. So the engine is in no stage's key.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Protocol, TypedDict, TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")


class Needs(TypedDict, total=False):
    """Needs of the calls of a function: arguments of `Engine.each`."""

    workers: int | None
    threads: int
    gpus: int
    memory: int
    environment: Mapping[str, str] | None


class Engine(Protocol):
    """Calls functions on items. Workers must be able to import the functions; functions, items and results are
    pickled."""

    @property
    def workers(self) -> int:
        """The most calls that run at once, each with one thread."""

    @property
    def gpus(self) -> int:
        """GPUs for calls."""

    def each(
        self,
        function: Callable[..., Result],
        items: Sequence[Item],
        *,
        workers: int | None = None,
        threads: int = 1,
        gpus: int = 0,
        memory: int = 0,
        environment: Mapping[str, str] | None = None,
        retries: int = 2,
        advance: Callable[[int], object] | None = None,
    ) -> Iterator[Result]:
        """`function(item)` for every item, in order; buffers a few more results than workers.

        Args:
            workers: most calls at once, for small work; with one, and no GPUs, all calls run in this process.
            threads: for the libraries of a call. 0: the function itself uses `count_workers(0)` threads: on this
                machine all, in one call at a time; on other machines one a call.
            gpus: GPUs of one machine, for the exclusive use of a call. memory: bytes that a call needs, for an engine
            that places calls by it. environment: variables of the worker processes; by default `MEMORY_VARIABLES`,
            which keep them small. retries: repeats of a call after its worker or machine died; errors are not retried.
            advance: called in this process with the numbers that a call reports through the keyword `advance` of its
                function: during the call or, from other machines, with its result.

        Raises:
            WorkerError: a worker died. Errors of the function are raised unchanged.
        """

    def close(self) -> None:
        """Frees the engine's resources."""
