"""What it costs to read input from objects and to write output to them, beside a folder, on an S3 server here.

    .venv/bin/python benchmarks/scale/remote_files.py --texts FILE.jsonl[.gz] [--repeat 3] [--scratch FOLDER]

The file's lines, as plain JSONL and as Parquet, are read by the readers of the input, each time fetched anew; the same
bytes are written as an output of one file and committed. Shown: the fastest wall seconds, the least processor seconds
of this process, and of the server, which a provider's would not take from this machine.
"""

from __future__ import annotations

import gzip
import os
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import obstore
import psutil
import pyarrow as pa
import pyarrow.parquet as pq

sys.path.insert(0, str(Path(__file__).parents[1] / "speed"))
sys.path.insert(0, str(Path(__file__).parents[2]))

from shared import parser

from dagster_divorder.corpus.inputs import read_lines, read_rows
from dagster_divorder.settings.places import Place, Url
from dagster_divorder.store import sources
from dagster_divorder.store.folders import folder_at
from dagster_divorder.store.local import LocalStore
from dagster_divorder.store.manifests import EXPORT_MANIFEST
from dagster_divorder.store.sources import Source, bucket
from dagster_divorder.write.curated import OutputFolder
from tests.cluster.weed import BUCKET, KEY, SECRET, Weed


def main() -> None:
    made = parser(__doc__)
    made.add_argument("--texts", type=Path, required=True)
    made.add_argument("--repeat", type=int, default=3)
    options = made.parse_args()
    with tempfile.TemporaryDirectory(dir=options.scratch) as scratch:
        folder = Path(scratch)
        (folder / "weed").mkdir()
        server = Weed(folder / "weed").start()
        os.environ |= {"AWS_ENDPOINT_URL": server.url, "AWS_REGION": "us-east-1"}
        os.environ |= {"AWS_ACCESS_KEY_ID": KEY, "AWS_SECRET_ACCESS_KEY": SECRET}
        try:
            compare(options.texts, folder, server, options.repeat)
        finally:
            server.kill()


def compare(texts: Path, folder: Path, server: Weed, repeat: int) -> None:
    data = gzip.decompress(texts.read_bytes()) if texts.suffix == ".gz" else texts.read_bytes()
    (folder / "in.jsonl").write_bytes(data)
    lines = pa.array(data.splitlines())
    pq.write_table(pa.table({"line": lines}), folder / "in.parquet", compression="zstd", use_dictionary=False)
    for name in ("in.jsonl", "in.parquet"):
        url = f"s3://{BUCKET}/{name}"
        store, key = bucket(url)
        obstore.put(store, key, folder / name)
    print(f"{'':24}{'MB':>8}{'wall':>8}{'MB/s':>8}{'processor':>11}{'of the server':>15}")
    store = LocalStore(folder / "store").open()
    for name, read in {"in.jsonl": read_lines, "in.parquet": lambda file: read_rows(file, None)}.items():
        size = (folder / name).stat().st_size
        places: dict[str, Source | None] = {
            "folder": folder / name,
            "objects": folder_at(Url(f"s3://{BUCKET}")).entry(f"s3://{BUCKET}/{name}"),
        }
        for where, file in places.items():
            show(
                f"read {name}, {where}",
                size,
                server,
                repeat,
                lambda file=file, read=read: exhaust(read(file)),
            )
    for where, place in {"folder": folder / "out", "objects": Url(f"s3://{BUCKET}/out")}.items():
        show(f"write, {where}", len(data), server, repeat, lambda place=place: write(store, place, data))


def exhaust(blocks: object) -> None:
    sources._copy.cache_clear()
    for _ in blocks:  # type: ignore[attr-defined]
        pass


def write(store: LocalStore, place: Place, data: bytes) -> None:
    with OutputFolder(store, place, manifest=EXPORT_MANIFEST) as output:
        parts = [data[at : at + (1 << 20)] for at in range(0, len(data), 1 << 20)]
        output.stage("train-0.jsonl", lambda file: [file.write(part) for part in parts])
        output.commit({"key": "0" * 32})


def show(what: str, size: int, server: Weed, repeat: int, run: Callable[[], None]) -> None:
    walls, processor, served = [], [], []
    for _ in range(repeat):
        before = time.perf_counter(), time.process_time(), seconds_of(server)
        run()
        walls.append(time.perf_counter() - before[0])
        processor.append(time.process_time() - before[1])
        served.append(seconds_of(server) - before[2])
    rates = f"{size / 1e6:8.0f}{min(walls):8.2f}{size / 1e6 / min(walls):8.0f}"
    print(f"{what:24}{rates}{min(processor):11.2f}{min(served):15.2f}", flush=True)


def seconds_of(server: Weed) -> float:
    """Processor seconds of the server so far."""
    assert server._process
    times = psutil.Process(server._process.pid).cpu_times()
    return times.user + times.system


if __name__ == "__main__":
    main()
