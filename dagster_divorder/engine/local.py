"""One function over many fragments, in worker processes of this machine.

Guarantee: results come in the order of the items and are those of a plain loop, whatever the number of workers, as long as
the function depends on its item alone. Workers only compute: the process that holds the store's lease writes. An error in
a worker is raised here; a worker that dies is an error that says so; workers end with the process that started them, even
if that is killed.
Cost: a worker takes half a second to start and memory of its own; arguments and results pass through pipes at some GB/s.
Known weakness: no worker is replaced; a run that failed goes on where it stopped when it is started again.

A worker is a fresh interpreter (`engine/worker.py`), neither a fork, which would inherit locks and the lease, nor a
`multiprocessing` child, which runs the caller's script again and outlives a parent that is killed. Its libraries use one
thread each, so that the workers do not fight for the cores.
"""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar

from dagster_divorder.errors import WorkerError

Item = TypeVar("Item")
Result = TypeVar("Result")

ONE_THREAD = (
    "OMP_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "MKL_NUM_THREADS",
    "NUMBA_NUM_THREADS",
    "RAYON_NUM_THREADS",
)


def count_workers(setting: int) -> int:
    """Workers that `engine.workers` stands for: 0 is one per core that this process may use."""
    return setting or len(os.sched_getaffinity(0))


def each(function: Callable[[Item], Result], items: Sequence[Item], workers: int) -> Iterator[Result]:
    """`function(item)` for every item, in order, in up to `workers` processes (in this one if `workers` is 1).

    Function, items and results are pickled. At most two results a worker wait to be taken.

    Raises:
        WorkerError: a worker died. An error that the function raises is raised as it is.
    """
    workers = min(workers, len(items))
    if workers <= 1:
        yield from map(function, items)
        return
    crew: deque[_Worker] = deque()
    local = threading.local()

    def compute(item: Item) -> Result:
        # A thread of the pool and its process belong together.
        if not hasattr(local, "worker"):
            local.worker = _Worker()
            crew.append(local.worker)
        result: Result = local.worker(function, item)
        return result

    pool = ThreadPoolExecutor(workers, thread_name_prefix="divorder-engine")
    waiting: deque[Future[Result]] = deque()
    try:
        for item in items:
            waiting.append(pool.submit(compute, item))
            if len(waiting) > 2 * workers:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
        for worker in list(crew):
            worker.stop()
        pool.shutdown()


class _Worker:
    """A worker process, called like the function that it is given."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "dagster_divorder.engine.worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, **dict.fromkeys(ONE_THREAD, "1"), "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        )

    def __call__(self, function: Callable[[Any], Any], item: Any) -> Any:
        assert self._process.stdin is not None and self._process.stdout is not None
        try:
            pickle.dump((function, item), self._process.stdin, protocol=5)
            self._process.stdin.flush()
            failed, result = pickle.load(self._process.stdout)
        except (EOFError, BrokenPipeError, pickle.UnpicklingError):
            status = self._process.wait()
            how = f"was killed by signal {-status}" if status < 0 else f"ended with status {status}"
            raise WorkerError(
                f"worker process {self._process.pid} {how} (often memory ran out); run again, the fragments that are done are "
                "kept; lower engine.workers for less memory"
            ) from None
        if failed:
            raise result
        return result

    def stop(self) -> None:
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            pipe.close()
