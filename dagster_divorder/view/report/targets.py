"""Targets: what was asked, what can be had of it, and what came, along the dataset."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from dagster_divorder.view.report.chart import COLOURS, chart, panels, position_axis
from dagster_divorder.view.report.html import Markup, fill
from dagster_divorder.view.report.names import SERIES, Series, legend
from dagster_divorder.view.report.section import Section
from dagster_divorder.view.report.table import Column, table
from dagster_divorder.view.report.words import clip, points

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

NAME = 40
"""Characters of a value's name."""
BESIDE = 3
"""Values in one chart."""

ASKED = Series("asked", "muted", dashed=True)
ACHIEVABLE = Series("can be had", "original")

_COLUMNS = [
    Column("value", text=True),
    Column("asked, mean"),
    Column("of all tokens"),
    Column("off what can be had, sequences: mean"),
    Column("largest"),
    Column("off what was asked, sequences: mean"),
    Column("largest"),
    Column("off what can be had, documents: mean", desk=True),
    Column("largest", desk=True),
]
_NOTES = """\
<ul class="notes">
{% for note in notes %}
<li>{{ note }}.</li>
{% endfor %}
</ul>
"""


def section(metrics: dict[str, dict[str, Any]], warnings: list[str]) -> Section:
    """A chart and a table a trait. metrics: by order; see `pipeline.diversity_metrics.load_metrics`. warnings: what
    cannot be had of what was asked."""
    parts = [legend(ASKED, ACHIEVABLE, "sequences", "curated")]
    for number, trait in enumerate(metrics["sequences"]["targets"]):
        ours, documents = (metrics[name]["targets"][trait] for name in ("sequences", "curated"))
        curves, others = (metrics[name]["curves"]["targets"][trait] for name in ("sequences", "curated"))
        for first in range(0, len(ours["values"]), BESIDE):
            shown = range(first, min(first + BESIDE, len(ours["values"])))
            parts.append(_chart(f"target-{number}-{first}", trait, ours, curves, others, shown))
        parts.append(_table(trait, ours, documents))
    if warnings:
        parts.append(fill(_NOTES, notes=warnings))
    return Section(
        "targets",
        "The mix that moves",
        "What order.targets asked for, what can be had of it, and what came. Every token is placed once, so what can "
        "be had is what was asked, scaled at every point and for every value until all of its tokens have a place.",
        Markup("").join(parts),
    )


def _chart(
    name: str,
    trait: str,
    ours: dict[str, Any],
    curves: dict[str, Any],
    documents: dict[str, Any],
    shown: range,
) -> Markup:
    lines = [
        (np.asarray(curves["asked"])[np.newaxis], ASKED),
        (np.asarray(documents["achieved"]), SERIES["curated"]),
        (np.asarray(curves["achieved"]), SERIES["sequences"]),
        (np.asarray(curves["achievable"])[np.newaxis], ACHIEVABLE),
    ]
    at = 100 * (np.arange(len(curves["asked"])) + 0.5) / max(1, len(curves["asked"]))
    top = 108 * max((float(shares[..., shown].max(initial=0.0)) for shares, _ in lines), default=1.0)

    def draw(figure: Figure, wide: bool) -> None:
        drawn: list[Axes] = panels(figure, len(shown), wide)
        for axes, value in zip(drawn, shown, strict=True):
            for shares, series in lines:
                for epoch in shares:
                    axes.plot(
                        at,
                        100 * epoch[:, value],
                        color=COLOURS[series.colour],
                        linestyle=(0, (4, 3)) if series.dashed else "solid",
                        linewidth=1.4,
                    )
            axes.set_ylim(0, max(top, 1.0))
            position_axis(axes)
            axes.set_title(clip(ours["values"][value], NAME))

    says = "; ".join(
        f"{clip(ours['values'][value], NAME)}: asked {_from_to(lines[0][0][0, :, value])}, can be had "
        f"{_from_to(lines[3][0][0, :, value])}, came {_from_to(lines[2][0][0, :, value])}"
        for value in shown
    )
    return chart(
        name,
        draw,
        title=f"Shares of {trait} along the dataset: asked, can be had, came",
        description=f"Line charts over the position in the dataset. {says}.",
        height=250,
        narrow_height=150 * len(shown) + 60,
        caption=f"Along the position in the dataset, % of tokens: % of the tokens of each hundredth, by {trait}.",
    )


def _from_to(shares: np.ndarray) -> str:
    return f"{points(shares[0])} % to {points(shares[-1])} %" if len(shares) else "nothing"


def _table(trait: str, ours: dict[str, Any], documents: dict[str, Any]) -> Markup:
    def off(of: dict[str, Any], against: str, at: int) -> tuple[str, str]:
        found = of["hundredth"][against]
        return points(found and found["mean"][at]), points(found and found["largest"][at])

    rows = [
        (
            clip(value, NAME) or "(empty)",
            f"{points(unmet['mean_asked'])} %",
            f"{points(unmet['mean_achievable'])} %",
            *off(ours, "off_achievable", at),
            *off(ours, "off_asked", at),
            *off(documents, "off_achievable", at),
        )
        for at, (value, unmet) in enumerate(zip(ours["values"], ours["unmet"], strict=True))
    ]
    return table(
        f"{trait}: shares in hundredths of the dataset, differences in percentage points", _COLUMNS, rows
    )
