"""What it costs to spread copies: the mixture corpus with some documents repeated.

    python benchmarks/ordering/copies.py --arrays CORPUS.npz [--seeds 3] [--epochs]

Reads a corpus as documents.py does. 13 % of the records are made copies, of documents that have at most 2, 8, 32 or
2000 of them (numbers of copies by a zeta law, exponent 1.8); one corpus has everything twice. Prints, for the plain
order and the one with copies spread: clusters a sequence, TV of batches, mean prefix L2 in tokens, the smallest and
median distance between copies in records, the smallest as a share of the even distance, and CPU seconds. --epochs adds
the same measures for three epochs of the corpus itself.
"""

import argparse
import time
from collections.abc import Callable

import numpy as np
from documents import arguments, load

from dagster_divorder.core.items import Items, document_items
from dagster_divorder.core.metrics import average, measure
from dagster_divorder.core.order import order
from dagster_divorder.core.order.epochs import epoch_orders
from dagster_divorder.core.order.spread import Spacing, spacing, spread_order
from dagster_divorder.core.traits import bin_codes, quantile_edges

SHARE, EXPONENT = 0.13, 1.8


def with_copies(documents: int, most: int) -> np.ndarray:
    """The document of each record, int64 (M,), rising: each once, and SHARE of all records copies."""
    random = np.random.default_rng(0)
    left = int(documents * SHARE / (1 - SHARE))
    parts = [np.arange(documents)]
    for document in random.permutation(documents):
        if left == 0:
            break
        further = min(left, most - 1, int(random.zipf(EXPONENT)))
        parts.append(np.full(further, document))
        left -= further
    return np.sort(np.concatenate(parts))


class Records:
    """A corpus of records, some of the same document."""

    def __init__(self, options: argparse.Namespace, document: np.ndarray) -> None:
        tokens, clusters = load(options)
        self.options, self.document, self.tokens = options, document, tokens[document]
        self.codes = {
            "cluster": clusters[document],
            "length": bin_codes(self.tokens, quantile_edges(self.tokens, options.length_bins[-1])),
        }
        self.items = document_items(self.tokens, self.codes)

    def row(self, make: Callable[[Items, int], np.ndarray], seeds: int) -> str:
        measured, apart, seconds = [], [], 0.0
        for seed in range(seeds):
            begin = time.process_time()
            made = make(self.items, seed)
            seconds += time.process_time() - begin
            measured.append(
                measure(
                    made,
                    self.tokens,
                    self.codes,
                    {name: int(codes.max()) + 1 for name, codes in self.codes.items()},
                    sequence_length=self.options.sequence_length,
                    batch=self.options.batch,
                )
            )
            apart.append(spacing(made, self.document))
        found = average(measured)
        return (
            f"{found.split.mean:.2f} | {found.batch_shares['cluster'].mean_tv:.4f} | {found.prefix.mean:,.0f} | "
            f"{distances(apart)} | {seconds / seeds:.2f} |"
        )


def distances(apart: list[Spacing]) -> str:
    if not apart[0].copies:
        return "- | - | -"
    smallest = min(one.smallest or 0 for one in apart)
    share = min(one.smallest_share or 0.0 for one in apart)
    return f"{smallest:,} | {np.mean([one.median or 0.0 for one in apart]):,.0f} | {share:.4f}"


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--epochs", action="store_true")
    options = parser.parse_args()
    documents = len(load(options)[0])
    print(
        "| copies a document | order | distinct | TV batch | mean prefix L2 | smallest | median | of even | seconds |\n"
        "|---|---|--:|--:|--:|--:|--:|--:|--:|"
    )
    corpora = {f"up to {most:,}": with_copies(documents, most) for most in (2, 8, 32, 2000)}
    corpora["all twice"] = np.arange(documents).repeat(2)
    for name, document in corpora.items():
        records = Records(options, document)

        def plain(items: Items, seed: int) -> np.ndarray:
            return order(items.counts, items.groups, weights=items.weights, seed=seed)

        def spread(items: Items, seed: int, document: np.ndarray = document) -> np.ndarray:
            return spread_order(items.counts, items.groups, document, weights=items.weights, seed=seed)

        plain(records.items, 0)
        print(f"| {name} | balanced | {records.row(plain, options.seeds)}", flush=True)
        print(f"| {name} | copies spread | {records.row(spread, options.seeds)}", flush=True)
    if options.epochs:
        records = Records(options, np.arange(documents))
        items = records.items
        orders = epoch_orders(items.counts, items.groups, 3, weights=items.weights)
        for epoch, made in enumerate(orders):
            print(f"| none | epoch {epoch} of three | {records.row(lambda *_, made=made: made, 1)}")


if __name__ == "__main__":
    main()
