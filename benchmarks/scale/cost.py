"""What a terabyte would cost: a line for each stage, fitted on small runs and held against one it was not fitted on.

    .venv/bin/python benchmarks/scale/cost.py --texts FILE.jsonl... [--fit 0.25 0.5 1 2] [--check 4] [--scratch FOLDER]

Each input repeats the lines of the files; each copy's texts begin with the copy's number, so that no text comes twice.
A stage's line is processor seconds = a + b GB (non-negative least squares, relative errors), and so are bytes written,
files in the store, and peak memory. The table's last columns are the prediction for the size of the check, and what it
came to. Then the sum for 1 TB, in core hours and in dollars.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from scipy.optimize import nnls

sys.path.insert(0, str(Path(__file__).parents[1] / "speed"))
sys.path.insert(0, str(Path(__file__).parents[1] / "memory"))

from measured import run_pipeline
from peak import write_copies
from shared import environment, parser

INSTANCE, CORES, MEMORY_GB, DOLLARS_AN_HOUR = "c7i.8xlarge", 32, 64, 1.428
"""On demand in us-east-1, 2026."""
PUT, GET, GB_MONTH = 0.005 / 1000, 0.0004 / 1000, 0.023
"""Dollars of S3 standard."""


def main() -> None:
    made = parser(__doc__)
    made.add_argument("--fit", type=float, nargs="+", default=[0.25, 0.5, 1.0, 2.0])
    made.add_argument("--check", type=float, default=4.0)
    made.add_argument("--texts", type=Path, nargs="+", required=True)
    options = made.parse_args()
    runs = {}
    for gigabytes in [*options.fit, options.check]:
        with tempfile.TemporaryDirectory(dir=options.scratch) as folder:
            runs[gigabytes] = measure(gigabytes, Path(folder), options)
        print(f"{gigabytes:g} GB: {sum(runs[gigabytes]['cpu'].values()):.1f} processor seconds", flush=True)
    report(runs, options.fit, options.check)


def measure(gigabytes: float, folder: Path, options: Any) -> dict[str, Any]:
    """A first run on so much text: processor seconds a stage, peak bytes, records, bytes and files that it left."""
    corpus = folder / "corpus.jsonl"
    write_copies(options.texts, corpus, int(gigabytes * 1e9))
    result = run_pipeline(environment(corpus, folder, options.model))
    store = [path.stat().st_size for path in (folder / "store").rglob("*") if path.is_file()]
    output = sum(path.stat().st_size for path in (folder / "out").iterdir())
    return {**result, "files": len(store), "stored": sum(store), "output": output}


def line(sizes: list[float], values: list[float]) -> tuple[float, float]:
    """(a, b) >= 0 of value = a + b size, by the least relative errors."""
    x, y = np.array(sizes), np.maximum(values, 1e-9)
    (a, b), _ = nnls(np.stack([1 / y, x / y], axis=1), np.ones(len(y)))
    return float(a), float(b)


def report(runs: dict[float, dict[str, Any]], fit: list[float], check: float) -> None:
    stages = list(runs[check]["cpu"])
    print(
        f"\n{'processor seconds':22}{'fixed':>8}{'a GB':>8}{f'{check:g} GB':>9}{'measured':>10}{'error':>8}"
    )
    lines = {}
    for stage in stages:
        lines[stage] = line(fit, [runs[size]["cpu"][stage] for size in fit])
        _print_row(stage, lines[stage], check, runs[check]["cpu"][stage])
    total = tuple(np.sum([lines[stage] for stage in stages], axis=0))
    _print_row("all", total, check, sum(runs[check]["cpu"].values()))
    for what, unit in (("peak", 1e6), ("stored", 1e6), ("output", 1e6), ("files", 1)):
        found = line(fit, [runs[size][what] / unit for size in fit])
        _print_row(f"{what}{', MB' if unit > 1 else ''}", found, check, runs[check][what] / unit)
        lines[what] = found
    hours = (total[0] + 1000 * total[1]) / 3600
    machine = DOLLARS_AN_HOUR / CORES
    files = lines["files"][0] + 1000 * lines["files"][1]
    kept = (1000 * (lines["stored"][1] + lines["output"][1])) / 1000
    print(
        f"\n1 TB: {hours:,.0f} core hours, ${hours * machine:,.2f} at ${machine:.4f} a core hour ({INSTANCE}: {CORES} "
        f"cores, {MEMORY_GB} GB, ${DOLLARS_AN_HOUR} an hour); {files:,.0f} files: ${files * PUT:,.2f} to put, "
        f"${files * GET:,.2f} to read once; {kept:,.0f} GB kept: ${kept * GB_MONTH:,.2f} a month"
    )


def _print_row(name: str, found: tuple[float, ...], size: float, measured: float) -> None:
    predicted = found[0] + found[1] * size
    error = predicted / measured - 1 if measured > 0 else 0.0
    print(f"{name:22}{found[0]:8.2f}{found[1]:8.2f}{predicted:9.2f}{measured:10.2f}{error:+8.0%}")


if __name__ == "__main__":
    main()
