"""Colours and typeface of all pictures, and matplotlib figures as PNG files or as SVG in a page.

Guarantee: the same numbers give the same bytes (same machine, typefaces and matplotlib), whatever the user's style;
matplotlib's global state is unchanged.
"""

from __future__ import annotations

import base64
import colorsys
import io
import re
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np
from markupsafe import Markup
from numpy.typing import NDArray

from dagster_divorder.view.shown import Chart, Panel, Series
from dagster_divorder.view.words import NAME, clip

if TYPE_CHECKING:
    from matplotlib.figure import Figure, SubFigure
    from PIL.Image import Image

COLOURS = {
    "ink": "#1b1d22",
    "muted": "#5c626e",
    "rule": "#d9dbe0",
    "original": "#b84a00",
    "shuffled": "#6f7580",
    "curated": "#0a66a8",
    "sequences": "#04345c",
    "surface": "#fefefe",
}
"""Distinguishable with any colour vision, and in grey. In a page each becomes the style sheet's variable of this name,
so that one drawing serves light, dark and print."""

DPI = 100
VALUES = 34
"""Height of a row of names in a picture, in pixels."""
NAMED = 5
"""Clusters named in a picture."""
GOLDEN = (5.0**0.5 - 1.0) / 2.0
OTHERS = (0.62, 0.63, 0.65)
"""RGB of the clusters that share a colour."""

OTHER_SCRIPTS = (
    *("Noto Sans CJK SC", "Noto Sans CJK JP", "Noto Sans CJK KR", "WenQuanYi Zen Hei", "Droid Sans Fallback"),
    *("Arial Unicode MS", "PingFang SC", "Apple SD Gothic Neo", "Microsoft YaHei", "Malgun Gothic", "Yu Gothic"),
    *("Noto Sans Thai", "Noto Sans Devanagari", "Noto Sans Arabic", "Noto Sans Hebrew", "Nirmala UI", "Unifont"),
)  # fmt: skip
"""Typefaces for scripts that matplotlib's own typeface lacks; used if installed."""

_TICKS = {"color": COLOURS["muted"], "labelsize": 12.5, "major.size": 0, "minor.size": 0, "major.pad": 6}
_STYLE: Any = {
    "text.parse_math": False,
    "font.size": 13,
    "text.color": COLOURS["ink"],
    "axes.labelcolor": COLOURS["muted"],
    "axes.edgecolor": COLOURS["rule"],
    "axes.linewidth": 1.0,
    **{f"axes.spines.{side}": False for side in ("top", "right", "left")},
    "axes.grid": True,
    "axes.grid.axis": "y",
    "axes.axisbelow": True,
    "axes.facecolor": "none",
    "axes.titlelocation": "left",
    "axes.titlesize": 13,
    "axes.titleweight": "bold",
    "axes.titlepad": 9,
    # The label's usual place; without it matplotlib measures all labels of an axis.
    "axes.titley": 1.0,
    **{f"{axis}tick.{name}": value for axis in "xy" for name, value in _TICKS.items()},
    "grid.color": COLOURS["rule"],
    "grid.linewidth": 0.8,
    "lines.solid_capstyle": "round",
    "lines.linewidth": 1.6,
    "legend.frameon": False,
    "legend.labelcolor": "linecolor",
    "figure.facecolor": "none",
    "svg.fonttype": "none",
}


def line_of(series: Series) -> dict[str, Any]:
    """Colour, line style and label of a series for matplotlib."""
    return {
        "color": COLOURS[series.colour],
        "linestyle": (0, (3, 2)) if series.dashed else "solid",
        "label": series.name,
    }


@contextmanager
def style() -> Iterator[None]:
    """matplotlib's defaults and ours, whatever the user has set; restores the user's style afterwards. Letters that no
    installed typeface has become boxes without warnings; see `drawable`."""
    import matplotlib as mpl

    with mpl.rc_context(), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing from font")
        mpl.rcdefaults()
        mpl.rcParams.update(_STYLE)
        mpl.rcParams["font.family"] = ["sans-serif", *_installed()]
        yield


def _installed() -> tuple[str, ...]:
    """Typefaces of OTHER_SCRIPTS on this machine."""
    from matplotlib.font_manager import fontManager

    return tuple(name for name in OTHER_SCRIPTS if name in fontManager.get_font_names())


def drawable(names: Sequence[str]) -> list[str]:
    """Clusters' names for a picture; one whose letters no installed typeface has becomes `cluster` and its number."""
    from matplotlib.font_manager import findfont, get_font

    files = [findfont(name) for name in ("DejaVu Sans", *_installed())]
    letters = set[int]().union(*(get_font(file).get_charmap() for file in files))
    return [
        name if all(ord(letter) in letters for letter in name if letter.isalpha()) else f"cluster {label}"
        for label, name in enumerate(names)
    ]


def sheet(charts: Sequence[Chart], title: str = "", note: str = "", width: int = 1600) -> Figure:
    """Charts below each other under a title and a note of any number of lines. To be drawn inside `style`."""
    heights: list[float] = [24 + 40 * bool(title) + 26 * (note.count("\n") + bool(note))]
    for chart in charts:
        heights += [VALUES] * bool(chart.values)
        heights += [chart.height * DPI / 72] * -(-len(chart.panels) // chart.across)
        heights += [VALUES] * bool(chart.legend)
    from matplotlib.lines import Line2D

    figure = _canvas(width, round(sum(heights)), layout="constrained")
    below: Any = figure.subfigures(len(heights), 1, height_ratios=heights, squeeze=False)
    parts = iter(below[:, 0])
    above, left = next(parts), 20 / width
    above.text(left, 1 - 14 / heights[0], title, size=21, weight="bold", va="top")
    below_title = 1 - (18 + 40 * bool(title)) / heights[0]
    above.text(left, below_title, note, color=COLOURS["muted"], va="top", linespacing=1.4)
    for chart in charts:
        if chart.values:
            cluster_row(next(parts), *chart.values, (left, 0.3))
        across = min(chart.across, len(chart.panels))
        for first in range(0, len(chart.panels), chart.across):
            row = next(parts).subplots(1, across, squeeze=False)[0]
            panels = chart.panels[first : first + across]
            for axes, panel in zip(row, panels, strict=False):
                panel.draw(axes)
                axes.set_title(panel.title, color=COLOURS[panel.colour])
            for axes in row[len(panels) :]:
                axes.set_axis_off()
        if chart.legend:
            lines = [Line2D([], [], **line_of(series)) for series in chart.legend]
            next(parts).legend(handles=lines, loc="center", ncols=len(lines))
    return figure


def cluster_row(
    figure: Figure | SubFigure, names: Sequence[str], sizes: NDArray[Any], corner: tuple[float, float]
) -> None:
    """The names of the NAMED largest clusters after their colours. names, sizes: by cluster. corner: the lower left
    one, as shares of the figure's width and height."""
    from matplotlib.patches import Patch

    colours, largest = (
        cluster_colours(len(sizes)),
        np.argsort(-sizes, kind="stable")[: min(NAMED, len(names))],
    )
    handles = [Patch(color=colours[cluster], label=clip(names[cluster], NAME)) for cluster in largest]
    figure.legend(
        handles=handles,
        loc="lower left",
        bbox_to_anchor=corner,
        ncols=max(1, len(handles)),
        fontsize=11,
        labelcolor=COLOURS["muted"],
        borderaxespad=0,
        borderpad=0,
        handlelength=0.8,
        columnspacing=1.2,
    )


def sheet_picture(charts: Sequence[Chart], *head: Any, **more: Any) -> bytes:
    """A PNG file of a `sheet`, whose arguments these are."""
    import PIL.Image
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    with style():
        canvas = FigureCanvasAgg(sheet(charts, *head, **more))
        canvas.draw()
        return png(PIL.Image.fromarray(np.asarray(canvas.buffer_rgba())[..., :3]))


def _canvas(width: float, height: float, **more: Any) -> Figure:
    from matplotlib.figure import Figure

    class ShownFigure(Figure):
        """Notebooks show a plain Figure only if `matplotlib.pyplot` has made it."""

        def _repr_png_(self) -> bytes:
            file = io.BytesIO()
            self.savefig(file, format="png")
            return file.getvalue()

    return ShownFigure(figsize=(width / DPI, height / DPI), dpi=DPI, facecolor="white", **more)


def svg(name: str, width: int, height: int, panel: Panel) -> Markup:
    """A panel for a page, in the page's colours and typeface; text stays text for search.

    name: unique in the page. width, height: in CSS pixels, the unit of all sizes in the drawing.
    """
    import matplotlib as mpl
    from matplotlib.figure import Figure

    file = io.StringIO()
    with style():
        mpl.rcParams["svg.hashsalt"] = name
        figure = Figure(figsize=(width / 72, height / 72), dpi=72, layout="constrained")
        axes = figure.add_subplot()
        panel.draw(axes)
        axes.set_title(panel.title, color=COLOURS[panel.colour])
        metadata = dict.fromkeys(("Date", "Creator", "Format", "Type"))
        figure.savefig(file, format="svg", metadata=metadata)
    return Markup(f'<svg viewBox="0 0 {width} {height}" aria-hidden="true">') + Markup(
        _for_the_page(name, file.getvalue())
    )


def _for_the_page(name: str, text: str) -> str:
    """The content of an SVG file without its opening tag and global style."""

    def shortened(path: re.Match[str]) -> str:
        """A path on one line, rounded to a tenth of a pixel."""
        rounded = re.sub(r"-?\d+\.\d+", lambda number: f"{float(number[0]):.1f}".removesuffix(".0"), path[0])
        return " ".join(rounded.split())

    def in_colours_of_the_page(declarations: re.Match[str]) -> str:
        text = re.sub(r"font-family: [^;]*(; )?", "", declarations[0])
        for variable, colour in COLOURS.items():
            text = text.replace(colour, f"var(--{variable})")
        return text

    text = text[text.index("</style>") :]
    text = text[text.index("</defs>") + len("</defs>") :]
    text = re.sub(r'<g id="[^"]*">', "<g>", text)  # every drawing numbers its groups alike
    text = re.sub(r'(?<=\bid=")|(?<=url\(#)|(?<=href="#)', f"{name}-", text).replace("xlink:href", "href")
    text = re.sub(r'(?<= d=")[^"]*', shortened, text)
    return re.sub(r'(?<= style=")[^"]*', in_colours_of_the_page, text)


def png(image: Image) -> bytes:
    data = io.BytesIO()
    # optimize=True would take four times as long for 2 % fewer bytes.
    image.save(data, format="PNG")
    return data.getvalue()


def pixels_png(pixels: NDArray[np.floating]) -> bytes:
    """A PNG file of pixels in RGB or RGBA, in [0, 1], (rows, columns, 3 or 4)."""
    import PIL.Image

    return png(PIL.Image.fromarray(np.rint(255 * pixels).astype(np.uint8)))


def reduced(file: bytes, most: int, width: int) -> bytes:
    """A PNG file of at most `most` bytes and `width` pixels: if necessary, scaled down and with fewer colours."""
    import PIL.Image

    original = PIL.Image.open(io.BytesIO(file)).convert("RGB")
    width = min(width, original.width)
    if width == original.width and len(file) <= most:
        return file
    size = (width, max(1, original.height * width // original.width))
    # Ten times as fast as the median cut, with files no larger.
    smaller = original.resize(size, PIL.Image.Resampling.HAMMING)
    found = png(smaller.quantize(128, PIL.Image.Quantize.FASTOCTREE))
    return found if len(found) <= most else reduced(file, most, int(0.8 * width))


def data_uri(file: bytes) -> str:
    """A PNG file as the `src` of an image in a page."""
    return f"data:image/png;base64,{base64.b64encode(file).decode()}"


def stacked(mix: NDArray[np.floating], rows: int) -> NDArray[np.int64]:
    """The value at each pixel of a bar, int64 (rows, C): each column is divided among the values by their shares.

    mix: (C, J), rows sum to 1, values in stacking order.
    """
    heights = (np.arange(rows) + 0.5) / rows
    ends = np.cumsum(mix, axis=1, dtype=np.float64)
    values = np.stack([np.searchsorted(column, heights) for column in ends], axis=1)
    # A column's shares may sum to a little less than one.
    return np.minimum(values, mix.shape[1] - 1)


def cluster_colours(k: int) -> NDArray[np.float64]:
    """The colours of k clusters in all pictures, tables and films, RGB in [0, 1] float64 (k, 3).

    The hues divide the circle evenly; the first clusters, which are the largest, get hues far apart. Neighbours in hue
    differ in lightness (light, dark, middle, ...), which any colour vision tells apart.
    """
    places = np.argsort(np.argsort(np.arange(k) * GOLDEN % 1.0)).tolist()
    return np.array(
        [colorsys.hls_to_rgb(place / max(k, 1), (0.72, 0.36, 0.54)[place % 3], 0.6) for place in places]
    ).reshape(k, 3)
