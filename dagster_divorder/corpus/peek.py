"""The first records of an input as plain values, before any is stored."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import orjson

from dagster_divorder.core.fields import column_at, value_at
from dagster_divorder.corpus.find import Found
from dagster_divorder.corpus.inputs import (
    Kind,
    read_batches,
    read_lines,
    read_rows,
    read_schema,
)
from dagster_divorder.corpus.json_records import parse
from dagster_divorder.corpus.looks import looks_like
from dagster_divorder.corpus.records import EMPTY_TEXT, parse_block, raw_bytes
from dagster_divorder.store.sources import Source

if TYPE_CHECKING:
    import pyarrow as pa

PEEK_BYTES = 1 << 18
"""Bytes that are read at once where a few records may be enough."""


@dataclass
class Refusals:
    """Number of records examined, and of records that the pipeline refuses. first: file, line or row, and reason of the
    first refused record; looks: what that record looks like, as the end of a sentence."""

    looked_at: int = 0
    refused: int = 0
    first: str = ""
    looks: str = ""

    def add(self, path: str, number: int, reason: str, begins: bytes, form: str) -> None:
        if not self.refused:
            looks = looks_like(begins, form) if reason != EMPTY_TEXT else ""
            self.first, self.looks = f"{path}:{number}: {reason}", f", which is {looks}" if looks else ""
        self.refused += 1


def first_refusals(corpus_input: Found, most: int) -> Refusals:
    """Refusals among the first `most` records of each file, as ingest would refuse them. A last line still being
    written does not count.

    Raises:
        InputError: a file cannot be read, or its columns differ from those of the first.
    """
    refusals, schema, form = Refusals(), None, corpus_input.shape.form
    is_jsonl = corpus_input.kind == "jsonl"
    for path in corpus_input.files:
        if not is_jsonl:
            schema = read_schema(path, schema)
        wanted, number = most, 0
        for block in read_lines(path) if is_jsonl else read_rows(path, schema):
            at = np.flatnonzero(~block.blank)[:wanted]
            parsed = parse_block(block, at, corpus_input.shape, path)
            for place, reason in zip(at.tolist(), parsed, strict=True):
                if isinstance(reason, str):
                    refusals.add(str(path), number + place + 1, reason, raw_bytes(block, place), form)
            refusals.looked_at += len(at)
            number, wanted = number + len(block), wanted - len(at)
            if wanted <= 0:
                break
    return refusals


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
    """The records of a corpus in order, with some `fields` (None if a record lacks one) or all. Lines that are no
    JSON object are skipped: ingest says what is wrong with them.

    Raises:
        InputError: a file cannot be read.
    """
    for corpus_input in inputs:
        shape = corpus_input.shape
        with shape.naming():
            names = None if fields is None else {field: shape.field(field) for field in fields}
            constants = {field: value for field in fields or () if (value := shape.constant(field))}
            for path in corpus_input.files:
                yield from (record | constants for record in _records(path, corpus_input.kind, names))


def _records(path: Source, kind: Kind, names: Mapping[str, str] | None) -> Iterator[dict[str, Any]]:
    if kind == "parquet":
        for rows in read_batches(path, None, fields=None if names is None else list(names.values())):
            once = [name for name in rows.schema.names if rows.schema.names.count(name) == 1]
            columns = {
                field: column_at(rows, name)
                for field, name in (names or {name: name for name in once}).items()
            }
            if names and all(column is None for column in columns.values()):
                # Without columns Arrow has no rows, and one record shows as much as all.
                yield dict.fromkeys(columns)
                return
            plain = [[None] * len(rows) if column is None else _plain(column) for column in columns.values()]
            yield from (dict(zip(columns, row, strict=True)) for row in zip(*plain, strict=True))
        return
    for block in read_lines(path, block_bytes=PEEK_BYTES):
        for record in _objects(block.content) if isinstance(block.content, list) else ():
            yield (
                record if names is None else {field: value_at(record, name) for field, name in names.items()}
            )


def _plain(column: pa.Array) -> list[Any]:
    """Values of a column. If Python cannot hold them, such as the year 10,000: True for each that is not null."""
    try:
        return column.to_pylist(maps_as_pydicts="lossy")
    except (ValueError, OverflowError, LookupError):
        return [True if valid else None for valid in column.is_valid().to_pylist()]


def _objects(lines: Sequence[bytes]) -> Iterator[dict[str, Any]]:
    for line in lines:
        try:
            record = parse(line)
        except orjson.JSONDecodeError:
            continue
        if isinstance(record, dict):
            yield record
