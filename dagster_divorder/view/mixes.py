"""Shares of values along orders, side by side."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from dagster_divorder.view.charts import cluster_legend
from dagster_divorder.view.drawing import COLOURS, DPI, cluster_colours, stacked, style

if TYPE_CHECKING:
    from matplotlib.figure import Figure

WIDTH, HEAD, PANEL = 1200, 70, 200
"""Pixels: the figure's width, the height of its head and of a row of panels."""
BAR_ROWS = 200
LEFT, GAP = 0.04, 0.03


def draw_mixes(
    mixes: Mapping[str, Mapping[str, NDArray[np.floating]]], names: Mapping[str, Sequence[str]], note: str
) -> Figure:
    """A row of panels for each trait, a panel for each order: slices of the order from left to right, each divided
    among J values by share.

    mixes: by trait and order, shares (C, J), rows sum to 1. names: of the J values, by trait.
    """
    from matplotlib.figure import Figure

    class ShownFigure(Figure):
        """Notebooks show a plain Figure only if `matplotlib.pyplot` has made it."""

        def _repr_png_(self) -> bytes:
            file = io.BytesIO()
            self.savefig(file, format="png")
            return file.getvalue()

    height = HEAD + PANEL * len(mixes)
    with style():
        figure = ShownFigure(figsize=(WIDTH / DPI, height / DPI), dpi=DPI, facecolor="white")
        figure.text(
            LEFT,
            1 - 40 / height,
            f"{note}; from left to right: position in the table, %",
            size=13,
            color=COLOURS["muted"],
        )
        for row, (trait, orders) in enumerate(mixes.items()):
            top = 1 - (HEAD + PANEL * row) / height
            sizes = np.mean([mix.mean(axis=0) for mix in orders.values()], axis=0)
            # The largest value is on top in every panel.
            ranked, colours = np.argsort(-sizes, kind="stable"), cluster_colours(len(sizes))
            cluster_legend(figure, names[trait], sizes, (LEFT, 1 - LEFT), top - 168 / height)
            width = (1 - 2 * LEFT - GAP * (len(orders) - 1)) / len(orders)
            for at, (order, mix) in enumerate(orders.items()):
                left = LEFT + at * (width + GAP)
                axes = figure.add_axes((left, top - 120 / height, width, 100 / height))
                axes.set_title(f"{trait}, {order}")
                axes.imshow(
                    colours[ranked][stacked(mix[:, ranked], BAR_ROWS)],
                    aspect="auto",
                    extent=(0, 100, 1, 0),
                    interpolation="nearest",
                )
                axes.set_yticks([])
                axes.grid(False)
    return figure
