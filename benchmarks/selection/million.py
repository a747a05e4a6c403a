"""Does choosing among a million vectors cost little more than its matrix products, and little memory?

Unit vectors in a file, mapped; T steps of spokes against the products of T steps alone, over blocks in memory, on as
many threads. On a busy machine CPU seconds compare better than those of the clock.

    python benchmarks/selection/million.py --vectors 1000000 --dims 256 --steps 20
"""

from __future__ import annotations

import argparse
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
from joblib import cpu_count
from threadpoolctl import threadpool_limits

from dagster_divorder.core.measure.vendi import BLOCK
from dagster_divorder.core.mix.selection import choose, spokes


def write_vectors(path: Path, count: int, dims: int) -> None:
    """Around a hundred directions of unequal weight, so that there is something to choose."""
    draw = np.random.default_rng(0)
    centres = draw.normal(size=(100, dims)).astype(np.float32)
    places = (100 * draw.random(count) ** 3).astype(int)
    with open(path, "wb") as file:
        about = {"descr": "<f4", "fortran_order": False, "shape": (count, dims)}
        np.lib.format.write_array_header_1_0(file, about)
        for part in np.array_split(places, max(1, count // 100_000)):
            block = centres[part] + draw.normal(size=(len(part), dims)).astype(np.float32)
            block /= np.linalg.norm(block, axis=1, keepdims=True)
            file.write(block.tobytes())


def seconds(function: Callable[[], object]) -> tuple[float, float]:
    """Of the clock, and of all cores."""
    start, cpu = time.perf_counter(), time.process_time()
    function()
    return time.perf_counter() - start, time.process_time() - cpu


def products(path: Path, steps: int) -> None:
    """Each block on one thread, as many at once as there are cores: with several threads a product BLAS waits for
    itself on a busy machine."""
    vectors = np.load(path)
    step = BLOCK // vectors.shape[1]
    root = np.eye(vectors.shape[1], dtype=np.float32)

    def both(first: int) -> None:
        block = vectors[first : first + step]
        block @ root
        block.T @ block

    def run() -> None:
        with threadpool_limits(1), ThreadPoolExecutor(cpu_count()) as threads:
            for _ in range(steps):
                list(threads.map(both, range(0, len(vectors), step)))

    show("matrix products alone", seconds(run))


def selection(path: Path, steps: int) -> None:
    vectors = np.load(path, mmap_mode="r")
    rows = np.arange(len(vectors))

    def run() -> None:
        found = spokes(vectors, rows, steps=steps, tolerance=0)
        choose(found.weights, np.ones(len(rows), np.int64), len(rows) // 10)

    show("selection", seconds(run))


def show(name: str, took: tuple[float, float]) -> None:
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
    print(f"{name:24s} {took[0]:8.1f} s {took[1]:8.1f} CPU s, peak {peak:.2f} GB", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--vectors", type=int, default=1_000_000)
    parser.add_argument("--dims", type=int, default=256)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--file", type=Path)
    parser.add_argument("--only", choices=("products", "selection"))
    given = parser.parse_args()
    if given.only:
        (products if given.only == "products" else selection)(given.file, given.steps)
        return
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "vectors.npy"
        write_vectors(path, given.vectors, given.dims)
        for only in ("products", "selection"):  # a process each, for its peak
            command = [
                sys.executable,
                __file__,
                "--file",
                str(path),
                "--steps",
                str(given.steps),
                "--only",
                only,
            ]
            subprocess.run(command, check=True)


if __name__ == "__main__":
    main()
