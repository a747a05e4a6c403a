"""Films of an ordering: frames drawn by matplotlib's Agg, encoded as H.264 by the ffmpeg that imageio-ffmpeg carries.

`ordering_frames`: documents move from their original place to the curated one. The bar is the dataset: left of the mark
is what has been placed, in its new order; right of it, dimmed, what still waits, in the original order. Each small
square is a token, drawn at even distances; its colour is its cluster. Below: distinct clusters in each sequence, of the
original order, and of the curated one as far as it is placed.

`map_frames`: two maps of the same documents, points lighting up in the order in which their documents are picked, left
in the original order, right in the curated one. Below each, a column a cluster fills as its points are picked. In an
order that keeps the mix all columns rise together.

Letters: M documents, P points on the map, K clusters.
Guarantee: the same frames give the same file (one machine, one ffmpeg); one frame is in memory at a time.
Cost: some 15 to 20 ms a frame to draw, whatever the corpus, since cells and points are samples; 5 ms to encode.
Known weakness: H.264 of fine detail is large, so what is drawn should be coarser than a pixel.
Source: ordering_animation.mp4 and ordering_animation_umap.mp4 of Diversity-Ordered Training.
"""

from __future__ import annotations

import errno
import importlib.util
import subprocess
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from dagster_divorder.core.migration import Cells, frame_ends, migrated
from dagster_divorder.errors import InputError
from dagster_divorder.view.drawing import COLOURS, cluster_colours, style

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.figure import Figure
    from matplotlib.text import Text

WIDTH, HEIGHT, DPI = 1280, 720, 100
"""Pixels; even, as the codec's colours need."""
CODEC_THREADS = 2
"""Not the machine's own number, as the bytes depend on it."""
COLUMNS, ROWS = 300, 36
"""Squares of the bar, 4 pixels each."""
DIMMED = 0.28
COLUMN_PIXELS = 60
UNLIT = "#e3e3e3"
TRAIL = 0.01
"""Share of the points, those picked last, that are marked."""

BEFORE, AFTER, INK, MUTED = (COLOURS[name] for name in ("original", "curated", "ink", "muted"))

Frame = Callable[[NDArray[np.uint8]], None]


def why_no_films() -> str | None:
    """What to do where no ffmpeg is installed; None where films can be made."""
    if importlib.util.find_spec("imageio_ffmpeg"):
        return None
    return "films need imageio-ffmpeg, which is not installed: pip install 'dagster-divorder[films]'"


@contextmanager
def film(path: Path, fps: int) -> Iterator[Frame]:
    """Opens a film; call what it gives with each frame, uint8 (HEIGHT, WIDTH, 4), RGBA. Writes an .mp4 that players and
    browsers show while it loads.

    Raises:
        InputError: no ffmpeg is installed.
        OSError: ffmpeg ended early, as on a full disk, with what it said.
    """
    if missing := why_no_films():
        raise InputError(missing)
    from imageio_ffmpeg import get_ffmpeg_exe

    command = [
        *(get_ffmpeg_exe(), "-y", "-v", "error", "-nostdin"),
        *("-f", "rawvideo", "-pix_fmt", "rgba", "-s", f"{WIDTH}x{HEIGHT}", "-r", str(fps), "-i", "-"),
        *("-c:v", "libx264", "-preset", "veryfast", "-crf", "23", "-pix_fmt", "yuv420p"),
        *("-threads", str(CODEC_THREADS), "-fflags", "+bitexact", "-flags:v", "+bitexact"),
        *("-movflags", "+faststart", str(path)),
    ]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdin is not None and process.stderr is not None
    source, said = process.stdin, process.stderr
    try:
        yield lambda frame: _write(source, frame, said)
        source.close()
        message = said.read()
        if process.wait():
            raise _failed(message)
    finally:
        process.kill()  # no effect on one that has ended
        process.wait()
        said.close()


def _write(source: IO[bytes], frame: NDArray[np.uint8], said: IO[bytes]) -> None:
    try:
        source.write(np.ascontiguousarray(frame).data)
    except BrokenPipeError:
        raise _failed(said.read()) from None


def _failed(said: bytes) -> OSError:
    message = said.decode(errors="replace").strip()
    full = "No space left" in message
    return OSError(errno.ENOSPC if full else errno.EIO, f"ffmpeg could not write the film: {message}")


class _Canvas:
    """Draws a figure once; each frame restores that and draws a few artists over it (matplotlib's blitting), some 5 ms
    instead of 80."""

    def __init__(self, figure: Figure) -> None:
        from matplotlib.backends.backend_agg import FigureCanvasAgg

        self._figure = figure
        self._canvas = FigureCanvasAgg(figure)
        self._canvas.draw()
        self._kept: Any = self._canvas.copy_from_bbox(figure.bbox)

    def frame(self, artists: Iterable[Artist]) -> NDArray[np.uint8]:
        """The kept picture with artists over it, uint8 (height, width, 4); valid until the next call."""
        self._canvas.restore_region(self._kept)
        for artist in artists:
            self._figure.draw_artist(artist)
        return np.asarray(self._canvas.buffer_rgba())

    def keep(self, artists: Iterable[Artist]) -> None:
        """Draw artists into the kept picture: they stay in all later frames."""
        self.frame(artists)
        self._kept = self._canvas.copy_from_bbox(self._figure.bbox)


def _titled(title: str, note: str) -> tuple[Figure, Text]:
    """A figure with what stands above it, and the text in its upper right corner, which moves."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(WIDTH / DPI, HEIGHT / DPI), dpi=DPI, facecolor="white")
    figure.text(0.031, 0.925, title, size=20, weight="bold", color=INK)
    figure.text(0.031, 0.88, note, size=12, color=MUTED)
    return figure, figure.text(0.969, 0.925, "", size=15, color=INK, ha="right", weight="bold", animated=True)


def ordering_frames(
    cells: Cells,
    labels: NDArray[np.integer],
    before: NDArray[np.floating],
    after: NDArray[np.floating],
    *,
    count: int,
    sequence_length: int,
) -> Iterator[NDArray[np.uint8]]:
    """Frames uint8 (HEIGHT, WIDTH, 4), each valid until the next.

    cells: from core.migration, at most COLUMNS x ROWS; labels int (M,), the cluster of each document. before, after:
    mean distinct clusters a sequence along the dataset, any number of even bins.
    """
    seen = (
        np.unique(labels[cells.document], return_inverse=True)[1] if len(cells.document) else np.zeros(0, int)
    )
    # Clusters that lie together in the original order get like hues.
    rank = _by_first_place(seen, cells.original_rank)
    colours = cluster_colours(int(rank.max(initial=0)) + 1)[rank]
    with style():
        note = "each square: a part of the dataset, coloured by its cluster"
        figure, status = _titled("Putting the documents in order", note)
        bar = figure.add_axes((0.031, 0.6, 0.938, 0.22))
        bar.set_axis_off()
        bar.set(xlim=(0, 1), ylim=(0, 1))
        image = bar.imshow(
            np.ones((ROWS, COLUMNS, 3)),
            extent=(0, 1, 0, 1),
            aspect="auto",
            interpolation="nearest",
            animated=True,
        )
        mark = bar.axvline(0, color=INK, linewidth=2, animated=True)
        figure.text(0.031, 0.558, "placed, in the curated order", size=12, color=AFTER)
        figure.text(0.969, 0.558, "waiting, in the original order", size=12, color=BEFORE, ha="right")

        panel = figure.add_axes((0.062, 0.11, 0.907, 0.34))
        top = max(1.0, float(max(before.max(initial=0), after.max(initial=0))))
        panel.set(xlim=(0, 100), ylim=(0, 1.08 * top), xlabel="position in the dataset, % of tokens")
        panel.set_title(
            f"distinct clusters in each sequence of {sequence_length:,} tokens",
            size=13,
            loc="left",
            color=INK,
        )
        panel.plot(_along(before), before, color=BEFORE, linewidth=1.6)
        (curve,) = panel.plot([], [], color=AFTER, linewidth=2.2, animated=True)
        for name, colour, at in (("original", BEFORE, 91), ("curated", AFTER, 100)):
            panel.text(at, 1.12 * top, name, color=colour, size=12, ha="right", weight="bold")
        canvas = _Canvas(figure)
        for placed in frame_ends(len(rank), count):
            share = placed / max(1, len(rank))
            image.set_data(_bar_pixels(colours[migrated(cells, int(placed))], int(placed)))
            mark.set_xdata([share, share])
            drawn = int(np.ceil(share * len(after)))
            curve.set_data(_along(after)[:drawn], after[:drawn])
            status.set_text(f"{share:.0%} placed")
            yield canvas.frame((image, mark, curve, status))


def _by_first_place(seen: NDArray[Any], original_rank: NDArray[np.int64]) -> NDArray[np.int64]:
    """Clusters numbered by their mean place in the original order, int64 (C,)."""
    if not len(seen):
        return np.zeros(0, np.int64)
    place = np.bincount(seen, original_rank) / np.bincount(seen)
    number = np.empty(len(place), np.int64)
    number[np.argsort(place, kind="stable")] = np.arange(len(place))
    return number[seen]


def _bar_pixels(colours: NDArray[np.float64], placed: int) -> NDArray[np.float64]:
    """The bar (ROWS, COLUMNS, 3), filled column by column; what waits is mixed with white."""
    shown = np.where(np.arange(len(colours))[:, None] < placed, colours, 1 - DIMMED * (1 - colours))
    # As many squares as the bar has, each the cell at its place.
    cell = np.arange(ROWS * COLUMNS) * len(shown) // (ROWS * COLUMNS)
    filled = shown[cell] if len(shown) else np.ones((ROWS * COLUMNS, 3))
    return filled.reshape(COLUMNS, ROWS, 3).swapaxes(0, 1)


def _along(values: NDArray[np.floating]) -> NDArray[np.float64]:
    return 100 * (np.arange(len(values)) + 0.5) / max(1, len(values))


@dataclass(frozen=True)
class _Map:
    """One of the two maps: order int64 (P,), which point is picked when; `lit` grows, `recent` moves."""

    order: NDArray[np.int64]
    lit: Artist
    recent: Artist
    columns: Artist


def map_frames(
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
    cluster = np.unique(labels, return_inverse=True)[1] if len(labels) else np.zeros(0, np.int64)
    colours = cluster_colours(int(cluster.max(initial=0)) + 1)
    sizes = np.maximum(1, np.bincount(cluster, minlength=len(colours)))
    with style():
        note = "each point: a document, near those like it; columns: how much of each cluster has been picked"
        figure, status = _titled("Which documents are picked when", note)
        maps = [
            _draw_map(figure, 0.031, "original order", BEFORE, np.arange(len(points)), points, len(colours)),
            _draw_map(figure, 0.516, "curated order", AFTER, np.asarray(curated), points, len(colours)),
        ]
        canvas = _Canvas(figure)
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
    figure: Figure,
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
    columns = below.imshow(
        np.ones((COLUMN_PIXELS, clusters, 3)), aspect="auto", interpolation="nearest", animated=True
    )
    return _Map(np.asarray(order, np.int64), lit, recent, columns)


def _columns(share: NDArray[np.float64], colours: NDArray[np.float64]) -> NDArray[np.float64]:
    """The columns as RGB (COLUMN_PIXELS, K, 3), each filled from below up to its share."""
    height = (COLUMN_PIXELS - np.arange(COLUMN_PIXELS) - 0.5) / COLUMN_PIXELS
    return np.where((height[:, None] < share)[:, :, None], colours, 1.0)
