"""Formats results and figures for Dagster's pages."""

import re
from collections.abc import Mapping
from typing import Any

import dagster as dg

from dagster_divorder.pipeline.stage import Chart, Link, Picture, Shown, Table, Text
from dagster_divorder.units import byte_size
from dagster_divorder.view.answer import TextTable
from dagster_divorder.view.drawing import data_uri, reduced, sheet_picture
from dagster_divorder.view.words import cells

PICTURE_BYTES, PICTURE_WIDTH = 300_000, 1080
"""Largest picture inside a page, in bytes, because Dagster stores pictures in every run's events, and in pixels:
Dagster cuts off the rest. Larger ones are reduced."""
TABLE_CHARACTERS, INLINE_CHARACTERS = 44, 1000
"""A wider table would be cut off inside a page, and the other values with it; Dagster shows Markdown of so many
characters behind a link."""


def result_metadata(shown: Shown, figures: Mapping[str, Any]) -> dict[str, Any]:
    """What a stage shows of a result, then all other figures that say more."""
    values = {name: _value(value) for name, value in shown.items() if value != Table([])}
    said = {*shown, *(str(value.path) for value in shown.values() if isinstance(value, Link))}
    for name, value in figures.items():
        parts = [*value.values()] if isinstance(value, dict) else [value]
        # The stage itself decides whether to show its tables. A fit that was kept has its reason in the log.
        is_table = any(isinstance(part, dict | list) for part in parts)
        is_empty = value in (None, "") or (isinstance(value, dict) and not any(parts))
        is_kept = name == "fitted" and value.startswith("no: ")
        if not (
            is_table
            or is_empty
            or is_kept
            or re.fullmatch("[0-9a-f]{32}", str(value))
            or {name, str(value)} & said
        ):
            values[name] = readable(value, name)
    return values


def _value(shown: Table | Picture | Chart | Text | Link | float) -> Any:
    match shown:
        case Table(rows):
            return table(rows)
        case Picture():
            return picture(shown.file.read_bytes(), shown.what)
        case Chart():
            return picture(sheet_picture([shown], note=shown.caption), shown.what)
        case Text():
            return dg.MetadataValue.md(shown.markdown)
        case Link():
            return dg.MetadataValue.path(str(shown.path))
    return readable(shown)


def table(rows: list[dict[str, Any]]) -> dg.MetadataValue[Any]:
    """Rows as a Dagster table with rounded numbers; as Markdown if wider than TABLE_CHARACTERS; "none" without rows."""
    if not rows:
        return dg.MetadataValue.text("none")
    records = [{name: readable(row.get(name), name) for name in rows[0]} for row in rows]
    texts = [
        {name: f"{value:,}" if type(value) in (int, float) else str(value) for name, value in record.items()}
        for record in records
    ]
    if sum(2 + max(len(name), *(len(row[name]) for row in texts)) for name in rows[0]) <= TABLE_CHARACTERS:
        return dg.MetadataValue.table([dg.TableRecord(record) for record in records])
    escaped = [{_escaped(name): _escaped(text) for name, text in row.items()} for row in texts]
    return dg.MetadataValue.md(TextTable(escaped).markdown().ljust(INLINE_CHARACTERS))


def _escaped(text: str) -> str:
    """Text for a cell of Markdown. A cell may quote the corpus; a browser would load an image in it."""
    is_number = re.fullmatch(r"-?[\d,]+(\.\d+)?", text)
    return text if is_number else re.sub(r"([!-+:-@\[-`{}~])", r"\\\1", " ".join(text.split()))


def picture(file: bytes, what: str) -> dg.MarkdownMetadataValue:
    """A PNG file inside the page, reduced if it is too large. what: its alternative text."""
    return dg.MetadataValue.md(f"![{what}]({data_uri(reduced(file, PICTURE_BYTES, PICTURE_WIDTH))})")


def readable(value: Any, name: str = "") -> Any:
    """A value for people: bytes with their unit, a dictionary as one line, a number rounded, a dash for None."""
    if isinstance(value, dict):
        texts = cells([{part: one for part, one in value.items() if one is not None}])[0]
        return ", ".join(f"{part} {text}" for part, text in texts.items())
    if isinstance(value, int) and (name == "bytes" or name.endswith("_bytes")):
        return byte_size(value)
    if isinstance(value, float):
        return float(f"{value:.4g}")
    return "-" if value is None else value
