"""Films of how training reads the corpus: matplotlib draws what stays, Pillow the rest; imageio-ffmpeg encodes frames.

`ordering_film`: the dataset moves from the original order into two other orders. Each bar is the dataset. Tokens left
of the mark have been read, in the new order; dimmed tokens wait in the original order. `map_film`: one map of the
documents per order; a point lights up when its document is first read.

Letters: C cells, tokens at even distances in an order, so that a document has cells in proportion to its tokens; P
points on the map, K clusters.
Guarantee: the same films give the same files (one machine, one ffmpeg); one frame is in memory at a time.
Cost: some 20 ms a frame, for any corpus, since cells and points are samples.
Source: ordering_animation.mp4 and ordering_animation_umap.mp4 of Diversity-Ordered Training.
"""

from __future__ import annotations

import errno
import subprocess
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from dagster_divorder.core.measure.runs import ReadRuns
from dagster_divorder.extras import load_extra
from dagster_divorder.view.charts import SERIES
from dagster_divorder.view.drawing import COLOURS, cluster_colours, cluster_row, drawable, style

WIDTH, HEIGHT, DPI = 1280, 720, 100
"""Pixels; the codec needs an even width and height."""
COLUMNS, ROWS = 294, 24
"""Squares of a bar; each shows a cell."""
MAP = (374, 500)
"""Pixels of a map."""
LEFT, RIGHT = 64, 1240
"""Ends of bars and maps, in pixels."""
HOLD = 2
"""Seconds that the last frame stays."""
CODEC = [
    *("-vf", f"tpad=stop_mode=clone:stop_duration={HOLD}"),
    *("-preset", "veryfast", "-crf", "23", "-pix_fmt", "yuv420p"),
    *("-threads", "2", "-fflags", "+bitexact", "-flags:v", "+bitexact", "-movflags", "+faststart"),
]
"""Of ffmpeg. The film's bytes depend on the number of threads."""
DIMMED, UNLIT, INK = 0.28, 227, 25
TRAIL = 0.01
"""Share of the points that are marked: the last points read."""

Ints = NDArray[np.int64]
Pixels = NDArray[np.uint8]
"""RGB."""


class FilmedCorpus(NamedTuple):
    """The corpus of a film. names, sizes: of the K clusters. output_label: `words.output_label`."""

    names: Sequence[str]
    sizes: NDArray[np.integer]
    output_label: str


class Film(NamedTuple):
    """title, note: above the pictures. corners: left and top pixel of each order's picture, by a key of
    `charts.SERIES`. size: of the pictures, in pixels. frames: of each the share that is read, and each order's
    picture."""

    title: str
    note: str
    corners: Mapping[str, tuple[int, int]]
    size: tuple[int, int]
    frames: Iterable[tuple[float, Sequence[Pixels]]]


def write_film(
    path: Path, film: Film, shown: FilmedCorpus, fps: int, advance: Callable[[int], object]
) -> None:
    """Writes an .mp4, which players and browsers can show while it loads. The last frame stays for HOLD seconds.
    advance: is called after each frame.

    Raises:
        InputError: no ffmpeg is installed.
        OSError: ffmpeg failed, for example on a full disk; carries ffmpeg's message.
    """
    import PIL.Image
    import PIL.ImageDraw
    import PIL.ImageFont
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.font_manager import findfont

    with style():
        figure = Figure(figsize=(WIDTH / DPI, HEIGHT / DPI), dpi=DPI, facecolor="white")
        figure.text(LEFT / WIDTH, 0.935, film.title, size=20, weight="bold")
        figure.text(LEFT / WIDTH, 0.9, film.note, size=12, color=COLOURS["muted"])
        figure.text(RIGHT / WIDTH, 0.015, shown.output_label, size=11, color=COLOURS["muted"], ha="right")
        cluster_row(figure, drawable(shown.names), shown.sizes, (LEFT / WIDTH, 0.86))
        for order, (left, top) in film.corners.items():
            name, colour = SERIES[order].name, COLOURS[SERIES[order].colour]
            figure.text(left / WIDTH, 1 - (top - 12) / HEIGHT, name, size=14, weight="bold", color=colour)
        canvas = FigureCanvasAgg(figure)
        canvas.draw()
    # What stays is drawn once.
    still = PIL.Image.fromarray(np.asarray(canvas.buffer_rgba())).convert("RGB")
    font = PIL.ImageFont.truetype(findfont("DejaVu Sans:bold"), 21)
    command = [
        *(load_extra("imageio_ffmpeg").get_ffmpeg_exe(), "-y", "-v", "error", "-nostdin", "-f", "rawvideo"),
        *("-pix_fmt", "rgb24", "-s", f"{WIDTH}x{HEIGHT}", "-r", str(fps), "-i", "-"),
        *("-c:v", "libx264", *CODEC, str(path)),
    ]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdin is not None
    try:
        # A BrokenPipeError means that ffmpeg has ended; its message says why.
        with suppress(BrokenPipeError):
            for share, pictures in film.frames:
                frame = still.copy()
                for picture, corner in zip(pictures, film.corners.values(), strict=True):
                    scaled = PIL.Image.fromarray(picture).resize(film.size, PIL.Image.Resampling.NEAREST)
                    frame.paste(scaled, corner)
                text = f"{share:.0%} read"
                PIL.ImageDraw.Draw(frame).text((RIGHT, 47), text, COLOURS["ink"], font, anchor="rs")
                process.stdin.write(frame.tobytes())
                advance(1)
        _, message = process.communicate()
    finally:
        process.kill()  # no effect on an ended process
        process.wait()
    if process.returncode:
        said = message.decode(errors="replace").strip()
        number = errno.ENOSPC if "No space left" in said else errno.EIO
        raise OSError(number, f"ffmpeg could not write the film: {said}")


def sample_cells(
    runs: ReadRuns, codes: NDArray[np.integer], cells: int = COLUMNS * ROWS
) -> tuple[Ints, Ints]:
    """(cluster, place in the original order) of the cells along runs, int64 (C,) each. codes: int, by document."""
    ends, total = np.cumsum(runs.length), int(runs.length.sum())
    at = (2 * np.arange(cells if total else 0) + 1) * total // (2 * cells)
    run = np.searchsorted(ends, at, side="right")
    original, begins = np.lexsort((runs.start, runs.document)), np.empty_like(ends)
    begins[original] = np.cumsum(runs.length[original]) - runs.length[original]
    token, place = begins[run] + at - (ends - runs.length)[run], np.empty(len(at), np.int64)
    place[np.argsort(token, kind="stable")] = np.arange(len(token))
    return np.asarray(codes[runs.document[run]], np.int64), place


def migrated(place: Ints, read: int) -> Ints:
    """The cells of a bar, int64 (C,): the first `read` ones in the new order, then the others by their place in the
    original order."""
    return np.concatenate([np.arange(read), read + np.argsort(place[read:], kind="stable")])


def ordering_film(orders: Mapping[str, tuple[Ints, Ints]], shown: FilmedCorpus, *, count: int) -> Film:
    """A film of `count` frames. orders: two orders of the same tokens by name, as `sample_cells` gives them."""
    colours = 255 * cluster_colours(len(shown.sizes))

    def bar(clusters: Ints, place: Ints, share: float) -> Pixels:
        """The bar, filled column by column."""
        read, cells = round(share * len(clusters)), np.full((ROWS * COLUMNS, 3), 255.0)
        if len(clusters):
            cells = colours[clusters[migrated(place, read)]]
            cells[read:] = 255 - DIMMED * (255 - cells[read:])
        picture = cells.astype(np.uint8).reshape(COLUMNS, ROWS, 3).swapaxes(0, 1)
        picture[:, min(int(share * COLUMNS), COLUMNS - 1)] = INK
        return picture

    return Film(
        "From the original order into training sequences",
        "left of the mark: what has been read; dimmed: what waits, in the original order; each square: a part of the "
        "dataset, coloured by its cluster",
        {name: (LEFT, 190 + 266 * at) for at, name in enumerate(orders)},
        (RIGHT - LEFT, 8 * ROWS),
        (
            (share, [bar(*cells, share) for cells in orders.values()])
            for share in np.linspace(0, 1, count).tolist()
        ),
    )


def map_film(
    points: NDArray[np.floating],
    labels: NDArray[np.integer],
    orders: Mapping[str, NDArray[np.integer]],
    shown: FilmedCorpus,
    *,
    count: int,
) -> Film:
    """A film of `count` frames. points: places on the map, float (P, 2). labels: each point's cluster, int (P,).
    orders: by name, the points in reading order, int (P,)."""
    colours, side = (255 * cluster_colours(len(shown.sizes)))[labels], 1 if len(points) > 5_000 else 2
    # Shares of the picture, the margin that a point needs aside.
    low, high = (points.min(axis=0), points.max(axis=0)) if len(points) else (0.0, 1.0)
    x, y = (
        (side + (points - low) / np.maximum(high - low, 1e-9) * (np.array(MAP) - 2 * side - 1)).astype(int).T
    )

    def paint(picture: Pixels, at: NDArray[np.integer], colour: NDArray[np.float64] | int) -> None:
        for across in range(-side, side + 1):
            for down in range(-side, side + 1):
                picture[MAP[1] - 1 - y[at] + down, x[at] + across] = colour

    def pictures() -> Iterator[tuple[float, list[Pixels]]]:
        maps = [np.full((MAP[1], MAP[0], 3), 255, np.uint8) for _ in orders]
        before, trail = 0, round(TRAIL * len(points))
        for picture in maps:
            paint(picture, np.arange(len(points)), UNLIT)
        for share in np.linspace(0, 1, count).tolist():
            read, marked = round(share * len(points)), []
            for picture, order in zip(maps, orders.values(), strict=True):
                paint(picture, order[before:read], colours[order[before:read]])
                marked.append(picture.copy())
                paint(marked[-1], order[max(0, read - max(1, trail)) : read], INK)
            before = read
            yield share, marked

    step = (RIGHT - LEFT + 26) // 3
    return Film(
        "Which documents are read when",
        "each point: a document, near those like it, coloured once it has been read; dark: the last ones",
        {name: (LEFT + at * step, 170) for at, name in enumerate(orders)},
        MAP,
        pictures(),
    )
