"""Distinct clusters in every sequence, along the dataset."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from dagster_divorder.core.metrics.along import Binned
from dagster_divorder.view.report.chart import COLOURS, chart, panels, position_axis
from dagster_divorder.view.report.names import SERIES
from dagster_divorder.view.report.section import Section
from dagster_divorder.view.report.words import number

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def section(orders: Mapping[str, Binned], clusters: int, sequence_length: int) -> Section:
    """orders: by name (see `names.SERIES`), distinct clusters of the sequences in bins of neighbours."""

    def draw(figure: Figure, wide: bool) -> None:
        from matplotlib.ticker import MaxNLocator

        top = max((float(found.high.max()) for found in orders.values() if len(found.at)), default=1.0)
        for axes, (name, found) in zip(panels(figure, len(orders), wide), orders.items(), strict=True):
            series = SERIES[name]
            colour = COLOURS[series.colour]
            axes.fill_between(
                100 * found.at, found.low, found.high, color=colour, alpha=0.2, linewidth=0, step="mid"
            )
            axes.plot(100 * found.at, found.mean, color=colour)
            axes.set_ylim(0, 1.06 * top)
            axes.yaxis.set_major_locator(MaxNLocator(5, integer=True))
            position_axis(axes)
            mean = f": {number(float(found.mean.mean()))}" if len(found.at) else ""
            axes.set_title(f"{series.name}{mean}", color=colour)

    means = "; ".join(
        f"{SERIES[name].name}: {number(float(found.mean.mean()))} on average, from {number(float(found.low.min()))} to "
        f"{number(float(found.high.max()))}"
        for name, found in orders.items()
        if len(found.at)
    )
    body = chart(
        "distinct",
        draw,
        title="Distinct clusters in each training sequence along the dataset",
        description=f"{len(orders)} line charts over the position in the dataset. {means}.",
        height=250,
        narrow_height=150 * len(orders) + 60,
        caption="Line: mean of neighbouring sequences; band: from the fewest to the most. The number is the "
        "mean over all.",
    )
    return Section(
        "sequences",
        "Topics in every sequence",
        f"How many of the {clusters:,} clusters a sequence of {sequence_length:,} tokens holds, from the "
        "first sequence to the last. Documents that fill whole sequences limit it, whatever the order.",
        body,
    )
