"""HTML from templates. Templates escape every value, so a corpus's texts never act as markup; only a template's output
goes into another template unescaped.

The page has no script, and its content security policy forbids any. It loads nothing, follows the reader's light or
dark mode, and prints.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from markupsafe import Markup

from dagster_divorder.view import words
from dagster_divorder.view.answer import NUMERIC
from dagster_divorder.view.drawing import COLOURS, svg

if TYPE_CHECKING:
    from jinja2 import Environment
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

SIZES = {1: (500, 280), 2: (420, 250), 3: (300, 220)}
"""Width and height of a chart's panels in CSS pixels, by the number of panels in a row; a phone stacks them at nearly
the same size."""
LEFT, BOTTOM, RIGHT, TOP = 46, 28, 14, 32
"""Margins of a panel, in CSS pixels."""


@dataclass(frozen=True)
class Section:
    """anchor: the section's id, letters and hyphens. lead: a few sentences of plain text under the heading."""

    anchor: str
    title: str
    lead: str
    parts: Sequence[Markup]


@dataclass(frozen=True)
class Panel:
    """One drawing of a chart: its title, the function that draws it, and the title's colour, a key of `COLOURS`."""

    title: str
    draw: Callable[[Axes], None]
    colour: str = "ink"


def page(**values: Any) -> bytes:
    """The file's bytes, UTF-8. values: of templates/page.html.j2."""
    return _environment().get_template("page.html.j2").render(**values).encode()


def part(name: str, *values: Any) -> Markup:
    """The output of a macro of templates/parts.html.j2."""
    return getattr(_environment().get_template("parts.html.j2").module, name)(*values)


def table(caption: str, rows: Sequence[Mapping[str, Any]], *, strips: bool = False) -> Markup:
    """A table, folded below its caption; the first cells are row heads. Empty without rows.

    rows: cells, text or markup, by column name. strips: a table of pictures, which
    is unfolded and changes its layout on a phone.
    """
    numbers = [all(NUMERIC.match(row[head]) for row in rows) for head in (rows[0] if rows else ())]
    return part("table", caption, rows, numbers, strips) if rows else Markup("")


def chart(name: str, panels: Sequence[Panel], description: str, caption: str, *, across: int = 3) -> Markup:
    """A figure of panels in rows of at most `across`; empty without panels. name: unique in the page. description: of
    the chart and its content, for screen readers."""
    if not panels:
        return Markup("")
    across = min(len(panels), across)
    width, height = SIZES[across]

    def draw(figure: Figure, panel: Panel) -> None:
        size = (1 - (LEFT + RIGHT) / width, 1 - (BOTTOM + TOP) / height)
        axes = figure.add_axes((LEFT / width, BOTTOM / height, *size))
        panel.draw(axes)
        axes.set_title(panel.title, color=COLOURS[panel.colour])

    drawings = [
        svg(f"{name}-{at}", width, height, functools.partial(draw, panel=panel))
        for at, panel in enumerate(panels)
    ]
    return part("chart", drawings, across, description, caption)


@functools.cache
def _environment() -> Environment:
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=PackageLoader("dagster_divorder.view.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {name: getattr(words, name) for name in ("number", "percent", "count", "clip")}
    return environment
