"""Films of an ordering: matplotlib's Agg draws the frames, and imageio-ffmpeg's ffmpeg encodes them as H.264.

`ordering_frames`: the dataset moves from the original order into two other orders. Each bar is the dataset. Tokens left
of the mark have been read, in the new order. Dimmed tokens right of the mark wait in the original order. Each square is
a token of an even sample, in the colour of its cluster.

`map_frames`: one map of the documents per order. A point lights up when its document is first read.

Letters: C cells, P points on the map, K clusters.
Guarantee: the same frames give the same file (one machine, one ffmpeg); one frame is in memory at a time.
Cost: some 15 to 20 ms a frame to draw, for any corpus, since cells and points are samples; 5 ms to encode.
Known weakness: H.264 of fine detail is large, so drawings should be coarser than a pixel.
Source: ordering_animation.mp4 and ordering_animation_umap.mp4 of Diversity-Ordered Training.
"""

from __future__ import annotations

import errno
import subprocess
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from dagster_divorder.core.measure.migration import Cells, frame_ends, migrated
from dagster_divorder.extras import load_extra, why_missing
from dagster_divorder.view import charts
from dagster_divorder.view.drawing import COLOURS, cluster_colours, cluster_row, drawable, style

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.figure import Figure
    from matplotlib.text import Text

WIDTH, HEIGHT, DPI = 1280, 720, 100
"""Pixels; the codec needs an even width and height."""
CODEC_THREADS = 2
"""Fixed, since the film's bytes depend on the number of threads."""
COLUMNS, ROWS = 294, 24
"""Squares of a bar, 4 x 8 pixels each."""
LEFT, RIGHT = 0.05, 0.96875
"""Ends of bars and charts as shares of the width. The squares fill the space between."""
HOLD = 2
"""Seconds that the last frame stays."""
DIMMED = 0.28
UNLIT = "#e3e3e3"
TRAIL = 0.01
"""Share of the points with a mark: the last points read."""

Frame = Callable[[NDArray[np.uint8]], object]


def why_no_films() -> str | None:
    """How to install ffmpeg; None if it is installed."""
    return why_missing("imageio_ffmpeg")


@contextmanager
def film(path: Path, fps: int) -> Iterator[Frame]:
    """Writes an .mp4; yields the function that takes each frame, uint8 (HEIGHT, WIDTH, 4), RGBA.

    Players and browsers can show the film while it loads. The last frame stays for HOLD seconds.

    Raises:
        MissingPackageError: no ffmpeg is installed.
        OSError: ffmpeg failed, for example on a full disk; carries ffmpeg's message.
    """
    command = [
        *(load_extra("imageio_ffmpeg").get_ffmpeg_exe(), "-y", "-v", "error", "-nostdin"),
        *("-f", "rawvideo", "-pix_fmt", "rgba", "-s", f"{WIDTH}x{HEIGHT}", "-r", str(fps), "-i", "-"),
        *("-vf", f"tpad=stop_mode=clone:stop_duration={HOLD}"),
        *("-c:v", "libx264", "-preset", "veryfast", "-crf", "23", "-pix_fmt", "yuv420p"),
        *("-threads", str(CODEC_THREADS), "-fflags", "+bitexact", "-flags:v", "+bitexact"),
        *("-movflags", "+faststart", str(path)),
    ]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdin is not None
    frames, message = process.stdin, b""
    try:
        # A BrokenPipeError means that ffmpeg has ended; its message says why.
        with suppress(BrokenPipeError):
            yield lambda frame: frames.write(np.ascontiguousarray(frame).data)
        _, message = process.communicate()
    finally:
        process.kill()  # no effect on an ended process
        process.wait()
    if process.returncode:
        text = message.decode(errors="replace").strip()
        number = errno.ENOSPC if "No space left" in text else errno.EIO
        raise OSError(number, f"ffmpeg could not write the film: {text}")


class _Canvas:
    """Draws a figure once. Each frame restores the picture and draws a few artists over it. This is matplotlib's
    blitting: some 5 ms a frame instead of 80."""

    def __init__(self, figure: Figure) -> None:
        from matplotlib.backends.backend_agg import FigureCanvasAgg

        self._figure = figure
        self._canvas = FigureCanvasAgg(figure)
        self._canvas.draw()
        self._kept: Any = self._canvas.copy_from_bbox(figure.bbox)

    def frame(self, artists: Iterable[Artist]) -> NDArray[np.uint8]:
        """The kept picture with artists over it, uint8 (HEIGHT, WIDTH, 4); valid until the next call."""
        self._canvas.restore_region(self._kept)
        for artist in artists:
            self._figure.draw_artist(artist)
        return np.asarray(self._canvas.buffer_rgba())

    def keep(self, artists: Iterable[Artist]) -> None:
        """Draw artists into the kept picture. They stay in all later frames."""
        self.frame(artists)
        self._kept = self._canvas.copy_from_bbox(self._figure.bbox)


@dataclass(frozen=True, kw_only=True, eq=False)
class FilmedCorpus:
    """The corpus of a film. names, sizes: of the K clusters. output_label: `words.output_label`."""

    names: Sequence[str]
    sizes: NDArray[np.integer]
    output_label: str

    def figure(self, title: str, note: str) -> tuple[Figure, Text]:
        """(figure with head and foot, text in its upper right corner). The text changes with each frame."""
        from matplotlib.figure import Figure

        figure = Figure(figsize=(WIDTH / DPI, HEIGHT / DPI), dpi=DPI, facecolor="white")
        figure.text(LEFT, 0.935, title, size=20, weight="bold")
        figure.text(LEFT, 0.9, note, size=12, color=COLOURS["muted"])
        figure.text(RIGHT, 0.015, self.output_label, size=11, color=COLOURS["muted"], ha="right")
        cluster_row(figure, drawable(self.names), self.sizes, (LEFT, RIGHT), 0.86)
        return figure, figure.text(RIGHT, 0.935, "", size=15, ha="right", weight="bold", animated=True)


@dataclass(frozen=True, eq=False)
class FilmedOrder:
    """An order of the sequences. name: a key of `charts.SERIES`. cells: at most COLUMNS x ROWS. clusters: each cell's
    cluster, int (C,)."""

    name: str
    cells: Cells
    clusters: NDArray[np.integer]


def ordering_frames(
    orders: Sequence[FilmedOrder], shown: FilmedCorpus, *, count: int
) -> Iterator[NDArray[np.uint8]]:
    """Frames uint8 (HEIGHT, WIDTH, 4), each valid until the next. orders: two orders of the same tokens."""
    colours = cluster_colours(len(shown.sizes))
    with style():
        figure, status = shown.figure(
            "From the original order into training sequences",
            "left of the mark: what has been read; dimmed: what waits, in the original order; "
            "each square: a part of the dataset, coloured by its cluster",
        )
        moving = []
        for at, order in enumerate(orders):
            bottom = 0.47 - 0.37 * at
            bar = figure.add_axes((LEFT, bottom, RIGHT - LEFT, 8 * ROWS / HEIGHT))
            _title(figure, LEFT, bottom + 0.285, order.name)
            bar.set_axis_off()
            bar.set(xlim=(0, 1), ylim=(0, 1))
            image = bar.imshow(
                np.ones((ROWS, COLUMNS, 3)),
                extent=(0, 1, 0, 1),
                aspect="auto",
                interpolation="nearest",
                animated=True,
            )
            mark = bar.axvline(0, color=COLOURS["ink"], linewidth=2, animated=True)
            moving.append((order, image, mark))
        canvas = _Canvas(figure)
        for share in frame_ends(1000 * count, count) / (1000 * count):
            for order, image, mark in moving:
                placed = round(share * len(order.clusters))
                image.set_data(_bar_pixels(colours[order.clusters[migrated(order.cells, placed)]], placed))
                mark.set_xdata([share, share])
            status.set_text(f"{share:.0%} read")
            yield canvas.frame([status, *(artist for _, *artists in moving for artist in artists)])


def _title(figure: Figure, left: float, bottom: float, order: str) -> None:
    series = charts.SERIES[order]
    figure.text(left, bottom, series.name, size=14, weight="bold", color=COLOURS[series.colour])


def _bar_pixels(colours: NDArray[np.float64], placed: int) -> NDArray[np.float64]:
    """The bar (ROWS, COLUMNS, 3), filled column by column. Cells from `placed` on are mixed with white."""
    cells = np.where(np.arange(len(colours))[:, None] < placed, colours, 1 - DIMMED * (1 - colours))
    # The cell of each square.
    cell = np.arange(ROWS * COLUMNS) * len(cells) // (ROWS * COLUMNS)
    filled = cells[cell] if len(cells) else np.ones((ROWS * COLUMNS, 3))
    return filled.reshape(COLUMNS, ROWS, 3).swapaxes(0, 1)


def map_frames(
    points: NDArray[np.floating],
    labels: NDArray[np.integer],
    orders: Mapping[str, NDArray[np.integer]],
    shown: FilmedCorpus,
    *,
    count: int,
) -> Iterator[NDArray[np.uint8]]:
    """Frames uint8 (HEIGHT, WIDTH, 4), each valid until the next.

    points: places on the map, float (P, 2). labels: each point's cluster, int (P,). orders: for each name, the points
    in reading order, int (P,).
    """
    colours, trail = cluster_colours(len(shown.sizes)), max(1, round(TRAIL * len(points)))
    size = float(np.clip(25_000 / max(1, len(points)), 2.0, 20.0))
    with style():
        note = "each point: a document, near those like it, lit once it has been read; ringed: the last ones"
        figure, status = shown.figure("Which documents are read when", note)
        width = (RIGHT - LEFT - 0.02 * (len(orders) - 1)) / len(orders)
        maps = []
        for at, (name, order) in enumerate(orders.items()):
            left = LEFT + at * (width + 0.02)
            axes = figure.add_axes((left, 0.07, width, 0.7))
            axes.set_axis_off()
            axes.scatter(points[:, 0], points[:, 1], s=size, color=UNLIT, linewidths=0)
            lit = axes.scatter([], [], s=1.5 * size, linewidths=0, animated=True)
            recent = axes.scatter(
                [], [], s=4 * size, facecolor="none", edgecolor=COLOURS["ink"], linewidths=0.9, animated=True
            )
            _title(figure, left, 0.8, name)
            maps.append((order, lit, recent))
        canvas = _Canvas(figure)
        before = 0
        for read in frame_ends(len(points), count).tolist():
            for order, lit, recent in maps:
                new = order[before:read]
                lit.set(offsets=points[new], facecolor=colours[labels[new]])
                recent.set(offsets=points[order[max(0, read - trail) : read]])
            canvas.keep(lit for _, lit, _ in maps)
            before = read
            status.set_text(f"{read / max(1, len(points)):.0%} read")
            yield canvas.frame([status, *(recent for _, _, recent in maps)])
