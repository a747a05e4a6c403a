"""PNG files of stages: an order before and after, clusters and their map.

Letters: S sequences, N documents on a map, K clusters, C columns of a bar.
Cost: 0.3 to 2 s each, whatever the corpus, because points are thinned or sampled first. Known weakness: above some 30
clusters only their places distinguish neighbours, not their colours. A name in a script that no installed typeface has
becomes the cluster's number. Source: the ordering_comparison.png and the calibration plot of
Diversity-Ordered Training.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from dagster_divorder.view import charts
from dagster_divorder.view.drawing import COLOURS, cluster_colours, drawable, sheet, sheet_picture, style
from dagster_divorder.view.measures import Figures
from dagster_divorder.view.shown import Chart, Panel
from dagster_divorder.view.words import NAME, TRAIN_ON, clip, short

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MUTED = COLOURS["muted"]
LARGEST = 30
"""Number of clusters with a bar of their size, and a number on the map."""


def ordering_comparison(metrics: Mapping[str, Figures], shown: Mapping[str, Chart]) -> bytes:
    """Effects of orders, 1600 pixels wide: `charts.before_and_after`, and the prefix deviation of the same orders.
    metrics: by order."""
    of = metrics[TRAIN_ON]
    facts = (
        f"{of['documents']:,} documents · {short(of['tokens'])} tokens · sequences of {of['sequence_length']:,} tokens "
        f"· batches of {of['batch']:,} sequences",
        *(chart.caption for chart in shown.values()),
    )
    title = "prefix deviation: distance of everything read so far from the mix, tokens"
    prefixes = charts.prefixes(metrics, title)._replace(height=200)
    return sheet_picture(
        [*shown.values(), prefixes], "The same documents, before and after", "\n".join(facts)
    )


def mixes_along(
    mixes: Mapping[str, Mapping[str, NDArray[np.floating]]], names: Mapping[str, Sequence[str]], note: str
) -> Figure:
    """A row of panels for each trait, a panel for each order: slices of the order from left to right, each divided
    among J values by share, the largest named below. Notebooks show the figure.

    mixes: by trait and order, shares (C, J), rows sum to 1. names: of the J values, by trait.
    """
    charts_of = []
    for trait, orders in mixes.items():
        sizes = np.mean([mix.mean(axis=0) for mix in orders.values()], axis=0)
        # The largest value is on top in every panel.
        ranked, colours = np.argsort(-sizes, kind="stable"), cluster_colours(len(sizes))
        panels = [
            Panel(f"{trait}, {order}", partial(charts.bars, mix=mix, colours=colours, ranked=ranked))
            for order, mix in orders.items()
        ]
        charts_of.append(Chart(panels, across=len(panels), height=120, values=(names[trait], sizes)))
    with style():
        return sheet(charts_of, note=f"{note}; from left to right: position in the table, %", width=1200)


def cluster_map(
    title: str,
    note: str,
    names: Sequence[str],
    sizes: Sequence[int],
    xy: NDArray[np.floating],
    labels: NDArray[np.integer],
) -> bytes:
    """The map and the sizes of the largest clusters, 1600 pixels wide.

    names, sizes: of the K clusters. xy, labels: documents' places on the map, float (N, 2), and clusters, int (N,).
    Points are drawn in the given order, so that no cluster covers another.
    """
    from matplotlib.patheffects import withStroke

    colours, counts = cluster_colours(len(names)), np.asarray(sizes)
    largest = np.argsort(-counts, kind="stable")[:LARGEST]
    shown = drawable(names)

    def draw_map(axes: Axes) -> None:
        axes.set_axis_off()
        axes.set_aspect("equal", adjustable="datalim")
        side = float(np.clip(340.0 / np.sqrt(max(1, len(xy))), 2.0, 9.0))  # points of 1/72 inch
        axes.scatter(xy[:, 0], xy[:, 1], s=side**2, c=colours[labels], alpha=0.65, linewidths=0)
        axes.margins(0.02)
        halo = [withStroke(linewidth=3, foreground="white")]
        for cluster in np.argsort(-np.bincount(labels, minlength=1), kind="stable")[:LARGEST].tolist():
            if len(members := xy[labels == cluster]):
                text: Any = {
                    "ha": "center",
                    "va": "center",
                    "size": 11,
                    "weight": "bold",
                    "path_effects": halo,
                }
                axes.annotate(str(cluster), np.median(members, axis=0), **text)

    def draw_sizes(axes: Axes) -> None:
        places = range(len(largest))
        bars = axes.barh(places, counts[largest], height=0.72, color=colours[largest], linewidth=0)
        axes.bar_label(bars, [f"{size:,}" for size in counts[largest]], padding=4, size=11, color=MUTED)
        axes.set(
            xlim=(0, 1.15 * max(1, int(counts.max(initial=0)))), ylim=(max(20, len(largest)) - 0.5, -0.5)
        )
        axes.set_xticks([])
        axes.set_yticks(places, [f"{clip(shown[cluster], NAME)}  {cluster}" for cluster in largest], size=11)
        axes.grid(visible=False)
        axes.spines[:].set_visible(False)

    rest = len(names) - len(largest)
    panels = [
        Panel("", draw_map),
        Panel(f"documents of each cluster{f', of the {LARGEST} largest' if rest > 0 else ''}", draw_sizes),
    ]
    return sheet_picture([Chart(panels, across=2, height=630)], title, note)
