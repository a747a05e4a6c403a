"""Sequences by the same `balanced`: the design's first table. Synthetic, since only the trait rows matter.

    python benchmarks/ordering/sequences.py [--sequences 20000 100000] [--exact]

Documents of log-normal length (mean 900 tokens, sigma 1.1) in 1000 clusters of uneven size, packed in random order into
sequences of 2048 tokens; groups: the clusters, and 100 quantile bins of document length. Prints the L2 norm of the
prefix deviation over both groups in tokens, mean and largest over all prefixes, its largest single coordinate, and
seconds. --exact adds the exact greedy over all remaining sequences, the pool as large as the corpus.
"""

import argparse
import time

import numpy as np
from scipy.sparse import csr_matrix

from dagster_divorder.core.order import balanced, order
from dagster_divorder.core.traits import bin_codes, quantile_edges

CLUSTERS, BINS, LENGTH, MEAN, SIGMA = 1000, 100, 2048, 900, 1.1


def packed(sequences: int, seed: int = 0) -> tuple[csr_matrix, np.ndarray]:
    """(counts (M, CLUSTERS + BINS) int32, groups): tokens by cluster and by length bin of each sequence."""
    random = np.random.default_rng(seed)
    total = sequences * LENGTH
    lengths = np.ceil(random.lognormal(np.log(MEAN) - SIGMA**2 / 2, SIGMA, 2 * total // MEAN)).astype(
        np.int64
    )
    ends = np.cumsum(lengths)
    documents = int(np.searchsorted(ends, total)) + 1
    lengths, ends = lengths[:documents], ends[:documents]
    sizes = random.gamma(1.0, size=CLUSTERS)
    clusters = random.choice(CLUSTERS, documents, p=sizes / sizes.sum())
    bins = bin_codes(lengths, quantile_edges(lengths, BINS))
    starts = np.unique(np.concatenate([np.arange(0, total, LENGTH), ends[:-1]]))
    tokens = np.diff(np.append(starts, total)).astype(np.int32)
    document = np.searchsorted(ends, starts, side="right")
    rows = np.tile(starts // LENGTH, 2)
    columns = np.concatenate([clusters[document], CLUSTERS + bins[document]])
    counts = csr_matrix((np.tile(tokens, 2), (rows, columns)), shape=(sequences, CLUSTERS + BINS))
    return counts, np.repeat([0, 1], [CLUSTERS, BINS])


def deviation(made: np.ndarray, counts: csr_matrix) -> tuple[float, float, float]:
    """(mean L2, largest L2, largest coordinate) of the prefix deviation, in tokens."""
    share = np.asarray(counts.sum(axis=0)).ravel() / counts.shape[0]
    so_far = np.zeros(counts.shape[1])
    norms, largest = [], 0.0
    for begin in range(0, len(made), 1000):
        prefix = so_far + np.cumsum(counts[made[begin : begin + 1000]].toarray() - share, axis=0)
        so_far = prefix[-1]
        norms.append(np.linalg.norm(prefix, axis=1))
        largest = max(largest, float(np.abs(prefix).max()))
    every = np.concatenate(norms)
    return float(every.mean()), float(every.max()), largest


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--sequences", type=int, nargs="+", default=[20_000, 100_000])
    parser.add_argument("--pools", type=int, nargs="+", default=[balanced.POOL])
    parser.add_argument("--exact", action="store_true")
    options = parser.parse_args()
    print(
        "| sequences | order | mean L2 | largest L2 | largest coordinate | seconds |\n|--:|---|--:|--:|--:|--:|"
    )
    order(*packed(100))
    for sequences in options.sequences:
        counts, groups = packed(sequences)
        runs = [("random", "random", 1)] + [
            (f"balanced, pool {pool}", "balanced", pool) for pool in options.pools
        ]
        if options.exact:
            runs.append(("exact greedy", "balanced", sequences))
        for name, strategy, pool in runs:
            balanced.POOL = pool
            begin = time.perf_counter()
            made = order(counts, groups, strategy=strategy)
            seconds = time.perf_counter() - begin
            mean, largest, coordinate = deviation(made, counts)
            print(
                f"| {sequences:,} | {name} | {mean:,.0f} | {largest:,.0f} | {coordinate:,.0f} | {seconds:.2f} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
