"""Answers of commands: lines and tables for people, and the same content as data for programs."""

from __future__ import annotations

import io
import re
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from dagster_divorder.errors import printable

NUMERIC = re.compile(r"[–~<>+-]?\d|–?$")
"""The beginning of a cell in a column of numbers; a dash or an empty cell stands for a missing number."""

UNLIMITED = 10_000
"""Characters of a line outside terminals."""

TONES = {"strong": "bold", "good": "bold green", "bad": "bold red", "quiet": "dim"}


class Line(NamedTuple):
    """A line of text, and its style on a terminal with colours."""

    text: str
    tone: Literal["strong", "good", "bad", "quiet"]


@dataclass(frozen=True)
class TextTable:
    """Rows of texts by column name; all rows have the columns of the first. Columns of numbers align to the right.

    title: a line above the table.
    """

    rows: Sequence[Mapping[str, str]]
    title: str = ""

    @property
    def numeric(self) -> list[bool]:
        """Column -> whether it holds only numbers."""
        return [all(NUMERIC.match(row[name]) for row in self.rows) for name in self.rows[0]]

    def markdown(self) -> str:
        """A Markdown table; "" without rows."""
        if not self.rows:
            return ""
        rules = ["--:" if numeric else "---" for numeric in self.numeric]
        lines = [tuple(self.rows[0]), rules, *(tuple(row.values()) for row in self.rows)]
        # Trait names may contain any character.
        return "\n".join(f"| {' | '.join(cell.replace('|', '&#124;') for cell in line)} |" for line in lines)

    def _repr_html_(self) -> str:
        from markupsafe import Markup

        lines = [[Markup("<th>{}</th>").format(name) for name in (self.rows or [{}])[0]]]
        lines += [[Markup("<td>{}</td>").format(cell) for cell in row.values()] for row in self.rows]
        rows = Markup("\n").join(Markup("<tr>{}</tr>").format(Markup("").join(line)) for line in lines)
        caption = Markup("<caption>{}</caption>\n").format(self.title) if self.title else ""
        return str(Markup("<table>{}{}\n</table>").format(caption, rows))

    def __str__(self) -> str:
        return as_text([self])

    __repr__ = __str__


class AsTable:
    """An object that prints as a table, also in notebooks."""

    __slots__ = ()

    @property
    def _as_table(self) -> TextTable:
        raise NotImplementedError

    def __repr__(self) -> str:
        return str(self._as_table)

    def _repr_html_(self) -> str:
        return self._as_table._repr_html_()


Part = str | Line | TextTable


@dataclass(frozen=True)
class Answer:
    """parts: lines and tables for people, in order; empty lines separate them. data: the same for JSON. passed: result
    of a command that tests something."""

    parts: Sequence[Part]
    data: Mapping[str, Any] = field(default_factory=dict)
    passed: bool = True

    def __str__(self) -> str:
        return as_text(self.parts)


def as_text(parts: Sequence[Part], *, width: int = UNLIMITED, colour: bool = False) -> str:
    """The parts below each other, at most `width` characters wide: text breaks between words, table cells fold. Lines
    that begin with a space are not broken, so that people can copy code. Characters that would move a cursor become
    escapes."""
    if not colour and width == UNLIMITED:
        return _joined(line for part in parts for line in _plain_lines(part))
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    written = io.StringIO()
    console = Console(
        file=written,
        width=width,
        force_terminal=colour,
        color_system="standard" if colour else None,
        force_jupyter=False,  # else it shows the text in a notebook, and writes nothing
        highlight=False,
        legacy_windows=False,
    )
    for part in parts:
        if isinstance(part, TextTable):
            if part.title:
                console.print(Text(printable(part.title), style=TONES["strong"]), soft_wrap=True)
            if not part.rows:
                continue
            table = Table(
                box=box.SIMPLE_HEAD if colour else None, show_edge=False, pad_edge=False, padding=(0, 2, 0, 0)
            )
            for name, numeric in zip(part.rows[0], part.numeric, strict=True):
                table.add_column(Text(_cell(name)), justify="right" if numeric else "left", overflow="fold")
            for row in part.rows:
                table.add_row(*(Text(_cell(cell)) for cell in row.values()))
            console.print(table)
        else:
            tone = part.tone if isinstance(part, Line) else ""
            console.print(Text(_filled(part, width), style=TONES.get(tone, "")), soft_wrap=True)
    return _joined(written.getvalue().rstrip("\n").split("\n"))


def height(texts: Iterable[str | Line], width: int) -> int:
    """The number of lines of texts on a terminal of so many columns."""
    return sum(_filled(text, width).count("\n") + 1 for text in texts)


def _cell(text: str) -> str:
    """The text of a cell, in one line."""
    return printable(re.sub("[\t\n]", " ", text))


def _filled(part: str | Line, width: int) -> str:
    text = part.text if isinstance(part, Line) else part
    shown = printable(text)
    if text.startswith(" "):
        return shown
    # Long words are not broken, so that people can copy paths.
    return "\n".join(
        textwrap.fill(line, width, break_long_words=False, break_on_hyphens=False)
        for line in shown.split("\n")
    )


def _plain_lines(part: Part) -> Iterator[str]:
    """The lines of a part as rich lays them out without colours and folds, at a tenth of its import time."""
    if not isinstance(part, TextTable):
        yield from _filled(part, UNLIMITED).split("\n")
        return
    if part.title:
        yield printable(part.title)
    if not part.rows:
        return
    from rich.cells import cell_len

    lines = [[_cell(cell) for cell in line] for line in (part.rows[0], *(row.values() for row in part.rows))]
    widths = [max(map(cell_len, column)) for column in zip(*lines, strict=True)]
    columns = list(zip(widths, part.numeric, strict=True))
    for line in lines:
        cells = []
        for cell, (width, numeric) in zip(line, columns, strict=True):
            space = " " * (width - cell_len(cell))
            cells.append(space + cell if numeric else cell + space)
        yield "  ".join(cells)


def _joined(lines: Iterable[str]) -> str:
    return "\n".join(line.expandtabs().rstrip() for line in lines).rstrip("\n")
