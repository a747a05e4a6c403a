"""The picture of a calibration: the silhouette, and what the order gains, against the number of clusters.

Guarantee: the same numbers give the same PNG bytes (one machine, one matplotlib), whatever the user's style.
Cost: some 0.3 s.
Source: the first seed's calibration plot.
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from dagster_divorder.view.ordering_comparison import AFTER, DPI, FAINT, INK, RULE, SHUFFLED, style

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

LOG_FROM = 10
"""A logarithmic axis where the largest k is this many times the smallest."""

LABEL_WIDTH = 0.04  # of the axis

Rows = Sequence[Mapping[str, Any]]


def k_calibration(rows: Rows, tolerated: float) -> "Figure":
    """The figure, 1200 x 900 pixels.

    rows: at least one, by rising `k`; of the columns of the table (pipeline/k_calibration.py) `k`, `silhouette`,
    `recommended` and those of the distinct clusters a sequence. tolerated: silhouettes from here on are as good as the
    best.
    """
    from matplotlib.figure import Figure

    with style():
        figure = Figure(figsize=(12, 9), dpi=DPI, facecolor="white")
        chosen = next(row for row in rows if row["recommended"])
        figure.text(
            0.08, 0.945, f"{chosen['k']:,} clusters recommended", size=21, weight="bold", va="baseline"
        )
        figure.text(
            0.08,
            0.915,
            "the highest number whose silhouette is as good as the best (grey: that good)",
            size=13,
            color=FAINT,
            va="baseline",
        )
        top = figure.add_axes((0.08, 0.51, 0.88, 0.31))
        bottom = figure.add_axes((0.08, 0.08, 0.88, 0.31), sharex=top)
        _draw_silhouette(top, rows, chosen, tolerated)
        _draw_distinct(bottom, rows, chosen)
    return figure


def _draw_silhouette(axes: "Axes", rows: Rows, chosen: Mapping[str, Any], tolerated: float) -> None:
    silhouettes = [row["silhouette"] for row in rows]
    axes.axhspan(tolerated, max(silhouettes), color=RULE, alpha=0.6, linewidth=0)
    axes.plot([row["k"] for row in rows], silhouettes, "o-", color=INK, linewidth=1.8, markersize=6)
    axes.margins(y=0.15)
    _headline(axes, "Silhouette", "cosine, mean over the documents")
    _axis(axes, rows, chosen)


def _draw_distinct(axes: "Axes", rows: Rows, chosen: Mapping[str, Any]) -> None:
    k = [row["k"] for row in rows]
    name = "distinct clusters a sequence"
    for column, marker, colour, label in (
        (name, "o-", AFTER, "balanced"),
        (f"{name}, shuffled", "s--", SHUFFLED, "shuffled"),
    ):
        axes.plot(
            k, [row[column] for row in rows], marker, color=colour, linewidth=1.8, markersize=6, label=label
        )
    axes.set_ylim(bottom=0)
    axes.margins(y=0.15)
    axes.set_xlabel("clusters")
    axes.legend(loc="lower right", bbox_to_anchor=(1.0, 1.02), ncols=2, frameon=False, labelcolor="linecolor")
    _headline(axes, "Clusters per sequence", "distinct ones, mean; by the order that they lead to")
    _axis(axes, rows, chosen)


def _axis(axes: "Axes", rows: Rows, chosen: Mapping[str, Any]) -> None:
    from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

    k = [row["k"] for row in rows]
    log = k[-1] >= LOG_FROM * k[0]
    if log:
        axes.set_xscale("log")
    axes.xaxis.set_major_locator(FixedLocator(_ticks(np.log(k) if log else np.array(k, float), k)))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.grid(axis="y")
    axes.set_axisbelow(True)
    axes.tick_params(length=0)
    axes.axvline(chosen["k"], color=AFTER, linewidth=1.2, linestyle=(0, (4, 4)), zorder=1)


def _ticks(at: NDArray[np.float64], k: list[int]) -> list[int]:
    """The values of k whose labels do not touch, by their places on the axis."""
    ticks: list[int] = []
    latest = -np.inf
    for place, value in zip(at, k, strict=True):
        if place - latest >= LABEL_WIDTH * (at[-1] - at[0]):
            ticks.append(value)
            latest = place
    return ticks


def _headline(axes: "Axes", title: str, note: str) -> None:
    axes.annotate(title, (0, 1), (0, 26), "axes fraction", "offset points", size=15, weight="bold")
    axes.annotate(note, (0, 1), (0, 9), "axes fraction", "offset points", size=12, color=FAINT)
