"""Pictures of clusters: where their documents lie on the map, how many each has, and two maps side by side.

Points are coloured by cluster; the largest clusters are named where they lie, and the bars of their sizes, in the same
colours, name the others.

Letters: n documents on a map, K clusters.
Guarantee: the same numbers give the same PNG bytes (one machine, one matplotlib), whatever the user's style; a file of
at most some 300 kB, however many documents there are.
Cost: some 0.7 s for 20,000 documents.
Known weakness: above some 30 clusters neighbours are told apart by their place, not by colour. A name in a script that
matplotlib's own typeface lacks is drawn as boxes.
"""

import io
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from dagster_divorder.view.ordering_comparison import DPI, FAINT, INK, cluster_colours, style

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

WIDTH, HEIGHT = 16.0, 10.0  # inches
MARGIN = 0.03  # of the width
NAMED = 20
"""Clusters that are named on a map, the largest; those that find no room beside larger ones are not."""

BARS = 30
NAME = 30
"""Letters of a name that are shown."""

NAME_SIZE = 11.5  # of 1/72 inch

SHADES = 255
NEARLY_WHITE = 250
GOLDEN = (5.0**0.5 - 1.0) / 2.0
LINES_APART = (0.0, 1.3, -1.3)
"""Where a name may lie, in lines above the middle of its cluster; the first place that is free is taken."""

Map = tuple[str, NDArray[np.floating], NDArray[np.integer], Sequence[str]]


def cluster_map(
    title: str,
    note: str,
    names: Sequence[str],
    sizes: Sequence[int],
    xy: NDArray[np.floating] | None = None,
    labels: NDArray[np.integer] | None = None,
) -> bytes:
    """The map and the sizes of all clusters as a PNG file's bytes, 1600 x 1000 pixels.

    names and sizes: of the K clusters. xy float (n, 2) and labels int (n,): places on the map and clusters of
    documents; without them the sizes are drawn alone.
    """
    with _drawing(title, note) as figure:
        left = MARGIN
        if xy is not None and labels is not None:
            _draw_map(figure.add_axes((MARGIN, 0.03, 0.62, 0.845)), xy, labels, names)
            left = 0.68
        _draw_sizes(figure, left, names, np.asarray(sizes))
        return _to_png(figure)


def draw_maps(maps: Sequence[Map], title: str = "", note: str = "") -> bytes:
    """Maps side by side as a PNG file's bytes, 1600 x 1000 pixels.

    maps: the title of each, xy float (n, 2), labels int (n,), names of its clusters.
    """
    with _drawing(title, note) as figure:
        width = (1.0 - 2 * MARGIN - 0.02 * (len(maps) - 1)) / len(maps)
        for at, (name, xy, labels, names) in enumerate(maps):
            left = MARGIN + at * (width + 0.02)
            figure.text(left, 0.875, name, size=15, weight="bold", va="baseline")
            _draw_map(figure.add_axes((left, 0.03, width, 0.83)), xy, labels, names)
        return _to_png(figure)


@contextmanager
def _drawing(title: str, note: str) -> Iterator["Figure"]:
    """A new figure with its title, drawn in our style; names are no formulas."""
    import matplotlib as mpl
    from matplotlib.figure import Figure

    with style(), mpl.rc_context({"text.parse_math": False}):
        figure = Figure(figsize=(WIDTH, HEIGHT), dpi=DPI, facecolor="white")
        figure.text(MARGIN, 0.945, title, size=21, weight="bold", va="baseline")
        figure.text(MARGIN, 0.915, note, size=13, color=FAINT, va="baseline")
        yield figure


def _draw_map(
    axes: "Axes", xy: NDArray[np.floating], labels: NDArray[np.integer], names: Sequence[str]
) -> None:
    axes.set_axis_off()
    axes.set_aspect("equal", adjustable="datalim")
    # Points in the order given, so that no cluster lies over another.
    colours = _colours(len(names))[labels]
    side = float(np.clip(340.0 / np.sqrt(max(1, len(xy))), 2.0, 9.0))  # points of 1/72 inch
    axes.scatter(xy[:, 0], xy[:, 1], s=side**2, c=colours, alpha=0.65, linewidths=0)
    axes.margins(0.02)
    _draw_names(axes, xy, labels, names)


def _draw_names(
    axes: "Axes", xy: NDArray[np.floating], labels: NDArray[np.integer], names: Sequence[str]
) -> None:
    """The largest clusters' names, each at the document nearest to the middle of its cluster."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.patheffects import withStroke

    figure: Any = axes.figure
    renderer = FigureCanvasAgg(figure).get_renderer()
    axes.apply_aspect()
    inside, taken = axes.bbox, list[Any]()
    sizes = np.bincount(labels, minlength=len(names))
    for cluster in np.argsort(-sizes, kind="stable")[: min(NAMED, np.count_nonzero(sizes))]:
        members = xy[labels == cluster]
        middle = np.median(members, axis=0)
        at = members[np.argmin(((members - middle) ** 2).sum(axis=1))]
        text = axes.annotate(
            _short(names[cluster]),
            at,
            (0, 0),
            textcoords="offset fontsize",
            size=NAME_SIZE,
            weight="bold",
            ha="center",
            va="center",
            path_effects=[withStroke(linewidth=3, foreground="white")],
        )
        box = text.get_window_extent(renderer)
        # Back inside, where it would stick out to the left or the right.
        aside = max(0.0, inside.x0 - box.x0) - max(0.0, box.x1 - inside.x1)
        for lines in LINES_APART:
            text.set_position((72.0 / DPI * aside / NAME_SIZE, lines))
            box = text.get_window_extent(renderer).expanded(1.0, 1.3)
            if not any(box.overlaps(other) for other in taken):
                taken.append(box)
                break
        else:
            text.remove()


def _draw_sizes(figure: "Figure", left: float, names: Sequence[str], sizes: NDArray[np.int64]) -> None:
    shown = np.argsort(-sizes, kind="stable")[:BARS]
    largest = max(1, int(sizes.max(initial=0)))
    k = len(sizes)
    rest = int(sizes.sum() - sizes[shown].sum())
    below = f"and {k - len(shown):,} smaller ones with {rest:,}" if k > len(shown) else ""
    figure.text(left, 0.875, "Documents of each cluster", size=15, weight="bold", va="baseline")
    top, bottom = 0.86, 0.06
    # No thicker than for 20 bars.
    height = (top - bottom) * min(1.0, max(1, len(shown)) / 20)
    axes = figure.add_axes((left + 0.155, top - height, 1.0 - MARGIN - 0.05 - left - 0.155, height))
    axes.barh(range(len(shown)), sizes[shown], height=0.72, color=_colours(k)[shown], linewidth=0)
    axes.set_xlim(0, largest)
    axes.set_ylim(max(1, len(shown)) - 0.5, -0.5)
    axes.set_xticks([])
    axes.set_yticks(range(len(shown)), [_short(names[cluster]) for cluster in shown])
    axes.tick_params(length=0, labelsize=11, labelcolor=INK)
    axes.spines[:].set_visible(False)
    for bar, cluster in enumerate(shown):
        axes.annotate(
            f"{sizes[cluster]:,}",
            (sizes[cluster], bar),
            (4, 0),
            textcoords="offset points",
            size=11,
            color=FAINT,
            va="center",
        )
    figure.text(left, 0.025, below, size=12, color=FAINT, va="baseline")


def _colours(k: int) -> NDArray[np.float64]:
    """k colours, RGB in [0, 1] float64 (k, 3), of which any first few have hues far apart: those of the largest."""
    rank = np.argsort(np.argsort(np.arange(k) * GOLDEN % 1.0))
    return cluster_colours(k)[rank]


def _short(name: str) -> str:
    """At most NAME letters, cut between terms where there are several."""
    if len(name) <= NAME:
        return name
    kept = name[: NAME - 1]
    return (kept.rpartition(",")[0] or kept) + "…"


def _to_png(figure: "Figure") -> bytes:
    """The figure in at most SHADES colours: a third of the bytes, and no difference to see."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from PIL import Image

    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    drawn = Image.fromarray(np.asarray(canvas.buffer_rgba())[..., :3])
    few = drawn.quantize(SHADES, method=Image.Quantize.FASTOCTREE, dither=Image.Dither.NONE)
    palette = np.array(few.getpalette()).reshape(-1, 3)
    palette[palette.min(axis=1) > NEARLY_WHITE] = 255
    few.putpalette(palette.ravel().tolist())
    file = io.BytesIO()
    few.save(file, "png", dpi=(DPI, DPI))
    return file.getvalue()
