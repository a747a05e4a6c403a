"""What calibrating the number of clusters costs, and what it costs again with 1 % of the corpus appended.

python benchmarks/clustering/k_calibration.py ../shared/data/mixture.jsonl.gz --documents 20000

Lines are taken evenly from the corpus (all of them without --documents); every hundredth is held back and appended.
Asked for: 20,000 documents and 10 values of k under 60 s on 2 cores, the append at most 5 % of that.
"""

from __future__ import annotations

import argparse
import gzip
import os
import tempfile
import time
from pathlib import Path

from dagster_divorder import Settings, run_all, run_stage
from dagster_divorder.engine.progress import Silent
from dagster_divorder.stages import GRAPH
from dagster_divorder.stages.topics.k_calibration import load_table
from dagster_divorder.store.local import LocalStore
from dagster_divorder.store.state import Receipt

PERCENT = 100


def taken(corpus: Path, documents: int | None) -> list[bytes]:
    """Lines spread evenly over the corpus."""
    with (gzip.open if corpus.suffix == ".gz" else open)(corpus) as file:
        lines = file.readlines()
    count = min(documents or len(lines), len(lines))
    return [lines[at * len(lines) // count] for at in range(count)]


def calibrated(settings: Settings) -> tuple[Receipt, float]:
    """The receipt, and the processor seconds of the stage."""
    *before, stage = GRAPH.needed(settings, "k_calibration")
    run_all(settings, Silent(), before)
    start = time.process_time()
    receipt = run_stage(stage, settings, Silent())
    return receipt, time.process_time() - start


def show(rows: list[dict[str, object]]) -> None:
    names = ("k", "silhouette", "smallest", "median", "largest")
    print("".join(f"{name:>12}" for name in names))
    for row in rows:
        cells = "".join(f"{row[name]:>12.4g}" for name in names)
        print(cells + (" recommended" if row["recommended"] else ""))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("corpus", type=Path)
    parser.add_argument("--documents", type=int)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    lines = taken(options.corpus, options.documents)
    with tempfile.TemporaryDirectory() as folder:
        corpus = Path(folder) / "corpus.jsonl"
        settings = Settings(
            input={"paths": [str(corpus)]}, store={"path": f"{folder}/store"}, seed=options.seed
        )
        corpus.write_bytes(b"".join(line for at, line in enumerate(lines, 1) if at % PERCENT))
        first, processor = calibrated(settings)
        with corpus.open("ab") as file:
            file.write(b"".join(lines[PERCENT - 1 :: PERCENT]))
        appended, _ = calibrated(settings)
        show(load_table(LocalStore(settings.store.path), first.files["fit"]))
    for note in first.figures["notes"]:
        print(note)
    figures = first.figures
    taken_by = f"{figures['seconds']:.2f} s ({processor:.2f} s of processor time)"
    print(f"\n{figures['documents']:,} documents: {taken_by}")
    share = appended.figures["seconds"] / figures["seconds"]
    print(f"1 % appended: {appended.figures['seconds']:.3f} s, {share:.2%} ({appended.figures['fitted']})")
    print(f"load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")


if __name__ == "__main__":
    main()
