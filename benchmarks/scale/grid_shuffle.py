"""The grid shuffle of files: what it costs under a memory limit and through kills, and how well it mixes.

    python benchmarks/scale/grid_shuffle.py --gigabytes 4 --memory 1 [--kills 5] [--scratch FOLDER]
    python benchmarks/scale/grid_shuffle.py --config divorder.toml [--shards 64] [--parts 8]

The first form writes an export of random sequences of so many GB, and shuffles it in processes that may take no more
than `--memory` GB of private memory (RLIMIT_DATA), once to its end, and once killed with -9 at so many moments, spread
over the seconds of the first; both have to hold the same bytes. Bytes are what went through the disk, cold files first.

The second form, of the sequences of a corpus under settings whose store holds it or will: batches of `sequence.batch`
against the whole by strategy of documents and of sequences. Distances of clusters and sources are total variation, the
others as docs/decisions/stationarity.md has them; the last but one column is chi2 over its degrees of freedom of the
sequences of one cluster over tenths of training, and the last what drifts. `--parts`: shards of `order.shards_of`, one
after another as they are, and as pools that are read in turn (`dagster_divorder.torch.Mixture` of equal weights).
"""

from __future__ import annotations

import argparse
import hashlib
import os
import resource
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import orjson

LENGTH, VOCABULARY, DOCUMENT = 8192, 50_000, 700
FILE_BYTES = 256 << 20


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--config")
    parser.add_argument("--shards", type=int, default=64)
    parser.add_argument("--parts", type=int, default=8)
    parser.add_argument("--gigabytes", type=float, default=4.0)
    parser.add_argument("--memory", type=float, default=1.0)
    parser.add_argument("--kills", type=int, default=5)
    parser.add_argument("--scratch", type=Path)
    options = parser.parse_args()
    if options.config:
        quality(options.config, options.shards, options.parts)
        return
    with tempfile.TemporaryDirectory(dir=options.scratch) as folder:
        cost(Path(folder), int(options.gigabytes * 1e9), int(options.memory * 1e9), options.kills)


# What it costs -----------------------------------------------------------------------------------------------------


def cost(folder: Path, size: int, limit: int, kills: int) -> None:
    export, out = folder / "export", folder / "out"
    begun = time.perf_counter()
    write_export(export, size // (4 * LENGTH))
    print(
        f"export: {size / 1e9:.1f} GB, written in {time.perf_counter() - begun:.0f} s; limit {limit / 1e9:g} GB"
    )
    for path in export.iterdir():
        cool(path)
    whole = shuffled(export, out, limit)
    print(shown("in one go", whole), flush=True)
    expected = hashes(out)
    again = folder / "again"
    killed = [
        shuffled(export, again, limit, after=whole["seconds"] * (number + 1) / (kills + 1))
        for number in range(kills)
    ]
    killed.append(shuffled(export, again, limit))
    totals = {name: sum(of[name] for of in killed) for name in ("seconds", "read", "written")}
    print(shown(f"killed {kills} times", totals | {"peak": max(of["peak"] for of in killed)}))
    assert hashes(again) == expected, "other bytes after the kills"
    from dagster_divorder.store.manifests import export_manifest_file

    rows = orjson.loads(export_manifest_file(out).read_bytes())["rows_of_files"]
    print(f"the same bytes; {len(rows)} columns and rows of up to {max(rows) * 4 * LENGTH / 1e6:,.0f} MB")


def write_export(path: Path, rows: int) -> None:
    """Random ids in sequences of LENGTH, each of documents of about DOCUMENT tokens."""
    from dagster_divorder.store.local import write_atomically
    from dagster_divorder.store.manifests import export_manifest_file, manifest_check
    from dagster_divorder.write.exports.parquet import SCHEMA, group_rows, open_writer, table

    random, step = np.random.default_rng(0), group_rows(LENGTH)
    path.mkdir(parents=True)
    each = FILE_BYTES // (4 * LENGTH)
    sizes = [min(each, rows - first) for first in range(0, rows, each)]
    lengths = np.append(np.full(LENGTH // DOCUMENT, DOCUMENT), LENGTH % DOCUMENT)
    entries: dict[str, Any] = {}
    for number, count in enumerate(sizes):
        name = f"train-{number:05d}-of-{len(sizes):05d}.parquet"
        with open(path / name, "wb") as file, open_writer(file, SCHEMA) as writer:
            for first in range(0, count, step):
                some = min(step, count - first)
                ids = random.integers(0, VOCABULARY, some * LENGTH, np.int32)
                writer.write_table(
                    table(ids, np.full(some, LENGTH), np.tile(lengths, some), np.full(some, len(lengths)))
                )
        entries[name] = {"bytes": (path / name).stat().st_size, "sha256": ""}
    manifest = {
        "format": "parquet",
        "format_version": 1,
        "plan": "0",
        "epochs": 1,
        "rows": rows,
        "rows_of_files": sizes,
        "padded_rows": 0,
        "sequence_length": LENGTH,
        "batch": 256,
        "layout": {},
        "sequence": {"strategy": "original"},
        "tokenizer": {"vocabulary": VOCABULARY, "padding": 0},
        "files": entries,
    }
    write_atomically(export_manifest_file(path), orjson.dumps(manifest | {"check": manifest_check(manifest)}))


def cool(path: Path) -> None:
    """Take a file out of the page cache."""
    with open(path, "rb") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


CHILD = """
import json, sys
from dagster_divorder import grid_shuffle
grid_shuffle(sys.argv[1], sys.argv[2], memory=int(sys.argv[3]))
"""


def shuffled(export: Path, out: Path, limit: int, *, after: float | None = None) -> dict[str, float]:
    """Shuffle in a process of its own, which is killed `after` so many seconds; its seconds, bytes and peak."""

    def limited() -> None:
        resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))

    begun = time.perf_counter()
    # Beside a column, the libraries and the row groups that are read and written take some 250 MB.
    arguments = [sys.executable, "-c", CHILD, export, out, str(limit - (300 << 20))]
    # Of what is reserved and not used, neither Arrow nor the C library is to keep much.
    environ = os.environ | {
        "ARROW_DEFAULT_MEMORY_POOL": "system",
        "MALLOC_ARENA_MAX": "1",
        "OMP_NUM_THREADS": "1",
    }
    child = subprocess.Popen(arguments, preexec_fn=limited, env=environ)
    measured = {"read": 0.0, "written": 0.0, "peak": 0.0}
    while child.poll() is None:
        try:
            io = dict(line.split(": ") for line in Path(f"/proc/{child.pid}/io").read_text().splitlines())
            status = Path(f"/proc/{child.pid}/status").read_text().splitlines()
            private = [int(line.split()[1]) * 1024 for line in status if line.startswith("RssAnon")]
            found = {
                "read": int(io["read_bytes"]),
                "written": int(io["write_bytes"]),
                "peak": max(private, default=0),
            }
            measured = {name: max(measured[name], found[name]) for name in measured}
        except (FileNotFoundError, ProcessLookupError, ValueError):
            pass
        if after is not None and time.perf_counter() - begun > after:
            child.send_signal(signal.SIGKILL)
            after = None
        time.sleep(0.02)
    assert child.returncode in (0, -signal.SIGKILL), child.returncode
    return {"seconds": time.perf_counter() - begun, **measured}


def shown(what: str, found: dict[str, float]) -> str:
    return (
        f"{what}: {found['seconds']:.0f} s, {found['read'] / 1e9:.2f} GB read, {found['written'] / 1e9:.2f} GB "
        f"written, private memory at most {found['peak'] / 1e6:,.0f} MB"
    )


def hashes(folder: Path) -> dict[str, str]:
    found = {}
    for path in sorted(folder.iterdir()):
        with open(path, "rb") as file:
            found[path.name] = hashlib.file_digest(file, "sha256").hexdigest()
    return found


# How well it mixes -------------------------------------------------------------------------------------------------

BATCHES = ("words", "shallow vectors")
SINGLE = "sequences of one cluster"


def quality(config: str, shards: int, parts: int) -> None:
    from dagster_divorder import load_settings, run_all
    from dagster_divorder.engine.progress import Silent
    from dagster_divorder.stages import GRAPH, open_run
    from dagster_divorder.stages.order.sequence_order import load_sequence_order
    from dagster_divorder.verify import measure_order

    settings = load_settings(config)
    run_all(settings, Silent(), GRAPH.needed(settings, "diversity_metrics"))
    records = open_run(settings).view.document_row.size
    print(
        f"| documents | sequences | TV clusters | TV sources | {' | '.join(BATCHES)} | single topic | drift |"
    )
    print(f"|---|---|{'--:|' * (len(BATCHES) + 3)}---|")
    for documents, sequences, of in (
        ("within_shard", "original", 1),
        ("within_shard", "within_shard", 1),
        ("within_shard", "grid_shuffle", 1),
        ("within_shard", "random", 1),
        ("random", "random", 1),
        ("balanced", "balanced", 1),
        ("balanced", "balanced", parts),
    ):
        order = {"strategy": documents, "shards_of": -(-records // of)}
        if {documents, sequences} & {"within_shard", "grid_shuffle"}:
            order["options"] = {"shards": shards}
        made = settings.model_copy(
            update={
                "order": settings.order.model_copy(update=order),
                "sequence": settings.sequence.model_copy(update={"strategy": sequences}),
            }
        )
        run_all(made, Silent(), GRAPH.needed(made, "sequence_order"))
        run = open_run(made)
        in_order = load_sequence_order(run)[0]
        shown_as = {documents: in_order}
        if of > 1:
            pools = np.array_split(in_order, of)
            in_turn = [pool[at] for at in range(len(pools[0])) for pool in pools if at < len(pool)]
            shown_as = {
                f"{documents}, {of} shards in a row": in_order,
                f"{documents}, {of} shards as pools": np.array(in_turn),
            }
        for name, read in shown_as.items():
            figures, drift = measure_order(run, read)
            measures = {found.feature: found.measures for found in drift.features}
            cells = [
                name,
                sequences,
                f"{figures['batch_shares']['cluster']['mean_tv']:.4f}",
                f"{measures['source']['batch'].value:.4f}",
                *(f"{measures[feature]['batch'].value:.4f}" for feature in BATCHES),
                f"{measures[SINGLE]['tenths'].value:.1f}",
                ", ".join(found.feature for found in drift.drifting) or "nothing",
            ]
            print(f"| {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
