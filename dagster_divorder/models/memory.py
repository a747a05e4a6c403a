"""How much of a model's work fits in memory at once: the budget of a batch, and how many batches run side by side.

A budget counts positions (tokens with padding). On a GPU it comes from the memory that is free once the model is
loaded and from two measured forward passes; elsewhere from what the architecture keeps of a position. It is a power of
two, so that it is the same from run to run although free memory never is to the byte.
Known weakness: what others take of the same GPU later is not foreseen; a batch that does not fit is cut (see `deep`).
"""

from __future__ import annotations

import contextlib
import errno
import gc
import math
import os
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

CPU_BUDGET = 2048
"""Positions of a batch on a CPU: more of them leave its caches, fewer repeat what a batch costs (docs/decisions)."""

GPU_BUDGET = 1 << 16
"""At most: a GPU is busy long before, and padding rises with the budget."""

SHARE = 0.7
"""Of the free memory that a batch may take on a GPU; and CPU_SHARE of all memory by all batches together on a CPU."""
CPU_SHARE = 0.25

PROBES = (256, 2048)
"""Lengths of the windows of the measured passes, two windows each; where a context is shorter, half of it and it."""


SHORTEST = 16
"""A window that does not fit is cut in two down to this many tokens."""


class OutOfMemory(Exception):
    """A batch of `positions` did not fit, and the processes that shared it cannot go on."""

    def __init__(self, positions: int) -> None:
        super().__init__(positions)
        self.positions = positions


@dataclass(frozen=True, slots=True)
class Budget:
    """Positions of a batch, and the length at which a window takes twice its share (see `batches.batch_end`)."""

    positions: int
    square: float = math.inf


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error says that memory, or the addresses for it, ran out, in any of the words that Python, torch and
    the system's loader have for it."""
    if isinstance(error, MemoryError) or (isinstance(error, OSError) and error.errno == errno.ENOMEM):
        return True
    words = (
        r"can't allocate memory|cannot allocate memory|not enough memory|out of memory|CUBLAS_STATUS_ALLOC_FAILED|"
        r"bad_alloc|can't start new thread|failed to map segment"
    )
    kinds = RuntimeError | ImportError
    return isinstance(error, kinds) and re.search(words, str(error), re.IGNORECASE) is not None


def release(device: str) -> None:
    """Give back what a forward pass left behind on a GPU."""
    import torch

    if device == "cpu":
        return
    gc.collect()
    if device == "cuda":
        torch.cuda.empty_cache()
    else:
        torch.mps.empty_cache()


def position_bytes(config: Any, itemsize: int) -> int:
    """Bytes that a forward pass keeps of a position at its peak, roughly: residual, normalised input, queries, keys,
    values and output (8 widths), and the three parts of a gated MLP."""
    width = getattr(config, "hidden_size", 1024)
    inner = getattr(config, "intermediate_size", None) or 4 * width
    return itemsize * (8 * width + 3 * (inner if isinstance(inner, int) else max(inner)))


def solve(probes: list[tuple[int, int, int]], free: int) -> Budget:
    """The budget for `free` bytes, from measured passes (rows, length, peak bytes), short one first:
    peak = rows * (a length + b length^2)."""
    (rows, short, low), (more, long, high) = probes
    one, two = low / (rows * short), high / (more * long)
    b = max(0.0, (two - one) / (long - short)) if long > short else 0.0
    a = max(one - b * short, one / 16, 1.0)
    square = a / b if b > 0 else math.inf
    return Budget(power_of_two(SHARE * free / a, GPU_BUDGET), square)


def measure_gpu(forward: Callable[[int, int], object], window: int) -> Budget:
    """Budget of the GPU in use; `forward(rows, length)` runs two windows of it, the second one a position shorter."""
    import torch

    short, long = (min(probe, max(2, window // share)) for probe, share in zip(PROBES, (2, 1), strict=True))
    probes = []
    for length in (short, long):
        forward(2, length)  # the first pass of a shape also loads kernels
        torch.cuda.synchronize()
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        forward(2, length)
        torch.cuda.synchronize()
        probes.append((2, length, torch.cuda.max_memory_allocated() - before))
    release("cuda")
    return solve(probes, torch.cuda.mem_get_info()[0])


def estimate_mps(bytes_each: int) -> Budget:
    """Budget on Apple's GPUs, whose peaks cannot be measured."""
    import torch

    free = torch.mps.recommended_max_memory() - torch.mps.driver_allocated_memory()
    return Budget(power_of_two(SHARE * free / bytes_each, GPU_BUDGET))


def cpu_lanes(cores: int, window: int, bytes_each: int) -> int:
    """Batches that run side by side on a CPU: one a core where memory allows it, then each on one thread.

    Faster than all cores on one batch, most of all on a busy machine, where threads of one batch wait for each other,
    and the same bytes whatever their number. What is free at the moment does not count, since the threads that are
    left for each batch do change last bits.
    """
    share = CPU_SHARE * main_memory() / (max(CPU_BUDGET, window) * bytes_each)
    return max(1, min(cores, int(share)))


def main_memory() -> int:
    """Bytes of main memory that this process may use: the machine's (4 GB where it cannot be asked), or less where a
    container's quota says so."""
    try:
        machine = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError):
        machine = 4 << 30
    return min([machine, *memory_quotas()])


def memory_quotas(
    groups: Path = Path("/proc/self/cgroup"), mounted: Path = Path("/sys/fs/cgroup")
) -> Iterator[int]:
    """Bytes that the control groups of this process allow, of either version; none where there are none (macOS).

    A group is bound by those above it too. Inside a container the paths may be those of the machine: then the topmost
    group that is seen is the container's.
    """
    with contextlib.suppress(OSError):
        for line in groups.read_text().splitlines():
            _, controllers, group = line.split(":", 2)
            if controllers and "memory" not in controllers.split(","):
                continue
            version_1 = bool(controllers)
            top = mounted / "memory" if version_1 else mounted
            path = PurePosixPath(group.lstrip("/"))
            for part in (path, *path.parents):
                with contextlib.suppress(OSError, ValueError):  # no such file, or "max"
                    yield int(
                        (top / part / ("memory.limit_in_bytes" if version_1 else "memory.max")).read_text()
                    )


def power_of_two(most: float, limit: int) -> int:
    """The largest power of two up to both."""
    return 1 << max(0, math.floor(math.log2(max(1.0, min(most, limit)))))
