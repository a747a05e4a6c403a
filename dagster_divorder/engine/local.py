"""Worker processes of this machine.

Guarantee: workers end with the process that started them, even if it is killed. Cost: a worker takes a tenth of a
second to start, and its own memory; arguments and results pass through sockets, at 0.3 GB/s.

A worker is a fresh interpreter that runs this module. A fork would inherit locks, the store's too; children of
`multiprocessing` run the caller's script again; loky's outlive a killed parent (docs/decisions/libraries.md).
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
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from typing import Any

from dagster_divorder.engine.base import Engine, Needs, Submit, give_back_memory
from dagster_divorder.engine.progress import Advance
from dagster_divorder.errors import WorkerError

THREAD_VARIABLES = (
    *(f"{library}_NUM_THREADS" for library in ("OMP", "OPENBLAS", "MKL", "NUMBA", "RAYON")),
    "LOKY_MAX_CPU_COUNT",  # read by joblib, and so by `count_workers`
)
WORKER_NUMBER = "DAGSTER_DIVORDER_WORKER"
# Freed large blocks return to the system: a worker that tokenises takes 350 MB instead of 550.
MEMORY_VARIABLES = {"MALLOC_MMAP_THRESHOLD_": str(256 << 10), "ARROW_DEFAULT_MEMORY_POOL": "system"}
KEEP_MEMORY = {"MALLOC_MMAP_THRESHOLD_": str(32 << 20), "MALLOC_TRIM_THRESHOLD_": str(1 << 30)}
"""For workers that copy much: they reuse freed memory, because the system clears new pages, which costs more."""
END_SECONDS = 2.0
"""Seconds for a worker to end by itself once its connection is closed, so that its status is its own."""


def count_workers(setting: int) -> int:
    """Number of workers for `engine.workers`. 0: one for each core that this process may use, by its affinity and its
    container's quota."""
    from joblib import cpu_count

    return setting or int(cpu_count())


def worker_number() -> int:
    """Number of this worker process, from 0; 0 also in other processes."""
    return int(os.environ.get(WORKER_NUMBER, 0))


def worker_variables(threads: int, needs: Needs) -> dict[str, str]:
    """Environment variables of a worker that limit its libraries and `count_workers(0)` to this many threads."""
    more = needs.get("environment")
    return {**dict.fromkeys(THREAD_VARIABLES, str(threads)), **(MEMORY_VARIABLES if more is None else more)}


class LocalEngine(Engine):
    """Processes of this machine, up to `workers` of them at once (`count_workers`). Calls that need GPUs choose them by
    `worker_number`."""

    is_remote = False

    def __init__(self, workers: int) -> None:
        self.workers = workers

    @property
    def gpus(self) -> int:  # type: ignore[override]
        import torch

        return torch.cuda.device_count()

    def _room(self, needs: Needs) -> int:
        if gpus := needs.get("gpus"):
            return self.gpus // gpus
        threads = needs.get("threads", 1)
        return self.workers // threads if threads else 1

    @contextlib.contextmanager
    def _workers(
        self, function: Callable[..., Any], most: int, needs: Needs, advance: Advance | None
    ) -> Iterator[Submit]:
        give_back_memory()
        variables = worker_variables(needs.get("threads") or 1, needs)
        workers = [Worker({**variables, WORKER_NUMBER: str(number)}) for number in range(most)]
        idle: queue.SimpleQueue[Worker] = queue.SimpleQueue()
        for worker in workers:
            idle.put(worker)

        def call(item: Any) -> Any:
            worker = idle.get()  # as many threads as workers: one is idle
            try:
                return worker(function, item, advance)
            finally:
                idle.put(worker)

        threads = ThreadPoolExecutor(most, thread_name_prefix="divorder-engine")
        try:
            yield lambda item: threads.submit(call, item).result
        finally:
            for worker in workers:
                worker.end()
            threads.shutdown(cancel_futures=True)


class Worker:
    """A worker process. variables: of its environment, in addition to this process's."""

    def __init__(self, variables: Mapping[str, str]) -> None:
        self._connection, theirs = Pipe()
        # It imports what this process imports: -P leaves out the working directory, where other modules may lie.
        path = os.pathsep.join(folder or os.getcwd() for folder in sys.path)
        with theirs:
            self.process = subprocess.Popen(
                [sys.executable, "-P", "-m", __name__, str(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                stdout=2,  # libraries' output does not mix with the answer of a command
                pass_fds=[theirs.fileno()],
                env={**os.environ, "PYTHONPATH": path, **variables},
            )

    def end(self) -> None:
        """Kills the process."""
        self.process.kill()
        self.process.wait()

    def __call__(self, function: Callable[..., Any], item: Any, advance: Advance | None = None) -> Any:
        """`function(item)`; `advance` as in `Engine.each`. Raises WorkerError if the process died, and errors of the
        function."""
        with contextlib.suppress(OSError):  # it is dead: no answer comes
            self._connection.send((function, item, advance is not None))
        try:
            while isinstance(answer := self._connection.recv(), int):
                if advance:
                    advance(answer)
        except (EOFError, OSError):
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(END_SECONDS)
            self.end()
            status = self.process.returncode
            how = f"was killed by signal {-status}" if status < 0 else f"ended with status {status}"
            raise WorkerError(
                f"worker process {self.process.pid} {how} (often memory ran out); run again: finished fragments are "
                "kept; lower engine.workers for less memory"
            ) from None
        failed, result = answer
        if failed:
            raise result
        return result


def main(descriptor: int) -> None:
    """Main loop of a worker process: receives (function, item, whether to report progress), sends numbers of progress
    and finally (failed, result or error), until the connection closes with the parent process."""
    # Ctrl-C reaches the whole process group; the parent handles it.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_exit_at_hangup, args=(descriptor,), daemon=True).start()
    connection = Connection(descriptor)
    while True:
        try:
            function, item, tells = connection.recv()
            connection.send((False, function(item, advance=connection.send) if tells else function(item)))
        except Exception as error:
            connection.send((True, picklable(error, "a worker process")))


def _exit_at_hangup(connection: int) -> None:
    """Ends the process when its parent is gone, even during a computation; reads nothing."""
    hangup = select.poll()
    hangup.register(connection, 0)
    hangup.poll()
    os._exit(0)


def picklable(error: Exception, where: str) -> Exception:
    """The error with its traceback as a note; a RuntimeError with the traceback if the error cannot be pickled."""
    trace = traceback.format_exc()
    error.add_note(f"in {where}:\n{trace}")
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:
        return RuntimeError(trace)
    return error


if __name__ == "__main__":
    main(int(sys.argv[1]))
