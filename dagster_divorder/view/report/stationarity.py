"""Whether anything drifts along the sequences: what the order balanced, and what it never saw."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dagster_divorder.core.metrics.stationarity import TENTHS, Drift, Stationarity
from dagster_divorder.view.report.chart import COLOURS, chart, panels, position_axis
from dagster_divorder.view.report.html import Markup
from dagster_divorder.view.report.section import Section
from dagster_divorder.view.report.table import Column, table
from dagster_divorder.view.report.words import listed, number

if TYPE_CHECKING:
    from matplotlib.figure import Figure

DRAWN = 3
"""Features whose tenths are drawn: those whose farthest tenth is most above shuffling."""
_MEASURES = {
    "rank": "rank correlation",
    "tenths": "farthest tenth",
    "batch": "mean batch",
    "neighbours": "alike",
}
_COLUMNS = [
    Column("feature", text=True),
    Column("balanced", text=True),
    *(Column(f"{name} (shuffled)", desk=name == "alike") for name in _MEASURES.values()),
    Column("verdict", text=True),
]


def section(found: Stationarity) -> Section:
    """The tenths of the worst features as a chart, and all of them as a table."""
    rows = [
        (
            of.feature,
            "yes" if of.seen else "no",
            *(_cell(of, name) for name in _MEASURES),
            "drifts" if of.drifts else "still",
        )
        for of in sorted(found.by_excess, key=lambda of: not of.drifts)
    ]
    body = table("Every feature, and in brackets the mean of shuffles of the same sequences", _COLUMNS, rows)
    in_tenths = [of for of in found.features if of.along]
    drawn = sorted(in_tenths, key=lambda of: -of.measures["tenths"].excess)[:DRAWN]
    return Section("drift", "What drifts", found.claim(), _chart(drawn) + body if drawn else body)


def _cell(of: Drift, name: str) -> str:
    if name not in of.measures:
        return "–"
    measure = of.measures[name]
    return f"{number(measure.value, 2)} ({number(measure.shuffled, 2)})"


def _chart(drawn: list[Drift]) -> Markup:
    def draw(figure: Figure, wide: bool) -> None:
        middles = [100 * (at + 0.5) / TENTHS for at in range(TENTHS)]
        for axes, of in zip(panels(figure, len(drawn), wide, one_scale=False), drawn, strict=True):
            axes.axhspan(*of.shuffled_along, color=COLOURS["shuffled"], alpha=0.25, linewidth=0)
            axes.plot(middles, of.along, color=COLOURS["sequences"], marker="o", markersize=4)
            axes.set_ylim(0, 1.1 * max(*of.along, of.shuffled_along[1], 1e-9))
            axes.yaxis.set_major_formatter(lambda value, _: number(value, 2))
            position_axis(axes)
            axes.set_title(of.feature, color=COLOURS["sequences"])

    farthest = [
        f"{of.feature} {number(max(of.along), 2)}, shuffled {number(of.shuffled_along[1], 2)}" for of in drawn
    ]
    return chart(
        "drift",
        draw,
        title="Distance of each tenth of training from the whole",
        description=f"{len(drawn)} line charts over the position in the dataset. Farthest tenth: {listed(farthest)}.",
        height=240,
        narrow_height=150 * len(drawn) + 60,
        caption="Distance of each tenth of the sequences from the whole, for the features whose tenths differ most; "
        "the band holds nine in ten of the shuffles’ tenths. Of mixes it is total variation, of vectors the Euclidean "
        "distance of their means, of numbers it is in standard deviations, of occurrences a part of chi².",
    )
