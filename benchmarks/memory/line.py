"""Peak memory against the size of the input: is it a fixed part and a small part a document?

    .venv/bin/python benchmarks/memory/line.py GIGABYTES... --texts FILE.jsonl... [--model DIRECTORY] [--scratch FOLDER]

Each input repeats the lines of the files; each copy's texts begin with the copy's number, so that no text comes twice.
Memory is resident memory of the run and its workers together.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1] / "speed"))

from measured import run_pipeline
from shared import TEXT, environment, marked, parser

FIXED = 1.5e9
PER_DOCUMENT = 160


def main() -> None:
    made = parser(__doc__)
    made.add_argument("gigabytes", type=float, nargs="+")
    made.add_argument("--texts", type=Path, nargs="+", required=True)
    options = made.parse_args()
    points = []
    print(f"{'input, GB':>10}{'documents':>12}{'compute, s':>12}{'peak, MB':>10}{'allowed, MB':>13}")
    for gigabytes in options.gigabytes:
        with tempfile.TemporaryDirectory(dir=options.scratch) as folder:
            corpus = Path(folder) / "corpus.jsonl"
            write_copies(options.texts, corpus, int(gigabytes * 1e9))
            result = run_pipeline(environment(corpus, folder, options.model))
        allowed = FIXED + PER_DOCUMENT * result["records"]
        points.append((result["records"], result["peak"]))
        shown = f"{result['compute']:12.1f}{result['peak'] / 1e6:10.0f}{allowed / 1e6:13.0f}"
        print(f"{gigabytes:10.2f}{result['records']:12,}{shown}", flush=True)
    if len(points) > 1:
        documents, peaks = np.array(points, dtype=float).T
        slope, fixed = np.polyfit(documents, peaks, 1)
        print(f"line: {fixed / 1e6:.0f} MB + {slope:.0f} bytes a document")


def write_copies(files: list[Path], target: Path, size: int) -> None:
    """Write about `size` bytes of the files' lines, copy after copy, each text marked with its copy's number."""
    lines = [line for file in files for line in file.read_bytes().splitlines(keepends=True) if TEXT in line]
    written = copy = 0
    with target.open("wb", buffering=1 << 22) as out:
        while written < size:
            for line in lines:
                written += out.write(marked(line, copy))
                if written >= size:
                    break
            copy += 1


if __name__ == "__main__":
    main()
