"""The film of an ordering: documents move from their original place to the curated one, and the diversity curve grows.

The bar is the dataset. Left of the mark is what has been placed, in its new order; right of it, dimmed, what still
waits, in the original order. Each small square is a token, drawn at even distances; its colour is its cluster. Below:
distinct clusters in each sequence, of the original order, and of the curated one as far as it is placed.

Guarantee: see view/film.py. Cost: some 20 ms a frame, whatever the corpus: cells and points are samples.
Source: the first seed's ordering_animation.mp4.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dagster_divorder.core.migration import Cells, frame_ends, migrated
from dagster_divorder.view.canvas import Canvas
from dagster_divorder.view.film import HEIGHT, WIDTH
from dagster_divorder.view.ordering_comparison import AFTER, BEFORE, FAINT, INK, cluster_colours, style

COLUMNS, ROWS = 300, 36
"""Squares of the bar, 4 pixels each."""
DPI = 100
DIMMED = 0.28


def frames(
    cells: Cells,
    labels: NDArray[np.integer],
    before: NDArray[np.floating],
    after: NDArray[np.floating],
    *,
    count: int,
    sequence_length: int,
) -> Iterator[NDArray[np.uint8]]:
    """Frames uint8 (HEIGHT, WIDTH, 4), each valid until the next.

    cells: from core.migration, at most COLUMNS x ROWS; labels int (M,), the cluster of each document. before, after:
    mean distinct clusters a sequence along the dataset, any number of even bins.
    """
    from matplotlib.figure import Figure

    seen = (
        np.unique(labels[cells.document], return_inverse=True)[1] if len(cells.document) else np.zeros(0, int)
    )
    # Clusters that lie together in the original order get like hues.
    rank = _by_first_place(seen, cells.original_rank)
    colours = cluster_colours(int(rank.max(initial=0)) + 1)[rank]
    with style():
        figure = Figure(figsize=(WIDTH / DPI, HEIGHT / DPI), dpi=DPI, facecolor="white")
        figure.text(0.031, 0.92, "Putting the documents in order", size=20, weight="bold", color=INK)
        figure.text(
            0.031, 0.872, "each square: a part of the dataset, coloured by its cluster", size=12, color=FAINT
        )
        status = figure.text(0.969, 0.92, "", size=15, color=AFTER, ha="right", weight="bold", animated=True)
        bar = figure.add_axes((0.031, 0.6, 0.938, 0.22))
        bar.set_axis_off()
        bar.set(xlim=(0, 1), ylim=(0, 1))
        image = bar.imshow(
            np.ones((ROWS, COLUMNS, 3)),
            extent=(0, 1, 0, 1),
            aspect="auto",
            interpolation="nearest",
            animated=True,
        )
        mark = bar.axvline(0, color=INK, linewidth=2, animated=True)
        figure.text(0.031, 0.558, "placed, in the curated order", size=12, color=AFTER)
        figure.text(0.969, 0.558, "waiting, in the original order", size=12, color=BEFORE, ha="right")

        panel = figure.add_axes((0.062, 0.11, 0.907, 0.34))
        panel.grid(axis="y")
        panel.tick_params(length=0)
        top = max(1.0, float(max(before.max(initial=0), after.max(initial=0))))
        panel.set(xlim=(0, 100), ylim=(0, 1.08 * top), xlabel="position in the dataset, % of tokens")
        panel.set_title(
            f"distinct clusters in each sequence of {sequence_length:,} tokens",
            size=13,
            loc="left",
            color=INK,
        )
        panel.plot(_along(before), before, color=BEFORE, linewidth=1.6)
        (curve,) = panel.plot([], [], color=AFTER, linewidth=2.2, animated=True)
        for name, colour, at in (("original", BEFORE, 91), ("curated", AFTER, 100)):
            panel.text(at, 1.12 * top, name, color=colour, size=12, ha="right", weight="bold")
        canvas = Canvas(figure)
        for placed in frame_ends(len(rank), count):
            share = placed / max(1, len(rank))
            image.set_data(_bar(colours[migrated(cells, int(placed))], int(placed)))
            mark.set_xdata([share, share])
            drawn = int(np.ceil(share * len(after)))
            curve.set_data(_along(after)[:drawn], after[:drawn])
            status.set_text(f"{share:.0%} placed")
            yield canvas.frame((image, mark, curve, status))


def _by_first_place(seen: NDArray[Any], original_rank: NDArray[np.int64]) -> NDArray[np.int64]:
    """Clusters numbered by their mean place in the original order, int64 (C,)."""
    if not len(seen):
        return np.zeros(0, np.int64)
    place = np.bincount(seen, original_rank) / np.bincount(seen)
    number = np.empty(len(place), np.int64)
    number[np.argsort(place, kind="stable")] = np.arange(len(place))
    return number[seen]


def _bar(colours: NDArray[np.float64], placed: int) -> NDArray[np.float64]:
    """The bar (ROWS, COLUMNS, 3), filled column by column; what waits is mixed with white."""
    shown = np.where(np.arange(len(colours))[:, None] < placed, colours, 1 - DIMMED * (1 - colours))
    # As many squares as the bar has, each the cell at its place.
    cell = np.arange(ROWS * COLUMNS) * len(shown) // (ROWS * COLUMNS)
    filled = shown[cell] if len(shown) else np.ones((ROWS * COLUMNS, 3))
    return filled.reshape(COLUMNS, ROWS, 3).swapaxes(0, 1)


def _along(values: NDArray[np.floating]) -> NDArray[np.float64]:
    return 100 * (np.arange(len(values)) + 0.5) / max(1, len(values))
