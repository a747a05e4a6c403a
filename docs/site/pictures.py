"""Draws the pictures of docs/concepts.md from a small corpus, with the package itself: python docs/site/pictures.py

200 documents of 5 sources in blocks, 100 to 1,500 tokens each, from a fixed seed; sequences of 2,048 tokens, batches
of 8.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from dagster_divorder.core.order import Items, order
from dagster_divorder.core.packing import pack
from dagster_divorder.core.packing.coordinates import sequence_counts
from dagster_divorder.core.packing.pieces import PackedSequences, Pieces
from dagster_divorder.tables.ordering import order as order_rows
from dagster_divorder.view.drawing import COLOURS

FOLDER = Path(__file__).parent.parent / "concepts"
SHADES = ("#0a66a8", "#e0912f", "#2c8c5a", "#a04a8c", "#8a8f99")
LENGTH, BATCH = 2048, 8

random = np.random.default_rng(4)
source = np.repeat(np.arange(5), (70, 50, 40, 25, 15))
tokens = random.integers(100, 1500, source.size)
documents = order_rows({"source": source, "tokens": tokens}, by="source", tokens="tokens")
shuffled_documents = random.permutation(source.size)


def packed_in(documents: np.ndarray, method: str = "concat") -> PackedSequences:
    pieces = Pieces(documents, np.zeros_like(documents), tokens[documents])
    return pack(pieces, method=method, sequence_length=LENGTH)


def strips(axes: Axes, left: np.ndarray, width: np.ndarray, colour: np.ndarray, bottom: float = 0.0) -> None:
    axes.bar(
        left, 1, width, bottom, color=np.array(SHADES)[colour], align="edge", edgecolor="white", linewidth=0.4
    )


def two_orders(figure: Figure) -> None:
    rows = figure.subplots(4, 1)
    few = np.arange(0, source.size, 3)
    ordered = few[order_rows({"source": source[few], "tokens": tokens[few]}, by="source", tokens="tokens")]
    for axes, picked, title in zip(
        rows, (few, ordered), ("documents as they come", "1. documents in order"), strict=False
    ):
        length = tokens[picked]
        strips(axes, np.cumsum(length) - length, length, source[picked])
        axes.set_title(title)
    packed = packed_in(ordered)
    ranks = order(Items(*sequence_counts(packed, {"source": source}, {"source": 5}), np.ones(1)))
    titles = (
        f"packed into sequences of {LENGTH:,} tokens",
        "2. sequences in order, a gap behind each batch of 4",
    )
    for axes, sequences, title in zip(rows[2:], (np.arange(len(packed)), ranks), titles, strict=True):
        for place, sequence in enumerate(sequences):
            runs = slice(packed.indptr[sequence], packed.indptr[sequence + 1])
            length = packed.length[runs]
            begin = place * (LENGTH + 300) + (900 * (place // 4) if sequences is ranks else 0)
            strips(axes, begin + np.cumsum(length) - length, length, source[packed.document[runs]])
        axes.set_title(title)
    for axes in rows:
        axes.set_axis_off()
        axes.margins(0)


def per_token(sequences: np.ndarray, packed: PackedSequences) -> np.ndarray:
    """The source of each token in the order of training."""
    runs = np.concatenate([np.arange(packed.indptr[s], packed.indptr[s + 1]) for s in sequences])
    return np.repeat(source[packed.document[runs]], packed.length[runs])


def orders() -> dict[str, np.ndarray]:
    packed, shuffled = packed_in(documents), packed_in(shuffled_documents)
    ranks = order(Items(*sequence_counts(packed, {"source": source}, {"source": 5}), np.ones(1)))
    return {
        "shuffled": per_token(random.permutation(len(shuffled)), shuffled),
        "sequences": per_token(ranks, packed),
    }


THOUSANDS = np.arange(tokens.sum() // 50 + 1) / 20
"""Of tokens, at every 50th."""
NAMES = {"shuffled": "shuffled", "sequences": "in order"}


def windows(figure: Figure) -> None:
    axes = figure.subplots()
    share = np.average(source == 0, weights=tokens)
    for name, of_token in orders().items():
        sums = np.append(0, np.cumsum(of_token == 0))
        mix = (sums[BATCH * LENGTH :] - sums[: -BATCH * LENGTH]) / (BATCH * LENGTH)
        axes.plot(THOUSANDS[: len(mix[::50])], 100 * mix[::50], color=COLOURS[name], label=NAMES[name])
    axes.axhline(100 * share, color=COLOURS["ink"], linestyle="--", linewidth=1, label="the corpus")
    axes.set(xlabel="where the batch begins, thousand tokens", ylabel="share of the source, %", ylim=(0, 80))
    axes.legend(ncols=3, loc="upper left")


def prefix_deviation(figure: Figure) -> None:
    axes = figure.subplots()
    for name, of_token in orders().items():
        deviation = np.cumsum((of_token == 0) - np.mean(of_token == 0))[::50] / 1000
        axes.plot(THOUSANDS[: len(deviation)], deviation, color=COLOURS[name], label=NAMES[name])
        if name == "shuffled":
            begin, end = 700, 700 + BATCH * LENGTH // 50
            axes.axvspan(*THOUSANDS[[begin, end]], color=COLOURS["rule"], alpha=0.6, label="a batch")
            axes.plot(
                THOUSANDS[[begin, end]], deviation[[begin, end]], "o", color=COLOURS[name], markersize=5
            )
    axes.axhline(0, color=COLOURS["ink"], linewidth=0.8)
    axes.set(xlabel="thousand tokens so far", ylabel="thousand tokens\nbeyond its share", ylim=(None, 2.5))
    axes.legend(ncols=3, loc="upper left")


def drift(figure: Figure) -> None:
    axes = figure.subplots()
    # A number that no order sees, such as the quality of the text: it rises along the input.
    unseen = np.linspace(-1, 1, source.size) + random.normal(0, 0.7, source.size)
    sorted_by_it = np.argsort(unseen)

    def tenths(picked: np.ndarray) -> np.ndarray:
        return np.array([part.mean() for part in np.array_split(unseen[picked], 10)]) - unseen.mean()

    band = np.array([tenths(random.permutation(source.size)) for _ in range(200)])
    axes.fill_between(
        np.arange(10),
        *np.quantile(band, (0.05, 0.95), axis=0),
        color=COLOURS["rule"],
        label="nine in ten shuffles",
    )
    # An order that keeps the topics' shares and takes each source's documents from low to high.
    queues = {value: iter(sorted_by_it[source[sorted_by_it] == value]) for value in range(5)}
    drifting = np.array([next(queues[value]) for value in source[documents]])
    axes.plot(
        tenths(drifting),
        color=COLOURS["original"],
        marker="o",
        label="drifts, with every source at its share",
    )
    axes.plot(tenths(documents), color=COLOURS["sequences"], marker="o", label="balanced")
    axes.set(xlabel="tenth of training", ylabel="mean of the number,\nless the whole's")
    axes.set_xticks(range(10), range(1, 11))
    axes.legend(loc="upper left")


def packing(figure: Figure) -> None:
    few = documents[:24]
    columns = figure.subplots(1, 3, sharey=True, sharex=True)
    notes = {
        "concat": "cuts, no padding",
        "best_fit": "whole documents, some padding",
        "none": "one record each",
    }
    for axes, (method, note) in zip(columns, notes.items(), strict=True):
        packed = packed_in(few, method)
        for row in range(min(len(packed), 10)):
            runs = slice(packed.indptr[row], packed.indptr[row + 1])
            length = packed.length[runs]
            axes.bar(0, 0.8, LENGTH, 0.1 - row, align="edge", color="none", edgecolor=COLOURS["rule"])
            left = np.cumsum(length) - length
            axes.bar(
                left,
                0.8,
                length,
                0.1 - row,
                align="edge",
                color=np.array(SHADES)[source[packed.document[runs]]],
                edgecolor="white",
            )
            cut = packed.start[runs] > 0
            axes.plot(left[cut], np.full(cut.sum(), 0.5 - row), "<", color="white", markersize=5)
        axes.set_title(f"{method}: {note}")
        axes.set_axis_off()


def reruns(figure: Figure) -> None:
    figure.set_layout_engine("none")
    axes = figure.add_axes((0.25, 0.02, 0.74, 0.96))
    kept, computed = COLOURS["rule"], COLOURS["curated"]
    rows = {
        "tokens, vectors:\nby fragment of documents": [kept] * 14 + [computed],
        "tokenizer, centroids, bins:\npinned": [kept],
        "orders, packing, measures:\nas a whole": [computed],
    }
    for row, (title, colours) in enumerate(rows.items()):
        width = 15 / len(colours)
        axes.bar(np.arange(len(colours)) * width, 0.7, width - 0.08, -row, align="edge", color=colours)
        axes.text(-0.4, 0.35 - row, title, ha="right", va="center")
    for place, (label, colour) in enumerate(
        {"kept": kept, "computed by the run after an append": computed}.items()
    ):
        axes.bar(3 * place, 0.25, 0.5, 1.1, align="edge", color=colour)
        axes.text(3 * place + 0.7, 1.22, label, va="center")
    axes.set_axis_off()


def draw(name: str, size: tuple[float, float], content: Callable[[Figure], None]) -> None:
    style = {
        "svg.fonttype": "none",
        "svg.hashsalt": name,
        "font.family": "sans-serif",
        "font.size": 10,
        "axes.titlesize": 10,
        "axes.titlelocation": "left",
        "axes.spines.top": False,
        "axes.spines.right": False,
        "legend.frameon": False,
    }
    with matplotlib.rc_context(style):
        figure = Figure(figsize=size, layout="constrained", facecolor="white")
        content(figure)
        figure.savefig(FOLDER / f"{name}.svg", metadata={"Date": None})


if __name__ == "__main__":
    draw("two_orders", (9, 3.6), two_orders)
    draw("windows", (9, 3), windows)
    draw("prefix_deviation", (9, 3), prefix_deviation)
    draw("drift", (9, 3), drift)
    draw("packing", (9, 3), packing)
    draw("reruns", (9, 2.2), reruns)
