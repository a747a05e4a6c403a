"""k-means of a million vectors, streamed from fragments on disk, against bare faiss on the same sample and iterations.

    .venv/bin/python benchmarks/clustering/million.py [VECTORS] [--dims 256] [--k 1000] [--scratch FOLDER]

The vectors are synthetic (2,000 directions of unequal frequency, and noise), handed to the pipeline as external
embeddings of as many records of a kilobyte. Every part runs in a process of its own: `bare` trains faiss on the
stage's own sample and looks up the nearest centroid of all vectors, held in memory; `stage` is `clusters`, which reads
a sample from the store, fits, names, assigns every vector and writes labels. Peak memory is the process's own
high-water mark.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "speed"))

import numpy as np
from measured import run_pipeline
from shared import environment, parser

ROOT = Path(__file__).parents[2]
BLOCK = 16_384
DIRECTIONS = 2_000
NOISE = 1.0
FILLER = " and nothing more" * 50
"""A thousand bytes a record, as documents have: fragments then hold some 8,192 of them."""


def main() -> None:
    made = parser(__doc__)
    made.add_argument("vectors", type=int, nargs="?", default=1_000_000)
    made.add_argument("--dims", type=int, default=256)
    made.add_argument("--k", type=int, default=1000)
    made.add_argument(
        "--part", choices=("stage", "bare"), help="one of the two alone, as the program calls itself"
    )
    options = made.parse_args()
    if options.part:
        print(json.dumps((_stage if options.part == "stage" else _bare)(options.k)))
        return
    with tempfile.TemporaryDirectory(dir=options.scratch) as folder:
        environ = _prepare(Path(folder), options.vectors, options.dims, options.k)
        for round_ in range(2):
            stage = _run(environ, "stage", options.k)
            bare = _run(environ, "bare", options.k)
            _show(stage, bare, options, round_)


def _prepare(folder: Path, vectors: int, dims: int, k: int) -> dict[str, str]:
    """Records and vectors on disk, and the pipeline run up to `clusters`; the environment that says where."""
    corpus, matrix = folder / "corpus.jsonl", folder / "vectors.npy"
    with corpus.open("w", buffering=1 << 22) as file:
        file.writelines(f'{{"text":"record {number}{FILLER}"}}\n' for number in range(vectors))
    shape = np.lib.format.open_memmap(matrix, "w+", np.float32, (vectors, dims))
    for first, block in _planted(vectors, dims):
        shape[first : first + len(block)] = block
    del shape
    environ = {
        **os.environ,
        **environment(corpus, folder, "bootstrap"),
        "DIVORDER_EMBEDDING__KIND": "external",
        "DIVORDER_EMBEDDING__PATH": str(matrix),
        "DIVORDER_CLUSTERS__K": str(k),
    }
    start = time.perf_counter()
    run_pipeline(environ, "raw_docs,external_embeddings")
    print(f"{vectors:,} x {dims} vectors in fragments after {time.perf_counter() - start:.1f} s", flush=True)
    return environ


def _planted(vectors: int, dims: int) -> Iterator[tuple[int, np.ndarray]]:
    rng = np.random.default_rng(0)
    directions = rng.normal(size=(DIRECTIONS, dims)).astype(np.float32)
    frequency = 1 / np.arange(10, DIRECTIONS + 10)
    frequency /= frequency.sum()
    for first in range(0, vectors, BLOCK):
        rows = min(BLOCK, vectors - first)
        of = rng.choice(DIRECTIONS, rows, p=frequency)
        yield first, directions[of] + NOISE * rng.standard_normal((rows, dims), np.float32)


def _run(environ: dict[str, str], part: str, k: int) -> dict[str, Any]:
    command = [sys.executable, __file__, "--part", part, "--k", str(k)]
    process = subprocess.run(command, env=environ, cwd=ROOT, stdout=subprocess.PIPE, check=True)
    answer: dict[str, Any] = json.loads(process.stdout.splitlines()[-1])
    return answer


def _stage(k: int) -> dict[str, Any]:
    """The stage, and how much of it is the fit."""
    import faiss  # noqa: F401  its import is no part of the work

    from dagster_divorder.core.topics import cluster
    from dagster_divorder.engine.progress import Silent
    from dagster_divorder.settings import load_settings
    from dagster_divorder.stages import run_stage
    from dagster_divorder.stages.topics import centroids, clusters
    from dagster_divorder.store.local import LocalStore
    from dagster_divorder.store.state import save_results

    settings = load_settings()
    # What the round before has computed.
    shutil.rmtree(settings.store.path / "stages/clusters", ignore_errors=True)
    save_results(LocalStore(settings.store.path), "centroids", [])
    spent = {name: np.zeros(2) for name in ("fit", "assign")}

    def timed(name: str, function: Any) -> Any:
        def call(*args: Any, **kwargs: Any) -> Any:
            start = _now()
            try:
                return function(*args, **kwargs)
            finally:
                spent[name] += _now() - start

        return call

    centroids.fit, clusters.assign = timed("fit", cluster.fit), timed("assign", cluster.assign)
    before = _peak()
    start = _now()
    receipt = run_stage("clusters", settings, Silent())
    times = {**spent, "all": _now() - start}
    return {
        **{name: list(spent) for name, spent in times.items()},
        "before": before,
        "peak": _peak(),
        "distance": receipt.figures["mean_distance"],
    }


def _bare(k: int) -> dict[str, Any]:
    import faiss

    from dagster_divorder.core.topics.cluster import ITERATIONS, POINTS_PER_CENTROID
    from dagster_divorder.settings import load_settings
    from dagster_divorder.stages import open_run
    from dagster_divorder.stages.topics.components import load_space
    from dagster_divorder.store.sample import rows_by_id

    settings = load_settings()
    run = open_run(settings)
    view = run.view
    rows = rows_by_id(run.store, view, POINTS_PER_CENTROID * k)
    sample = load_space(run).rows(view, rows)
    sample -= sample.mean(axis=0)
    faiss.normalize_L2(sample)
    start = _now()
    kmeans = faiss.Kmeans(
        sample.shape[1], k, niter=ITERATIONS, spherical=True, max_points_per_centroid=POINTS_PER_CENTROID
    )
    kmeans.train(sample)
    fit = _now() - start
    everything = np.load(settings.embedding.path)  # type: ignore[arg-type]
    faiss.normalize_L2(everything)
    start = _now()
    kmeans.index.search(everything, 1)
    assign = _now() - start
    return {"fit": list(fit), "assign": list(assign), "all": list(fit + assign), "peak": _peak()}


def _now() -> np.ndarray:
    """Seconds on the clock, and of the processor over all threads."""
    return np.array([time.perf_counter(), time.process_time()])


def _peak() -> int:
    status = Path("/proc/self/status").read_text().split()
    return int(status[status.index("VmHWM:") + 1]) * 1024


def _show(stage: dict[str, Any], bare: dict[str, Any], options: Any, round_: int) -> None:
    print(f"round {round_ + 1}, load {os.getloadavg()[0]:.1f}")
    for name in ("fit", "assign", "all"):
        for at, what in enumerate(("seconds", "processor seconds")):
            ours, theirs = stage[name][at], bare[name][at]
            print(
                f"  {name:8}{what:18} stage{ours:8.1f}   bare faiss{theirs:8.1f}   {ours / theirs:.2f} times"
            )
    sample = min(256 * options.k, options.vectors) * options.dims * 4
    print(
        f"  peak     stage {stage['peak'] / 1e6:,.0f} MB, of which {stage['before'] / 1e6:,.0f} before it began; the "
        f"sample {sample / 1e6:,.0f} MB; bare faiss with everything in memory {bare['peak'] / 1e6:,.0f} MB"
    )
    print(f"  mean distance {stage['distance']:.4f}", flush=True)


if __name__ == "__main__":
    main()
