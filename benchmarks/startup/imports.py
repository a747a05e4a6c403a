"""How long the code location takes to load, beside a bare `import dagster`: pairs in turn, each in a fresh interpreter.

python benchmarks/startup/imports.py --pairs 7
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import time


def seconds(statement: str) -> float:
    """Wall time of a fresh interpreter that runs one statement."""
    start = time.perf_counter()
    subprocess.run([sys.executable, "-c", statement], check=True)
    return time.perf_counter() - start


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--pairs", type=int, default=7)
    options = parser.parse_args()
    ours, bare = [], []
    for _ in range(options.pairs):
        ours.append(seconds("import dagster_divorder.definitions"))
        bare.append(seconds("import dagster"))
    ratios = [one / other for one, other in zip(ours, bare, strict=True)]
    print(
        f"dagster_divorder.definitions {statistics.median(ours):.2f} s, dagster {statistics.median(bare):.2f} s"
    )
    print(f"ratio: median {statistics.median(ratios):.2f}, from {min(ratios):.2f} to {max(ratios):.2f}")


if __name__ == "__main__":
    main()
