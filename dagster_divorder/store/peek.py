"""The first records of an input, as plain values, before anything of it is stored."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import orjson

from dagster_divorder.store.find import Found
from dagster_divorder.store.inputs import LineBlock, read_batches, read_lines


def first_records(found: Found, fields: Sequence[str] | None = None) -> Iterator[dict[str, Any]]:
    """The records of a corpus in their order, with some of their fields or all of them; lines that are no JSON object
    are passed over, since taking in the input says what is wrong with them.

    Raises:
        InputError: a file cannot be read.
    """
    for path in found.files:
        if found.kind == "parquet":
            for rows in read_batches(path, None, columns=fields):
                yield from rows.to_pylist()
        else:
            for block in read_lines(path):
                yield from _objects(block.lines) if isinstance(block, LineBlock) else ()


def _objects(lines: Sequence[bytes]) -> Iterator[dict[str, Any]]:
    for line in lines:
        try:
            record = orjson.loads(line)
        except orjson.JSONDecodeError:
            continue
        if isinstance(record, dict):
            yield record
