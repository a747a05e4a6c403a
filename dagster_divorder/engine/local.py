"""One function over many fragments, in worker processes of this machine.

Guarantee: results come in the order of the items and are those of a plain loop, whatever the number of workers, as
long as the function depends on its item alone. Workers only compute: the process that holds the store's lease writes.
An error in a worker is raised here; a worker that dies is an error that says so; workers end with the process that
started them, even if that one is killed.
Cost: a worker takes a tenth of a second to start and memory of its own; arguments and results pass through pipes, at
some GB/s.
Known weakness: no worker is replaced; a run that failed goes on where it stopped when it is started again.

A worker is a fresh interpreter that runs this module, neither a fork, which would inherit locks and the lease, nor a
`multiprocessing` child, which runs the caller's script again and outlives a parent that is killed (as loky's do:
docs/decisions/libraries.md).
"""

from __future__ import annotations

import contextlib
import os
import pickle
import queue
import select
import signal
import subprocess
import sys
import threading
import traceback
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar

from dagster_divorder.engine.memory import give_back_memory
from dagster_divorder.errors import WorkerError

Item = TypeVar("Item")
Result = TypeVar("Result")

THREAD_VARIABLES = (
    "OMP_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "MKL_NUM_THREADS",
    "NUMBA_NUM_THREADS",
    "RAYON_NUM_THREADS",
)
WORKER_NUMBER = "DAGSTER_DIVORDER_WORKER"
MEMORY_VARIABLES = {
    # Large blocks go back to the system when they are freed: 350 MB a worker that tokenises instead of 550.
    "MALLOC_MMAP_THRESHOLD_": str(256 << 10),
    "ARROW_DEFAULT_MEMORY_POOL": "system",
}


def count_workers(setting: int) -> int:
    """Workers that `engine.workers` stands for: 0 is one per core that this process may use, by its affinity and the
    quota of its container."""
    from joblib import cpu_count

    return setting or int(cpu_count())


def worker_number() -> int:
    """Which of the workers this process is, from 0; 0 also where it is none."""
    return int(os.environ.get(WORKER_NUMBER, 0))


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
    limits = dict.fromkeys(THREAD_VARIABLES, str(threads))
    processes = [Worker({**limits, WORKER_NUMBER: str(number)}) for number in range(workers)]
    idle: queue.SimpleQueue[Worker] = queue.SimpleQueue()
    for worker in processes:
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
        for worker in processes:
            worker.process.kill()
        callers.shutdown(cancel_futures=True)
        for worker in processes:
            worker.process.communicate()  # waits for its end and closes the pipes


class Worker:
    """A worker process, called like the function that it is given; `variables` are those that its environment has over
    this process's."""

    def __init__(self, variables: Mapping[str, str]) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", __name__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={
                **os.environ,
                **MEMORY_VARIABLES,
                "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
                **variables,
            },
        )

    def __call__(self, function: Callable[[Any], Any], item: Any) -> Any:
        """`function(item)`. Raises WorkerError where the process died, and what the function raises."""
        assert self.process.stdin is not None and self.process.stdout is not None
        try:
            pickle.dump((function, item), self.process.stdin, protocol=5)
            self.process.stdin.flush()
            failed, result = pickle.load(self.process.stdout)
        except (EOFError, BrokenPipeError, pickle.UnpicklingError):
            self.process.kill()  # no effect on one that is dead
            status = self.process.wait()
            how = f"was killed by signal {-status}" if status < 0 else f"ended with status {status}"
            raise WorkerError(
                f"worker process {self.process.pid} {how} (often memory ran out); run again: the fragments that are "
                "done are kept; lower engine.workers for less memory"
            ) from None
        if failed:
            raise result
        return result


def main() -> None:
    """Of a worker process: read pickled (function, item), write pickled (failed, result or error), until standard input
    is closed, as it is when the process that started this one is gone."""
    # Ctrl-C reaches the whole group; the parent decides what becomes of it.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_exit_when_input_closes, daemon=True).start()
    source = sys.stdin.buffer
    sink = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what libraries print goes to standard error, not among the results
    while True:
        try:
            function, item = pickle.load(source)
            answer: tuple[bool, Any] = (False, function(item))
        except Exception as error:
            answer = (True, _picklable(error))
        with contextlib.suppress(BrokenPipeError):  # the parent is gone
            pickle.dump(answer, sink, protocol=5)
            sink.flush()


def _exit_when_input_closes() -> None:
    """Nothing is read from standard input here; a computation is not waited for."""
    hangup = select.poll()
    hangup.register(0, 0)
    hangup.poll()
    os._exit(0)


def _picklable(error: Exception) -> Exception:
    """The error with the worker's traceback as a note, or its text where it cannot be pickled."""
    trace = traceback.format_exc()
    try:
        error = pickle.loads(pickle.dumps(error))
    except Exception:
        return RuntimeError(trace)
    error.add_note(f"in a worker process:\n{trace}")
    return error


if __name__ == "__main__":
    main()
