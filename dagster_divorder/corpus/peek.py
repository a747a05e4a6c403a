"""The first records of an input as plain values, before any is stored, and what they show of its form."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any

import orjson

from dagster_divorder.chats.forms import form_of, without_nulls
from dagster_divorder.core.fields import column_at, value_at
from dagster_divorder.corpus.find import Found, find_files, own_folders
from dagster_divorder.corpus.inputs import Kind, parse, read_batches, read_lines
from dagster_divorder.errors import DivOrderError
from dagster_divorder.settings import Settings
from dagster_divorder.settings.places import is_url
from dagster_divorder.settings.sections import Inputs
from dagster_divorder.store.sources import Source

if TYPE_CHECKING:
    import pyarrow as pa

LOOKED_AT = 100
"""Most records read until one shows the form of its input."""


def unseen(inputs: Sequence[Found], fields: Iterable[str]) -> set[str]:
    """The fields that no record has; none for an input without records. Reads until every field is seen, usually one
    record."""
    missing, any_record = set(fields), False
    for record in first_records(inputs, sorted(missing)) if missing else ():
        any_record = True
        missing -= {field for field in missing if record.get(field) is not None}
        if not missing:
            break
    return missing if any_record else set()


def first_records(inputs: Sequence[Found], fields: Sequence[str] | None = None) -> Iterator[dict[str, Any]]:
    """The records of a corpus in order, with some `fields` (None if a record lacks one) or all. Lines that are no JSON
    object are skipped: ingest says what is wrong with them. Raises InputError: a file cannot be read."""
    for found in inputs:
        shape = found.shape
        with shape.naming():
            names = None if fields is None else {field: shape.field(field) for field in fields}
            constants = {field: value for field in fields or () if (value := shape.constant(field))}
            for path in found.files:
                yield from (record | constants for record in _records(path, found.kind, names))


def _records(path: Source, kind: Kind, names: Mapping[str, str] | None) -> Iterator[dict[str, Any]]:
    if kind == "jsonl":
        for block in read_lines(path):
            for line in block.content:
                try:
                    record = parse(line)
                except orjson.JSONDecodeError:
                    continue
                if isinstance(record, dict):
                    few = {field: value_at(record, name) for field, name in (names or {}).items()}
                    yield record if names is None else few
        return
    for rows in read_batches(path, None, fields=None if names is None else list(names.values())):
        once = {name: name for name in rows.schema.names if rows.schema.names.count(name) == 1}
        columns = {field: column_at(rows, name) for field, name in (names or once).items()}
        if names and all(column is None for column in columns.values()):
            # Without columns Arrow has no rows, and one record shows as much as all.
            yield dict.fromkeys(columns)
            return
        plain = [[None] * len(rows) if column is None else _plain(column) for column in columns.values()]
        yield from (dict(zip(columns, row, strict=True)) for row in zip(*plain, strict=True))


def _plain(column: pa.Array) -> list[Any]:
    """Values of a column. If Python cannot hold them, such as the year 10,000: True for each that is not null."""
    try:
        return column.to_pylist(maps_as_pydicts="lossy")
    except (ValueError, OverflowError, LookupError):
        return [True if valid else None for valid in column.is_valid().to_pylist()]


def recognised(settings: Settings) -> Settings:
    """The settings with the format of each input that has none: the first record with a text or a form decides. "auto"
    stays for texts, and for an input with a text field, at a URL, or unreadable: reading it reports why."""
    blocks = []
    for block in settings.input.each:
        # Every access to a URL is a request.
        named = "text_field" in block.model_fields_set or any(map(is_url, block.paths))
        form = None
        if block.format == "auto" and not named:
            try:
                files = find_files(block.paths, own_folders(settings))
                for record in islice(first_records([files]), LOOKED_AT):
                    if isinstance(value_at(record, block.text_field), str):
                        break
                    if form := form_of(without_nulls(record)):
                        break
            except DivOrderError:
                pass
        blocks.append(block.model_copy(update={"format": form}) if form else block)
    if blocks == list(settings.input.each):
        return settings
    several = isinstance(settings.input, Inputs)
    changed = settings.input.model_copy(update={"several": tuple(blocks)}) if several else blocks[0]
    update = {"input": changed, "packing": settings.packing.fitting({block.form for block in blocks})}
    return settings.model_copy(update=update)
