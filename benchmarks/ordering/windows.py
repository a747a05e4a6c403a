"""Seconds that the deviation over every window position takes.

    python benchmarks/ordering/windows.py [--documents 1000000 10000000]

Documents of log-normal length in three traits of 30,
100 and 16 values; windows of 8192 tokens, and of 256 and 2560 times that. CPU seconds, compiled before, and the
process's peak memory so far, inputs included.
"""

import argparse
import resource
import time

import numpy as np

from dagster_divorder.core.measure import windows_in_stream

TRAITS = (30, 100, 16)


def row(what: str, items: int, windows: str, begin: float) -> str:
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return f"| {what} | {items:,} | {windows} | {time.process_time() - begin:.2f} | {peak:,.0f} |"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--documents", type=int, nargs="*", default=[1_000_000, 10_000_000])
    options = parser.parse_args()
    random = np.random.default_rng(1)
    windows_in_stream(np.ones(2, np.int64), np.zeros(2, np.int32), 1, 1)
    print("| items | number | windows of | CPU seconds | peak memory, MB |\n|---|--:|---|--:|--:|")
    for n in options.documents:
        tokens = np.ceil(random.lognormal(5, 1.5, n)).astype(np.int64)
        codes = [(random.integers(0, j, n).astype(np.int32), j) for j in TRAITS]
        begin = time.process_time()
        for window in (8192, 256 * 8192, 2560 * 8192):
            for of, j in codes:
                windows_in_stream(tokens, of, j, window)
        print(row("documents, 3 traits", n, "3 sizes", begin), flush=True)


if __name__ == "__main__":
    main()
