"""HTML by template. Every value that is put in is escaped: what a corpus holds is shown as text and never read as
markup. Only what came out of a template itself goes into another one as it is.

No script is in the page, and its content security policy forbids any. It loads nothing, follows the reader's light or
dark, and prints.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from dagster_divorder.view import words
from dagster_divorder.view.charts import Series
from dagster_divorder.view.drawing import COLOURS, svg

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

SIZES = {1: (500, 280), 2: (420, 250), 3: (300, 220)}
"""Width and height of a chart's panels in CSS pixels by how many stand beside each other on a desk; a phone has them
above each other, in much the same size."""
LEFT, BOTTOM, RIGHT, TOP = 46, 28, 14, 32
"""Margins of a panel, in CSS pixels."""


@dataclass(frozen=True)
class Section:
    """anchor: the id of the section, letters and hyphens. lead: a few sentences under the heading, plain text."""

    anchor: str
    title: str
    lead: str
    parts: Sequence[Markup]


@dataclass(frozen=True)
class Column:
    """head: what stands above it, with the unit. cell: of a row, text or markup. text: left-aligned; else it holds
    numbers. desk: hidden on a phone."""

    head: str
    cell: Callable[[Any], Any]
    text: bool = False
    desk: bool = False

    @property
    def classes(self) -> str:
        return " ".join(["t" if self.text else "n", *["desk"] * self.desk])


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
    filled: Markup = getattr(_environment().get_template("parts.html.j2").module, name)(*values)
    return filled


def table(
    caption: str, rows: Sequence[Any], columns: Sequence[Column], marked: Callable[[Any], bool] | None = None
) -> Markup:
    """A table in a frame that scrolls on a narrow screen; the first cell of a row is its head. marked: which rows stand
    out."""
    cells = [[column.cell(row) for column in columns] for row in rows]
    return part(
        "table", caption, columns, cells, [at for at, row in enumerate(rows) if marked and marked(row)]
    )


def chart(name: str, panels: Sequence[Panel], says: str, caption: str, *, across: int = 3) -> Markup:
    """A figure of panels beside each other, or above each other where there is no room. name: unique in the page. says:
    what a screen reader says of it: what it is, and what it shows. across: panels beside each other, at most."""
    across = min(len(panels), across)
    width, height = SIZES[across]

    def drawing(panel: Panel) -> Callable[[Figure], None]:
        def draw(figure: Figure) -> None:
            size = (1 - (LEFT + RIGHT) / width, 1 - (BOTTOM + TOP) / height)
            axes = figure.add_axes((LEFT / width, BOTTOM / height, *size))
            panel.draw(axes)
            axes.set_title(panel.title, color=COLOURS[panel.colour])

        return draw

    drawn = [svg(f"{name}-{at}", width, height, drawing(panel)) for at, panel in enumerate(panels)]
    return part("chart", drawn, across, says, caption)


def legend(*series: Series) -> Markup:
    """A legend of some lines, above their chart."""
    return part("legend", series)


def notes(items: Sequence[str]) -> list[Markup]:
    """A list of sentences without their full stops; nothing where there is none."""
    return [part("notes", items)] if items else []


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
