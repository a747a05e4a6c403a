"""Document orders on a real corpus: the document-level rows of the design's table "Two levels".

    python benchmarks/ordering/documents.py --store STORE          a store that `clusters` has been materialised into
    python benchmarks/ordering/documents.py --arrays CORPUS.npz    or .parquet, with `tokens` and `cluster` by document

Prints, for 20 and for 100 length bins: distinct clusters per sequence when documents are packed by splitting, mean
and worst total variation between a batch and the corpus over the clusters, mean prefix L2 deviation over clusters
and length bins at sequence ends in tokens, seconds (compiled before).
"""

import argparse
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd

from dagster_divorder.core.measure import Measures, average, measure, packed_counts
from dagster_divorder.core.order import order
from dagster_divorder.core.order.items import Items, document_items
from dagster_divorder.core.order.traits import bin_codes, quantile_edges
from dagster_divorder.core.packing import Pieces, pack

HEADER = (
    "| length bins | documents ordered by | distinct | TV batch | worst TV | mean prefix L2 | seconds |\n"
    "|--:|---|--:|--:|--:|--:|--:|"
)


def load(options: argparse.Namespace) -> tuple[np.ndarray, np.ndarray]:
    """(tokens int64 (N,), cluster int32 (N,)) in input order."""
    if options.store:
        from dagster_divorder import load_results

        table = load_results(options.store).documents
    elif options.arrays.suffix == ".npz":
        with np.load(options.arrays) as arrays:
            table = pd.DataFrame({name: arrays[name] for name in ("tokens", "cluster")})
    else:
        table = pd.read_parquet(options.arrays, columns=["tokens", "cluster"])
    return table["tokens"].to_numpy(np.int64), table["cluster"].to_numpy(np.int32)


def arguments(description: str | None) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--store", type=Path)
    source.add_argument("--arrays", type=Path)
    parser.add_argument("--length-bins", type=int, nargs="+", default=[20, 100])
    parser.add_argument("--sequence-length", type=int, default=8192)
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--seeds", type=int, default=3)
    return parser


def tokens_only(items: Items) -> Items:
    """The groups counted in tokens (the first two: cluster and length) alone."""
    kept = items.groups < 2
    return Items(items.counts[:, kept], items.groups[kept], items.weights[:2])


class Corpus:
    """Tokens, clusters and length bins of one corpus, and the measures of an order of it."""

    def __init__(self, options: argparse.Namespace, length_bins: int) -> None:
        self.options = options
        self.tokens, clusters = load(options)
        self.codes = {
            "cluster": clusters,
            "length": bin_codes(self.tokens, quantile_edges(self.tokens, length_bins)),
        }
        self.n_values = {name: int(codes.max()) + 1 for name, codes in self.codes.items()}
        self.items = document_items(self.tokens, self.codes)

    def measure(self, make: Callable[[int], np.ndarray], seeds: int) -> tuple[Measures, float]:
        """The mean over seeds 0..seeds-1 of what `make(seed)` orders, and of the seconds it takes."""
        measured, start = [], 0.0
        for seed in range(seeds):
            begin = time.perf_counter()
            made = make(seed)
            start += time.perf_counter() - begin
            pieces = Pieces(made, np.zeros_like(made), self.tokens[made])
            packed = pack(pieces, sequence_length=self.options.sequence_length)
            counts = packed_counts(packed, self.codes, self.n_values)
            measured.append(measure(counts, np.arange(len(packed)), batch=self.options.batch))
        return average(measured), start / seeds


def row(name: str, length_bins: int, measures: Measures, seconds: float) -> str:
    figures = measures.figures
    batch, distinct = (figures[of]["cluster"] for of in ("batch_tv", "distinct"))
    return (
        f"| {length_bins} | {name} | {distinct['mean']:.2f} | {batch['mean']:.4f} | {batch['worst']:.3f} "
        f"| {figures['prefix']['mean']:,.0f} | {seconds:.2f} |"
    )


def main() -> None:
    options = arguments(__doc__).parse_args()
    print(HEADER)
    for length_bins in options.length_bins:
        corpus = Corpus(options, length_bins)
        both, tokens = corpus.items, tokens_only(corpus.items)

        def ordered(items: Items, strategy: str) -> Callable[[int], np.ndarray]:
            return lambda seed: order(items, strategy=strategy, seed=seed)

        for name, items, strategy, seeds in (
            ("original", both, "original", 1),
            (f"random, {options.seeds} seeds", both, "random", options.seeds),
            ("stratified (Diversity-Ordered Training)", both, "stratified", 1),
            (f"balanced in tokens only, {options.seeds} seeds", tokens, "balanced", options.seeds),
            (f"balanced in tokens and in documents, {options.seeds} seeds", both, "balanced", options.seeds),
        ):
            make = ordered(items, strategy)
            make(0)
            print(row(name, length_bins, *corpus.measure(make, seeds)), flush=True)


if __name__ == "__main__":
    main()
