"""How fast each export format is written, as a share of a hashed plain copy of the same bytes, and in how much memory.

    .venv/bin/python benchmarks/exports.py [--tokens 800_000_000] [--formats megatron olmo] [--scratch FOLDER]

Documents of 20 to 4,000 tokens lie in a store as fragments of 8 million, ids of two bytes; `concat` packs them into
sequences of 2,048, whose order is random. Each format is written three times, in a process of its own: with all ids in
memory, through files of consecutive rows, as where there is an eighth of the memory, and so by two workers. The plain
copy reads the files that were written 4 MB at a time, hashes them by sha256, writes them and syncs, in the same
process. Peak memory is what was resident beyond what was before the first id was read, files that are mapped included;
40 bytes a run of it are named.
"""

from __future__ import annotations

import argparse
import hashlib
import multiprocessing
import os
import resource
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from dagster_divorder.core.packing import Pieces, pack
from dagster_divorder.engine.local import LocalEngine
from dagster_divorder.store.local import LocalStore
from dagster_divorder.store.manifests import EXPORT_MANIFEST
from dagster_divorder.store.stages import StageFiles
from dagster_divorder.store.view import Fragment, View
from dagster_divorder.write.curated import OutputFolder
from dagster_divorder.write.exports import FORMATS
from dagster_divorder.write.exports import rows as rows_module
from dagster_divorder.write.exports.rows import Options, Rows, Tokens

LENGTH = 2048
FRAGMENT = 8_000_000


def main() -> None:
    made = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("--tokens", type=int, default=800_000_000)
    made.add_argument("--formats", nargs="+", default=list(FORMATS))
    made.add_argument("--scratch", type=Path, help="folder for store and exports while it runs")
    made.add_argument("--shard-bytes", type=int, default=1 << 28, help="of each file")
    options = made.parse_args()
    processes = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory(dir=options.scratch) as folder:
        store(Path(folder), options.tokens)
        heads = "workers memory MB s cpu,s driver copy,s cpu,s share of_cpu peak,MB of_it_runs"
        print(f"{'format':10}{''.join(f'{head:>11}' for head in heads.split())}")
        for name in options.formats:
            little = options.tokens // 4
            for memory, workers in ((rows_module.MAPPED_BYTES, 1), (little, 1), (little, 2)):
                arguments = Path(folder), name, memory, workers, options.shard_bytes
                process = processes.Process(target=measure, args=arguments)
                process.start()
                process.join()
                if process.exitcode:
                    sys.exit(process.exitcode)


def store(folder: Path, tokens: int) -> None:
    """Fill a store with fragments of documents of so many tokens."""
    random = np.random.default_rng(0)
    files = StageFiles(LocalStore(folder / "store").open(), "token_counts", "00")
    for number in range(max(1, tokens // FRAGMENT)):
        lengths = random.integers(20, 4000, FRAGMENT // 2010)
        ids = random.integers(0, 50_000, lengths.sum(), dtype=np.uint16)
        files.put(f"{number:04d}", {"ids": ids, "lengths": lengths})


def rows_of(folder: Path, workers: int) -> Rows:
    """The rows of the documents in the store, in a random order."""
    files = StageFiles(LocalStore(folder / "store"), "token_counts", "00")
    fragments = tuple(Fragment(name, "", FRAGMENT // 2010) for name in sorted(files.present()))
    row = np.arange(sum(fragment.rows for fragment in fragments))
    tokens = Tokens(
        files=files,
        view=View("jsonl", (), fragments, row, row),
        records=None,
        dtype=np.dtype(np.uint16),
        special={"eos": 0},
        end_of_text=0,
        padding=0,
        vocabulary=50_000,
        engine=partial(LocalEngine, workers),
    )
    pieces = Pieces(row, np.zeros(len(row), np.int64), tokens.lengths + 1)
    plan = pack(pieces, sequence_length=LENGTH)
    order = np.random.default_rng(1).permutation(len(plan))
    return Rows(plan, order, np.arange(len(plan))[None], tokens)


def measure(folder: Path, name: str, memory: int, workers: int, shard_bytes: int) -> None:
    """Write one format with so much memory and so many workers, and print a line."""
    rows_module.MAPPED_BYTES, rows_module.WORKERS_FROM_BYTES = memory, 0
    found, rows = FORMATS[name], rows_of(folder, workers)
    before = peak()

    def write() -> int:
        with OutputFolder(LocalStore(folder / "store"), folder / name, manifest=EXPORT_MANIFEST) as output:
            found.write(rows, output, Options(tag="00000000", shard_bytes=shard_bytes))
            output.commit({"key": "00"})
        return sum(entry["bytes"] for entry in output.entries.values())

    driver = time.process_time()
    seconds, processor, size = timed(write)
    driver = time.process_time() - driver
    most = peak() - before
    copied, copied_processor, _ = timed(lambda: copy(folder / name, folder / "copy"))
    for path in (folder / name).iterdir():
        path.unlink()
    shares = f"{copied / seconds:11.0%}{copied_processor / processor:11.0%}"
    print(
        f"{name:10}{workers:11}{memory / 1e6:11,.0f}{size / 1e6:11,.0f}{seconds:11.2f}{processor:11.2f}{driver:11.2f}"
        f"{copied:11.2f}{copied_processor:11.2f}{shares}{most / 1e6:11,.0f}{40 * len(rows.record) / 1e6:11,.0f}",
        flush=True,
    )


def timed(work: Callable[[], Any]) -> tuple[float, float, Any]:
    """Seconds on the clock, of the processors, and what the work gives."""
    started, before = time.perf_counter(), sum(os.times()[:4])
    found = work()
    return time.perf_counter() - started, sum(os.times()[:4]) - before, found


def copy(source: Path, target: Path) -> None:
    """A hashed plain copy of a folder's files, one by one."""
    for path in sorted(source.iterdir()):
        digest = hashlib.sha256()
        with open(path, "rb") as old, open(target, "wb") as new:
            while data := old.read(4 << 20):
                digest.update(data)
                new.write(data)
            new.flush()
            os.fsync(new.fileno())
        target.unlink()


def peak() -> int:
    """The most memory that the process has held, in bytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


if __name__ == "__main__":
    main()
