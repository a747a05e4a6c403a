"""What `order.append = "extend"` costs in order: the last tenth of a corpus appended in ten parts, beside other ways.

    python benchmarks/ordering/appends.py CONFIG [--shuffled] [--length 2048] [--batch 64] [--csv FILE]

CONFIG names settings under which `divorder run` has read and clustered the corpus, in file order, with a source_field;
its traits are taken for all sizes of the corpus. Orders: `whole`, all documents ordered at once; `extend`, each part
behind the output before, by the same objective; `shuffled behind`, each part shuffled behind the output before, which
begins with the same order of the first nine tenths; `shuffle`, of all. Total variation of batches from the mix of all,
of features that the orders balance (clusters, lengths) and of others: clusters of another seed and number, sources,
hashed words. --shuffled: the documents come at random, so that every part is like the whole. --csv: prefix deviation of
clusters, as a share of all tokens, along the sequences.
"""

import argparse
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
from scipy.sparse import csr_matrix

from dagster_divorder.core.order.items import Items
from dagster_divorder.core.packing import PackedSequences, Pieces, join, pack, remaining, sequence_counts
from dagster_divorder.core.packing.coordinates import with_coordinates
from dagster_divorder.core.topics.cluster import assign, fit
from dagster_divorder.pipeline.run import Run
from dagster_divorder.settings import load_settings
from dagster_divorder.stages import open_run
from dagster_divorder.stages.corpus.fields import load_fields
from dagster_divorder.stages.mix.repeats import TrainingStream, load_stream
from dagster_divorder.stages.order.greedy_order import Documents, order_documents
from dagster_divorder.stages.order.packed_sequences import sequence_traits
from dagster_divorder.stages.order.sequence_order import Sequences, order_sequences, vector_sums
from dagster_divorder.stages.topics.components import load_space

PARTS, WORDS, OTHER_CLUSTERS = 10, 4096, 60


class Orders:
    """Plans of the first documents of a corpus, each a row of sequences in order."""

    def __init__(self, run: Run, stream: TrainingStream, items: np.ndarray) -> None:
        """items: int64 (N,), the documents as they come."""
        self.run, self.stream, self.items, self.random = run, stream, items, np.random.default_rng(1)
        self.lengths = stream.traits.tokens.astype(np.int64)

    def documents(self, n: int, frozen: np.ndarray) -> np.ndarray:
        traits = self.stream.traits.take(self.items[:n])
        return order_documents(Documents(traits, None, frozen if len(frozen) else None), self.run.settings)

    def packed(self, order: np.ndarray, before: PackedSequences | None) -> PackedSequences:
        documents = self.items[order]
        pieces = Pieces(documents, np.zeros(len(order), np.int64), self.lengths[documents])
        if before is not None:
            pieces = remaining(pieces, before)
        plan = pack(pieces, method="concat", sequence_length=self.run.settings.sequence.length, seed=0)
        return plan if before is None else join(before, plan)

    def sequences(self, plan: PackedSequences, frozen: int) -> np.ndarray:
        traits, weights = self.stream.traits, self.run.settings.order.traits
        codes = {name: traits.codes[name] for name in sequence_traits(weights)}
        counts, groups = sequence_counts(plan, codes, traits.sizes(), plan.length)
        items = Items(
            counts=counts, groups=groups, weights=np.array([weights[name] for name in sorted(codes)])
        )
        items = with_coordinates(items, plan, vector_sums(self.run, plan))
        return order_sequences(Sequences(items, plan, None, np.arange(frozen)), self.run.settings, None)[0]

    def full(self, plan: PackedSequences) -> PackedSequences:
        """Without a last sequence that is not full."""
        return plan.part(0, len(plan) - bool(plan.padding[-1]))

    def in_order(self, plan: PackedSequences, order: np.ndarray) -> PackedSequences:
        parts = [np.arange(plan.indptr[each], plan.indptr[each + 1]) for each in order]
        runs, sizes = np.concatenate(parts), np.array([len(part) for part in parts])
        columns = {name: getattr(plan, name)[runs] for name in ("document", "start", "length")}
        return replace(plan, **columns, indptr=np.concatenate([[0], np.cumsum(sizes)]))

    def whole(self, n: int) -> tuple[np.ndarray, PackedSequences]:
        order = self.documents(n, np.zeros(0, np.int64))
        plan = self.packed(order, None)
        return order, self.in_order(plan, self.sequences(plan, 0))

    def extended(
        self, order: np.ndarray, plan: PackedSequences, n: int
    ) -> tuple[np.ndarray, PackedSequences]:
        before, order = self.full(plan), self.documents(n, order)
        plan = self.packed(order, before)
        return order, self.in_order(plan, self.sequences(plan, len(before)))

    def shuffled_behind(
        self, order: np.ndarray, plan: PackedSequences, n: int
    ) -> tuple[np.ndarray, PackedSequences]:
        before = self.full(plan)
        order = np.concatenate([order, len(order) + self.random.permutation(n - len(order))])
        plan = self.packed(order, before)
        new = len(before) + self.random.permutation(len(self.full(plan)) - len(before))
        rest = np.arange(len(self.full(plan)), len(plan))
        return order, self.in_order(plan, np.concatenate([np.arange(len(before)), new, rest]))


def features(run: Run, stream: TrainingStream) -> dict[str, np.ndarray]:
    """Codes of every document, int64 (N,), by feature."""
    space, traits = load_space(run), stream.traits
    vectors = space.rows(run.view, np.arange(len(run.view)))
    sample = vectors[np.random.default_rng(0).choice(len(vectors), min(len(vectors), 20_000), replace=False)]
    other = assign(vectors, fit(sample, OTHER_CLUSTERS, seed=7, centre=space.centre))[0]
    field = run.settings.input.source_field
    assert field, "CONFIG names no input.source_field"
    sources = np.asarray(load_fields(run, field).column(field).to_pylist(), str)
    return {
        "clusters": traits.codes["cluster"],
        "lengths": traits.codes["length"],
        "other clusters": other,
        "sources": np.unique(sources, return_inverse=True)[1],
    }


def words_of(run: Run, plan: PackedSequences) -> csr_matrix:
    """Counts of the buckets of token ids in each sequence, CSR (S, WORDS)."""
    files, view = run.files("token_counts"), run.view
    ids = np.concatenate(list(files.mapped(view.fragments, "ids")))
    begins = np.concatenate([[0], np.cumsum(files.column(view.fragments, "lengths"))])
    first = begins[plan.document] + plan.start
    sequence = np.repeat(np.arange(len(plan)), np.diff(plan.indptr)).repeat(plan.length)
    at = np.arange(len(sequence)) + (first - (np.cumsum(plan.length) - plan.length)).repeat(plan.length)
    buckets = (ids[at].astype(np.uint32) * np.uint32(2654435761)) >> np.uint32(20)
    ones = np.ones(len(at), np.int32)
    return csr_matrix((ones, (sequence, buckets)), shape=(len(plan), WORDS))


def mix(plan: PackedSequences, codes: np.ndarray) -> csr_matrix:
    """Tokens of each value in each sequence, CSR (S, V)."""
    sequence = np.repeat(np.arange(len(plan)), np.diff(plan.indptr))
    shape = (len(plan), int(codes.max()) + 1)
    return csr_matrix((plan.length, (sequence, codes[plan.document])), shape=shape)


def variation(counts: csr_matrix, batch: int) -> np.ndarray:
    """The total variation of each full batch from the mix of all."""
    batches = counts.shape[0] // batch
    at = np.repeat(np.arange(batches), batch)
    sums = (
        csr_matrix((np.ones(len(at)), (at, np.arange(len(at)))), shape=(batches, counts.shape[0])) @ counts
    ).toarray()
    whole = np.asarray(counts.sum(axis=0)).ravel()
    return np.abs(sums / sums.sum(axis=1, keepdims=True) - whole / whole.sum()).sum(axis=1) / 2


def deviation(counts: csr_matrix) -> np.ndarray:
    """The largest prefix deviation of a value behind each sequence, as a share of all tokens."""
    sums = np.cumsum(counts.toarray().astype(np.float64), axis=0)
    share = sums[-1] / sums[-1].sum()
    return np.abs(sums - sums.sum(axis=1, keepdims=True) * share).max(axis=1) / sums[-1].sum()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("config", type=Path)
    parser.add_argument("--length", type=int, default=2048)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--shuffled", action="store_true")
    parser.add_argument("--csv", type=Path)
    options = parser.parse_args()
    loaded = load_settings(options.config)
    run, stream = open_run(loaded), load_stream(open_run(loaded))
    found = features(run, stream)
    sequence = loaded.sequence.model_copy(update={"length": options.length, "batch": options.batch})
    run.settings = loaded.model_copy(update={"sequence": sequence})
    n = len(stream.traits.tokens)
    items = np.random.default_rng(2).permutation(n) if options.shuffled else np.arange(n)
    orders = Orders(run, stream, items)
    sizes = [n - n * part // 100 for part in range(PARTS, -1, -1)]
    start = orders.whole(sizes[0])
    plans = {"whole": orders.whole(n)[1]}
    begins = [len(orders.full(start[1]))]
    for name, grow in (("extend", orders.extended), ("shuffled behind", orders.shuffled_behind)):
        order, plan = start
        for size in sizes[1:]:
            order, plan = grow(order, plan, size)
            begins.append(len(orders.full(plan)))
        plans[name] = plan
    shuffled = orders.packed(orders.random.permutation(n), None)
    plans["shuffle"] = orders.in_order(shuffled, orders.random.permutation(len(shuffled)))
    first, batch = begins[0], options.batch
    parts = [found["sources"][items[low:high]] for low, high in pairwise(sizes)]
    print(f"{n:,} documents, {len(plans['whole']):,} sequences; the appends begin at {begins[:PARTS]}")
    print(
        f"sources in each append: {[len(np.unique(part)) for part in parts]} of {found['sources'].max() + 1}"
    )
    print(f"{'mean TV of batches':24}" + "".join(f"{name:>26}" for name in plans))
    print(f"{'':24}" + f"{'all':>14}{'appended':>12}" * len(plans))
    for feature in (*found, "words"):
        line = f"{feature:24}"
        for plan in plans.values():
            counts = words_of(run, plan) if feature == "words" else mix(plan, found[feature])
            each = variation(counts, batch)
            line += f"{each.mean():14.4f}{each[-(-first // batch) :].mean():12.4f}"
        print(line)
    along = {name: deviation(mix(plan, found["clusters"])) for name, plan in plans.items()}
    print(
        f"{'largest prefix deviation':24}"
        + "".join(f"{each.max():14.4f}{each[first:].max():12.4f}" for each in along.values())
    )
    if options.csv:
        least = min(map(len, along.values()))
        columns = np.column_stack([np.arange(least), *(each[:least] for each in along.values())])
        np.savetxt(
            options.csv,
            columns[:: max(1, least // 500)],
            fmt="%.6g",
            delimiter=",",
            header=",".join(["sequence", *along]),
        )


if __name__ == "__main__":
    main()
