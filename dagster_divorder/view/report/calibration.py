"""How many clusters: the calibration as a chart and a table."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dagster_divorder.view.report.chart import COLOURS, chart, panels
from dagster_divorder.view.report.html import Markup, fill
from dagster_divorder.view.report.section import Section
from dagster_divorder.view.report.table import Column, table
from dagster_divorder.view.report.words import fixed, number, points

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_COLUMNS = [
    Column("k", text=True),
    Column("silhouette"),
    Column("smallest cluster"),
    Column("median"),
    Column("largest"),
    Column("clusters in a sequence"),
    Column("shuffled"),
    Column("worst batch, points off"),
    Column("shuffled"),
]
_NOTES = """\
<ul class="notes">
{% for note in notes %}
<li>{{ note }}.</li>
{% endfor %}
</ul>
"""

DISTINCT = "distinct clusters a sequence"
WORST = "worst share, batch anywhere"


def section(rows: list[dict[str, Any]], notes: list[str], k: int) -> Section:
    """rows: the table of `pipeline.k_calibration`, by rising k. k: the number of clusters of this output."""
    chosen = next(row["k"] for row in rows if row["recommended"])
    values = [row["k"] for row in rows]

    def draw(figure: Figure, wide: bool) -> None:
        silhouette, gain = panels(figure, 2, wide, one_scale=False)
        silhouette.plot(
            values, [row["silhouette"] for row in rows], "o-", color=COLOURS["curated"], markersize=5
        )
        gain.plot(values, [row[DISTINCT] for row in rows], "o-", color=COLOURS["curated"], markersize=5)
        shuffled = [row[f"{DISTINCT}, shuffled"] for row in rows]
        gain.plot(values, shuffled, "o", linestyle=(0, (2, 2)), color=COLOURS["shuffled"], markersize=4)
        gain.set_ylim(bottom=0)
        for axes, title in (
            (silhouette, "Silhouette, mean"),
            (gain, "Clusters in a sequence, mean"),
        ):
            axes.set_title(title)
            axes.axvline(chosen, color=COLOURS["ink"], linewidth=1, linestyle=(0, (4, 4)))
            _axis(axes, values)

    best = max(row["silhouette"] for row in rows)
    body = chart(
        "calibration",
        draw,
        title="Silhouette and distinct clusters a sequence against the number of clusters",
        description=f"Two line charts over {number(values[0])} to {number(values[-1])} clusters. The best "
        f"silhouette is {number(best)}; {number(chosen)} clusters are recommended.",
        height=280,
        narrow_height=420,
        caption="Against the number of clusters. Second chart: curated, and dashed the same after shuffling. "
        f"Upright line: {number(chosen)}, the highest number whose silhouette is as good as the best.",
    )
    cells = [
        (
            number(row["k"]),
            fixed(row["silhouette"], 3),
            number(row["smallest"]),
            number(row["median"]),
            number(row["largest"]),
            fixed(row[DISTINCT]),
            fixed(row[f"{DISTINCT}, shuffled"]),
            points(row[WORST]),
            points(row[f"{WORST}, shuffled"]),
        )
        for row in rows
    ]
    marked = [at for at, row in enumerate(rows) if row["recommended"]]
    parts = [body, table("Numbers of clusters tried; the recommended one is marked", _COLUMNS, cells, marked)]
    if notes:
        parts.append(fill(_NOTES, notes=notes))
    return Section(
        "calibration",
        "How many clusters?",
        f"Calibration recommends {number(chosen)} clusters; this output has {number(k)}.",
        Markup("").join(parts),
    )


def _axis(axes: Axes, values: list[int]) -> None:
    from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

    if values[-1] >= 10 * values[0]:
        axes.set_xscale("log")
    # At most six, so that they do not touch.
    axes.xaxis.set_major_locator(FixedLocator(values[:: -(-len(values) // 6)]))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
    axes.xaxis.set_minor_locator(NullLocator())
