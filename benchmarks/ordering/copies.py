"""What it costs to spread copies: the mixture corpus with some documents repeated.

    python benchmarks/ordering/copies.py --arrays CORPUS.npz [--seeds 3] [--epochs]
    python benchmarks/ordering/copies.py --arrays CORPUS.npz --sequences     with `vectors`, too, for related packing

Reads a corpus as documents.py does. 13 % of the records are made copies, of documents that have at most 2, 8, 32 or
2000 of them (numbers of copies by a zeta law, exponent 1.8); one corpus has everything twice. Prints, for the plain
order and the one with copies spread: clusters a sequence, TV of batches, mean prefix L2 in tokens, the smallest and
median distance between copies in records, the smallest as a share of the even distance, and CPU seconds. --epochs adds
the same measures for three epochs of the corpus itself.

--sequences prints what a trainer reads instead: documents ordered, packed by each method and their sequences ordered,
with copies apart and without, where 5 % of the documents occur twice, where 0.2 % occur ten times besides, where three
texts occur 2,000 times besides, and where all occur twice. Columns: padding; clusters a sequence; cosine of neighbours;
TV of batches; mean prefix L2 in tokens; pairs of copies in one sequence; the smallest and the median distance between
copies in sequences, as shares of the even one; CPU seconds of all three steps.
"""

import argparse
import time
from collections.abc import Callable

import numpy as np
from documents import arguments, load

from dagster_divorder.core.measure import average, measure
from dagster_divorder.core.measure.packed import measure_packed
from dagster_divorder.core.order import order
from dagster_divorder.core.order.epochs import epoch_orders
from dagster_divorder.core.order.items import Items, document_items
from dagster_divorder.core.order.spread import Spacing, spacing, spread_order
from dagster_divorder.core.order.traits import bin_codes, quantile_edges
from dagster_divorder.core.packing import METHODS, PackedSequences, Pieces, pack, sequence_counts
from dagster_divorder.core.packing.copies import sequence_spacing, sequence_times

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


def repeated(name: str, documents: int) -> np.ndarray:
    """The document of each record, int64 (M,), rising."""
    chosen = np.random.default_rng(0).permutation(documents)
    twentieth, further = documents // 20, documents // 500
    extra = {
        "5 % twice": chosen[:twentieth],
        "and 0.2 % ten times": np.append(
            chosen[:twentieth], chosen[twentieth : twentieth + further].repeat(9)
        ),
        "and three 2,000 times": np.append(
            chosen[:twentieth], chosen[twentieth : twentieth + 3].repeat(1999)
        ),
        "all twice": chosen,
    }[name]
    return np.sort(np.append(np.arange(documents), extra))


class Stream:
    """A corpus of records, some of the same document, as the pipeline packs it and orders its sequences."""

    def __init__(self, options: argparse.Namespace, document: np.ndarray) -> None:
        self.options, self.document = options, document
        self.records = Records(options, document)
        self.codes = self.records.codes
        self.n_values = {name: int(codes.max()) + 1 for name, codes in self.codes.items()}
        self.vectors = None
        if options.arrays and options.arrays.suffix == ".npz":
            with np.load(options.arrays) as arrays:
                self.vectors = arrays.get("vectors")

    def row(self, method: str, apart: str) -> str:
        measured, spaced, seconds = [], [], 0.0
        for seed in range(self.options.seeds):
            begin = time.process_time()
            packed = self.pack(method, apart, seed)
            counts, groups = sequence_counts(packed, self.codes, self.n_values)
            whole = len(packed) - int(method != "best_fit" and packed.padding[-1] > 0)
            times = None
            if apart == "yes":
                times = sequence_times(packed, self.document).first(whole)
            orders = epoch_orders(counts[:whole], groups, 1, copies=times, seed=seed)
            orders = np.append(orders, np.arange(whole, len(packed))[np.newaxis], axis=1)
            seconds += time.process_time() - begin
            measured.append(
                measure_packed(packed, orders, self.codes, self.n_values, batch=self.options.batch)
            )
            spaced.append(sequence_spacing(packed, orders, self.document))
        found = average(measured)
        near = min(one.smallest_share or 0.0 for one in spaced)
        middle = np.mean([one.median_share or 0.0 for one in spaced])
        padding = 100 * packed.padding.sum() / (len(packed) * packed.sequence_length)
        return (
            f"{padding:.2f} | {found.split.mean:.2f} | {self.cosine(packed)} | "
            f"{found.batch_shares['cluster'].mean_tv:.4f} | {found.prefix.mean:,.0f} | "
            f"{max(one.together for one in spaced):,} | {near:.3f} | {middle:.3f} | "
            f"{seconds / self.options.seeds:.1f} |"
        )

    def pack(self, method: str, apart: str, seed: int) -> PackedSequences:
        items, tokens = self.records.items, self.records.tokens
        made = spread_order(
            items.counts,
            items.groups,
            self.document if apart == "yes" else np.arange(len(tokens)),
            weights=items.weights,
            seed=seed,
        )
        told = (method == "related" and apart != "before") or (method == "best_fit" and apart == "yes")
        return pack(
            Pieces(made, np.zeros_like(made), tokens[made]),
            method=method,
            sequence_length=self.options.sequence_length,
            seed=seed,
            labels=self.codes["cluster"][made],
            vectors=None if self.vectors is None else lambda some: self.vectors[self.document[made[some]]],
            copies=self.document[made] if told else None,
        )

    def cosine(self, packed: PackedSequences) -> str:
        """Mean cosine of neighbours of different text."""
        if self.vectors is None:
            return "-"
        text = self.document[packed.document]
        one, next_ = (self.vectors[part[text[1:] != text[:-1]]] for part in (text[:-1], text[1:]))
        norms = np.linalg.norm(one, axis=1) * np.linalg.norm(next_, axis=1)
        return f"{np.mean(np.einsum('ij,ij->i', one, next_) / np.maximum(norms, 1e-9)):.3f}"


def sequences(options: argparse.Namespace) -> None:
    documents = len(load(options)[0])
    print(
        "| documents | packing | copies apart | padding % | clusters | cosine | TV batch | mean prefix L2 | together "
        "| smallest | median | seconds |\n|---|---|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|"
    )
    for name in ("5 % twice", "and 0.2 % ten times", "and three 2,000 times", "all twice"):
        stream = Stream(options, repeated(name, documents))
        for method in METHODS:
            if method == "related" and stream.vectors is None:
                continue
            # `before`: related packing that is not told of copies.
            for apart in ("before", "no", "yes") if method == "related" else ("no", "yes"):
                print(f"| {name} | {method} | {apart} | {stream.row(method, apart)}", flush=True)


def distances(apart: list[Spacing]) -> str:
    if not apart[0].copies:
        return "- | - | -"
    smallest = min(one.smallest or 0 for one in apart)
    share = min(one.smallest_share or 0.0 for one in apart)
    return f"{smallest:,} | {np.mean([one.median or 0.0 for one in apart]):,.0f} | {share:.4f}"


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--epochs", action="store_true")
    parser.add_argument("--sequences", action="store_true")
    options = parser.parse_args()
    if options.sequences:
        sequences(options)
        return
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
