"""How fast is an export read, against copying memory and against `datasets`; and does the far end cost more?

    python benchmarks/reader.py                  # 100 million tokens, and 10 billion in files that are mostly holes

Rows of 2,048 tokens, all in the page cache. Each figure is the best of five passes, taken in turns, in
processor time of one thread, so that what else runs on the machine counts little.
"""

from __future__ import annotations

import argparse
import hashlib
import tempfile
import time
from collections.abc import Callable, Iterable
from itertools import islice
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import orjson
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from torch.utils.data import DataLoader

from dagster_divorder.store.local import write_atomically
from dagster_divorder.store.manifests import EXPORT_VERSION, HEAD_BYTES, export_manifest_file, manifest_check
from dagster_divorder.torch import GlobalBatchSampler, SequenceDataset, SequenceStream
from dagster_divorder.write.exports.parquet import GROUP_BYTES, SCHEMA

L = 2048
PASSES = 5


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--scratch", type=Path, help="folder for the exports while it runs")
    scratch = parser.parse_args().scratch
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory(dir=scratch) as folder:
        rates(Path(folder))
    with tempfile.TemporaryDirectory(dir=scratch) as folder:
        far_end(Path(folder))


def rates(folder: Path) -> None:
    ids = np.random.default_rng(0).integers(0, 50_000, (100_000_000 // L, L), dtype=np.uint16)
    paths = {name: folder / name for name in ("parquet", "megatron")}
    for path in paths.values():
        path.mkdir()
    ids.tofile(paths["megatron"] / "train.bin")
    beside(paths["megatron"], len(ids), "uint16")
    file = paths["parquet"] / "train-00000-of-00001.parquet"
    columns = [lists(ids.reshape(-1).astype(np.int32), L), lists(np.full(len(ids), L, np.int32), 1)]
    table = pa.table(columns, SCHEMA)
    group = GROUP_BYTES // (4 * L)
    pq.write_table(table, file, group, use_dictionary=False, compression="none", write_statistics=False)
    manifest(paths["parquet"], len(ids), "int32")

    for batch in (8, 64, 256):
        asked = [range(first, first + batch) for first in range(0, len(ids) - batch, batch)]
        read = {
            f"{name}, {what}": (lambda rows, dataset=dataset: dataset.__getitems__(rows))
            for name, path in paths.items()
            for what, dataset in (
                ("native", SequenceDataset(path, native=True)),
                ("int64", SequenceDataset(path)),
                ("flattened", SequenceDataset(path, form="flattened")),
            )
        }
        copy = {"memory copy": lambda rows: torch.from_numpy(ids[rows.start : rows.stop].copy())}
        show(f"one process, batches of {batch}", {**copy, **read}, asked, batch)
    loaders(paths, file, folder, 64)


def loaders(paths: dict[str, Path], file: Path, folder: Path, batch: int) -> None:
    """Through torch's DataLoader in the main process, as int64."""
    rows = datasets.load_dataset(
        "parquet", data_files=str(file), split="train", cache_dir=str(folder / "cache")
    )
    of: dict[str, Iterable[Any]] = {
        "datasets": DataLoader(rows.select_columns("input_ids").with_format("torch"), batch)
    }
    for name, path in paths.items():
        dataset = SequenceDataset(path)
        sampler = GlobalBatchSampler(dataset, batch, rank=0, world_size=1)
        of[name] = DataLoader(dataset, batch_sampler=sampler, collate_fn=dataset.collate)
    best = dict.fromkeys(of, float("inf"))
    for _ in range(PASSES):
        for name, loader in of.items():
            best[name] = min(best[name], timed(lambda loader=loader: run(len, loader)))
    print(f"\nDataLoader, batches of {batch}: million tokens/s, times `datasets`")
    for name, seconds in best.items():
        print(f"  {name:24} {len(rows) * L / seconds / 1e6:8,.0f} {best['datasets'] / seconds:6.1f}")


def far_end(folder: Path) -> None:
    """Ten samples at the beginning and at 99 % of ten billion tokens; opening is a part of it."""
    count = 10_000_000_000 // L
    with open(folder / "train.bin", "wb") as file:
        file.truncate(count * L * 2)
    beside(folder, count, "uint16")
    best = {0.0: float("inf"), 0.99: float("inf")}

    def ten(at: float) -> None:
        stream = SequenceStream(folder, batch=1, rank=0, world_size=1)
        stream.load_state_dict({"samples": int(at * count), "plan": "0"})
        assert sum(len(rows["input_ids"]) for rows in islice(stream, 10)) == 10

    for _ in range(PASSES):
        for at in best:
            best[at] = min(best[at], timed(lambda at=at: ten(at)))
    print(
        f"\n10 billion tokens: opening and ten samples at 0 {best[0.0] * 1e3:.1f} ms, at 99 % {best[0.99] * 1e3:.1f}"
    )


def beside(folder: Path, rows: int, dtype: str) -> None:
    """The index and the manifest of a megatron export whose rows are a document each."""
    with open(folder / "train.idx", "wb") as file:
        file.write(b"MMIDIDX\x00\x00" + np.array([1], "<u8").tobytes() + b"\x08")
        file.write(np.array([rows, rows + 1], "<u8").tobytes() + np.full(rows, L, "<i4").tobytes())
        file.truncate(34 + 4 * rows + 8 * rows + 8 * (rows + 1))
    np.save(folder / "train.doc_rows.npy", np.arange(rows + 1))
    manifest(folder, rows, dtype)


def manifest(folder: Path, rows: int, dtype: str) -> None:
    about: dict[str, Any] = {
        "format": folder.name if folder.name == "parquet" else "megatron",
        "format_version": EXPORT_VERSION,
        "plan": "0",
        "rows": rows,
        "padded_rows": 0,
        "sequence_length": L,
        "batch": 1,
        "layout": None,
        "tokenizer": {"vocabulary": 50_000, "padding": 0},
        "dtype": dtype,
        "rows_of_files": [rows],
        "files": {
            file.name: {
                "bytes": file.stat().st_size,
                "sha256": "",
                "head": hashlib.sha256(file.open("rb").read(HEAD_BYTES)).hexdigest(),
            }
            for file in sorted(folder.iterdir())
        },
    }
    write_atomically(export_manifest_file(folder), orjson.dumps(about | {"check": manifest_check(about)}))


def lists(values: np.ndarray, each: int) -> pa.Array:
    offsets = np.arange(0, len(values) + 1, each, dtype=np.int32)
    return pa.ListArray.from_arrays(pa.array(offsets), pa.array(values))


def show(title: str, read: dict[str, Callable[[range], Any]], asked: list[range], batch: int) -> None:
    best = dict.fromkeys(read, float("inf"))
    for _ in range(PASSES):
        for name, one in read.items():
            best[name] = min(best[name], timed(lambda one=one: run(one, asked)))
    print(f"\n{title}: million tokens/s, of the memory copy")
    for name, seconds in best.items():
        print(
            f"  {name:24} {len(asked) * batch * L / seconds / 1e6:8,.0f} {best['memory copy'] / seconds:6.2f}"
        )


def run(one: Callable[[Any], Any], asked: Iterable[Any]) -> None:
    for rows in asked:
        one(rows)


def timed(work: Callable[[], Any]) -> float:
    started = time.process_time()
    work()
    return time.process_time() - started


if __name__ == "__main__":
    main()
