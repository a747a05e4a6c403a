"""Answers of commands: lines and tables for people, and the same content as data for programs."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import Any, Literal, NamedTuple

from dagster_divorder.errors import printable

NUMERIC = re.compile(r"[–~<>+-]?\d|–?$")
"""The beginning of a cell in a column of numbers; a dash or an empty cell stands for a missing number."""

UNLIMITED = 10_000
"""Characters of a line outside terminals."""

NARROWEST = 2
"""Characters of a column that does not fold further."""

TONES = {"strong": "1", "good": "1;32", "bad": "1;31", "quiet": "2"}
"""Codes of terminals."""


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
    lines = list[str]()
    for part in parts:
        if isinstance(part, TextTable):
            lines += _table_lines(part, width, colour)
        else:
            tone = part.tone if isinstance(part, Line) else ""
            lines += [_toned(line, tone, colour) for line in _filled(part, width).split("\n")]
    return "\n".join(line.rstrip() for line in lines).rstrip("\n")


def _toned(line: str, tone: str, colour: bool) -> str:
    shown = line.expandtabs().rstrip()
    return f"\x1b[{TONES[tone]}m{shown}\x1b[0m" if colour and tone and shown else shown


def _table_lines(table: TextTable, width: int, colour: bool) -> list[str]:
    from rich.cells import cell_len, chop_cells

    lines = [_toned(printable(table.title), "strong", colour)] if table.title else []
    if not table.rows:
        return lines
    cells = [
        [printable(re.sub("[\t\n]", " ", cell)) for cell in row]
        for row in (table.rows[0], *(row.values() for row in table.rows))
    ]
    widths = [max(map(cell_len, column)) for column in zip(*cells, strict=True)]
    # The widest columns fold.
    while sum(widths) + 2 * (len(widths) - 1) > width and max(widths) > NARROWEST:
        widths[widths.index(max(widths))] -= 1
    for number, row in enumerate(cells):
        folded = [
            [
                part
                for line in textwrap.wrap(cell, most, break_on_hyphens=False)
                for part in chop_cells(line, most)
            ]
            if cell_len(cell) > most
            else [cell]
            for cell, most in zip(row, widths, strict=True)
        ]
        for line in zip_longest(*folded, fillvalue=""):
            padded = [
                " " * (most - cell_len(cell)) + cell if numeric else cell + " " * (most - cell_len(cell))
                for cell, most, numeric in zip(line, widths, table.numeric, strict=True)
            ]
            lines.append(_toned("  ".join(padded), "strong" if number == 0 else "", colour))
    return lines


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
