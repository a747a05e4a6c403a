"""Formats results and figures for Dagster's pages."""

import re
from collections.abc import Mapping
from typing import Any

import dagster as dg

from dagster_divorder.pipeline.run import Run
from dagster_divorder.pipeline.stage import Chart, Link, Picture, Shown, Table, Text
from dagster_divorder.store.state import Receipt
from dagster_divorder.units import byte_size
from dagster_divorder.view.answer import TextTable
from dagster_divorder.view.drawing import data_uri, reduced, sheet_picture

PICTURE_BYTES, PICTURE_WIDTH = 300_000, 1080
"""Largest picture inside a page, in bytes, because Dagster stores pictures in every run's events, and in pixels:
Dagster cuts off the rest. Larger ones are reduced."""
TABLE_CHARACTERS, INLINE_CHARACTERS = 44, 1000
"""A wider table would be cut off inside a page, and the other values with it, because the widest value sets the width
of the column; Dagster shows Markdown of so many characters behind a link."""
HASH = re.compile("[0-9a-f]{32}")


def asset_metadata(run: Run, receipt: Receipt, changed: bool) -> dict[str, Any]:
    """What a stage shows of its result, all other figures, and where the result lies. changed: whether the result
    differs from the one before."""
    # A stage has either named files or a folder with a file a fragment.
    files = receipt.files or {"a file a fragment": f"stages/{receipt.stage}/{receipt.key}"}
    stored = [{"what": name, "path": run.store.where(file)} for name, file in files.items()]
    shown = result_metadata(run.graph[receipt.stage].show(run, receipt), receipt.figures)
    return {**shown, "changed": changed, "stored_files": table(stored)}


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
        if not (is_table or is_empty or is_kept or HASH.fullmatch(str(value)) or {name, str(value)} & said):
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
        case Link():  # a browser opens no local files from a page, but a path can be copied
            return dg.MetadataValue.path(str(shown.path))
    return readable(shown)


def table(rows: list[dict[str, Any]]) -> dg.MetadataValue[Any]:
    """Rows as a Dagster table with rounded numbers; as Markdown if wider than TABLE_CHARACTERS; "none" without rows."""
    if not rows:
        return dg.MetadataValue.text("none")
    records = [{name: readable(value, name) for name, value in row.items()} for row in rows]
    cells = [{name: _text(record.get(name, "-")) for name in records[0]} for record in records]
    width = sum(2 + max(len(name), *(len(row[name]) for row in cells)) for name in records[0])
    if width <= TABLE_CHARACTERS:
        return dg.MetadataValue.table([dg.TableRecord(record) for record in records])
    escaped = [{_escaped(name): _escaped(cell) for name, cell in row.items()} for row in cells]
    return dg.MetadataValue.md(TextTable(escaped).markdown().ljust(INLINE_CHARACTERS))


def _escaped(text: str) -> str:
    """Text escaped for a cell of a Markdown table. Numbers need no escapes."""
    if re.fullmatch(r"-?[\d,]+(\.\d+)?", text):
        return text
    # A cell may quote the corpus; a browser would load an image in it.
    return re.sub(r"([!-+:-@\[-`{}~])", r"\\\1", " ".join(text.split()))


def picture(file: bytes, what: str) -> dg.MarkdownMetadataValue:
    """A PNG file inside the page, reduced if it is too large. what: its alternative text."""
    return dg.MetadataValue.md(f"![{what}]({data_uri(reduced(file, PICTURE_BYTES, PICTURE_WIDTH))})")


def readable(value: Any, name: str = "") -> Any:
    """A value for people: bytes with their unit, a dictionary as one line, a number rounded, a dash for None."""
    if isinstance(value, dict):
        return ", ".join(f"{part} {_text(readable(one))}" for part, one in value.items() if one is not None)
    if isinstance(value, int) and (name == "bytes" or name.endswith("_bytes")):
        return byte_size(value)
    if isinstance(value, float):
        return float(f"{value:.4g}")
    return "-" if value is None else value


def _text(value: Any) -> str:
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return f"{value:,}" if number else str(value)
