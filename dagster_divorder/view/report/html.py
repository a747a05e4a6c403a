"""HTML by template. Every value that is put in is escaped: what a corpus holds is shown as text and never read as
markup. Only what came out of a template itself goes into another one as it is.

No script is in the page, and its content security policy forbids any. It loads nothing, follows the reader's light or
dark, and prints.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from dagster_divorder.view import words
from dagster_divorder.view.drawing import COLOURS, svg

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

SIZES = {1: (500, 280), 2: (420, 250), 3: (300, 220)}
"""Width and height of a chart's panels in CSS pixels by how many stand beside each other on a desk; a phone has them
above each other, in much the same size."""
LEFT, BOTTOM, RIGHT, TOP = 46, 28, 14, 32
"""Margins of a panel, in CSS pixels."""
NUMERIC = re.compile(r"[–\d-]|$")


@dataclass(frozen=True)
class Section:
    """anchor: the id of the section, letters and hyphens. lead: a few sentences under the heading, plain text."""

    anchor: str
    title: str
    lead: str
    parts: Sequence[Markup]


@dataclass(frozen=True)
class Panel:
    """One drawing of a chart: what stands above it, the function that draws it, and a key of `COLOURS`."""

    title: str
    draw: Callable[[Axes], None]
    colour: str = "ink"


def page(**values: Any) -> bytes:
    """The file's bytes, UTF-8; values: see templates/page.html.j2."""
    return _environment().get_template("page.html.j2").render(**values).encode()


def part(name: str, *values: Any) -> Markup:
    """A macro of templates/parts.html.j2, filled."""
    return getattr(_environment().get_template("parts.html.j2").module, name)(*values)


def table(
    caption: str, rows: Sequence[Mapping[str, Any]], marked: Collection[int] = (), *, strips: bool = False
) -> Markup:
    """A table whose first cells are the heads of their rows, folded below its caption; nothing without a row.

    rows: cells, text or markup, by what stands above them. marked: rows that stand out. strips: a table of pictures,
    which is open, and whose rows are laid out anew on a phone.
    """
    numbers = [all(NUMERIC.match(row[head]) for row in rows) for head in (rows[0] if rows else ())]
    return part("table", caption, rows, numbers, marked, strips) if rows else Markup("")


def chart(name: str, panels: Sequence[Panel], says: str, caption: str, *, across: int = 3) -> Markup:
    """A figure of panels beside each other, or above each other where there is no room; nothing without a panel. name:
    unique in the page. says: what a screen reader says of it: what it is, and what it shows. across: panels beside each
    other, at most."""
    if not panels:
        return Markup("")
    across = min(len(panels), across)
    width, height = SIZES[across]

    def draw(figure: Figure, panel: Panel) -> None:
        size = (1 - (LEFT + RIGHT) / width, 1 - (BOTTOM + TOP) / height)
        axes = figure.add_axes((LEFT / width, BOTTOM / height, *size))
        panel.draw(axes)
        axes.set_title(panel.title, color=COLOURS[panel.colour])

    drawn = [
        svg(f"{name}-{at}", width, height, functools.partial(draw, panel=panel))
        for at, panel in enumerate(panels)
    ]
    return part("chart", drawn, across, says, caption)


@functools.cache
def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("dagster_divorder.view.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {name: getattr(words, name) for name in ("number", "percent", "count", "clip")}
    return environment
