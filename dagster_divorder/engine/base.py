"""What an engine is: one function over many items, on this machine or on many.

Guarantee: results come in the order of the items and equal those of a plain loop, for any engine and number of workers,
if the function depends on its item alone. So the engine is in no stage's key.
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
    """Calls functions that workers can import on items; functions, items and results are pickled."""

    @property
    def workers(self) -> int:
        """The most calls of one thread that run at once."""

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
        """`function(item)` for every item, in order; a few more results than workers wait to be taken.

        Args:
            workers: at most so many calls at once, for small work; with one, and no GPUs, all calls run in this
                process.
            threads: for the libraries of a call. 0: the function itself uses `count_workers(0)` threads, which are all
                of this machine, in one call at a time, or one a call on other machines.
            gpus: GPUs of one machine that a call has to itself.
            memory: bytes that a call needs, for an engine that places calls by it.
            environment: variables of the worker processes; by default `MEMORY_VARIABLES`, which keep them small.
            retries: how often a call is repeated after its worker or machine died; errors are not retried.
            advance: called in this process with the numbers that a call reports through the keyword `advance` of its
                function: during the call or, from other machines, with its result.

        Raises:
            WorkerError: a worker died. Errors of the function are raised unchanged.
        """

    def close(self) -> None:
        """Free the engine's resources."""
