"""matplotlib charts as SVG inside the page: in the page's own colours and typeface, at two widths.

Each chart is drawn twice, for a desk and for a phone, so that its text keeps its size; the style sheet shows the one
that fits. Colours are names of the style sheet's variables, so that one drawing is right in light, in dark and in
print. Text stays text: it can be searched, and is read in the typeface of the page.

Guarantee: the same numbers give the same bytes, whatever the user's style; matplotlib's global state is left as it was.
"""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from dagster_divorder.view.report.html import Markup, fill

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

WIDE, NARROW = 880, 350
"""Widths of the drawings, in CSS pixels."""

# What is drawn in a colour here is shown in the style sheet's variable of that name.
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
Draw = Callable[["Figure", bool], None]

_FIGURE = """\
<figure class="chart">
{{ wide }}{{ narrow }}
{% if caption %}
<figcaption>{{ caption }}</figcaption>
{% endif %}
</figure>
"""
_OPEN = (
    '<svg class="{{ size }}" viewBox="0 0 {{ width }} {{ height }}" role="img" aria-label="{{ title }}" '
    'aria-describedby="{{ name }}-says"><desc id="{{ name }}-says">{{ description }}</desc>'
)

_STYLE: Any = {
    "svg.fonttype": "none",
    "text.parse_math": False,
    "font.size": 12.5,
    "text.color": COLOURS["ink"],
    "axes.labelcolor": COLOURS["muted"],
    "axes.labelsize": 12.5,
    "axes.edgecolor": COLOURS["rule"],
    "axes.linewidth": 1.0,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.spines.left": False,
    "axes.grid": True,
    "axes.grid.axis": "y",
    "axes.axisbelow": True,
    "axes.facecolor": "none",
    "axes.titlelocation": "left",
    "axes.titlesize": 13,
    "axes.titleweight": "bold",
    "axes.titlepad": 9,
    "xtick.color": COLOURS["muted"],
    "ytick.color": COLOURS["muted"],
    "xtick.labelsize": 12.5,
    "ytick.labelsize": 12.5,
    "xtick.major.size": 0,
    "ytick.major.size": 0,
    "ytick.minor.size": 0,
    "xtick.major.pad": 6,
    "ytick.major.pad": 6,
    "grid.color": COLOURS["rule"],
    "grid.linewidth": 0.8,
    "lines.solid_capstyle": "round",
    "lines.linewidth": 2.0,
    "figure.facecolor": "none",
}


def chart(
    name: str,
    draw: Draw,
    *,
    title: str,
    description: str,
    height: int,
    narrow_height: int | None = None,
    caption: str = "",
) -> Markup:
    """A figure element. draw(figure, wide) draws on an empty figure whose unit of size is a CSS pixel.

    name: unique in the page. title and description are what a screen reader says: the chart, and what it shows.
    """
    drawings = {
        size: _svg(f"{name}-{size}", draw, size, width, tall, title, description)
        for size, width, tall in (("wide", WIDE, height), ("narrow", NARROW, narrow_height or height))
    }
    return fill(_FIGURE, caption=caption, **drawings)


def panel(figure: Figure, left: float, bottom: float, right: float, top: float, **options: Any) -> Axes:
    """Axes by their margins in CSS pixels."""
    width, height = figure.get_size_inches() * figure.dpi
    box = (left / width, bottom / height, 1 - (left + right) / width, 1 - (bottom + top) / height)
    return figure.add_axes(box, **options)


def panels(figure: Figure, count: int, wide: bool, *, one_scale: bool = True) -> list[Axes]:
    """Equal axes beside each other where it is wide, else above each other, with room for a title. Only the outer ones
    bear numbers; with one_scale=False each has those of its own upright scale."""
    left, bottom, right, top, gap = 46, 28, 14, 32, 28 if one_scale else 64
    width, height = figure.get_size_inches() * figure.dpi
    made = []
    for at in range(count):
        if wide:
            size = (width - left - right - (count - 1) * gap) / count
            at_left = left + at * (size + gap)
            axes = panel(figure, at_left, bottom, width - at_left - size, top)
            axes.tick_params(labelleft=at == 0 or not one_scale)
        else:
            size = (height - bottom - count * top) / count
            at_top = (at + 1) * top + at * size
            axes = panel(figure, left, height - at_top - size, right, at_top)
            axes.tick_params(labelbottom=at == count - 1)
        made.append(axes)
    return made


def position_axis(axes: Axes) -> None:
    """The horizontal axis of everything that is drawn along the dataset."""
    axes.set_xlim(0, 100)
    axes.set_xticks(range(0, 101, 25))


def _svg(name: str, draw: Draw, size: str, width: int, height: int, title: str, description: str) -> Markup:
    from matplotlib.figure import Figure

    drawn = io.StringIO()
    with _style(name):
        figure = Figure(figsize=(width / 72, height / 72), dpi=72)
        draw(figure, size == "wide")
        figure.savefig(drawn, format="svg", metadata=dict.fromkeys(("Date", "Creator", "Format", "Type")))
    head = fill(_OPEN, name=name, size=size, width=width, height=height, title=title, description=description)
    return head + Markup(_for_the_page(name, drawn.getvalue()))


@contextmanager
def _style(name: str) -> Iterator[None]:
    """matplotlib's defaults and ours; what was set before comes back."""
    import matplotlib as mpl

    with mpl.rc_context():
        mpl.rcdefaults()
        mpl.rcParams.update(_STYLE)
        mpl.rcParams["svg.hashsalt"] = name
        yield


def _for_the_page(name: str, svg: str) -> str:
    """The drawing without what belongs to a file of its own: what follows the opening tag and the global style."""
    svg = svg[svg.index("</style>") :]
    svg = svg[svg.index("</defs>") + len("</defs>") :]
    svg = re.sub(r'<g id="[^"]*">', "<g>", svg)  # groups are numbered in every drawing alike
    svg = re.sub(r'(?<=\bid=")|(?<=url\(#)|(?<=href="#)', f"{name}-", svg).replace("xlink:href", "href")
    svg = re.sub(r'(?<= d=")[^"]*', _shortened, svg)
    return re.sub(r'(?<= style=")[^"]*', _in_colours_of_the_page, svg)


def _shortened(path: re.Match[str]) -> str:
    """A path to a tenth of a pixel, on one line."""
    numbers = re.sub(r"-?\d+\.\d+", lambda found: f"{float(found[0]):.1f}".removesuffix(".0"), path[0])
    return " ".join(numbers.split())


def _in_colours_of_the_page(style: re.Match[str]) -> str:
    text = re.sub(r"font-family: [^;]*(; )?", "", style[0])
    for variable, colour in COLOURS.items():
        text = text.replace(colour, f"var(--{variable})")
    return text
