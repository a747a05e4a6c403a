"""Sequences of equal length: `balanced` against the exact greedy. Synthetic, since only the trait rows matter.

    python benchmarks/ordering/sequences.py [--sequences 20000 100000] [--seeds 3]    quality, over exact f3's
    python benchmarks/ordering/sequences.py --time [--sequences 100000 400000 1000000 4000000] [--coordinates 0 64]
    python benchmarks/ordering/sequences.py --plain [--sequences 20000]    exact f3 and a plain loop in turn

Documents of log-normal length (mean 900 tokens, sigma 1.1) in 1000 clusters of uneven size, packed in random order into
sequences of 2048 tokens; groups: the clusters, and 100 quantile bins of document length. Quality is the L2 norm of the
prefix deviation in tokens, over both groups and over each, mean and largest over all prefixes; and its largest single
coordinate. Time is that of `order` alone, compiled before; memory is the peak of a process that also made the data.
"""

import argparse
import itertools
import multiprocessing
import resource
import statistics
import time

import numpy as np
from numba import njit
from scipy.sparse import csr_matrix

from dagster_divorder.core.order import Items, order
from dagster_divorder.core.order.traits import bin_codes, quantile_edges

CLUSTERS, BINS, LENGTH, MEAN, SIGMA = 1000, 100, 2048, 900, 1.1
CHUNK = 100_000


def items_of(counts: csr_matrix, groups: np.ndarray, coordinates: np.ndarray | None = None) -> Items:
    return Items(counts, groups, np.ones(groups.max() + 1), coordinates)


def packed(sequences: int, seed: int = 0) -> tuple[csr_matrix, np.ndarray]:
    """(counts (M, CLUSTERS + BINS) int32, groups): tokens by cluster and by length bin of each sequence."""
    random = np.random.default_rng(seed)
    total = sequences * LENGTH
    lengths = np.ceil(random.lognormal(np.log(MEAN) - SIGMA**2 / 2, SIGMA, 2 * total // MEAN)).astype(
        np.int64
    )
    ends = np.cumsum(lengths)
    documents = int(np.searchsorted(ends, total)) + 1
    lengths, ends = lengths[:documents].copy(), ends[:documents].copy()
    sizes = random.gamma(1.0, size=CLUSTERS)
    clusters = random.choice(CLUSTERS, documents, p=sizes / sizes.sum()).astype(np.int32)
    bins = bin_codes(lengths, quantile_edges(lengths, BINS))
    parts = []
    # In chunks of sequences, so that the peak of memory is the order's and not the generator's.
    for first in range(0, sequences, CHUNK):
        begin, end = first * LENGTH, min(first + CHUNK, sequences) * LENGTH
        inside = ends[np.searchsorted(ends, begin, side="right") : np.searchsorted(ends, end)]
        starts = np.unique(np.concatenate([np.arange(begin, end, LENGTH), inside]))
        tokens = np.diff(np.append(starts, end)).astype(np.int32)
        document = np.searchsorted(ends, starts, side="right")
        rows = np.tile(starts // LENGTH - first, 2)
        columns = np.concatenate([clusters[document], CLUSTERS + bins[document]])
        shape = ((end - begin) // LENGTH, CLUSTERS + BINS)
        parts.append(csr_matrix((np.tile(tokens, 2), (rows, columns)), shape=shape))
    indptr = np.concatenate([[0], np.cumsum(np.concatenate([np.diff(part.indptr) for part in parts]))])
    counts = csr_matrix(
        (
            np.concatenate([part.data for part in parts]),
            np.concatenate([part.indices for part in parts]),
            indptr,
        ),
        shape=(sequences, CLUSTERS + BINS),
    )
    return counts, np.repeat([0, 1], [CLUSTERS, BINS])


def deviation(made: np.ndarray, counts: csr_matrix, groups: np.ndarray) -> np.ndarray:
    """[mean L2, of group 0, of group 1, largest L2, of group 0, of group 1, largest coordinate], in tokens."""
    share = np.asarray(counts.sum(axis=0)).ravel() / counts.shape[0]
    so_far = np.zeros(counts.shape[1])
    squares, largest = [], 0.0
    for begin in range(0, len(made), 1000):
        prefix = so_far + np.cumsum(counts[made[begin : begin + 1000]].toarray() - share, axis=0)
        so_far = prefix[-1]
        squares.append(np.stack([(prefix[:, groups == group] ** 2).sum(axis=1) for group in (0, 1)]))
        largest = max(largest, float(np.abs(prefix).max()))
    clusters, bins = np.concatenate(squares, axis=1)
    norms = np.sqrt([clusters + bins, clusters, bins])
    return np.array([*norms.mean(axis=1), *norms.max(axis=1), largest])


def quality(sequences: list[int], seeds: int) -> None:
    print(
        "| sequences | order | mean L2 | clusters | length bins | largest L2 | clusters | length bins | coordinate "
        "| seconds |\n|--:|---|--:|--:|--:|--:|--:|--:|--:|--:|"
    )
    for m in sequences:
        counts, groups = packed(m)

        def timed(strategy: str, seed: int = 0) -> tuple[np.ndarray, float]:
            begin = time.perf_counter()
            made = order(items_of(counts, groups), strategy=strategy, seed=seed)  # noqa: B023
            seconds = time.perf_counter() - begin
            return deviation(made, counts, groups), seconds  # noqa: B023

        exact, seconds = timed("f3")
        print(row(m, "exact f3", exact, seconds, "{:,.0f}"), flush=True)
        print(row(m, "random", *timed("random"), "{:,.0f}"), flush=True)
        runs = [timed("balanced", seed) for seed in range(seeds)]
        mean = np.mean([found for found, _ in runs], axis=0)
        print(row(m, "balanced", mean, statistics.mean(s for _, s in runs), "{:,.0f}"))
        for seed, (found, seconds) in enumerate(runs):
            print(row(m, f"balanced, seed {seed}, over f3's", found / exact, seconds, "{:.3f}"), flush=True)


def row(sequences: int, name: str, figures: np.ndarray, seconds: float, form: str) -> str:
    return f"| {sequences:,} | {name} | {' | '.join(map(form.format, figures))} | {seconds:.2f} |"


def one_time(sequences: int, dims: int) -> None:
    counts, groups = packed(sequences)
    coordinates = None
    if dims:
        coordinates = 200 * np.random.default_rng(0).standard_normal((sequences, dims), np.float32)
        order(items_of(*packed(300), coordinates[:300]))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    begin, cpu = time.perf_counter(), time.process_time()
    order(items_of(counts, groups, coordinates))
    seconds, cpu = time.perf_counter() - begin, time.process_time() - cpu
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    print(
        f"| {sequences:,} | {dims} | {seconds:.1f} | {cpu:.1f} | {1e6 * seconds / sequences:.1f} | {before:.2f} "
        f"| {peak:.2f} |",
        flush=True,
    )


def times(sequences: list[int], coordinates: list[int]) -> None:
    print(
        "| sequences | coordinates | seconds | CPU seconds | microseconds a sequence | peak before, GB | peak, GB |\n"
        "|--:|--:|--:|--:|--:|--:|--:|"
    )
    for m, dims in itertools.product(sequences, coordinates):
        # A process each, so that one peak does not hide the next.
        process = multiprocessing.get_context("spawn").Process(target=one_time, args=(m, dims))
        process.start()
        process.join()


@njit
def plain_loop(indptr, indices, data, tau):
    """Every remaining candidate from its row, at every step: |D + a|^2 - |D|^2 = |a|^2 + 2 <D, a>, |a|^2 beforehand.

    All lengths are equal, so what <D, a> has of l tau is the same for all.
    """
    items = indptr.shape[0] - 1
    square = (LENGTH * tau) @ (LENGTH * tau)
    norm = np.full(items, square)
    for item in range(items):
        for k in range(indptr[item], indptr[item + 1]):
            norm[item] += data[k] * (data[k] - 2.0 * LENGTH * tau[indices[k]])
    deviation = np.zeros(tau.shape[0])
    left = np.arange(items)
    out = np.empty(items, np.int64)
    for t in range(items):
        best, least = 0, np.inf
        for i in range(items - t):
            item = left[i]
            score = norm[item]
            for k in range(indptr[item], indptr[item + 1]):
                score += 2.0 * data[k] * deviation[indices[k]]
            if score < least:
                best, least = i, score
        item = left[best]
        left[best] = left[items - t - 1]
        out[t] = item
        deviation -= LENGTH * tau
        for k in range(indptr[item], indptr[item + 1]):
            deviation[indices[k]] += data[k]
    return out


def plain(sequences: list[int]) -> None:
    print("| sequences | plain loop, s | exact f3, s | ratio, medians of three in turn |\n|--:|--:|--:|--:|")
    for m in sequences:
        counts, groups = packed(m)
        tau = np.asarray(counts.sum(axis=0)).ravel() / (LENGTH * m)
        rows = counts.indptr, counts.indices, counts.data, tau
        taken: tuple[list[float], list[float]] = [], []
        for _ in range(3):
            for place, run in enumerate(
                (lambda: plain_loop(*rows), lambda: order(items_of(counts, groups), strategy="f3"))  # noqa: B023
            ):
                begin = time.perf_counter()
                run()
                taken[place].append(time.perf_counter() - begin)
        slow, fast = map(statistics.median, taken)
        print(f"| {m:,} | {slow:.2f} | {fast:.2f} | {slow / fast:.1f} |", flush=True)


def warm_up() -> None:
    counts, groups = packed(300)
    for strategy in ("balanced", "f3", "random"):
        order(items_of(counts, groups), strategy=strategy)
    tau = np.asarray(counts.sum(axis=0)).ravel() / (LENGTH * counts.shape[0])
    plain_loop(counts.indptr, counts.indices, counts.data, tau)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--sequences", type=int, nargs="+")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument(
        "--coordinates", type=int, nargs="+", default=[0, 64], help="dense coordinates, to time"
    )
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--time", action="store_true")
    what.add_argument("--plain", action="store_true")
    options = parser.parse_args()
    warm_up()
    if options.time:
        times(options.sequences or [100_000, 400_000, 1_000_000, 4_000_000], options.coordinates)
    elif options.plain:
        plain(options.sequences or [20_000])
    else:
        quality(options.sequences or [20_000, 100_000], options.seeds)


if __name__ == "__main__":
    main()
