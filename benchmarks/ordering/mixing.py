"""What a trainer reads of a mix: the shares of every window, and how far apart a text is read again.

    python benchmarks/ordering/mixing.py --arrays CORPUS.npz [--method best_fit] [--epochs 2] [--sources]

CORPUS.npz: `tokens`, `cluster` and `source` (codes 0..K-1) of each document, and `vectors` (N, D) where sequences are
to be balanced in 64 coordinates too, as the pipeline does; .parquet without vectors.

Four mixes: half of all, all twice, temperature 0.5, and `by hand`: a source of about 0.8 % of the tokens three times,
the two largest half, all others three quarters. Three streams of each: documents and sequences shuffled; balanced,
without regard to repeats; balanced with repeats apart, as the pipeline does it.

Columns. Worst, mean: the largest difference of a source's share from the plan, in percentage points, in the worst and
in the mean window of 256 sequences, at every sequence. Repeats: distance between two times that a token of a text is
read, in tokens, in units of the source-epoch, all tokens of an epoch / the times that the text is in it: the smallest,
a thousandth, a tenth and half of them; looked at are the tokens 0, L / 4, 2 L / 4, ... of every text. Round: the
smallest from the last time in an epoch to the first in the next, which for one epoch is the same again. CPU seconds of
ordering, packing and ordering. All of the worst of the seeds, but for means.

--sources prints the last stream by source.
"""

import argparse
import time
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd

from dagster_divorder.core.mix.mixing import MixPlan, even_order, plan_mix, realised, times_of
from dagster_divorder.core.order.epochs import epoch_orders
from dagster_divorder.core.order.items import Items, document_items
from dagster_divorder.core.order.spread import spread_order
from dagster_divorder.core.order.traits import bin_codes, quantile_edges
from dagster_divorder.core.packing import METHODS, PackedSequences, Pieces, pack, sequence_counts
from dagster_divorder.core.packing.coordinates import add_directions, random_axes, with_coordinates
from dagster_divorder.core.packing.copies import sequence_times

LENGTH_BINS, BATCH, DIMS = 100, 256, 64
MIXES = ("half", "twice", "temperature 0.5", "by hand")
STREAMS = ("shuffled", "repeats anywhere", "repeats apart")


class Corpus:
    """Documents, and the plan of a mix of their sources."""

    def __init__(self, path: Path) -> None:
        names = ("tokens", "cluster", "source")
        if path.suffix == ".npz":
            with np.load(path) as arrays:
                columns = {name: arrays[name] for name in names}
                self.vectors = arrays.get("vectors")
        else:
            table = pd.read_parquet(path, columns=list(names))
            columns, self.vectors = {name: table[name].to_numpy() for name in names}, None
        self.tokens = columns["tokens"].astype(np.int64)
        self.codes = {
            "source": np.unique(columns["source"], return_inverse=True)[1].astype(np.int32),
            "cluster": columns["cluster"].astype(np.int32),
            "length": bin_codes(self.tokens, quantile_edges(self.tokens, LENGTH_BINS)),
        }
        self.n_values = {name: int(codes.max()) + 1 for name, codes in self.codes.items()}
        self.sizes = np.bincount(self.codes["source"], self.tokens).astype(np.int64)

    def plan(self, mix: str) -> MixPlan:
        sizes = {str(number): int(size) for number, size in enumerate(self.sizes)}
        total = int(self.sizes.sum())
        if mix != "by hand":
            factor = {"half": 0.5, "twice": 2.0}.get(mix, 1.0)
            rule = 0.5 if mix.startswith("temperature") else "natural"
            return plan_mix(rule, sizes, total_tokens=round(total * factor))
        epochs = np.full(len(sizes), 0.75)
        epochs[np.argsort(self.sizes)[-2:]] = 0.5
        epochs[np.abs(self.sizes / total - 0.008).argmin()] = 3.0
        tokens = epochs * self.sizes
        shares = dict(zip(sizes, (tokens / tokens.sum()).tolist(), strict=True))
        return plan_mix(shares, sizes, total_tokens=round(tokens.sum()))


class Stream(NamedTuple):
    """records int64 (M,): the document of each item; packed: the items; orders int64 (E, S)."""

    records: np.ndarray
    packed: PackedSequences
    orders: np.ndarray
    seconds: float


def read(
    corpus: Corpus, times: np.ndarray, kind: str, length: int, method: str, epochs: int, seed: int
) -> Stream:
    records = np.arange(len(times)).repeat(times)
    tokens = corpus.tokens[records]
    codes = {name: values[records] for name, values in corpus.codes.items()}
    begin, apart = time.process_time(), kind == "repeats apart"
    if kind == "shuffled":
        random = np.random.default_rng(seed)
        made = random.permutation(len(records))
    else:
        items = document_items(tokens, {name: codes[name] for name in ("cluster", "length", "source")})
        alike = records if apart else np.arange(len(records))
        made = spread_order(items.counts, items.groups, alike, weights=items.weights, seed=seed)
    packed = pack(
        Pieces(made, np.zeros_like(made), tokens[made]),
        method=method,
        sequence_length=length,
        seed=seed,
        copies=records[made] if apart and method != "concat" else None,
    )
    if kind == "shuffled":
        orders = np.stack([random.permutation(len(packed)) for _ in range(epochs)])
        return Stream(records, packed, orders, time.process_time() - begin)
    counts, groups = sequence_counts(packed, codes, corpus.n_values)
    whole = len(packed) - int(method != "best_fit" and packed.padding[-1] > 0)
    sequences = Items(counts[:whole], groups, np.ones(len(corpus.n_values)))
    if corpus.vectors is not None:
        sums = np.zeros((len(packed), DIMS), np.int64)
        sequence = np.arange(len(packed)).repeat(np.diff(packed.indptr))
        axes = random_axes(corpus.vectors.shape[1], DIMS, seed)
        directions = (corpus.vectors @ axes).astype(np.float32)
        add_directions(sums, sequence, packed.length, records[packed.document], directions)
        sequences = with_coordinates(sequences, packed.part(0, whole), sums[:whole])
    orders = epoch_orders(
        sequences.counts,
        groups,
        epochs,
        copies=sequence_times(packed, records).first(whole) if apart else None,
        coordinates=sequences.coordinates,
        seed=seed,
    )
    orders = np.pad(orders, ((0, 0), (0, len(packed) - whole)), constant_values=whole)
    return Stream(records, packed, orders, time.process_time() - begin)


def off_plan(corpus: Corpus, plan: MixPlan, stream: Stream) -> np.ndarray:
    """By window of BATCH sequences and source, the difference of its share from the plan in points, float64 (W, K)."""
    codes = {"source": corpus.codes["source"][stream.records]}
    counts, _ = sequence_counts(stream.packed, codes, {"source": corpus.n_values["source"]})
    before = np.cumsum(
        np.pad(counts.toarray()[stream.orders.ravel()], ((1, 0), (0, 0))), axis=0, dtype=np.int64
    )
    window = min(BATCH, len(before) - 1)
    inside = (before[window:] - before[:-window]).astype(np.float64)
    return 100 * np.abs(inside / inside.sum(axis=1, keepdims=True) - plan.shares)


class Repeats(NamedTuple):
    """Distances in source-epochs, float64, and the record of each; those inside the epochs, and those round them."""

    inside: np.ndarray
    record: np.ndarray
    round: np.ndarray
    round_record: np.ndarray


def distances(stream: Stream) -> Repeats:
    packed, epochs = stream.packed, len(stream.orders)
    step, total = max(1, packed.sequence_length // 4), len(packed) * packed.sequence_length
    times = np.bincount(stream.records)
    sequence = np.arange(len(packed)).repeat(np.diff(packed.indptr))
    begin = np.cumsum(packed.length) - packed.length
    begin -= begin[packed.indptr[:-1]][sequence]
    run = np.flatnonzero(times[stream.records[packed.document]] * epochs > 1)
    first = -(-packed.start[run] // step)
    tokens = np.maximum(-(-(packed.start[run] + packed.length[run]) // step) - first, 0)
    token = first.repeat(tokens) + np.arange(tokens.sum()) - (np.cumsum(tokens) - tokens).repeat(tokens)
    run = run.repeat(tokens)
    places = np.argsort(stream.orders, axis=1)[:, sequence[run]] + np.arange(epochs)[:, np.newaxis] * len(
        packed
    )
    at = (places * packed.sequence_length + begin[run] + token * step - packed.start[run]).ravel()
    record, token = np.tile(stream.records[packed.document[run]], epochs), np.tile(token, epochs)
    in_turn = np.lexsort((at, token, record))
    at, record, token = at[in_turn], record[in_turn], token[in_turn]
    again = (record[1:] == record[:-1]) & (token[1:] == token[:-1])
    last = np.flatnonzero(np.append(~again, True)) if len(at) else np.zeros(0, np.int64)
    begins = np.append(0, last[:-1] + 1) if len(at) else last
    # Read once an epoch, and in one epoch, it is not a repeat.
    some = times[record[last]] > 1
    one, next_ = np.flatnonzero(again), np.flatnonzero(again) + 1
    unit = total / times[record]
    around = at[begins] + epochs * total - at[last]
    return Repeats(
        ((at[next_] - at[one]) / unit[one]),
        record[one],
        (around / unit[last])[some],
        record[last][some],
    )


def quantiles(values: np.ndarray) -> str:
    if not len(values):
        return "- | - | - | -"
    return " | ".join(f"{value:.3f}" for value in np.quantile(values, [0.0, 0.001, 0.1, 0.5]))


def row(corpus: Corpus, options: argparse.Namespace, mix: str, length: int, kind: str) -> str:
    plan, worst, mean, seconds, found = corpus.plan(mix), 0.0, [], 0.0, []
    for seed in range(options.seeds):
        codes = [corpus.codes[name] for name in ("source", "cluster", "length")]
        random = np.random.default_rng(seed)
        values = [random.integers(1 << 64, size=of.max() + 1, dtype=np.uint64)[of] for of in codes]
        draws = random.integers(1 << 64, size=len(corpus.tokens), dtype=np.uint64)
        times = times_of(plan, corpus.tokens, codes[0], even_order(values, draws))
        stream = read(corpus, times, kind, length, options.method, options.epochs, seed)
        off, repeats = off_plan(corpus, plan, stream), distances(stream)
        worst, seconds = max(worst, off.max()), seconds + stream.seconds / options.seeds
        mean.append(off.max(axis=1).mean())
        found.append(repeats)
    inside, around = (np.concatenate([getattr(one, name) for one in found]) for name in ("inside", "round"))
    padding = 100 * stream.packed.padding.sum() / (len(stream.packed) * length)
    out = (
        f"| {mix} | {length} | {kind} | {len(stream.packed):,} | {padding:.2f} | {worst:.2f} | {np.mean(mean):.2f} | "
        f"{quantiles(inside)} | {f'{around.min():.3f}' if len(around) else '-'} | {seconds:.1f} |"
    )
    if not options.sources:
        return out
    got = realised(plan, corpus.tokens, corpus.codes["source"], times)
    for value in range(len(plan.names)):
        mine, round_mine = (
            corpus.codes["source"][of] == value for of in (repeats.record, repeats.round_record)
        )
        around = repeats.round[round_mine]
        out += (
            f"\n| {value} | {got.epochs[value]:.2f} | {got.unique_tokens[value]:,} | {100 * plan.shares[value]:.2f} | "
            f"{100 * got.shares[value]:.2f} | {off[:, value].max():.2f} | {quantiles(repeats.inside[mine])} | "
            f"{f'{around.min():.3f}' if len(around) else '-'} |"
        )
    return out


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--arrays", type=Path, required=True)
    parser.add_argument("--length", type=int, nargs="+", default=[8192, 2048])
    parser.add_argument("--method", choices=[name for name in METHODS if name != "related"], default="concat")
    parser.add_argument("--mixes", choices=MIXES, nargs="+", default=MIXES)
    parser.add_argument("--streams", choices=STREAMS, nargs="+", default=STREAMS)
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--sources", action="store_true")
    options = parser.parse_args()
    corpus = Corpus(options.arrays)
    print(
        "| mix | L | stream | sequences | padding % | worst | mean | smallest | 0.1 % | 10 % | half | round "
        "| seconds |\n|---|--:|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|"
    )
    for mix in options.mixes:
        for length in options.length:
            for kind in options.streams:
                print(row(corpus, options, mix, length, kind), flush=True)


if __name__ == "__main__":
    main()
