"""One function over many fragments, in worker processes of this machine.

Guarantee: see `engine.base`. A worker's errors are raised here, and its death is an error; workers end with the process
that started them, even if it is killed. Cost: a worker takes a tenth of a second to start, and its own memory;
arguments and results pass through pipes, at some GB/s. Known weakness: dead workers are not replaced; when started
again, a failed run resumes where it stopped.

A worker is a fresh interpreter that runs this module. A fork would inherit locks, the store's too; a `multiprocessing`
child runs the caller's script again and outlives a killed parent, as loky's do (docs/decisions/libraries.md).
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
from functools import partial
from typing import Any, Self

from dagster_divorder.engine.base import Item, Result
from dagster_divorder.engine.memory import give_back_memory
from dagster_divorder.errors import WorkerError

THREAD_VARIABLES = (
    "OMP_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "MKL_NUM_THREADS",
    "NUMBA_NUM_THREADS",
    "RAYON_NUM_THREADS",
    "LOKY_MAX_CPU_COUNT",  # read by joblib, and so by `count_workers`
)
WORKER_NUMBER = "DAGSTER_DIVORDER_WORKER"
MEMORY_VARIABLES = {
    # Freed large blocks return to the system: a worker that tokenises takes 350 MB instead of 550.
    "MALLOC_MMAP_THRESHOLD_": str(256 << 10),
    "ARROW_DEFAULT_MEMORY_POOL": "system",
}

PROGRESS = "progress"

KEEP_MEMORY = {
    # glibc's maximum.
    "MALLOC_MMAP_THRESHOLD_": str(32 << 20),
    "MALLOC_TRIM_THRESHOLD_": str(1 << 30),
}
"""For workers that copy much: they reuse freed memory, because the system clears new pages, which costs more."""


def count_workers(setting: int) -> int:
    """Number of workers for `engine.workers`. 0: one for each core that this process may use, by its affinity and its
    container's quota."""
    from joblib import cpu_count

    return setting or int(cpu_count())


def worker_number() -> int:
    """Number of this worker process, from 0; 0 also in other processes."""
    return int(os.environ.get(WORKER_NUMBER, 0))


class LocalEngine:
    """Processes of this machine, up to `workers` of them at once (`count_workers`)."""

    def __init__(self, workers: int) -> None:
        self.workers = workers

    @property
    def gpus(self) -> int:
        import torch

        return torch.cuda.device_count()

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
        """See `Engine.each`. Calls that need `gpus` choose GPUs by `worker_number`. `memory` and `retries` have no
        effect: there is one machine, and dead workers are not replaced."""
        if gpus:
            most = self.gpus // gpus
        elif threads:
            most = self.workers // threads
        else:
            most = 1
        workers = min(most if workers is None else workers, most, len(items))
        if workers <= 1:
            call = partial(function, advance=advance) if advance else function
            yield from map(call, items)
            return
        give_back_memory()
        variables = worker_variables(threads, environment)
        processes = [Worker({**variables, WORKER_NUMBER: str(number)}) for number in range(workers)]
        idle: queue.SimpleQueue[Worker] = queue.SimpleQueue()
        for worker in processes:
            idle.put(worker)

        def compute(item: Item) -> Result:
            # Threads and workers are equal in number, so a worker is always idle here.
            worker = idle.get()
            try:
                result: Result = worker(function, item, advance)
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
                worker.process.communicate()  # waits for the worker's end and closes the pipes

    def close(self) -> None:
        """Nothing to free: workers end with their call."""


def worker_variables(threads: int, environment: Mapping[str, str] | None) -> dict[str, str]:
    """Environment variables of a worker that limit its libraries and `count_workers(0)` to this many threads, at least
    one."""
    more = MEMORY_VARIABLES if environment is None else environment
    return {**dict.fromkeys(THREAD_VARIABLES, str(threads or 1)), **more}


class Worker:
    """A worker process. variables: of its environment, in addition to this process's."""

    def __init__(self, variables: Mapping[str, str]) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", __name__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path)), **variables},
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.process.kill()
        self.process.communicate()  # waits for the worker's end and closes the pipes

    def __call__(
        self, function: Callable[..., Any], item: Any, advance: Callable[[int], object] | None = None
    ) -> Any:
        """`function(item)`; `advance` as in `Engine.each`. Raises WorkerError if the process died, and errors of the
        function."""
        assert self.process.stdin is not None and self.process.stdout is not None
        try:
            pickle.dump((function, item, advance is not None), self.process.stdin, protocol=5)
            self.process.stdin.flush()
            while (answer := pickle.load(self.process.stdout))[0] == PROGRESS:
                if advance:
                    advance(answer[1])
            failed, result = answer
        except (EOFError, BrokenPipeError, pickle.UnpicklingError):
            self.process.kill()  # no effect on a dead worker
            status = self.process.wait()
            how = f"was killed by signal {-status}" if status < 0 else f"ended with status {status}"
            raise WorkerError(
                f"worker process {self.process.pid} {how} (often memory ran out); run again: finished fragments are "
                f"kept; lower engine.workers for less memory"
            ) from None
        if failed:
            raise result
        return result


def main() -> None:
    """Main loop of a worker process: reads pickled (function, item, whether to report progress), writes pickled
    (PROGRESS, number) and finally (failed, result or error), until standard input closes with the parent process."""
    # Ctrl-C reaches the whole process group; the parent handles it.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_exit_when_input_closes, daemon=True).start()
    source = sys.stdin.buffer
    sink = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # libraries' output goes to standard error, not among the results

    def send(kind: bool | str, what: Any) -> None:
        with contextlib.suppress(BrokenPipeError):  # the parent is gone
            pickle.dump((kind, what), sink, protocol=5)
            sink.flush()

    while True:
        try:
            function, item, tells = pickle.load(source)
            result = function(item, advance=partial(send, PROGRESS)) if tells else function(item)
        except Exception as error:
            send(True, picklable(error, "a worker process"))
        else:
            send(False, result)


def _exit_when_input_closes() -> None:
    """Ends the process when standard input closes, even during a computation; reads nothing from it."""
    hangup = select.poll()
    hangup.register(0, 0)
    hangup.poll()
    os._exit(0)


def picklable(error: Exception, where: str) -> Exception:
    """The error with its traceback as a note; a RuntimeError with the traceback if the error cannot be pickled."""
    trace = traceback.format_exc()
    try:
        error = pickle.loads(pickle.dumps(error))
    except Exception:
        return RuntimeError(trace)
    error.add_note(f"in {where}:\n{trace}")
    return error


if __name__ == "__main__":
    main()
