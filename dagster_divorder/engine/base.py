"""What an engine is: one function over many items, on this machine or on many.

Guarantee: results come in the order of the items and are those of a plain loop, whatever the engine and the number of
workers, as long as the function depends on its item alone. An engine decides no result, so it is in no stage's key.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Protocol, TypedDict, TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")


class Needs(TypedDict, total=False):
    """What calls of a function need, as `Engine.each` takes it."""

    workers: int | None
    threads: int
    gpus: int
    memory: int
    environment: Mapping[str, str] | None


class Engine(Protocol):
    """Calls functions of this package, and others that workers can import, on items; functions, items and results are
    pickled."""

    @property
    def workers(self) -> int:
        """How many calls of one thread may run at once."""

    @property
    def gpus(self) -> int:
        """GPUs that calls may be given."""

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
        """`function(item)` for every item, in order; some results more than workers wait to be taken.

        Args:
            workers: at most so many calls at once, for work that is too little for more; with one, and no GPUs, all of
                them run in this process.
            threads: that the libraries of a call use. 0: the function shares its work among as many as there are
                (`count_workers(0)` where it runs): all of this machine in one call at a time, or one a call where
                other machines compute.
            gpus: of one machine, that a call has to itself.
            memory: bytes that a call needs, for an engine that places calls by it.
            environment: variables of the worker processes; by default `MEMORY_VARIABLES`, which keep them small.
            retries: how often a call is made again whose worker, or machine, died; no error is retried.
            advance: hears, in this process, of the numbers with which a call calls the keyword `advance` that the
                function then gets: as the call goes on, or, from other machines, with its result.

        Raises:
            WorkerError: a worker died. An error that the function raises is raised as it is.
        """

    def close(self) -> None:
        """Let go of what the engine holds."""
