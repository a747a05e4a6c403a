"""Charts: one function draws each on given axes, for PNG files and the report alike. The caller places and titles the
axes; `view.drawing` has the style."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from dagster_divorder.core.evidence.training_evidence import HELD_OUT, by_source
from dagster_divorder.core.measure.along import Binned
from dagster_divorder.core.measure.stationarity import TENTHS, Drift
from dagster_divorder.core.topics.k_calibration import as_good_as
from dagster_divorder.settings.sections import SHUFFLED
from dagster_divorder.view.drawing import COLOURS, cluster_colours
from dagster_divorder.view.words import ORDERS, brief, number, short

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

CURVE = 300
"""Most points of a curve."""
K_TICKS = 8
NAMED = 20
"""Number of largest clusters that a map names, if there is room beside larger clusters' names."""
ARROW_FROM = 8.0
"""Differences above this many times the median become arrows at the edge."""
LINES_APART = (0.0, 1.3, -1.3)
"""Candidate places of a name, in lines above its cluster's middle; the first free place is used."""


@dataclass(frozen=True)
class Series:
    """name: for readers. colour: a key of `COLOURS`. dashed: differs from a series of the same colour."""

    name: str
    colour: str
    dashed: bool = False

    @property
    def line(self) -> dict[str, Any]:
        """Colour, line style and label for matplotlib."""
        return {
            "color": COLOURS[self.colour],
            "linestyle": (0, (3, 2)) if self.dashed else "solid",
            "label": self.name,
        }


SERIES = {
    order: Series(name, order if order in COLOURS else "shuffled", dashed=order == "sequences_random")
    for order, name in ORDERS.items()
}
"""The measured orders, by the names of `diversity_metrics`."""
Line = tuple[NDArray[np.float64], NDArray[np.float64], Series]
"""Positions as shares of the dataset, (P,), values there, (P,), and their series."""
SHUFFLES = Series("three shuffles", "shuffled")
ASKED = Series("asked", "muted", dashed=True)


def distinct(axes: Axes, name: str, bins: Binned, clusters: int, top: float) -> None:
    """Distinct clusters in every sequence of an order: the mean of neighbouring sequences, and a band from fewest to
    most. top: the most in any chart beside this one."""
    from matplotlib.ticker import MaxNLocator

    line, at = SERIES[name].line, 100 * bins.at
    axes.fill_between(at, bins.low, bins.high, color=line["color"], alpha=0.18, linewidth=0, step="mid")
    axes.plot(at, bins.mean, **line)
    if clusters <= 1.6 * top:
        axes.axhline(clusters, color=COLOURS["muted"], linewidth=0.9, linestyle=(0, (4, 4)))
        axes.text(100, clusters, f"all {clusters}", color=COLOURS["muted"], ha="right", va="bottom")
        top = clusters
    axes.set_ylim(0, 1.08 * top)
    axes.yaxis.set_major_locator(MaxNLocator(5, integer=True))
    _position_axis(axes)


def along(axes: Axes, lines: Iterable[Line], *, log: bool = False, top: float | None = None) -> None:
    """Lines along the dataset, each thinned to CURVE points; a logarithmic scale omits zeros. top: end of a scale that
    begins at 0."""
    any_points = False
    for at, values, series in lines:
        points = np.flatnonzero(values > 0) if log else np.arange(len(values))
        points = points[:: -(-len(points) // CURVE) or 1]
        axes.plot(100 * at[points], values[points], **series.line)
        any_points |= len(points) > 0
    if log and any_points:
        _log_axis(axes)
    if top is not None:
        axes.set_ylim(0, top)
    _position_axis(axes)


def drift(axes: Axes, feature: Drift) -> None:
    """Distance of each tenth of training from the whole, over a band that holds 90 % of the shuffles' tenths."""
    axes.axhspan(*feature.shuffled_along, color=COLOURS["shuffled"], alpha=0.25, linewidth=0)
    middles = 100 * (np.arange(TENTHS) + 0.5) / TENTHS
    axes.plot(middles, feature.along, color=COLOURS["sequences"], marker="o", markersize=4)
    axes.set_ylim(0, 1.1 * max(*feature.along, feature.shuffled_along[1], 1e-9))
    axes.yaxis.set_major_formatter(lambda value, _: number(value, 2))
    _position_axis(axes)


def lengths(axes: Axes, name: str, quantiles: NDArray[np.float64], low: float, high: float) -> None:
    """Lengths of the documents along an order: five rising quantiles in slices of the dataset, (C, 5), the middle one
    as a line. low, high: over all charts of the row."""
    from matplotlib.ticker import LogLocator

    colour = COLOURS[SERIES[name].colour]
    at = 100 * (np.arange(len(quantiles)) + 0.5) / len(quantiles)
    for outer, alpha in ((0, 0.16), (1, 0.28)):
        axes.fill_between(
            at, quantiles[:, outer], quantiles[:, 4 - outer], color=colour, alpha=alpha, linewidth=0
        )
    axes.plot(at, quantiles[:, 2], color=colour)
    _log_axis(axes)
    axes.set_ylim(low / 1.3, high * 1.3)
    axes.yaxis.set_major_locator(LogLocator(numticks=6))
    _position_axis(axes)


def silhouette(axes: Axes, rows: Sequence[Mapping[str, Any]]) -> None:
    """Mean silhouette against the number of clusters, over a band of values close to the best. rows: the table of
    k_calibration, by rising `k`."""
    values = [row["silhouette"] for row in rows]
    axes.axhspan(as_good_as(max(values)), max(values), color=COLOURS["rule"], alpha=0.6, linewidth=0)
    axes.plot([row["k"] for row in rows], values, "o-", color=COLOURS["curated"], markersize=5)
    axes.margins(y=0.15)
    _k_axis(axes, rows)


def documents_map(
    axes: Axes,
    xy: NDArray[np.floating],
    labels: NDArray[np.integer],
    names: Sequence[str],
    colours: NDArray[np.floating],
) -> None:
    """Documents at their places xy (n, 2), in their clusters' colours, RGB (K, 3), with the largest clusters' names.

    Points are drawn in the given order, so that no cluster covers another.
    """
    axes.set_axis_off()
    axes.set_aspect("equal", adjustable="datalim")
    side = float(np.clip(340.0 / np.sqrt(max(1, len(xy))), 2.0, 9.0))  # points of 1/72 inch
    axes.scatter(xy[:, 0], xy[:, 1], s=side**2, c=colours[labels], alpha=0.65, linewidths=0)
    axes.margins(0.02)
    _draw_names(axes, xy, labels, names)


def _draw_names(
    axes: Axes, xy: NDArray[np.floating], labels: NDArray[np.integer], names: Sequence[str]
) -> None:
    """Names of the largest clusters, each at the document nearest to its cluster's middle."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.patheffects import withStroke

    figure: Any = axes.figure
    renderer = FigureCanvasAgg(figure).get_renderer()
    axes.apply_aspect()
    inside, named_boxes, size = axes.bbox, list[Any](), 11.5
    sizes = np.bincount(labels, minlength=len(names))
    for cluster in np.argsort(-sizes, kind="stable")[: min(NAMED, np.count_nonzero(sizes))]:
        members = xy[labels == cluster]
        middle = np.median(members, axis=0)
        at = members[np.argmin(((members - middle) ** 2).sum(axis=1))]
        text = axes.annotate(
            brief(names[cluster]),
            at,
            (0, 0),
            textcoords="offset fontsize",
            size=size,
            weight="bold",
            ha="center",
            va="center",
            path_effects=[withStroke(linewidth=3, foreground="white")],
        )
        box = text.get_window_extent(renderer)
        # Moves a name that sticks out at the left or right back inside.
        aside = max(0.0, inside.x0 - box.x0) - max(0.0, box.x1 - inside.x1)
        for lines in LINES_APART:
            text.set_position((72.0 / figure.dpi * aside / size, lines))
            box = text.get_window_extent(renderer).expanded(1.0, 1.3)
            if not any(box.overlaps(other) for other in named_boxes):
                named_boxes.append(box)
                break
        else:
            text.remove()


def cluster_legend(
    figure: Figure, names: Sequence[str], sizes: NDArray[Any], sides: tuple[float, float], top: float
) -> None:
    """A row of the largest clusters' names, each after its colour, as many as fit. names, sizes: by cluster. sides,
    top: shares of the figure's width and height."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    renderer: Any = FigureCanvasAgg(figure).get_renderer()
    colours, (left, end), space = cluster_colours(len(sizes)), sides, 18 / figure.bbox.width
    for cluster in np.argsort(-sizes, kind="stable")[: len(names)]:
        text = figure.text(left + space, top, brief(names[cluster]), size=11, color=COLOURS["muted"])
        right = text.get_window_extent(renderer).x1 / figure.bbox.width
        if right > end:
            text.remove()
            break
        figure.text(left, top, "■", size=11, color=colours[cluster])
        left = right + space


def _position_axis(axes: Axes) -> None:
    """The horizontal axis of charts along the dataset."""
    axes.set_xlim(0, 100)
    axes.set_xticks(range(0, 101, 25))


def _log_axis(axes: Axes) -> None:
    from matplotlib.ticker import LogLocator, NullLocator

    axes.set_yscale("log")
    low, high = axes.get_ylim()
    # matplotlib replaces fewer than two ticks with many that touch.
    subs = (1.0, 3.0) if high >= 10 * low else (1.0, 2.0, 5.0)
    axes.yaxis.set_major_locator(LogLocator(subs=subs, numticks=20))
    axes.yaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_formatter(lambda value, _: short(value))


def _k_axis(axes: Axes, rows: Sequence[Mapping[str, Any]]) -> None:
    """Numbers of clusters, with a mark at the recommended one; logarithmic for a wide range."""
    from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

    values = np.array([row["k"] for row in rows])
    places = values.astype(float)
    if values[-1] >= 10 * values[0]:
        axes.set_xscale("log")
        places = np.log(places)
    ticks = [0]
    for at in range(1, len(values)):
        # Labels must not touch.
        if places[at] - places[ticks[-1]] >= (places[-1] - places[0]) / K_TICKS:
            ticks.append(at)
    axes.xaxis.set_major_locator(FixedLocator(values[ticks].tolist()))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
    axes.xaxis.set_minor_locator(NullLocator())
    for recommended in (row["k"] for row in rows if row["recommended"]):
        axes.axvline(recommended, color=COLOURS["ink"], linewidth=1, linestyle=(0, (4, 4)), zorder=1)


TRAINED = {
    "original": Series("original", "original"),
    "random_documents": Series("random documents", "shuffled", dashed=True),
    "random_sequences": Series("random sequences", "shuffled"),
    "curated": Series("curated", "sequences"),
}


def trained_lines(names: Sequence[str]) -> list[dict[str, Any]]:
    """Colour, line style and label of the orders in which models were trained, as `Series.line`."""
    others = iter(cluster_colours(len(names)))
    return [
        TRAINED[name].line if name in TRAINED else {"color": next(others), "label": name.replace("_", " ")}
        for name in names
    ]


def training_losses(axes: Axes, orders: Sequence[Mapping[str, Any]], epochs: int) -> None:
    """Training loss along all epochs; a line an order of `stages.evidence.training_evidence`."""
    curves = [np.asarray(order["losses"], np.float64) for order in orders]
    for line, losses in zip(trained_lines([order["order"] for order in orders]), curves, strict=True):
        axes.plot(epochs * (np.arange(len(losses)) + 0.5) / len(losses), losses, **line)
    # The first steps' high losses would leave no room for the rest.
    axes.set_ylim(0.98 * np.nanmin(np.concatenate(curves)), np.nanquantile(np.concatenate(curves), 0.96))
    axes.set_xlabel("epochs")


def around_seam(axes: Axes, orders: Sequence[Mapping[str, Any]], figure: str) -> None:
    """Losses or norms of the gradient in the last tenth of the first epoch and the first tenth of the second. figure:
    its key in `orders`."""
    for line, order in zip(trained_lines([order["order"] for order in orders]), orders, strict=True):
        values = np.asarray(order[figure], np.float64)
        if len(values):
            width = max(1, len(values) // 60)
            kept = values[: len(values) // width * width].reshape(-1, width).mean(1)
            axes.plot(-10 + 20 * (np.arange(len(kept)) + 0.5) / len(kept), kept, **line)
    axes.axvline(0, color=COLOURS["muted"], linewidth=0.9, linestyle=(0, (4, 4)))
    axes.set_xlabel("% of an epoch from the seam")


def heldout_differences(axes: Axes, rows: Sequence[Mapping[str, Any]], sources: Sequence[str]) -> None:
    """Held-out loss less shuffled sequences' loss, with its interval, a mark an order: the mean over sources first,
    then each source. Orders outside the others' scale become arrows at the edge. rows, sources: `orders` and `sources`
    of `stages.evidence.training_evidence`."""
    groups = ["all", *sources]
    figures = [HELD_OUT, *map(by_source, sources)]
    marks: list[tuple[NDArray[np.float64], dict[str, Any]]] = []
    for order, line in zip(rows, trained_lines([row["order"] for row in rows]), strict=True):
        if order["order"] != SHUFFLED:
            less = [order["figures"][figure]["less shuffled"] for figure in figures]
            intervals = [[row[key] for key in ("mean", "low", "high")] for row in less]
            marks.append((np.array(intervals, np.float64), line))
    limit = ARROW_FROM * float(np.nanmedian(np.abs([interval[:, 0] for interval, _ in marks])) or 1.0)
    for at, (interval, line) in enumerate(marks):
        place = np.arange(len(groups)) + 0.7 * ((at + 0.5) / len(marks) - 0.5)
        middle, low, high = np.clip(interval.T, -limit, limit)
        near = np.abs(interval[:, 0]) < limit
        axes.plot(middle[near], place[near], "o", markersize=4, color=line["color"], label=line["label"])
        axes.hlines(place[near], low[near], high[near], color=line["color"], linewidth=1.2)
        for edge, marker in ((limit, ">"), (-limit, "<")):
            beyond = ~near & (middle == edge)
            axes.plot(middle[beyond], place[beyond], marker, markersize=5, color=line["color"])
    axes.axvline(0, color=COLOURS["muted"], linewidth=0.9)
    axes.set_xlim(-1.05 * limit, 1.05 * limit)
    axes.set_yticks(range(len(groups)), [group if len(group) < 24 else f"{group[:22]}…" for group in groups])
    axes.invert_yaxis()
    axes.set_xlabel("nats a token; left of 0 is better than shuffling")


def stable_ranks(axes: Axes, layers: Mapping[str, Sequence[float]]) -> None:
    """Stable rank of every weight matrix's gradient at the end of training, less shuffled sequences' rank. layers:
    order -> ranks by matrix."""
    for line, (name, ranks) in zip(trained_lines([*layers]), layers.items(), strict=True):
        if name != SHUFFLED:
            less = np.array(ranks, np.float64) - np.array(layers[SHUFFLED], np.float64)
            axes.plot(range(len(less)), less, marker="o", markersize=3, **line)
    axes.axhline(0, color=COLOURS["muted"], linewidth=0.9)
    axes.set_xlabel("weight matrices, from the first layer to the last")
    axes.set_xticks([])
