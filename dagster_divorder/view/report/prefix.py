"""Prefix deviation: how far the tokens seen so far stray from the corpus's mix."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from dagster_divorder.view.report.chart import COLOURS, chart, panel, position_axis
from dagster_divorder.view.report.names import SERIES, legend
from dagster_divorder.view.report.section import Section
from dagster_divorder.view.report.words import listed, number, short, times

if TYPE_CHECKING:
    from collections.abc import Sequence

    from matplotlib.figure import Figure

POINTS = 300
"""Of a curve, at most."""


def section(metrics: dict[str, dict[str, Any]], moving: Sequence[str] = ()) -> Section:
    """metrics: by order; see `pipeline.diversity_metrics.load_metrics`. moving: traits with targets that move."""
    orders = [name for name in SERIES if name in metrics and any(metrics[name]["prefix"]["l2"])]

    def draw(figure: Figure, wide: bool) -> None:
        from matplotlib.ticker import LogLocator, NullLocator

        axes = panel(figure, 46, 28, 14, 12)
        axes.set_yscale("log")
        for name in orders:
            share, l2 = (np.asarray(metrics[name]["prefix"][of]) for of in ("share", "l2"))
            thinned = np.unique(np.linspace(0, len(share) - 1, POINTS if wide else POINTS // 2).astype(int))
            shown = thinned[l2[thinned] > 0]
            series = SERIES[name]
            axes.plot(
                100 * share[shown],
                l2[shown],
                color=COLOURS[series.colour],
                linestyle=(0, (2, 2)) if series.dashed else "solid",
                linewidth=1.7,
            )
        axes.yaxis.set_major_locator(LogLocator(subs=(1.0, 3.0), numticks=20))
        axes.yaxis.set_minor_locator(NullLocator())
        axes.yaxis.set_major_formatter(lambda value, _: short(value))
        position_axis(axes)

    means = "; ".join(f"{SERIES[name].name} {number(metrics[name]['prefix']['mean'])}" for name in orders)
    body = legend(*orders) + chart(
        "prefix",
        draw,
        title="Prefix deviation of each order along the dataset",
        description=f"Line chart, logarithmic. Mean deviation in tokens: {means}.",
        height=340,
        narrow_height=300,
        caption="Along the position in the dataset, % of tokens: L2 distance in tokens, logarithmic scale; "
        "lower is better.",
    )
    ours, shuffled = (metrics[name]["prefix"]["mean"] for name in ("sequences", "sequences_random"))
    return Section(
        "prefix",
        "Up to any point",
        f"The tokens seen so far, held against the corpus’s mix{_moving(moving)} at every point of training: any "
        f"window is the difference of two such prefixes. Curated sequences stray {number(ours)} tokens on average, "
        f"shuffled ones {number(shuffled)}: {times(ours, shuffled)}.",
        body,
    )


def _moving(traits: Sequence[str]) -> str:
    return f" (for {listed(list(traits))}: what can be had of the targets)" if traits else ""
