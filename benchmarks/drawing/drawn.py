"""What the report and the two films take at the size of a real corpus: seconds, and megabytes of what is drawn.

    .venv/bin/python benchmarks/drawing/drawn.py FILE.jsonl [--documents 70000] [--evidence]

The corpus is the file's first documents, taken again with a number before the text where it has too few. Everything
before the two stages is made first. With --evidence the report also shows k_calibration, ari_comparison and
strategy_comparison, which take minutes to make.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from itertools import count, islice
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "speed"))
from measured import run_pipeline
from shared import environment, marked

EVIDENCE = ["deep_embeddings", "ari_comparison", "k_calibration"]


def main() -> None:
    made = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("input", type=Path)
    made.add_argument("--documents", type=int, default=70_000)
    made.add_argument("--evidence", action="store_true")
    options = made.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        corpus = Path(folder) / "corpus.jsonl"
        lines = options.input.read_bytes().splitlines(keepends=True)
        copies = (marked(line, copy) if copy else line for copy in count() for line in lines)
        corpus.write_bytes(b"".join(islice(copies, options.documents)))
        environ = environment(corpus, folder, "bootstrap") | {
            "DIVORDER_OUTPUT__SIDECARS": '["plot"]',
        }
        stages = ["raw_docs", "base_model", "token_counts", "shallow_embeddings"]
        stages += EVIDENCE if options.evidence else []
        stages += ["clusters", "cluster_map", "greedy_order", "packed_sequences", "sequence_order"]
        stages += ["diversity_metrics", *["strategy_comparison"] * options.evidence, "curated_output"]
        run_pipeline(environ, ",".join(stages))
        drawn = {stage: run_pipeline(environ, stage) for stage in ("ordering_report", "ordering_animation")}
        print(f"{options.documents:,} documents; load {os.getloadavg()[0]:.1f}\n")
        for stage, run in drawn.items():
            print(
                f"{stage:20}{run['stages'][stage]:8.1f} s{run['cpu'][stage]:8.1f} s of processors"
                f"{run['peak'] / 1e6:8.0f} MB at its peak"
            )
        for file in sorted(Path(folder, "out").glob("ordering_*")):
            print(f"{file.name:30}{file.stat().st_size / 1e6:8.2f} MB")


if __name__ == "__main__":
    main()
