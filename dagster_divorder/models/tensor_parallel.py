"""A function that several processes run together, for models that are larger than one GPU.

Each process (rank) is a worker of `engine.local` and gets the same function and item. Inside, transformers divides the
model among the ranks by its own plan, and joins them by the environment variables of torchrun. Rank 0 answers. An error
in any rank is raised where the function was called. Ranks end with the process that started them.
Cost: the ranks import torch, some 10 s, and read the checkpoint.
Known weakness: a rank that fails ends the others too, so after memory runs out all ranks start again.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from typing import Any

from dagster_divorder.engine.local import MEMORY_VARIABLES, Worker
from dagster_divorder.errors import DivOrderError, InputError
from dagster_divorder.extras import why_missing
from dagster_divorder.models.embed import OutOfMemory

RANKS = "DAGSTER_DIVORDER_RANKS"
"""Environment variable of a rank: the number of ranks."""
GRACE_SECONDS = 2.0
"""Seconds for other ranks to report errors after one has failed, since it may have failed because of them."""


def processes_here() -> int:
    """Number of processes that compute together, including this one; 1 if it is not a rank."""
    return int(os.environ.get(RANKS, 1))


class Group:
    """`processes` ranks on `device`. They start with the first call, and again, with smaller batches, after memory ran
    out. gpus: numbers of the GPUs that they may see, empty for all.

    Raises:
        InputError: accelerate is missing, which transformers needs here.
    """

    def __init__(self, processes: int, device: str, gpus: Sequence[str] = ()) -> None:
        if missing := why_missing("accelerate"):
            raise InputError(missing)
        self._variables = {
            **MEMORY_VARIABLES,
            RANKS: str(processes),
            "WORLD_SIZE": str(processes),
            "LOCAL_WORLD_SIZE": str(processes),
            "MASTER_ADDR": "127.0.0.1",
            "TORCHELASTIC_USE_AGENT_STORE": "True",  # the ranks meet in this process's store
            "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1"),
        }
        if device == "cpu":
            self._variables["CUDA_VISIBLE_DEVICES"] = ""  # transformers takes the accelerator that it sees
        elif gpus:
            self._variables["CUDA_VISIBLE_DEVICES"] = ",".join(gpus)
        self._processes = processes
        self._ranks: list[Worker] = []
        self.limit: int | None = None
        """Most positions of a batch; None until one did not fit."""

    def __call__(self, function: Callable[[int | None], Callable[[Any], Any]], item: Any) -> Any:
        """Rank 0's `function(limit)(item)`, computed by all ranks.

        Raises:
            WorkerError: a rank died. An error that the function raises in any rank is raised as it is.
        """
        while True:
            try:
                return self._compute(function(self.limit), item)
            except OutOfMemory as error:
                self.limit = error.positions // 2

    def _compute(self, function: Callable[[Any], Any], item: Any) -> Any:
        if not self._ranks:
            self._start()
        compute = functools.partial(_answer_of_rank_zero, function)
        answers = [self._callers.submit(rank, compute, item) for rank in self._ranks]
        try:
            done, _ = wait(answers, return_when=FIRST_EXCEPTION)
            if not any(answer.exception() for answer in done):
                return answers[0].result()
            done, _ = wait(answers, timeout=GRACE_SECONDS)
            errors = [error for answer in answers if answer in done and (error := answer.exception())]
            # The end of another rank appears as an error of torch, so other errors come first.
            raise min(errors, key=lambda error: not isinstance(error, DivOrderError | OutOfMemory))
        except BaseException:
            self.close()
            raise

    def _start(self) -> None:
        from torch.distributed import TCPStore

        self._store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        shared = {**self._variables, "MASTER_PORT": str(self._store.port)}
        self._callers = ThreadPoolExecutor(self._processes, thread_name_prefix="divorder-rank")
        self._ranks = [
            Worker({**shared, "RANK": str(rank), "LOCAL_RANK": str(rank)}) for rank in range(self._processes)
        ]

    def close(self) -> None:
        """End the ranks."""
        for rank in self._ranks:
            rank.end()
        if self._ranks:
            self._callers.shutdown()
        self._ranks = []


def _answer_of_rank_zero(function: Callable[[Any], Any], item: Any) -> Any:
    """The result on rank 0; None on the others, whose result is the same."""
    try:
        result = function(item)
    except Exception as error:
        error.add_note(f"in rank {os.environ['RANK']}")
        raise
    return result if os.environ["RANK"] == "0" else None
