"""The film of an ordering on the map: points light up in the order in which their documents are picked.

Two maps of the same documents, side by side: left in the original order, right in the curated one. Below each, a column
a cluster fills as its points are picked. In an order that keeps the mix all columns rise together.

Letters: P points, K clusters.
Guarantee: see view/film.py. Cost: some 15 ms a frame; only the points that are new in a frame are drawn in it.
Source: the first seed's ordering_animation_umap.mp4.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from dagster_divorder.core.migration import frame_ends
from dagster_divorder.view.canvas import Canvas
from dagster_divorder.view.film import HEIGHT, WIDTH
from dagster_divorder.view.ordering_comparison import AFTER, BEFORE, FAINT, INK, cluster_colours, style

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.figure import Figure

DPI = 100
COLUMN_PIXELS = 60
UNLIT = "#e3e3e3"
TRAIL = 0.01
"""Share of the points, those picked last, that are marked."""


@dataclass(frozen=True)
class _Map:
    """One of the two maps: order int64 (P,), which point is picked when; `lit` grows, `recent` moves."""

    order: NDArray[np.int64]
    lit: "Artist"
    recent: "Artist"
    columns: "Artist"


def frames(
    points: NDArray[np.floating],
    labels: NDArray[np.integer],
    curated: NDArray[np.integer],
    *,
    count: int,
) -> Iterator[NDArray[np.uint8]]:
    """Frames uint8 (HEIGHT, WIDTH, 4), each valid until the next.

    points float (P, 2), on the map, in the original order; labels int (P,); curated int (P,): the points in the order
    in which they are picked.
    """
    from matplotlib.figure import Figure

    cluster = np.unique(labels, return_inverse=True)[1] if len(labels) else np.zeros(0, np.int64)
    colours = cluster_colours(int(cluster.max(initial=0)) + 1)
    sizes = np.maximum(1, np.bincount(cluster, minlength=len(colours)))
    with style():
        figure = Figure(figsize=(WIDTH / DPI, HEIGHT / DPI), dpi=DPI, facecolor="white")
        figure.text(0.031, 0.93, "Which documents are picked when", size=20, weight="bold", color=INK)
        note = "each point: a document, near those like it; columns: how much of each cluster has been picked"
        figure.text(0.031, 0.885, note, size=12, color=FAINT)
        status = figure.text(0.969, 0.93, "", size=15, color=INK, ha="right", weight="bold", animated=True)
        maps = [
            _draw_map(figure, 0.031, "original order", BEFORE, np.arange(len(points)), points, len(colours)),
            _draw_map(figure, 0.516, "curated order", AFTER, np.asarray(curated), points, len(colours)),
        ]
        canvas = Canvas(figure)
        before = 0
        for picked in frame_ends(len(points), count).tolist():
            for shown in maps:
                new = shown.order[before:picked]
                shown.lit.set(offsets=points[new], facecolor=colours[cluster[new]])
            canvas.keep(shown.lit for shown in maps)
            for shown in maps:
                first = max(0, picked - max(1, round(TRAIL * len(points))))
                shown.recent.set(offsets=points[shown.order[first:picked]])
                share = np.bincount(cluster[shown.order[:picked]], minlength=len(colours)) / sizes
                shown.columns.set(data=_columns(share, colours))
            before = picked
            status.set_text(f"{picked / max(1, len(points)):.0%} picked")
            yield canvas.frame(
                [status, *(artist for shown in maps for artist in (shown.recent, shown.columns))]
            )


def _draw_map(
    figure: "Figure",
    left: float,
    name: str,
    colour: str,
    order: NDArray[np.integer],
    points: NDArray[np.floating],
    clusters: int,
) -> _Map:
    axes = figure.add_axes((left, 0.17, 0.453, 0.66))
    axes.set_axis_off()
    size = float(np.clip(40_000 / max(1, len(points)), 2.0, 30.0))
    axes.scatter(points[:, 0], points[:, 1], s=size, color=UNLIT, linewidths=0)
    lit = axes.scatter([], [], s=1.5 * size, linewidths=0, animated=True)
    recent = axes.scatter([], [], s=4 * size, facecolor="none", edgecolor=INK, linewidths=0.9, animated=True)
    figure.text(left, 0.838, name, size=15, weight="bold", color=colour)
    below = figure.add_axes((left, 0.05, 0.453, 0.09))
    below.set(xticks=[], yticks=[])
    below.spines["left"].set_visible(False)
    columns = below.imshow(
        np.ones((COLUMN_PIXELS, clusters, 3)), aspect="auto", interpolation="nearest", animated=True
    )
    return _Map(np.asarray(order, np.int64), lit, recent, columns)


def _columns(share: NDArray[np.float64], colours: NDArray[np.float64]) -> NDArray[np.float64]:
    """The columns as RGB (COLUMN_PIXELS, K, 3), each filled from below up to its share."""
    height = (COLUMN_PIXELS - np.arange(COLUMN_PIXELS) - 0.5) / COLUMN_PIXELS
    return np.where((height[:, None] < share)[:, :, None], colours, 1.0)
