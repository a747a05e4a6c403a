"""A function that runs in several processes together, for models that are larger than one GPU.

`Ranks` starts torchrun, which starts the processes (ranks); each is given the same function and item, and computes the
same, the model inside being divided among them by transformers' own plan. Rank 0 answers through torchrun's standard
output. An error in any rank is raised where the function was called. Ranks end when the pipe to them is closed, so also
when the process that holds it is killed.
Cost: torchrun and the ranks import torch, some 10 s, and read the checkpoint.
Known weakness: a rank that fails takes the others with it, so that memory which runs out means a new start.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import select
import subprocess
import sys
import threading
import traceback
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from datetime import timedelta
from pathlib import Path
from typing import IO, Any

from dagster_divorder.errors import DivOrderError, InputError, SettingsError, WorkerError
from dagster_divorder.models.memory import SHORTEST, OutOfMemory

ERRORS = "DAGSTER_DIVORDER_ERRORS"
"""Environment variable of the ranks: the folder where they leave what they raised."""
Scratch = Callable[[], AbstractContextManager[Path]]
"""Makes a folder for files of a moment, as `LocalStore.scratch` does."""
PATIENCE = timedelta(days=7)
"""Ranks wait for each other, and for the next item, up to this long."""


def processes_here() -> int:
    """How many processes compute together with this one, itself included; 1 where it is no rank."""
    return int(os.environ["WORLD_SIZE"]) if ERRORS in os.environ else 1


class Ranks:
    """A group of `processes` on `device`; `gpus` numbers those that they may see, all of them where it is empty; what
    they raise they leave in a folder that `scratch` makes.

    Raises:
        SettingsError: accelerate is missing, which transformers needs for it.
    """

    def __init__(self, processes: int, device: str, scratch: Scratch, gpus: Sequence[str] = ()) -> None:
        import importlib.util

        if importlib.util.find_spec("accelerate") is None:
            raise SettingsError(
                f"deep.tensor_parallel = {processes} needs accelerate, which is not installed: pip install accelerate"
            )
        self._scratch = contextlib.ExitStack()
        self._folder = self._scratch.enter_context(scratch())
        environ = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
            "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1"),  # else torchrun says that it sets it
            ERRORS: str(self._folder),
        }
        if device == "cpu":
            environ["CUDA_VISIBLE_DEVICES"] = ""  # transformers takes the accelerator that it sees
        elif gpus:
            environ["CUDA_VISIBLE_DEVICES"] = ",".join(gpus)
        command = [
            sys.executable,
            "-m",
            "torch.distributed.run",
            "--standalone",
            "--nproc_per_node",
            str(processes),
        ]
        self._process = subprocess.Popen(
            [*command, "-m", __name__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=environ,
        )
        self._said: list[bytes] = []
        self._listener = threading.Thread(target=self._listen, daemon=True)
        self._listener.start()

    def __call__(self, function: Callable[[Any], Any], item: Any) -> Any:
        """`function(item)`, computed by all ranks, as rank 0 has it.

        Raises:
            WorkerError: a rank died. An error that the function raises in any rank is raised as it is.
        """
        assert self._process.stdin is not None and self._process.stdout is not None
        try:
            pickle.dump((function, item), self._process.stdin, protocol=5)
            self._process.stdin.flush()
            return pickle.load(self._process.stdout)
        except (EOFError, BrokenPipeError, pickle.UnpicklingError):
            status = self._process.wait()
            self._listener.join()
            raise self._error(status) from None

    def close(self) -> None:
        """End the ranks."""
        assert self._process.stdin is not None and self._process.stdout is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        self._process.wait()
        self._listener.join()
        self._process.stdout.close()
        self._scratch.close()

    def _listen(self) -> None:
        """Keep what torchrun and the ranks print; it is shown where they fail."""
        assert self._process.stderr is not None
        with self._process.stderr as lines:
            for line in lines:
                self._said = [*self._said[-50:], line]

    def _error(self, status: int) -> Exception:
        """What the ranks died of: errors of this package before those that only follow from another rank's death."""
        files = sorted(self._folder.glob("*.pickle"), key=lambda path: path.stat().st_mtime_ns)
        errors = [pickle.loads(file.read_bytes()) for file in files]
        for error in sorted(errors, key=lambda error: not isinstance(error, DivOrderError | OutOfMemory)):
            return error
        tail = b"".join(self._said).decode(errors="replace").strip()
        return WorkerError(
            f"the processes that share the model ended with status {status} (often memory ran out); run again: the "
            f"fragments that are done are kept\n{tail}"
        )


class Group:
    """Ranks that start when they are first needed, and again, to compute less at once, after memory ran out."""

    def __init__(self, processes: int, device: str, scratch: Scratch, gpus: Sequence[str] = ()) -> None:
        self._start = lambda: Ranks(processes, device, scratch, gpus)
        self._ranks: Ranks | None = None
        self.limit: int | None = None
        """Positions that a batch may have at most; None as long as all of them fit."""
        self.restarts = 0

    def __call__(self, function: Callable[[int | None], Callable[[Any], Any]], item: Any) -> Any:
        """`function(limit)(item)`, computed by all ranks. Raises as `Ranks` does, and InputError where nothing fits."""
        while True:
            self._ranks = self._ranks or self._start()
            try:
                return self._ranks(function(self.limit), item)
            except OutOfMemory as error:
                self.close()
                self.restarts += 1
                self.limit = error.positions // 2
                if self.limit < SHORTEST:
                    raise InputError(
                        f"memory ran out in a forward pass of {error.positions} tokens; free some, or spread the model "
                        "over more GPUs with deep.tensor_parallel"
                    ) from error

    def close(self) -> None:
        if self._ranks is not None:
            self._ranks.close()
            self._ranks = None


def main() -> None:
    """Of a rank: compute what rank 0 reads, until standard input ends."""
    import torch
    import torch.distributed as dist

    threading.Thread(target=_end_with_input, daemon=True).start()
    rank = int(os.environ["RANK"])
    source = sys.stdin.buffer
    sink = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what libraries print goes to standard error, not among the results
    try:
        if torch.cuda.is_available():
            torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
            dist.init_process_group("cpu:gloo,cuda:nccl", timeout=PATIENCE)
        else:
            dist.init_process_group("gloo", timeout=PATIENCE)
        while True:
            task: list[Any] = [_next(source) if rank == 0 else None]
            dist.broadcast_object_list(task, 0, device=torch.device("cpu"))
            function, item = task[0]
            result = function(item)
            if rank == 0:
                pickle.dump(result, sink, protocol=5)
                sink.flush()
    except BaseException as error:
        _leave(error, rank)
        os._exit(1)


def _next(source: IO[bytes]) -> Any:
    """What the process that started the ranks wants done; there is no return where it wants nothing more."""
    try:
        return pickle.load(source)
    except EOFError:
        os._exit(0)


def _end_with_input() -> None:
    """End this process when nobody can write to its standard input any more; nothing is read from it here."""
    hangup = select.poll()
    hangup.register(0, 0)
    hangup.poll()
    os._exit(0)


def _leave(error: BaseException, rank: int) -> None:
    """Put the error where the process that started the ranks finds it."""
    trace = traceback.format_exc()
    print(trace, file=sys.stderr, flush=True)
    try:
        data = pickle.dumps(error)
        pickle.loads(data)
        error.add_note(f"in rank {rank}:\n{trace}")
        data = pickle.dumps(error)
    except Exception:
        data = pickle.dumps(RuntimeError(f"in rank {rank}:\n{trace}"))
    path = Path(os.environ[ERRORS]) / f"{rank}.pickle"
    path.with_suffix(".part").write_bytes(data)
    path.with_suffix(".part").rename(path)


if __name__ == "__main__":
    main()
