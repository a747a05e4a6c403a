"""The documents as a cloud: similar ones near each other, in the colours of their clusters, the largest ones named.

The points are a picture that is see-through between them, so that it fits light and dark; the names lie over it as
text.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dagster_divorder.view.report.html import Markup, fill
from dagster_divorder.view.report.picture import data_uri
from dagster_divorder.view.report.words import clip, number

if TYPE_CHECKING:
    from PIL.Image import Image

POINTS = 8_000
"""Documents that are drawn, the first ones: they come in a random order."""
WIDTH, HEIGHT, MARGIN = 1400, 900, 30
"""Of the picture, in its own pixels."""
NAMED, LETTERS = 24, 26
SHADES = 64

_CLOUD = """\
<figure class="cloud">
<div class="plane">
<img src="{{ picture }}" width="{{ width }}" height="{{ height }}" alt="{{ alt }}">
{% for name in names %}
<span class="{{ 'desk' if loop.index > 8 else 'all' }}" style="left:{{ name.left }}%;top:{{ name.top }}%">\
{{ name.text }}</span>
{% endfor %}
</div>
<figcaption>{{ caption }}</figcaption>
</figure>
"""


class _Name(NamedTuple):
    """A name on the map, by its middle in per cent of the picture."""

    text: str
    left: float
    top: float


def cloud(
    xy: NDArray[np.floating],
    places: NDArray[np.integer],
    names: Sequence[str],
    colours: NDArray[np.floating],
    documents: int,
) -> Markup:
    """The figure. xy: float (n, 2), documents on the map in a random order. places: int (n,), the row of each one's
    cluster in names and colours, RGB in [0, 1] (J, 3). documents: of the corpus."""
    xy, places = xy[:POINTS], places[:POINTS]
    pixels = _in_pixels(xy)
    shown = _names(pixels, places, names)
    caption = (
        f"UMAP of {number(len(xy))} of {number(documents)} documents: similar ones are near each other; the "
        "distances between groups mean little. Colours are those of the table."
    )
    return fill(
        _CLOUD,
        picture=data_uri(_few_shades(_drawn(pixels, colours[places]))),
        width=WIDTH,
        height=HEIGHT,
        alt=f"A cloud of {number(len(xy))} points in the colours of {number(len(np.unique(places)))} "
        f"clusters; the largest are {', '.join(name.text for name in shown[:8])}.",
        names=shown,
        caption=caption,
    )


def _in_pixels(xy: NDArray[np.floating]) -> NDArray[np.float64]:
    """Places in the picture, (n, 2), from the upper left corner; one scale for both directions."""
    low, high = xy.min(axis=0), xy.max(axis=0)
    room = np.array([WIDTH, HEIGHT]) - 2 * MARGIN
    scale = float((room / np.maximum(high - low, 1e-9)).min())
    centred = (np.asarray(xy, np.float64) - (low + high) / 2) * scale
    return centred * [1, -1] + np.array([WIDTH, HEIGHT]) / 2


def _names(pixels: NDArray[np.float64], places: NDArray[np.integer], names: Sequence[str]) -> list[_Name]:
    """Names of the clusters with the most points, where they lie, as far as there is room."""
    counts = np.bincount(places, minlength=len(names))
    shown: list[_Name] = []
    for place in np.argsort(-counts, kind="stable")[:NAMED].tolist():
        if counts[place] == 0:
            break
        left, top = np.round(np.median(pixels[places == place], axis=0) / [WIDTH, HEIGHT] * 100, 1).tolist()
        name = _Name(_brief(names[place]), left, top)
        if not any(_touch(name, other) for other in shown):
            shown.append(name)
    return shown


def _brief(name: str) -> str:
    """As many of a name's terms as there is room for."""
    while len(name) > LETTERS and ", " in name:
        name = name.rpartition(", ")[0]
    return clip(name, LETTERS)


def _touch(one: _Name, other: _Name) -> bool:
    """Whether two names would lie over each other on a desk's screen: a letter is some 0.8 % of the width."""
    reach = 0.4 * (len(one.text) + len(other.text)) + 1
    return abs(one.left - other.left) < reach and abs(one.top - other.top) < 4


def _drawn(pixels: NDArray[np.float64], colours: NDArray[np.floating]) -> NDArray[np.uint8]:
    """RGBA (HEIGHT, WIDTH, 4)."""
    import matplotlib as mpl
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    side = float(np.clip(500.0 / np.sqrt(max(1, len(pixels))), 4.0, 12.0))
    with mpl.rc_context():
        mpl.rcdefaults()
        figure = Figure(figsize=(WIDTH / 72, HEIGHT / 72), dpi=72, facecolor="none")
        axes = figure.add_axes((0, 0, 1, 1))
        axes.set_axis_off()
        axes.set_xlim(0, WIDTH)
        axes.set_ylim(HEIGHT, 0)
        axes.scatter(pixels[:, 0], pixels[:, 1], s=side**2, c=colours, alpha=0.75, linewidths=0)
        canvas = FigureCanvasAgg(figure)
        canvas.draw()
        return np.array(canvas.buffer_rgba())


def _few_shades(rgba: NDArray[np.uint8]) -> Image:
    """In few shades, a quarter of the bytes."""
    import PIL.Image

    return PIL.Image.fromarray(rgba).quantize(SHADES, method=PIL.Image.Quantize.FASTOCTREE)
