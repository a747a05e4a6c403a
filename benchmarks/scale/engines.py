"""What Ray costs beside the processes of this machine, on one corpus: wall time of a whole run, both in turn.

    python benchmarks/scale/engines.py ../shared/data/mixture.jsonl.gz --copies 4 --rounds 3

Each run is a fresh process with two workers on a store of its own, from raw_docs to curated_output; `ray` starts a Ray
of its own and ends it, `joined` joins one of two workers that runs already. --worker-bytes is how much stored text gets
a worker (pipeline/per_fragment.py; the default is the package's, by which a small corpus never leaves the process).
Outputs and stores have to be equal byte for byte, but for what tells when and how fast a run was.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import orjson

ROOT = Path(__file__).parents[2]
TIMED = ("state.json", "format.json", ".divorder-lock", "curated_meta.json")
WORKERS = 2


def run(folder: Path, address: str, worker_bytes: int) -> None:
    """In a process of its own: one run; prints the seconds of each stage, and of all."""
    start = time.perf_counter()
    from dagster_divorder.engine.progress import Silent
    from dagster_divorder.pipeline import per_fragment
    from dagster_divorder.settings import Settings
    from dagster_divorder.stages import run_all

    if worker_bytes:
        per_fragment.WORKER_BYTES = worker_bytes
    settings = Settings.model_validate(
        {
            "input": {"paths": (str(folder / "docs.jsonl"),)},
            "store": {"path": folder / "store"},
            "output": {"path": folder / "output", "sidecars": ()},
            "engine": {"address": address, "workers": WORKERS},
        }
    )
    made = run_all(settings, Silent())
    seconds = {stage: receipt.figures["seconds"] for stage, receipt in made.items()}
    print(json.dumps({"wall": time.perf_counter() - start, **seconds}))


def write_corpus(source: Path, copies: int, path: Path) -> None:
    """The records of a file, and as often again with other texts."""
    with path.open("wb") as out:
        for copy in range(copies):
            with gzip.open(source) as lines:
                for line in lines:
                    record = orjson.loads(line)
                    text = record["text"] if not copy else f"{copy} {record['text']}"
                    out.write(orjson.dumps({**record, "text": text}) + b"\n")


def digests_of(folder: Path) -> dict[str, str]:
    """The sha256 of every file of store and output, by name."""
    return {
        f"{made}/{name}": hashlib.sha256(path.read_bytes()).hexdigest()
        for made in ("store", "output")
        for path in sorted((folder / made).rglob("*"))
        if path.is_file() and (name := path.relative_to(folder / made)).parts[0] not in TIMED
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("source", type=Path)
    parser.add_argument("--copies", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--worker-bytes", type=int, default=0)
    given = parser.parse_args()
    walls: dict[str, list[dict[str, float]]] = {"local": [], "ray": [], "joined": []}
    digests: dict[str, set[str | None]] = {}
    runs = 0
    from ray.cluster_utils import Cluster

    with tempfile.TemporaryDirectory(prefix="divorder-engines-") as temporary:
        folder = Path(temporary)
        write_corpus(given.source, given.copies, folder / "docs.jsonl")
        print(f"{(folder / 'docs.jsonl').stat().st_size / 1e6:.0f} MB", flush=True)
        for _ in range(given.rounds):
            for kind in walls:
                cluster = None
                environment = {**os.environ, "RAY_USAGE_STATS_ENABLED": "0", "PYTHONPATH": str(ROOT)}
                if kind == "joined":
                    os.environ.update(environment)
                    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": WORKERS})
                address = str(cluster.address) if cluster else kind
                if kind == "ray":
                    # Else it would join what another program has started here.
                    environment["RAY_ADDRESS"] = "local"
                command = [sys.executable, __file__, str(folder), address, str(given.worker_bytes)]
                out = subprocess.run(command, env=environment, stdout=subprocess.PIPE, check=True).stdout
                walls[kind].append(json.loads(out.splitlines()[-1]))
                if cluster:
                    cluster.shutdown()
                made_now = digests_of(folder)
                for name in {*digests, *made_now}:
                    digests.setdefault(name, set() if not runs else {None}).add(made_now.get(name))
                runs += 1
                print(f"{kind:8}{walls[kind][-1]['wall']:8.1f} s", flush=True)
                for made in ("store", "output"):
                    shutil.rmtree(folder / made)
    local = statistics.median(one["wall"] for one in walls["local"])
    for kind, of in walls.items():
        wall = statistics.median(one["wall"] for one in of)
        print(f"\n{kind}: median {wall:.1f} s, {wall / local:.2f} times local")
        for stage in of[0]:
            print(f"  {stage:24}{statistics.median(one[stage] for one in of):8.2f} s")
    differing = sorted(name for name, of in digests.items() if len(of) > 1)
    print(f"\nBYTES DIFFER: {differing}" if differing else f"\nthe bytes of {len(digests):,} files are equal")


if __name__ == "__main__":
    if len(sys.argv) == 4 and sys.argv[3].isdigit():
        run(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]))
    else:
        main()
