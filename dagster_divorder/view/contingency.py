"""Two clusterings of the same documents as a heatmap: which clusters of the one are which of the other.

Letters: K and J clusters.
Guarantee: the same numbers give the same PNG bytes (one machine, one matplotlib), whatever the user's style.
Cost: some 0.5 s.
Known weakness: a name in a script that matplotlib's own typeface lacks is drawn as boxes.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from dagster_divorder.view.ordering_comparison import DPI, FAINT, style, to_png

WIDTH, HEIGHT = 14.0, 11.5  # inches
SHOWN = 40
"""Clusters of either clustering at most."""
NAME = 30
"""Letters of a name that are shown."""


def contingency_picture(
    table: NDArray[np.integer],
    rows: Sequence[str],
    columns: Sequence[str],
    note: str,
    spaces: tuple[str, str] = ("shallow", "deep"),
) -> bytes:
    """The heatmap as a PNG file's bytes, 1400 x 1150 pixels.

    table: int (m, m), documents that have cluster k of the first space and j of the second, matched clusters on the
    diagonal, those with most common documents first; the first SHOWN are drawn. rows, columns: m names each.
    """
    import matplotlib as mpl
    from matplotlib.figure import Figure

    shown = min(len(rows), SHOWN)
    whole = np.maximum(table.sum(axis=1, keepdims=True), 1)
    shares = (table / whole)[:shown, :shown]
    with style(), mpl.rc_context({"text.parse_math": False}):
        figure = Figure(figsize=(WIDTH, HEIGHT), dpi=DPI, facecolor="white")
        figure.text(0.03, 0.955, "Which clusters are the same in both spaces", size=21, weight="bold")
        figure.text(0.03, 0.94, _wrapped(note), size=12, color=FAINT, va="top", linespacing=1.4)
        axes = figure.add_axes((0.24, 0.24, 0.66, 0.63))
        image = axes.imshow(shares, cmap="Blues", vmin=0.0, vmax=1.0, aspect="auto", interpolation="nearest")
        size = 11 if shown <= 30 else 9
        axes.set_xticks(
            range(shown), [_short(name) for name in columns[:shown]], rotation=55, ha="right", size=size
        )
        axes.set_yticks(range(shown), [_short(name) for name in rows[:shown]], size=size)
        axes.tick_params(length=0, labelcolor="#222222")
        axes.spines[:].set_visible(False)
        axes.set_ylabel(spaces[0], size=13, weight="bold")
        axes.set_xlabel(spaces[1], size=13, weight="bold")
        bar = figure.colorbar(image, cax=figure.add_axes((0.92, 0.24, 0.015, 0.63)))
        bar.outline.set_visible(False)
        bar.set_label(f"share of the {spaces[0]} cluster's documents", size=11)
        if len(rows) > shown:
            figure.text(0.03, 0.02, f"and {len(rows) - shown:,} pairs more", size=11, color=FAINT)
        return to_png(figure)


def _short(name: str) -> str:
    return name if len(name) <= NAME else name[: NAME - 1].rstrip(" ,") + "…"


def _wrapped(note: str) -> str:
    import textwrap

    return "\n".join(textwrap.wrap(note, 150))
