"""One function over many fragments, in worker processes of this machine.

Guarantee: results come in the order of the items and are those of a plain loop, whatever the number of workers, as
long as the function depends on its item alone. Workers only compute: the process that holds the store's lease writes.
An error in a worker is raised here; a worker that dies is an error that says so; workers end with the process that
started them, even if that one is killed.
Cost: a worker takes half a second to start and memory of its own; arguments and results pass through pipes, at some
GB/s.
Known weakness: no worker is replaced; a run that failed goes on where it stopped when it is started again.

A worker is a fresh interpreter (`engine/worker.py`), neither a fork, which would inherit locks and the lease, nor a
`multiprocessing` child, which runs the caller's script again and outlives a parent that is killed. Its libraries use
one thread each unless told otherwise, so that workers do not fight for the cores. Measured: docs/decisions/speed.md.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import pickle
import queue
import subprocess
import sys
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar

from dagster_divorder.errors import WorkerError

Item = TypeVar("Item")
Result = TypeVar("Result")

THREADS = (
    "OMP_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "MKL_NUM_THREADS",
    "NUMBA_NUM_THREADS",
    "RAYON_NUM_THREADS",
)
NUMBER = "DAGSTER_DIVORDER_WORKER"
ENVIRONMENT = {
    # Large blocks go back to the system when they are freed: 350 MB a worker that tokenises instead of 550.
    "MALLOC_MMAP_THRESHOLD_": str(256 << 10),
    "ARROW_DEFAULT_MEMORY_POOL": "system",
}
"""What a worker's environment has over its parent's, with its threads in each of THREADS and in NUMBER which of the
workers it is."""


def count_workers(setting: int) -> int:
    """Workers that `engine.workers` stands for: 0 is one per core that this process may use, by its affinity and the
    quota of its container."""
    from joblib import cpu_count

    return setting or int(cpu_count())


def worker_number() -> int:
    """Which of the workers this process is, from 0; 0 also where it is none."""
    return int(os.environ.get(NUMBER, 0))


def each(
    function: Callable[[Item], Result], items: Sequence[Item], workers: int, *, threads: int = 1
) -> Iterator[Result]:
    """`function(item)` for every item, in order, in up to `workers` processes (in this one if `workers` is 1), each of
    whose libraries uses up to `threads` threads.

    Function, items and results are pickled. Up to one result more than workers waits to be taken.

    Raises:
        WorkerError: a worker died. An error that the function raises is raised as it is.
    """
    workers = min(workers, len(items))
    if workers <= 1:
        yield from map(function, items)
        return
    give_back_memory()
    crew = [_Worker(number, threads) for number in range(workers)]
    idle: queue.SimpleQueue[_Worker] = queue.SimpleQueue()
    for worker in crew:
        idle.put(worker)

    def compute(item: Item) -> Result:
        # As many threads as workers: one is always there.
        worker = idle.get()
        try:
            result: Result = worker(function, item)
        finally:
            idle.put(worker)
        return result

    callers = ThreadPoolExecutor(workers, thread_name_prefix="divorder-engine")
    waiting: deque[Future[Result]] = deque()
    try:
        for item in items:
            waiting.append(callers.submit(compute, item))
            if len(waiting) > workers + 1:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    finally:
        for worker in crew:
            worker.kill()
        callers.shutdown(cancel_futures=True)
        for worker in crew:
            worker.close()


def give_back_memory() -> None:
    """Return freed memory to the system, which this process may hold several hundred MB of."""
    import pyarrow as pa

    pa.default_memory_pool().release_unused()
    with contextlib.suppress(OSError, AttributeError):  # glibc alone can
        ctypes.CDLL("libc.so.6").malloc_trim(0)


class _Worker:
    """A worker process, called like the function that it is given."""

    def __init__(self, number: int, threads: int) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "dagster_divorder.engine.worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={
                **os.environ,
                **ENVIRONMENT,
                **dict.fromkeys(THREADS, str(threads)),
                NUMBER: str(number),
                "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
            },
        )

    def __call__(self, function: Callable[[Any], Any], item: Any) -> Any:
        assert self._process.stdin is not None and self._process.stdout is not None
        try:
            pickle.dump((function, item), self._process.stdin, protocol=5)
            self._process.stdin.flush()
            failed, result = pickle.load(self._process.stdout)
        except (EOFError, BrokenPipeError, pickle.UnpicklingError):
            self._process.kill()  # no effect on one that is dead
            status = self._process.wait()
            how = f"was killed by signal {-status}" if status < 0 else f"ended with status {status}"
            raise WorkerError(
                f"worker process {self._process.pid} {how} (often memory ran out); run again: the fragments that are "
                "done are kept; lower engine.workers for less memory"
            ) from None
        if failed:
            raise result
        return result

    def kill(self) -> None:
        self._process.kill()

    def close(self) -> None:
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            with contextlib.suppress(BrokenPipeError):
                pipe.close()
