"""How far each stage is from its own limit: the bare work it cannot do without, done by the same libraries.

    .venv/bin/python benchmarks/speed/limits.py FILE.jsonl --model DIRECTORY [--scratch FOLDER]

raw_docs: read, split, hash and parse every line, hash every text, compress what is stored. token_counts: gigatoken on
texts in memory, in a process that has seen none of them. shallow_embeddings: the table rows of each document's distinct
tokens, at the memory's own speed (a copy of a large array). clusters: faiss on vectors in memory. curated_output: copy
the file, sha256, fsync. greedy_order and diversity_metrics: no bare form; their time is the kernels'.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pyarrow as pa
from blake3 import blake3
from measured import run_pipeline
from shared import environment, parser


def main() -> None:
    made = parser(__doc__, bootstrap=False)
    made.add_argument("input", type=Path)
    options = made.parse_args()
    with tempfile.TemporaryDirectory(dir=options.scratch) as folder:
        measured = run_pipeline(environment(options.input, folder, options.model))
        limits = bare(options.input, options.model, Path(folder))
    size = options.input.stat().st_size
    print(f"{'stage':20}{'s':>8}{'MB/s':>8}{'limit, s':>10}{'of limit':>10}  what the limit is")
    for stage, seconds in measured["stages"].items():
        parts = limits.get(stage, {})
        limit = sum(parts.values())
        shown = f"{limit:10.2f}{limit / seconds:10.0%}" if parts else " " * 20
        names = ", ".join(f"{name} {part:.2f}" for name, part in parts.items())
        print(f"{stage:20}{seconds:8.2f}{size / seconds / 1e6:8.0f}{shown}  {names}")
    print(f"{'compute':20}{measured['compute']:8.2f}{size / measured['compute'] / 1e6:8.0f}")
    print(f"{'wall':20}{measured['wall']:8.2f}{size / measured['wall'] / 1e6:8.0f}")


def bare(path: Path, model: str, folder: Path) -> dict[str, dict[str, float]]:
    """Seconds of each stage's bare work."""
    import faiss

    from dagster_divorder.models.checkpoint import embedding_table
    from dagster_divorder.models.tokenize import load_encoder

    read, data = timed(path.read_bytes)
    split, lines = timed(lambda: data.splitlines())
    hashed, _ = timed(lambda: [blake3(line).digest(16) for line in lines])
    parsed, texts = timed(lambda: [orjson.loads(line)["text"] for line in lines])
    encoded, raw = timed(lambda: [text.encode() for text in texts])
    text_hashed, _ = timed(lambda: [blake3(text).digest(16) for text in raw])
    codec = pa.Codec("zstd", 1)
    packed, _ = timed(lambda: [codec.compress(part) for part in (*blocks(lines), *blocks(raw))])
    encoder = load_encoder(model, "gigatoken")
    tokenised, (ids, lengths) = timed(lambda: encoder.encode(texts))
    table = embedding_table(model).weights
    starts = np.concatenate([[0], np.cumsum(lengths)])
    distinct = sum(len(np.unique(ids[low:high])) for low, high in pairwise(starts))
    large = np.zeros(32 << 20, np.float32)
    copied, _ = timed(large.copy)
    bandwidth = 2 * large.nbytes / copied
    vectors = np.random.default_rng(0).standard_normal((len(lengths), table.shape[1]), dtype=np.float32)
    kmeans = faiss.Kmeans(table.shape[1], 30, spherical=True, max_points_per_centroid=256)
    fitted, _ = timed(lambda: kmeans.train(vectors))
    assigned, _ = timed(lambda: kmeans.assign(vectors))

    def write() -> None:
        with open(folder / "copy", "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())

    written, _ = timed(write)
    summed, _ = timed(lambda: hashlib.sha256(data).digest())
    return {
        "raw_docs": {
            "read and split": read + split,
            "parse": parsed + encoded,
            "hash": hashed + text_hashed,
            "compress": packed,
        },
        "token_counts": {"gigatoken": tokenised},
        "shallow_embeddings": {"table rows": distinct * table.shape[1] * 4 / bandwidth},
        "clusters": {"faiss fit": fitted, "assign": assigned},
        "curated_output": {"read": read, "sha256": summed, "write": written},
    }


def blocks(values: list[bytes]) -> list[bytes]:
    return [b"".join(values[at : at + 8192]) for at in range(0, len(values), 8192)]


def timed(work: Callable[[], Any]) -> tuple[float, Any]:
    start = time.perf_counter()
    result = work()
    return time.perf_counter() - start, result


if __name__ == "__main__":
    main()
