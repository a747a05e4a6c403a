"""Errors of each trait apart, up to every step and in every batch, against three shuffles."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from dagster_divorder.view.report.chart import COLOURS, chart, panels, position_axis
from dagster_divorder.view.report.html import Markup
from dagster_divorder.view.report.names import SERIES, Series, legend
from dagster_divorder.view.report.section import Section
from dagster_divorder.view.report.table import Column, table
from dagster_divorder.view.report.words import number, percent, short

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SHUFFLES = Series("three shuffles of the sequences", "shuffled")
SCALES = {"cumulative": "up to each step", "batch": "in each batch"}

_COLUMNS = [
    Column("trait", text=True),
    Column("error", text=True),
    Column("mean, ours"),
    Column("mean, best shuffle"),
    Column("worst, ours"),
    Column("least of any shuffle"),
    Column("below all shuffles"),
    Column("at all times", text=True),
]


def section(metrics: dict[str, dict[str, Any]], traits: Sequence[str]) -> Section:
    """metrics: by order; see `pipeline.diversity_metrics.load_metrics`. traits: those that are balanced."""
    ours = metrics["sequences"]
    curves = {trait: ours["curves"]["trait_errors"][trait] for trait in traits}
    parts = [legend("sequences", SHUFFLES)]
    parts += [_chart(f"errors-{at}", trait, of) for at, (trait, of) in enumerate(curves.items())]
    rows = [
        (
            trait,
            f"{words}, of {number(of['steps'])}",
            *(number(of[name]) for name in ("mean", "shuffled_mean", "worst", "shuffled_least")),
            percent(of["better"]),
            "" if of["always"] is None else "yes" if of["always"] else "no",
        )
        for trait in traits
        for scale, words in SCALES.items()
        for of in [ours["trait_errors"][trait][scale]]
    ]
    parts.append(table("Errors in tokens, the curated sequences against three shuffles", _COLUMNS, rows))
    return Section(
        "errors",
        "Each trait apart",
        "The Euclidean distance, in tokens, between what each value of a trait has and what is expected of it, as "
        "“Don’t Shuffle, Optimize” reports it: of all that was read up to each step, and of every batch.",
        Markup("").join(parts),
    )


def _chart(name: str, trait: str, curves: dict[str, Any]) -> Markup:
    def draw(figure: Figure, wide: bool) -> None:
        from matplotlib.ticker import LogLocator, NullLocator

        for axes, (scale, words) in zip(
            panels(figure, 2, wide, one_scale=False), SCALES.items(), strict=True
        ):
            of = curves[scale]
            at = 100 * np.asarray(of["at"])
            for line, series in [
                *((line, SHUFFLES) for line in of["shuffled"]),
                (of["ours"], SERIES["sequences"]),
            ]:
                values = np.asarray(line)
                axes.plot(
                    at, np.where(values > 0, values, np.nan), color=COLOURS[series.colour], linewidth=1.3
                )
            if any(of["ours"]) or any(map(any, of["shuffled"])):
                axes.set_yscale("log")
                axes.yaxis.set_major_locator(LogLocator(subs=(1.0, 3.0), numticks=20))
                axes.yaxis.set_minor_locator(NullLocator())
                axes.yaxis.set_major_formatter(lambda value, _: short(value))
            position_axis(axes)
            axes.set_title(f"{trait}, {words}")

    return chart(
        name,
        draw,
        title=f"Errors of {trait} along the dataset, ours and three shuffles",
        description=f"Two line charts, logarithmic: the error of {trait} up to each step, and in each batch.",
        height=270,
        narrow_height=430,
        caption="Along the position in the dataset, % of tokens: L2 distance in tokens, logarithmic scale; "
        "lower is better.",
    )
