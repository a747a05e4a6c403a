"""HTML from templates, and what stages show as HTML. Templates escape every value, so a corpus's texts never act as
markup; only a template's output goes into another template unescaped.

The page has no script, and its content security policy forbids any. It loads nothing, follows the reader's light or
dark mode, and prints.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from markupsafe import Markup

from dagster_divorder.view import words
from dagster_divorder.view.answer import NUMERIC
from dagster_divorder.view.drawing import data_uri, svg
from dagster_divorder.view.shown import Chart, Link, Picture, Table, Text
from dagster_divorder.view.words import cells

if TYPE_CHECKING:
    from jinja2 import Environment

WIDTHS = {1: 500, 2: 420, 3: 300}
"""Width of a chart's panels in CSS pixels, by the number of panels in a row; a phone stacks them at nearly the same
size."""


class Section(NamedTuple):
    """anchor: the section's id, letters and hyphens. lead: a few sentences of plain text under the heading. shown: as
    stages show it (`view.shown`), and parts that only the page has, as markup."""

    anchor: str
    title: str
    lead: str
    shown: Mapping[str, Any]


def page(sections: Sequence[Section], **values: Any) -> bytes:
    """The file's bytes, UTF-8. values: of templates/page.html.j2."""
    drawn = [(section, rendered(section)) for section in sections]
    return _environment().get_template("page.html.j2").render(sections=drawn, **values).encode()


def part(name: str, *values: Any) -> Markup:
    """The output of a macro of templates/parts.html.j2."""
    return getattr(_environment().get_template("parts.html.j2").module, name)(*values)


def rendered(section: Section) -> list[Markup]:
    """What a section shows. Numbers and links become the rows of a table at its end."""
    parts, figures = list[Markup](), list[dict[str, Any]]()
    for name, shown in section.shown.items():
        title = name.replace("_", " ")
        match shown:
            case Markup():
                parts.append(shown)
            case Chart():
                parts.append(chart(f"{section.anchor}-{name}".replace("_", "-"), shown))
            case Picture(file, what):
                parts.append(part("picture", data_uri(file.read_bytes()), what))
            case Table(rows):
                parts.append(table(title[0].upper() + title[1:], cells(rows)))
            case Text(markdown):
                parts.append(part("text", [line.removeprefix("- ") for line in markdown.splitlines()]))
            case Link(path):
                figures.append({"figure": title, "value": str(path)})
            case value:
                figures.append({"figure": title, "value": value})
    return [*parts, table("Figures", cells(figures))]


def table(caption: str, rows: Sequence[Mapping[str, Any]], *, strips: bool = False) -> Markup:
    """A table, folded below its caption; the first cells are row heads. Empty without rows.

    rows: cells, text or markup, by column name. strips: a table of pictures, which
    is unfolded and changes its layout on a phone.
    """
    numbers = [all(NUMERIC.match(row[head]) for row in rows) for head in (rows[0] if rows else ())]
    return part("table", caption, rows, numbers, strips) if rows else Markup("")


def chart(name: str, shown: Chart) -> Markup:
    """A figure of SVG drawings; empty without panels. name: unique in the page."""
    if not shown.panels:
        return Markup("")
    across = min(len(shown.panels), shown.across)
    drawings = [
        svg(f"{name}-{at}", WIDTHS[across], shown.height, panel) for at, panel in enumerate(shown.panels)
    ]
    return part("chart", drawings, across, shown.what, shown.caption, shown.legend)


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
