"""Vectors of the user's own, as .npy and as Parquet: first run, nothing new, 1 % appended.

    .venv/bin/python benchmarks/speed/external.py [VECTORS] [--dims 1024] [--scratch FOLDER]

Each run of `external_embeddings` is a process of its own; raw_docs runs before it and is not counted. `reading` is what
it takes to read the file alone, with the same reader. Peak memory is the process's own high-water mark.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from measured import ROOT, run_pipeline
from shared import environment, parser

FILLER = " and nothing more" * 50
BLOCK = 8_192
READ = """
import sys, time, pathlib, numpy
from dagster_divorder.corpus.vectors import open_vectors
start = time.perf_counter()
for block in open_vectors(pathlib.Path(sys.argv[1])).blocks(): numpy.array(block.vectors)
print(time.perf_counter() - start)
"""


def main() -> None:
    made = parser(__doc__)
    made.add_argument("vectors", type=int, nargs="?", default=300_000)
    made.add_argument("--dims", type=int, default=1024)
    options = made.parse_args()
    print(f"{options.vectors:,} x {options.dims} float32, {4e-6 * options.vectors * options.dims:,.0f} MB")
    for suffix in (".npy", ".parquet"):
        with tempfile.TemporaryDirectory(dir=options.scratch) as folder:
            _measure(Path(folder), options.vectors, options.dims, suffix)


def _measure(folder: Path, vectors: int, dims: int, suffix: str) -> None:
    path = folder / f"vectors{suffix}"
    environ = {
        **environment(folder / "corpus.jsonl", folder, "bootstrap"),
        "DIVORDER_EMBEDDING__KIND": "external",
        "DIVORDER_EMBEDDING__PATH": str(path),
    }
    first: tuple[float, float] | None = None
    for what, rows in (
        ("first run", vectors),
        ("nothing new", vectors),
        ("1 % appended", vectors * 101 // 100),
    ):
        if what != "nothing new":
            _write(folder, path, rows, dims)
            run_pipeline(environ, "raw_docs")
        reading = float(_python("-c", READ, str(path)))
        found = run_pipeline(environ, "external_embeddings")
        seconds, cpu, new = (found[what]["external_embeddings"] for what in ("stages", "cpu", "new"))
        first = first or (seconds, cpu)
        print(
            f"{suffix:9}{what:13}{new:10,} new{seconds:8.2f} s, {cpu:.2f} of the processor "
            f"({seconds / first[0]:.2f} and {cpu / first[1]:.2f} of the first run), {reading:.2f} s reading, "
            f"{found['peak'] / 1e6:,.0f} MB peak, load {os.getloadavg()[0]:.1f}",
            flush=True,
        )


def _write(folder: Path, path: Path, rows: int, dims: int) -> None:
    with (folder / "corpus.jsonl").open("w", buffering=1 << 22) as file:
        file.writelines(f'{{"text":"record {number}{FILLER}"}}\n' for number in range(rows))
    # A generator a block, so that a longer file begins as the shorter one does.
    blocks = (
        (first, np.random.default_rng(first).standard_normal((BLOCK, dims), np.float32)[: rows - first])
        for first in range(0, rows, BLOCK)
    )
    if path.suffix == ".npy":
        matrix = np.lib.format.open_memmap(path, "w+", np.float32, (rows, dims))
        for first, block in blocks:
            matrix[first : first + len(block)] = block
        return
    schema = pa.schema({"row": pa.int64(), "vector": pa.list_(pa.float32())})
    with pq.ParquetWriter(path, schema, compression="none", use_dictionary=False) as writer:
        for first, block in blocks:
            ends = pa.array(np.arange(0, block.size + 1, dims), pa.int32())
            lists = pa.ListArray.from_arrays(ends, pa.array(block.ravel()))
            numbers = pa.array(np.arange(first, first + len(block)))
            writer.write_batch(pa.record_batch([numbers, lists], schema=schema))


def _python(*arguments: str) -> str:
    command = [sys.executable, *arguments]
    return subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, check=True, text=True).stdout


if __name__ == "__main__":
    main()
