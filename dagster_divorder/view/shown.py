"""What people see of a result: tables, pictures, charts, sentences, links and numbers, by name.

A stage gives them (`Stage.show`). A terminal (`summary`), the page (`view.report`) and Dagster (`defs.metadata`) render
them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from dagster_divorder.settings.places import Place

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from numpy.typing import NDArray


class Table(NamedTuple):
    """Rows of plain values by column name, for people."""

    rows: list[dict[str, Any]]


class Picture(NamedTuple):
    """A PNG file, and a description of it."""

    file: Path
    what: str


class Text(NamedTuple):
    """Markdown."""

    markdown: str


class Link(NamedTuple):
    """A file or folder to open."""

    path: Place


class Series(NamedTuple):
    """name: for readers. colour: a key of `drawing.COLOURS`. dashed: differs from a series of the same colour."""

    name: str
    colour: str
    dashed: bool = False


class Panel(NamedTuple):
    """One drawing of a chart: its title, the function that draws it, and the title's colour, a key of
    `drawing.COLOURS`."""

    title: str
    draw: Callable[[Axes], None]
    colour: str = "ink"


class Chart(NamedTuple):
    """Panels in rows of at most `across`, drawn where they are shown.

    what: the chart and its numbers in a sentence, for terminals and screen readers. caption: how to read it. legend:
    the series of all panels. height: of a row, in CSS pixels. values: names and sizes of the values whose colours the
    panels show, for a picture.
    """

    panels: Sequence[Panel]
    what: str = ""
    caption: str = ""
    across: int = 3
    legend: Sequence[Series] = ()
    height: int = 250
    values: tuple[Sequence[str], NDArray[Any]] | None = None


Shown = Mapping[str, Table | Picture | Chart | Text | Link | float]
"""What people see of a result beside its figures, by name."""
