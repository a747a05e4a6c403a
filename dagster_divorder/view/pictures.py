"""PNG files of stages: an order before and after, clusters and their map, two clusterings, a calibration.

Letters: S sequences, N documents on a map, K clusters, C columns of a bar.
Cost: 0.3 to 2 s each, whatever the corpus, because points are thinned or sampled first. Known weakness: above some 30
clusters only their places distinguish neighbours, not their colours. A name in a script that no installed typeface has
becomes the cluster's number, with a note. Source: the ordering_comparison.png and the calibration plot of
Diversity-Ordered Training.
"""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from dagster_divorder.core.measure.along import binned
from dagster_divorder.view import charts
from dagster_divorder.view.drawing import (
    COLOURS,
    by_place,
    cluster_colours,
    drawable,
    picture,
    stacked,
)
from dagster_divorder.view.measures import followed, measures, summary_row
from dagster_divorder.view.words import brief, short

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MUTED = COLOURS["muted"]
LARGEST = 30
"""Number of clusters with a bar of their size."""
IN_TABLE = ("fewest", "mean prefix deviation, tokens")
"""Measures in the table below the comparison of orders, behind `followed`; unknown ones are omitted."""
PAIRS = 40
"""Most clusters of either clustering in the heatmap."""

# The comparison of orders.
WIDTH, HEIGHT = 1600, 1100  # pixels
LEFT, RIGHT, GAP, STRIP = (
    0.045,
    0.917,
    0.012,
    0.024,
)  # of the width: ends of the bars, gap, the corpus's own mix
BARS, BETWEEN, BAR = 0.789, 0.129, 0.095  # of the height: the first bar's foot, bar to bar, a bar
HALF, BESIDE, FOOT, PANEL = 0.415, 0.012, 0.225, 0.21  # of the figure: the charts along the dataset
HEADING = 18  # letters of a line above a column of numbers
BAR_PIXELS, BAR_ROWS = round((RIGHT - LEFT) * WIDTH), round(BAR * HEIGHT)


def ordering_comparison(
    measured: Mapping[str, Mapping[str, Any]],
    distinct: Mapping[str, NDArray[np.int64]],
    mixes: Mapping[str, NDArray[np.float32]],
    names: Sequence[str] = (),
    traits: Sequence[str] = ("cluster",),
) -> bytes:
    """Effects of orders, 1600 x 1100 pixels. For each order with a mix a bar of the dataset:
    each column is coloured by its tokens' clusters and should resemble the corpus's own mix beside it. Below: distinct
    clusters in each sequence, the prefix deviation, and a table of the numbers.

    measured, distinct, mixes: by order, see `charts.SERIES`. distinct: clusters in each sequence, int (S,). mixes: of
    up to three orders, float (C, K), from `core.measure.cluster_mix`; sharpest with C = min(S, BAR_PIXELS). names: of
    the K clusters, by label; a row above the bars shows the largest, as many as fit. traits: the table measures the
    first.
    """

    def draw(figure: Figure) -> None:
        any_order = next(iter(measured.values()))
        k = next(iter(mixes.values())).shape[1]
        facts = (
            f"{any_order['documents']:,} documents · {short(any_order['tokens'])} tokens · {k} clusters · sequences of "
            f"{any_order['sequence_length']:,} tokens · batches of {any_order['batch']:,} sequences"
        )
        drawable_names, missing = drawable(names)
        _title(figure, "The same documents, before and after", _joined(facts, missing), LEFT, 0.97)
        _draw_bars(figure, mixes, any_order["tokens"], drawable_names)
        right = figure.add_axes((RIGHT + GAP + STRIP - HALF, FOOT, HALF, PANEL))
        _draw_distinct(figure, distinct, k)
        prefixes = {name: figures["prefix"] for name, figures in measured.items()}
        lines = [
            (np.asarray(prefix["share"]), np.asarray(prefix["l2"]), charts.SERIES[name])
            for name, prefix in prefixes.items()
        ]
        charts.along(right, lines, log=True)
        _headline(
            right, "Prefix deviation", "tokens so far against the mix: L2 distance in tokens, log scale"
        )
        right.set_xlabel("position in the dataset, % of tokens")
        _draw_table(figure, measured, traits)

    return picture(WIDTH, HEIGHT, draw)


def k_calibration(rows: Sequence[Mapping[str, Any]]) -> bytes:
    """The silhouette against the number of clusters, 1200 x 600 pixels; rows: see `charts.silhouette`."""

    def draw(figure: Figure) -> None:
        (recommended,) = (row["k"] for row in rows if row["recommended"])
        note = (
            "the highest number with a silhouette close to the best (grey); mean over the documents, cosine"
        )
        _title(figure, f"{recommended:,} clusters recommended", note, 0.08, 0.92)
        axes = figure.add_axes((0.08, 0.12, 0.88, 0.66))
        charts.silhouette(axes, rows)
        axes.set_xlabel("clusters")

    return picture(1200, 600, draw)


def cluster_map(
    title: str,
    note: str,
    names: Sequence[str],
    sizes: Sequence[int],
    xy: NDArray[np.floating],
    labels: NDArray[np.integer],
) -> bytes:
    """The map and the sizes of all clusters, 1600 x 1000 pixels, at most some 300 kB.

    names, sizes: of the K clusters. xy, labels: documents' places on the map, float (N, 2), and clusters, int (N,).
    """

    def draw(figure: Figure) -> None:
        drawable_names, missing = drawable(names)
        _title(figure, title, _joined(note, missing), 0.03, 0.945)
        axes = figure.add_axes((0.03, 0.03, 0.62, 0.845))
        charts.documents_map(axes, xy, labels, drawable_names, cluster_colours(len(names)))
        _draw_sizes(figure, 0.68, drawable_names, np.asarray(sizes))

    return picture(1600, 1000, draw, few_colours=True)


def contingency(
    table: NDArray[np.integer],
    rows: Sequence[str],
    columns: Sequence[str],
    note: str,
    spaces: tuple[str, str] = ("shallow", "deep"),
) -> bytes:
    """Two clusterings of the same documents as a heatmap, 1400 x 1150 pixels.

    table: documents in cluster k of the first space and j of the second, int (m, m); matched clusters are on the
    diagonal, pairs with most common documents first; the picture shows the first PAIRS. rows, columns: m names each.
    """

    def draw(figure: Figure) -> None:
        pairs = min(len(rows), PAIRS)
        shares = (table / np.maximum(table.sum(axis=1, keepdims=True), 1))[:pairs, :pairs]
        (row_names, rows_missing), (column_names, columns_missing) = (
            drawable(names[:pairs], "pair") for names in (rows, columns)
        )
        notes = _joined(note, *dict.fromkeys((rows_missing, columns_missing)))
        lines = "\n".join(textwrap.wrap(notes, 150))
        _title(figure, "Which clusters are the same in both spaces", lines, 0.03, 0.955, size=12)
        axes = figure.add_axes((0.24, 0.24, 0.66, 0.63))
        image = axes.imshow(shares, cmap="Blues", vmin=0.0, vmax=1.0, aspect="auto", interpolation="nearest")
        size = 11 if pairs <= 30 else 9
        axes.set_xticks(range(pairs), [*map(brief, column_names)], rotation=55, ha="right", size=size)
        axes.set_yticks(range(pairs), [*map(brief, row_names)], size=size)
        axes.grid(visible=False)
        axes.spines[:].set_visible(False)
        axes.set_ylabel(spaces[0], size=13, weight="bold")
        axes.set_xlabel(spaces[1], size=13, weight="bold")
        bar = figure.colorbar(image, cax=figure.add_axes((0.92, 0.24, 0.015, 0.63)))
        bar.outline.set_visible(False)
        bar.set_label(f"share of the {spaces[0]} cluster's documents", size=11)
        if len(rows) > pairs:
            figure.text(0.03, 0.02, f"and {len(rows) - pairs:,} pairs more", size=11, color=MUTED)

    return picture(1400, 1150, draw)


def training_evidence(summary: Mapping[str, Any]) -> bytes:
    """Effects of orders on small models, 1600 x 1300 pixels: loss curves, the seam between epochs enlarged, held-out
    differences with their intervals, and stable ranks of the gradients by matrix.

    summary: of `stages.evidence.training_evidence`.
    """
    orders, sources = summary["orders"], summary["sources"]

    def draw(figure: Figure) -> None:
        facts = (
            f"{summary['weights']:,} weights · {summary['epochs']} epochs of "
            f"{summary['steps']:,} steps of {summary['batch']:,} × {summary['length']:,} tokens · "
            f"{summary['seeds']} seeds"
        )
        note = "\n".join(textwrap.fill(sentence, 170) for sentence in summary["verdict"])
        _title(figure, "The same tokens in several orders", f"{facts}\n{note}", LEFT, 0.975)
        losses, gradient = (figure.add_axes((left, 0.56, 0.4, 0.25)) for left in (0.06, 0.56))
        charts.training_losses(losses, orders, summary["epochs"])
        losses.legend(ncols=2, fontsize=11)
        _headline(losses, "Training loss", "nats a token, mean over seeds")
        ranks = figure.add_axes((0.56, 0.08, 0.4, 0.3))
        if summary["epochs"] > 1:
            charts.around_seam(gradient, orders, "norms around the seam")
            _headline(gradient, "The gradient around the seam", "its norm, before a step")
        else:
            gradient.axis("off")
        charts.heldout_differences(figure.add_axes((0.14, 0.08, 0.32, 0.36)), orders, sources)
        _headline(
            figure.axes[-1],
            "Held-out loss less shuffled",
            "bars: 95 % intervals over seeds; “all”: mean of sources",
        )
        charts.stable_ranks(ranks, summary["layers"])
        _headline(ranks, "Stable rank of gradients less shuffled", "at the end of training, by weight matrix")

    return picture(1600, 1300, draw)


def _joined(*notes: str) -> str:
    return " · ".join(filter(None, notes))


def _title(figure: Figure, title: str, note: str, left: float, top: float, size: float = 13) -> None:
    figure.text(left, top, title, size=21, weight="bold")
    figure.text(left, top - 0.012, note, size=size, color=MUTED, va="top", linespacing=1.4)


def _headline(axes: Axes, title: str, note: str) -> None:
    axes.annotate(title, (0, 1), (0, 30), "axes fraction", "offset points", size=15, weight="bold")
    axes.annotate(note, (0, 1), (0, 12), "axes fraction", "offset points", size=12, color=MUTED)


def _draw_bars(
    figure: Figure, mixes: Mapping[str, NDArray[np.float32]], tokens: int, names: Sequence[str]
) -> None:
    first = next(iter(mixes.values()))
    whole, ranked = first.mean(axis=0, dtype=np.float64), by_place(first)
    colours = cluster_colours(len(ranked))
    charts.cluster_legend(figure, names, whole, (LEFT, RIGHT + GAP + STRIP), 0.917)
    for at, (name, mix) in enumerate(mixes.items()):
        bottom = BARS - BETWEEN * at
        head = bottom + BAR + 0.007
        bar = figure.add_axes((LEFT, bottom, RIGHT - LEFT, BAR))
        strip = figure.add_axes((RIGHT + GAP, bottom, STRIP, BAR))
        for axes, shares in ((bar, mix), (strip, whole[np.newaxis])):
            axes.imshow(
                colours[ranked][stacked(shares[:, ranked], BAR_ROWS)],
                aspect="auto",
                extent=(0.0, 100.0, 1.0, 0.0),
                interpolation="nearest" if len(shares) <= BAR_PIXELS else "antialiased",
                interpolation_stage="rgba",
            )
            axes.grid(visible=False)
            axes.spines[:].set_visible(False)
            axes.set(xticks=[], yticks=[])
        if at == len(mixes) - 1:
            bar.set_xticks(range(0, 101, 25))
        series = charts.SERIES[name]
        figure.text(LEFT, head, series.name, color=COLOURS[series.colour], size=15, weight="bold")
        if at == 0:
            note = f"each column: the clusters' shares of {tokens / len(mix):,.0f} tokens"
            figure.text(RIGHT - GAP, head, note, color=MUTED, size=12, ha="right")
            figure.text(RIGHT + GAP + STRIP / 2, head, "corpus", color=MUTED, size=12, ha="center")


def _draw_distinct(figure: Figure, distinct: Mapping[str, NDArray[np.int64]], clusters: int) -> None:
    """A panel for each order, on one scale: in one panel, bands would hide each other."""
    top = max((float(values.max(initial=1)) for values in distinct.values()), default=1.0)
    width = (HALF - BESIDE * (len(distinct) - 1)) / max(1, len(distinct))
    for at, (name, values) in enumerate(distinct.items()):
        bins = binned(values, int(np.clip(len(values) // 16, 20, 70)))
        axes = figure.add_axes((LEFT + at * (width + BESIDE), FOOT, width, PANEL))
        charts.distinct(axes, name, bins, clusters, top)
        axes.set_xticks([0, 50, 100])
        # Labels stay inside their own panel.
        for label, side in zip(axes.get_xticklabels(), ("left", "center", "right"), strict=True):
            label.set(horizontalalignment=side)
        if at == 0:
            note = "line: mean, band: fewest to most, of neighbouring sequences"
            _headline(axes, "Clusters in a sequence", note)
        else:
            axes.tick_params(labelleft=False)
        if at == len(distinct) // 2:
            axes.set_xlabel("position in the dataset, % of tokens")


def _draw_table(figure: Figure, measured: Mapping[str, Mapping[str, Any]], traits: Sequence[str]) -> None:
    """Right-aligned numbers under headings, a row for each order."""
    rows = [summary_row(name, figures, traits) for name, figures in measured.items()]
    columns = measures(name for name in (*followed(traits), *IN_TABLE) if rows[0][name] is not None)
    edges = np.linspace(LEFT + 0.12, RIGHT + GAP + STRIP, len(columns) + 1)[1:]
    top = 0.128
    for right, measure in zip(edges, columns.values(), strict=True):
        heading = textwrap.fill(measure.label, HEADING)
        figure.text(right, top, heading, size=12, color=MUTED, ha="right", va="bottom", linespacing=1.3)
    for at, row in enumerate(rows):
        y, series = top - 0.028 - 0.0225 * at, charts.SERIES[row["order"]]
        figure.text(LEFT, y, series.name, size=14, weight="bold", color=COLOURS[series.colour])
        for right, (name, measure) in zip(edges, columns.items(), strict=True):
            figure.text(right, y, measure.show(row[name]), size=14, ha="right")


def _draw_sizes(figure: Figure, left: float, names: Sequence[str], sizes: NDArray[np.int64]) -> None:
    largest = np.argsort(-sizes, kind="stable")[:LARGEST]
    k = len(sizes)
    figure.text(left, 0.875, "Documents of each cluster", size=15, weight="bold")
    top, bottom = 0.86, 0.06
    # Bars are never thicker than with 20 clusters.
    height = (top - bottom) * min(1.0, max(1, len(largest)) / 20)
    axes = figure.add_axes((left + 0.155, top - height, 0.765 - left, height))
    bars = axes.barh(
        range(len(largest)), sizes[largest], height=0.72, color=cluster_colours(k)[largest], linewidth=0
    )
    axes.bar_label(bars, [f"{size:,}" for size in sizes[largest]], padding=4, size=11, color=MUTED)
    axes.set_xlim(0, max(1, int(sizes.max(initial=0))))
    axes.set_ylim(max(1, len(largest)) - 0.5, -0.5)
    axes.set_xticks([])
    axes.set_yticks(
        range(len(largest)), [brief(names[cluster]) for cluster in largest], size=11, color=COLOURS["ink"]
    )
    axes.grid(visible=False)
    axes.spines[:].set_visible(False)
    if k > len(largest):
        rest = int(sizes.sum() - sizes[largest].sum())
        figure.text(left, 0.025, f"and {k - len(largest):,} smaller ones with {rest:,}", size=12, color=MUTED)
