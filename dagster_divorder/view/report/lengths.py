"""Lengths of documents along the dataset."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from dagster_divorder.view.report.chart import COLOURS, chart, panels, position_axis
from dagster_divorder.view.report.names import SERIES
from dagster_divorder.view.report.section import Section
from dagster_divorder.view.report.words import number, short

if TYPE_CHECKING:
    from matplotlib.figure import Figure

QUANTILES = (0.1, 0.25, 0.5, 0.75, 0.9)


def section(orders: Mapping[str, NDArray[np.float64]]) -> Section:
    """orders: by name (see `names.SERIES`), the quantiles QUANTILES of the documents' lengths in slices of the dataset,
    (C, 5), as `core.metrics.along.quantiles_along` gives them."""

    def draw(figure: Figure, wide: bool) -> None:
        from matplotlib.ticker import LogLocator, NullLocator

        every = np.concatenate([found.ravel() for found in orders.values()])
        low, high = max(1.0, float(np.nanmin(every))), max(1.0, float(np.nanmax(every)))
        for axes, (name, found) in zip(panels(figure, len(orders), wide), orders.items(), strict=True):
            colour = COLOURS[SERIES[name].colour]
            middle = 100 * (np.arange(len(found)) + 0.5) / len(found)
            for outer, alpha in ((0, 0.16), (1, 0.28)):
                axes.fill_between(
                    middle, found[:, outer], found[:, 4 - outer], color=colour, alpha=alpha, linewidth=0
                )
            axes.plot(middle, found[:, 2], color=colour, linewidth=1.6)
            axes.set_yscale("log")
            axes.set_ylim(low / 1.3, high * 1.3)
            axes.yaxis.set_major_locator(LogLocator(numticks=6))
            axes.yaxis.set_minor_locator(NullLocator())
            axes.yaxis.set_major_formatter(lambda value, _: short(value))
            position_axis(axes)
            axes.set_title(SERIES[name].name, color=colour)

    says = "; ".join(
        f"{SERIES[name].name}: the median at a position is from {number(float(np.nanmin(found[:, 2])))} to "
        f"{number(float(np.nanmax(found[:, 2])))} tokens"
        for name, found in orders.items()
    )
    body = chart(
        "lengths",
        draw,
        title="Lengths of the documents along the dataset, before and after",
        description=f"{len(orders)} fan charts, logarithmic. {says}.",
        height=270,
        narrow_height=430,
        caption="Along the position in the dataset, % of tokens: length in tokens of the document that a "
        "token belongs to, logarithmic scale. Line: median; dark: the middle half; light: from the 10th to "
        "the 90th percentile.",
    )
    return Section(
        "lengths",
        "Long and short documents",
        "How long the documents are at each position, counted by their tokens.",
        body,
    )
