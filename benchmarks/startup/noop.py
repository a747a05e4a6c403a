"""What Dagster itself costs: materialising everything when nothing is new, by the command line, beside the same stages
without Dagster. A small corpus, made here; the first run, which computes, is not counted.

python benchmarks/startup/noop.py --pairs 3
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

CONFIG = """
[input]
paths = ["docs.jsonl"]
[store]
path = "store"
[output]
path = "curated"
[advanced]
vocab_size = 512
token_dims = 16
decoder_tokens = 2000
film_frames = 4
[clusters]
k = 4
[sequence]
length = 128
batch = 4
"""
MATERIALIZE = ["-m", "dagster", "asset", "materialize", "--select", "*", "-m", "dagster_divorder.definitions"]
STAGES = """
from dagster_divorder.stages import GRAPH, run_all
from dagster_divorder.settings import load_settings
settings = load_settings()
run_all(settings, stages=GRAPH.upstream(settings))
"""


def make_corpus(folder: Path, documents: int) -> Path:
    """A corpus of random words in a folder; its settings file."""
    drawn = random.Random(0)
    words = ["".join(drawn.choices("abcdefghij", k=5)) for _ in range(200)]
    with open(folder / "docs.jsonl", "w") as file:
        for _ in range(documents):
            text = " ".join(drawn.choices(words, k=drawn.randint(5, 80)))
            print(json.dumps({"text": text}), file=file)
    config = folder / "divorder.toml"
    config.write_text(CONFIG)
    return config


def seconds(folder: Path, arguments: list[str]) -> float:
    """Wall time of a Python process."""
    environment = {**os.environ, "DIVORDER_CONFIG": str(folder / "divorder.toml"), "PYTHONWARNINGS": "ignore"}
    start = time.perf_counter()
    run = subprocess.run(
        [sys.executable, *arguments], cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    if run.returncode:
        sys.exit(run.stderr)
    return time.perf_counter() - start


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--pairs", type=int, default=3)
    parser.add_argument("--documents", type=int, default=500)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        make_corpus(folder, options.documents)
        print(f"everything, first run: {seconds(folder, MATERIALIZE):.1f} s")
        dagster, bare = [], []
        for _ in range(options.pairs):
            dagster.append(seconds(folder, MATERIALIZE))
            bare.append(seconds(folder, ["-c", STAGES]))
    overhead = [one - other for one, other in zip(dagster, bare, strict=True)]
    print(
        f"nothing new: with Dagster {statistics.median(dagster):.1f} s, stages alone {statistics.median(bare):.1f} s"
    )
    print(
        f"Dagster itself: median {statistics.median(overhead):.1f} s, up to {max(overhead):.1f} s; load",
        os.getloadavg(),
    )


if __name__ == "__main__":
    main()
