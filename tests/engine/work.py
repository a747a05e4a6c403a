"""What workers are given to do. A worker imports it, so it imports little."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable

from dagster_divorder.engine.local import count_workers, worker_number
from dagster_divorder.errors import InputError


def square(number: int) -> int:
    return number * number


def about_worker(_: int) -> tuple[int, str | None, int, str | None, int]:
    """A worker's number, threads of two kinds, pool of memory, and process."""
    variables = os.environ
    return (
        worker_number(),
        variables.get("RAYON_NUM_THREADS"),
        count_workers(0),
        variables.get("ARROW_DEFAULT_MEMORY_POOL"),
        os.getpid(),
    )


def process_after(seconds: float) -> int:
    time.sleep(seconds)
    return os.getpid()


def refuse_three(number: int) -> int:
    if number == 3:
        raise InputError("three is refused")
    return number


def tell_each(number: int, advance: Callable[[int], object]) -> int:
    for at in range(number):
        advance(at + 1)
    return number


def tell_and_refuse(number: int, advance: Callable[[int], object]) -> int:
    advance(10 * number)
    return refuse_three(number)


def die_at_three(number: int) -> int:
    if number == 3:
        os.kill(os.getpid(), signal.SIGKILL)
    return number


def chatter(number: int) -> int:
    print("libraries print")
    return number


def die_once(at: str) -> str:
    """A call that is killed the first time, and says so in a file."""
    if not os.path.exists(at):
        os.close(os.open(at, os.O_CREAT))
        os.kill(os.getpid(), signal.SIGKILL)
    return at


def leave_a_byte(file: str) -> str:
    """A call that leaves a byte in its file each time that it is made."""
    with open(file, "ab") as out:
        out.write(b".")
    time.sleep(0.1)
    return file


def meet(files: tuple[str, str]) -> tuple[str, str | None]:
    """A call that makes the first file and ends when the second one is there: its node, and its threads a library."""
    import ray

    os.close(os.open(files[0], os.O_CREAT))
    while not os.path.exists(files[1]):
        os.sched_yield()
    return ray.get_runtime_context().get_node_id(), os.environ.get("OPENBLAS_NUM_THREADS")


def fail_in_rank_one(item: str) -> None:
    import torch.distributed

    if os.environ["RANK"] == "1":
        raise InputError(f"rank one refuses {item}")
    torch.distributed.barrier()
