"""The first records of an input, as plain values, before anything of it is stored."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import orjson

from dagster_divorder.core.fields import column_at, value_at
from dagster_divorder.corpus.blocks import BlockRecords
from dagster_divorder.corpus.find import Found
from dagster_divorder.corpus.inputs import (
    SHOWN_BYTES,
    Kind,
    LineBlock,
    LongRecord,
    read_batches,
    read_lines,
    read_rows,
    read_schema,
)
from dagster_divorder.corpus.json_records import parse
from dagster_divorder.corpus.looks import looks_like
from dagster_divorder.corpus.records import EMPTY_TEXT, reject_long
from dagster_divorder.store.sources import Source

if TYPE_CHECKING:
    import pyarrow as pa

VALUES_SHOWN = 20


@dataclass
class Refusals:
    """How many records were looked at, how many of them the pipeline refuses, and of the first of these the file, the
    line or row and the reason, and what it looks like as the end of a sentence."""

    looked_at: int = 0
    refused: int = 0
    first: str = ""
    looks: str = ""

    def add(self, path: str, number: int, reason: str, begins: bytes) -> None:
        if not self.refused:
            looks = looks_like(begins[:SHOWN_BYTES]) if reason != EMPTY_TEXT else ""
            self.first, self.looks = f"{path}:{number}: {reason}", f", which is {looks}" if looks else ""
        self.refused += 1


def first_refusals(found: Found, most: int) -> Refusals:
    """Of the first `most` records of each file those that are refused when the input is taken in. A last line that is
    still being written is none of them.

    Raises:
        InputError: a file cannot be read, or its columns differ from those of the first.
    """
    refusals, schema = Refusals(), None
    for path in found.files:
        if found.kind == "parquet":
            schema = read_schema(path, schema)
        left = most
        for block in read_lines(path) if found.kind == "jsonl" else read_rows(path, schema):
            if isinstance(block, LongRecord):
                unit = "line" if found.kind == "jsonl" else "row"
                _, reason = reject_long(block.path, unit, block.number, block.size, block.begins)
                refusals.add(block.path, block.number, reason, block.begins)
                looked_at = 1
            else:
                records = BlockRecords(block, found.shape)
                looked_at = min(left, len(block.lines if isinstance(block, LineBlock) else block.rows))
                texts, _ = records.parse(np.arange(looked_at))
                refused = np.flatnonzero([text is None for text in texts])
                for refusal in records.refusals(refused):
                    if refusal.unfinished:
                        looked_at -= 1
                    else:
                        refusals.add(block.path, refusal.number, refusal.reason, refusal.raw)
            refusals.looked_at += looked_at
            left -= looked_at
            if left <= 0:
                break
    return refusals


def unseen(inputs: Sequence[Found], wanted: Mapping[str, set[str]]) -> dict[str, tuple[set[str], list[str]]]:
    """Of some fields, and values that they should have: the fields that no record has, and those some of whose values
    none has; with these values, and some that there are (none of a field that is not there).

    Records are read up to where all has been seen, most often the first one. Values are looked for among texts and
    booleans: numbers are cut into bins, whose names are not known before all of them are.
    """
    left = {field: set(values) for field, values in wanted.items()}
    seen: dict[str, dict[str, None]] = {field: {} for field in wanted}
    records = False
    for record in first_records(inputs, list(wanted)) if wanted else ():
        records = True
        for field in [field for field in left if record.get(field) is not None]:
            value = record[field]
            name = str(value).lower() if isinstance(value, bool) else value
            left[field] = left[field] - {name} if isinstance(name, str) else set()
            if isinstance(name, str) and len(seen[field]) < VALUES_SHOWN:
                seen[field][name] = None
            if not left[field]:
                del left[field]
        if not left:
            break
    # Of an input without records something else is wrong.
    return {field: (values, list(seen[field])) for field, values in left.items()} if records else {}


def first_records(inputs: Sequence[Found], fields: Sequence[str] | None = None) -> Iterator[dict[str, Any]]:
    """The records of a corpus in their order, with some of their fields, None where a record has none, or all of them;
    lines that are no JSON object are passed over, since taking in the input says what is wrong with them.

    Raises:
        InputError: a file cannot be read.
    """
    for found in inputs:
        with found.shape.naming():
            # Of all fields what they are called here.
            names = None if fields is None else {field: found.shape.field(field) for field in fields}
            constants = {field: of for field in fields or () if (of := found.shape.constant(field))}
            for path in found.files:
                yield from (record | constants for record in _records(path, found.kind, names))


def _records(path: Source, kind: Kind, names: Mapping[str, str] | None) -> Iterator[dict[str, Any]]:
    if kind == "parquet":
        for rows in read_batches(path, None, fields=None if names is None else list(names.values())):
            once = [name for name in rows.schema.names if rows.schema.names.count(name) == 1]
            columns = {
                field: column_at(rows, name)
                for field, name in (names or {name: name for name in once}).items()
            }
            if names and all(column is None for column in columns.values()):
                # Arrow has no rows where it has no columns, and one record tells as much as all.
                yield dict.fromkeys(columns)
                return
            plain = [[None] * len(rows) if of is None else _plain(of) for of in columns.values()]
            yield from (dict(zip(columns, row, strict=True)) for row in zip(*plain, strict=True))
        return
    for block in read_lines(path):
        objects = _objects(block.lines) if isinstance(block, LineBlock) else iter(())
        yield from objects if names is None else (_some(record, names) for record in objects)


def _some(record: dict[str, Any], names: Mapping[str, str]) -> dict[str, Any]:
    return {field: value_at(record, name) for field, name in names.items()}


def _plain(column: pa.Array) -> list[Any]:
    """Values of a column; of those that Python has no equal for, such as the year 10,000, whether there is one."""
    try:
        return column.to_pylist()
    except (ValueError, OverflowError, LookupError):
        return [True if there else None for there in column.is_valid().to_pylist()]


def _objects(lines: Sequence[bytes]) -> Iterator[dict[str, Any]]:
    for line in lines:
        try:
            record = parse(line)
        except orjson.JSONDecodeError:
            continue
        if isinstance(record, dict):
            yield record
