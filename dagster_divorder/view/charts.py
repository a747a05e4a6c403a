"""Charts: each is drawn by one function on the axes that it is given, for a PNG file and for the report alike.

Whoever calls gives the axes their title and place; see `view.drawing` for the style.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from dagster_divorder.core.measure.along import Binned
from dagster_divorder.core.measure.stationarity import TENTHS, Drift
from dagster_divorder.core.topics.k_calibration import as_good_as
from dagster_divorder.settings.sections import shuffled_order
from dagster_divorder.view.drawing import COLOURS, cluster_colours
from dagster_divorder.view.words import ORDERS, brief, number, short

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

CURVE = 300
"""Points of a curve, at most."""
K_TICKS = 8
NAMED = 20
"""Clusters that are named on a map, the largest; those that find no room beside larger ones are not."""
ARROW_FROM = 8.0
"""Times the median difference from which on one is drawn as an arrow at the edge."""
LINES_APART = (0.0, 1.3, -1.3)
"""Where a name may lie, in lines above the middle of its cluster; the first place that is free is taken."""


@dataclass(frozen=True)
class Series:
    """name: what readers call it. colour: a key of `COLOURS`. dashed: also told apart without colour."""

    name: str
    colour: str
    dashed: bool = False

    @property
    def line(self) -> dict[str, Any]:
        """Colour and line style, as matplotlib takes them."""
        return {
            "color": COLOURS[self.colour],
            "linestyle": (0, (3, 2)) if self.dashed else "solid",
            "label": self.name,
        }


COLOUR_OF = {"original": "original", "random": "shuffled", "curated": "curated", "sequences": "sequences"}
SERIES = {
    order: Series(name, COLOUR_OF.get(order, "shuffled"), dashed=order == "sequences_random")
    for order, name in ORDERS.items()
}
"""The orders that are measured, by the names of `diversity_metrics`."""
Line = tuple[NDArray[np.float64], NDArray[np.float64], Series]
"""Positions as shares of the dataset, (P,), values there, (P,), and whose they are."""
SHUFFLES = Series("three shuffles", "shuffled")
ASKED = Series("asked", "muted", dashed=True)
ACHIEVABLE = Series("can be had", "original")


def distinct(axes: Axes, orders: Mapping[str, Binned], clusters: int, top: float) -> None:
    """Distinct clusters in every sequence: the mean of neighbouring ones, and from the fewest to the most of them.

    orders: by name. top: the most in any chart beside this one.
    """
    from matplotlib.ticker import MaxNLocator

    for name, found in orders.items():
        line = SERIES[name].line
        at = 100 * found.at
        axes.fill_between(at, found.low, found.high, color=line["color"], alpha=0.18, linewidth=0, step="mid")
        axes.plot(at, found.mean, **line)
    if clusters <= 1.6 * top:
        axes.axhline(clusters, color=COLOURS["muted"], linewidth=0.9, linestyle=(0, (4, 4)))
        axes.text(100, clusters, f"all {clusters}", color=COLOURS["muted"], ha="right", va="bottom")
        top = clusters
    axes.set_ylim(0, 1.08 * top)
    axes.yaxis.set_major_locator(MaxNLocator(5, integer=True))
    _position_axis(axes)


def along(axes: Axes, lines: Iterable[Line], *, log: bool = False, top: float | None = None) -> None:
    """Lines along the dataset, each thinned to CURVE points; where the scale is logarithmic, without its zeros. top:
    the end of a scale that begins at 0."""
    drawn = 0
    for at, values, series in lines:
        shown = np.flatnonzero(values > 0) if log else np.arange(len(values))
        shown = shown[:: -(-len(shown) // CURVE) or 1]
        axes.plot(100 * at[shown], values[shown], **series.line)
        drawn += len(shown)
    if log and drawn:
        _log_axis(axes)
    if top is not None:
        axes.set_ylim(0, top)
    _position_axis(axes)


def drift(axes: Axes, of: Drift) -> None:
    """Distance of each tenth of training from the whole, over where nine in ten of the shuffles' tenths lie."""
    axes.axhspan(*of.shuffled_along, color=COLOURS["shuffled"], alpha=0.25, linewidth=0)
    middles = 100 * (np.arange(TENTHS) + 0.5) / TENTHS
    axes.plot(middles, of.along, color=COLOURS["sequences"], marker="o", markersize=4)
    axes.set_ylim(0, 1.1 * max(*of.along, of.shuffled_along[1], 1e-9))
    axes.yaxis.set_major_formatter(lambda value, _: number(value, 2))
    _position_axis(axes)


def lengths(axes: Axes, name: str, quantiles: NDArray[np.float64], low: float, high: float) -> None:
    """Lengths of the documents along an order: five rising quantiles in slices of the dataset, (C, 5), the middle one a
    line. low, high: of all charts beside this one."""
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
    """Mean silhouette against the number of clusters, and the standard deviation of the fits, over those that are as
    good as the best; rows: the table of k_calibration, by rising `k`."""
    values = [row["silhouette"] for row in rows]
    axes.axhspan(as_good_as(max(values)), max(values), color=COLOURS["rule"], alpha=0.6, linewidth=0)
    axes.errorbar(
        [row["k"] for row in rows],
        values,
        [row["spread"] for row in rows],
        fmt="o-",
        color=COLOURS["curated"],
        markersize=5,
        capsize=3,
    )
    axes.margins(y=0.15)
    _k_axis(axes, rows)


def distinct_by_k(axes: Axes, rows: Sequence[Mapping[str, Any]]) -> None:
    """Mean distinct clusters a sequence against the number of clusters, of the order that they lead to and shuffled."""
    name = "distinct clusters a sequence"
    values = [row["k"] for row in rows]
    for column, series in (
        (name, Series("in order", "curated")),
        (f"{name}, shuffled", SERIES["sequences_random"]),
    ):
        axes.plot(values, [row[column] for row in rows], marker="o", markersize=5, **series.line)
    axes.margins(y=0.15)
    axes.set_ylim(bottom=0)
    _k_axis(axes, rows)


def documents_map(
    axes: Axes,
    xy: NDArray[np.floating],
    labels: NDArray[np.integer],
    names: Sequence[str],
    colours: NDArray[np.floating],
    *,
    outlined: bool = True,
) -> None:
    """Documents at their places (n, 2) in the colours of their clusters, RGB (K, 3); the largest clusters are named.

    Points are drawn in the order given, so that no cluster lies over another, and are a picture in an SVG drawing.
    outlined: names in white, which turns them from text into shapes; in a page the style sheet does it.
    """
    axes.set_axis_off()
    axes.set_aspect("equal", adjustable="datalim")
    side = float(np.clip(340.0 / np.sqrt(max(1, len(xy))), 2.0, 9.0))  # points of 1/72 inch
    axes.scatter(xy[:, 0], xy[:, 1], s=side**2, c=colours[labels], alpha=0.65, linewidths=0, rasterized=True)
    axes.margins(0.02)
    _draw_names(axes, xy, labels, names, outlined)


def _draw_names(
    axes: Axes, xy: NDArray[np.floating], labels: NDArray[np.integer], names: Sequence[str], outlined: bool
) -> None:
    """The largest clusters' names, each at the document nearest to the middle of its cluster."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.patheffects import withStroke

    figure: Any = axes.figure
    renderer = FigureCanvasAgg(figure).get_renderer()
    axes.apply_aspect()
    inside, taken, size = axes.bbox, list[Any](), 11.5
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
            path_effects=[withStroke(linewidth=3, foreground="white")] if outlined else [],
        )
        box = text.get_window_extent(renderer)
        # Back inside, where it would stick out to the left or the right.
        aside = max(0.0, inside.x0 - box.x0) - max(0.0, box.x1 - inside.x1)
        for lines in LINES_APART:
            text.set_position((72.0 / figure.dpi * aside / size, lines))
            box = text.get_window_extent(renderer).expanded(1.0, 1.3)
            if not any(box.overlaps(other) for other in taken):
                taken.append(box)
                break
        else:
            text.remove()


def cluster_legend(
    figure: Figure, names: Sequence[str], sizes: NDArray[Any], sides: tuple[float, float], top: float
) -> None:
    """The names of the largest clusters in a row, each behind its colour, as many as there is room for. names, sizes:
    by cluster; sides, top: of the figure's width and height."""
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


def trade_off(axes: Axes, rows: Sequence[Mapping[str, Any]]) -> None:
    """Pairs of strategies: clusters in a sequence against how far batches are off the mix, on a logarithmic axis. Each
    strategy of sequences has a colour; strategies of documents are named at their lowest point, where there is room.

    rows: as `stages.evidence.strategy_comparison.row` makes them.
    """
    from matplotlib.transforms import Bbox

    strategies = list(dict.fromkeys(row["sequences"] for row in rows))
    for strategy, colour in zip(strategies, cluster_colours(len(strategies)), strict=True):
        own = [row for row in rows if row["sequences"] == strategy]
        axes.scatter(
            [row["distinct clusters a sequence"] for row in own],
            [100 * row["batch TV, clusters"] for row in own],
            color=colour,
            label=strategy,
        )
    _log_axis(axes)
    axes.margins(x=0.12, y=0.12)
    axes.legend(title="sequences in order of", loc="upper right", labelcolor=COLOURS["muted"])
    lowest: dict[str, Mapping[str, Any]] = {}
    for row in sorted(rows, key=lambda row: row["batch TV, clusters"]):
        lowest.setdefault(row["documents"], row)
    dots = axes.transData.transform(
        [(row["distinct clusters a sequence"], 100 * row["batch TV, clusters"]) for row in rows]
    )
    taken: list[Any] = [Bbox.from_bounds(x - 4, y - 4, 8, 8) for x, y in dots]
    for name, row in lowest.items():
        place = (row["distinct clusters a sequence"], 100 * row["batch TV, clusters"])
        for away in ((7, 4), (7, -14), (-7, 4), (-7, -14), (7, 20), (-7, 20), (7, -30), (-7, -30)):
            side = "left" if away[0] > 0 else "right"
            text = axes.annotate(name, place, xytext=away, textcoords="offset points", ha=side, size=12)
            box = text.get_window_extent()
            if not any(box.overlaps(other) for other in taken):
                taken.append(box)
                break
            text.remove()


def _position_axis(axes: Axes) -> None:
    """The horizontal axis of everything that is drawn along the dataset."""
    axes.set_xlim(0, 100)
    axes.set_xticks(range(0, 101, 25))


def _log_axis(axes: Axes) -> None:
    from matplotlib.ticker import LogLocator, NullLocator

    axes.set_yscale("log")
    low, high = axes.get_ylim()
    # Of less than two ticks matplotlib makes many, which touch.
    subs = (1.0, 3.0) if high >= 10 * low else (1.0, 2.0, 5.0)
    axes.yaxis.set_major_locator(LogLocator(subs=subs, numticks=20))
    axes.yaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_formatter(lambda value, _: short(value))


def _k_axis(axes: Axes, rows: Sequence[Mapping[str, Any]]) -> None:
    """Numbers of clusters, the recommended one marked, if there is one; logarithmic where they are far apart."""
    from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

    values = np.array([row["k"] for row in rows])
    places = values.astype(float)
    if values[-1] >= 10 * values[0]:
        axes.set_xscale("log")
        places = np.log(places)
    ticks = [0]
    for at in range(1, len(values)):
        # So far apart that labels do not touch.
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
    """Colour, line style and name of each of the orders that models were trained in."""
    others = iter(cluster_colours(len(names)))
    return [
        TRAINED[name].line if name in TRAINED else {"color": next(others), "label": name.replace("_", " ")}
        for name in names
    ]


def training_losses(axes: Axes, orders: Sequence[Mapping[str, Any]], epochs: int) -> None:
    """Training loss along all epochs; a line an order of `stages.evidence.training_evidence`."""
    for line, of in zip(trained_lines([of["order"] for of in orders]), orders, strict=True):
        losses = np.asarray(of["losses"], np.float64)
        axes.plot(epochs * (np.arange(len(losses)) + 0.5) / len(losses), losses, **line)
    every = np.concatenate([np.asarray(of["losses"], np.float64) for of in orders])
    # The first steps, from the loss of a guess, would leave no room for the rest.
    axes.set_ylim(0.98 * np.nanmin(every), np.nanquantile(every, 0.96))
    axes.set_xlabel("epochs")


def around_seam(axes: Axes, orders: Sequence[Mapping[str, Any]], what: str) -> None:
    """Losses, or norms of the gradient, of the last tenth of the first epoch and the first of the second."""
    for line, of in zip(trained_lines([of["order"] for of in orders]), orders, strict=True):
        values = np.asarray(of[what], np.float64)
        if len(values):
            width = max(1, len(values) // 60)
            kept = values[: len(values) // width * width].reshape(-1, width).mean(1)
            axes.plot(-10 + 20 * (np.arange(len(kept)) + 0.5) / len(kept), kept, **line)
    axes.axvline(0, color=COLOURS["muted"], linewidth=0.9, linestyle=(0, (4, 4)))
    axes.set_xlabel("% of an epoch from the seam")


def heldout_differences(
    axes: Axes, rows: Sequence[Mapping[str, Any]], sources: Sequence[Mapping[str, Any]]
) -> None:
    """Held-out loss less that of shuffled sequences with its interval, an order a mark: the mean over sources first,
    then each source. An order that is off the scale of the others is an arrow at the edge. rows, sources: `orders` and
    `sources` of `stages.evidence.training_evidence`."""
    groups = ["all", *dict.fromkeys(of["source"] for of in sources)]
    shown: list[tuple[NDArray[np.float64], dict[str, Any]]] = []
    for of, line in zip(rows, trained_lines([of["order"] for of in rows]), strict=True):
        if of["order"] != shuffled_order(of["order"]):
            each = (row["less shuffled"] for row in sources if row["order"] == of["order"])
            figures = [[row[key] for key in ("mean", "low", "high")] for row in (of["less shuffled"], *each)]
            shown.append((np.array(figures, np.float64), line))
    limit = ARROW_FROM * float(np.nanmedian(np.abs([found[:, 0] for found, _ in shown])) or 1.0)
    for at, (found, line) in enumerate(shown):
        place = np.arange(len(groups)) + 0.7 * ((at + 0.5) / len(shown) - 0.5)
        middle, low, high = np.clip(found.T, -limit, limit)
        near = np.abs(found[:, 0]) < limit
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


def stable_ranks(axes: Axes, layers: Sequence[Mapping[str, Any]]) -> None:
    """Stable rank of the gradient of every weight matrix at the end of training, less that of shuffled sequences."""
    matrices = list(dict.fromkeys(of["matrix"] for of in layers))
    ends = {(of["matrix"], of["order"]): float(of["ranks"][-1] or np.nan) for of in layers}
    names = list(dict.fromkeys(of["order"] for of in layers))
    for line, name in zip(trained_lines(names), names, strict=True):
        if name != (shuffled := shuffled_order(name)):
            less = [ends[matrix, name] - ends[matrix, shuffled] for matrix in matrices]
            axes.plot(range(len(matrices)), less, marker="o", markersize=3, **line)
    axes.axhline(0, color=COLOURS["muted"], linewidth=0.9)
    axes.set_xlabel("weight matrices, from the first layer to the last")
    axes.set_xticks([])
