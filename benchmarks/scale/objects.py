"""What a store on objects costs beside one in a folder: whole runs in turn, on an S3 server of this machine.

    .venv/bin/python benchmarks/scale/objects.py --texts FILE.jsonl [--copies 4] [--repeat 2] [--scratch FOLDER]

Each copy's texts begin with its number. A run is a process of its own, on a new store; of either kind the fastest is
shown, and what of it is whose: wall seconds, processor seconds of the run, and of the server, which a provider's would
not take from this machine. Then an append of a hundredth, and a run with nothing new, with the requests of each.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Any

import psutil

sys.path.insert(0, str(Path(__file__).parents[1] / "speed"))
sys.path.insert(0, str(Path(__file__).parents[2]))

from measured import run_pipeline
from shared import environment, marked, parser

from tests.cluster.proxy import Proxy
from tests.cluster.weed import BUCKET, KEY, SECRET, Weed

PERCENT = 100


def main() -> None:
    made = parser(__doc__)
    made.add_argument("--texts", type=Path, required=True)
    made.add_argument("--copies", type=int, default=4)
    made.add_argument("--repeat", type=int, default=2)
    options = made.parse_args()
    with tempfile.TemporaryDirectory(dir=options.scratch) as scratch:
        folder = Path(scratch)
        size = write(options.texts, options.copies, folder / "corpus.jsonl", range(1, PERCENT))
        (folder / "weed").mkdir()
        server = Weed(folder / "weed").start()
        proxy = Proxy(server.url).start()
        try:
            compare(options, folder, server, proxy, size)
        finally:
            proxy.stop()
            server.kill()


def compare(options: Any, folder: Path, server: Weed, proxy: Proxy, size: int) -> None:
    runs: dict[str, list[dict[str, Any]]] = {"folder": [], "objects": []}
    for number in range(options.repeat):
        for kind in runs:
            own = folder / f"{kind}-{number}"
            environ = environment(folder / "corpus.jsonl", own, options.model)
            if kind == "objects":
                environ |= on_objects(number, server.url)
            before = processor_seconds(server)
            run = run_pipeline(environ)
            runs[kind].append({**run, "server": processor_seconds(server) - before, "environ": environ})
    best = {kind: min(made, key=lambda run: run["wall"]) for kind, made in runs.items()}
    print(f"{size / 1e6:,.0f} MB, {best['folder']['records']:,} records; seconds")
    print(f"{'':10}{'wall':>9}{'processor':>11}{'of the server':>15}{'peak MB':>9}   every wall")
    for kind, run in best.items():
        walls = ", ".join(f"{made['wall']:.1f}" for made in runs[kind])
        cells = (
            f"{run['wall']:9.1f}{sum(run['cpu'].values()):11.1f}{run['server']:15.1f}{run['peak'] / 1e6:9.0f}"
        )
        print(f"{kind:10}{cells}   {walls}")
    print(f"{'more':10}{best['objects']['wall'] / best['folder']['wall'] - 1:9.1%}")
    write(options.texts, options.copies, folder / "corpus.jsonl", range(PERCENT))
    for what in ("append", "nothing new"):
        walls = []
        for kind, run in best.items():
            environ = run["environ"] | ({"AWS_ENDPOINT_URL": proxy.url} if kind == "objects" else {})
            proxy.requests.clear()
            walls.append(run_pipeline(environ)["wall"])
        print(f"{what}: folder {walls[0]:.1f} s, objects {walls[1]:.1f} s; requests {proxy.counts()}")


def write(texts: Path, copies: int, corpus: Path, hundredths: range) -> int:
    """Write copies of a file's lines, those of some of every hundred; the bytes."""
    with corpus.open("wb") as out:
        for copy in range(copies):
            with texts.open("rb") as file:
                out.writelines(
                    marked(line, copy) for at, line in enumerate(file) if at % PERCENT in hundredths
                )
    return corpus.stat().st_size


def on_objects(number: int, url: str) -> dict[str, str]:
    return {
        "DIVORDER_STORE__PATH": f"s3://{BUCKET}/{number}",
        "AWS_ENDPOINT_URL": url,
        "AWS_ACCESS_KEY_ID": KEY,
        "AWS_SECRET_ACCESS_KEY": SECRET,
        "AWS_REGION": "us-east-1",
    }


def processor_seconds(server: Weed) -> float:
    times = psutil.Process(server.pid).cpu_times()
    return times.user + times.system


if __name__ == "__main__":
    main()
