"""Seconds that the certificate takes: the deviation over every window position, of sequences and of documents.

    python benchmarks/ordering/certificate.py [--sequences 100000 4000000] [--documents 1000000 10000000]

Sequences of 2048 tokens in six entries over 1000 clusters and 100 length bins, shuffled; windows of one sequence, of
256, of 2560, and of 5000 tokens, which start inside sequences. Documents of log-normal length in three traits of 30,
100 and 16 values; windows of 8192 tokens, and of 256 and 2560 times that. CPU seconds, compiled before, and the
process's peak memory so far, inputs included.
"""

import argparse
import resource
import time

import numpy as np
from scipy.sparse import csr_matrix

from dagster_divorder.core.metrics import window_deviation
from dagster_divorder.core.metrics.window_deviation import windows_in_stream

CLUSTERS, BINS, LENGTH = 1000, 100, 2048
TRAITS = (30, 100, 16)


def sequences(m: int) -> tuple[csr_matrix, np.ndarray]:
    """(counts (M, CLUSTERS + BINS) int32 of three clusters and three bins a row, groups)."""
    random = np.random.default_rng(0)
    first, second = random.integers(1, LENGTH // 2, (2, m), dtype=np.int32)
    parts = np.stack([first, second, LENGTH - first - second], axis=1)
    indices = np.empty((m, 6), np.int32)
    for at, (start, width) in enumerate(((0, CLUSTERS // 3), (CLUSTERS, BINS // 3))):
        columns = slice(3 * at, 3 * at + 3)
        indices[:, columns] = random.integers(0, width, (m, 3), dtype=np.int32) + start
        indices[:, columns] += np.arange(3, dtype=np.int32) * width
    data = np.concatenate([parts, parts[:, ::-1]], axis=1)
    shape = (m, CLUSTERS + BINS)
    counts = csr_matrix((data.ravel(), indices.ravel(), np.arange(0, 6 * m + 1, 6)), shape=shape)
    return counts, np.repeat([0, 1], [CLUSTERS, BINS])


def row(what: str, items: int, windows: str, begin: float) -> str:
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return f"| {what} | {items:,} | {windows} | {time.process_time() - begin:.2f} | {peak:,.0f} |"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--sequences", type=int, nargs="*", default=[100_000, 4_000_000])
    parser.add_argument("--documents", type=int, nargs="*", default=[1_000_000, 10_000_000])
    options = parser.parse_args()
    random = np.random.default_rng(1)
    counts, groups = sequences(100)
    window_deviation(np.arange(100), counts, groups, 5000)
    windows_in_stream(np.ones(2, np.int64), np.zeros(2, np.int32), 1, 1)
    print("| items | number | windows of | CPU seconds | peak memory, MB |\n|---|--:|---|--:|--:|")
    for m in options.sequences:
        counts, groups = sequences(m)
        made = random.permutation(m)
        for window in (LENGTH, 256 * LENGTH, 2560 * LENGTH, 5000):
            begin = time.process_time()
            window_deviation(made, counts, groups, window)
            print(row("sequences", m, f"{window:,} tokens", begin), flush=True)
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
