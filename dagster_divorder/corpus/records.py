"""Parses records: the text of each, or the reason of its refusal."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import orjson
import pyarrow as pa

from dagster_divorder.chats.document import MARK, Chat, as_document, sides
from dagster_divorder.chats.forms import (
    NAMES,
    conversation_of_record,
    refuse_written,
    without_nulls,
)
from dagster_divorder.core.arrow import is_text, plain_array
from dagster_divorder.core.fields import column_at, value_at
from dagster_divorder.corpus.inputs import CR_ENDS, Block, parse
from dagster_divorder.corpus.looks import looks_like, structure_of
from dagster_divorder.corpus.parquet_rows import json_values, row_as_json
from dagster_divorder.corpus.shapes import Shape
from dagster_divorder.errors import InputError
from dagster_divorder.store.sources import Source
from dagster_divorder.store.view import View

if TYPE_CHECKING:
    from dagster_divorder.corpus.find import Found

_SHOWN_REJECTS = 10
NOT_JSON = "not valid JSON"
"""Start of the reason if a line is not JSON: the last line of a growing file may be incomplete."""
_MISSING = object()
EMPTY_TEXT = "empty text"
MARKED = (
    "the text begins with the control character U+001E, which marks conversations in the store; remove it"
)


Parsed = bytes | str
"""A document as UTF-8, or the reason why its record is refused."""


def parse_lines(lines: Sequence[bytes], shape: Shape) -> list[Parsed]:
    """Documents of JSONL lines.

    Refused: invalid JSON or UTF-8, lone surrogates, no object, and a text or conversation that is not as `shape` says.
    """
    parsed: list[Parsed] = []
    for line in lines:
        try:
            record = parse(line)
            if not isinstance(record, dict):
                raise InputError(f"a JSON {_json_type(record)}, expected an object")
            if shape.form != "text":
                parsed.append(_conversation(record, shape))
                continue
            text = value_at(record, shape.text_field, _MISSING)
            if text is _MISSING:
                for name in record:
                    refuse_written(record[name], name)
                raise InputError(f"no field {shape.text_field!r}")
            if not isinstance(text, str):
                raise InputError(
                    f"field {shape.text_field!r} is a JSON {_json_type(text)}, expected a string"
                )
            parsed.append(_document(text, shape))
        except orjson.JSONDecodeError as error:
            parsed.append(CR_ENDS if b"\r" in line else f"{NOT_JSON}: {error}")
        except InputError as error:
            parsed.append(str(error))
    return parsed


def _document(text: str, shape: Shape) -> bytes:
    if not text:
        raise InputError(EMPTY_TEXT)
    if text.startswith(MARK):
        raise InputError(MARKED)
    refuse_written(text, shape.text_field)
    return text.encode()


def _conversation(record: Mapping[str, Any], shape: Shape) -> bytes:
    """The document of a record that is not plain text, if it has the shape's form and the chat template takes it."""
    conversation = conversation_of_record(record, shape.form)
    for side in sides(conversation):
        if isinstance(side, Chat) and shape.chat_template:
            shape.chat_template.render(side.messages, side.tools)
    try:
        return as_document(conversation)
    except orjson.JSONEncodeError as error:
        raise InputError(f"cannot be written as JSON: {error}") from None


def parse_rows(rows: pa.RecordBatch, shape: Shape) -> list[Parsed]:
    """Documents of Parquet rows. A null inside the row of a conversation counts as a missing key, because Arrow's
    structs do not distinguish them. Raises InputError: the text column is missing or does not hold strings, or a column
    holds values that its type does not allow, so no row of the file can be read."""
    for name, column in zip(rows.schema.names, rows.columns, strict=True):
        try:
            # A Parquet file may hold bytes that are not UTF-8, or a time of 25 hours.
            column.validate(full=True)
        except pa.ArrowInvalid as error:
            raise InputError(
                f"column {name!r} holds values that its type {column.type} does not allow: {error}; write the file "
                f"again with valid values, or without this column"
            ) from None
    is_text, names = shape.form == "text", list[str]()
    texts = _texts_of(rows, shape.text_field) if is_text else []
    if not is_text:
        names = [name for name in rows.schema.names if name in {*NAMES, "text"}]
        names = [name for name in names if rows.schema.names.count(name) == 1]
    columns = [json_values(rows.column(name), objects=True) for name in names]
    parsed: list[Parsed] = []
    for at in range(rows.num_rows):
        try:
            if not is_text:
                values = {name: column[at] for name, column in zip(names, columns, strict=True)}
                parsed.append(_conversation(without_nulls(values), shape))
            elif (text := texts[at]) is None:
                parsed.append("null text")
            else:
                parsed.append(_document(text, shape))
        except InputError as error:
            parsed.append(str(error))
    return parsed


def _texts_of(rows: pa.RecordBatch, text_field: str) -> list[str | None]:
    """Values of the text column."""
    column = column_at(rows, text_field)
    fault = f"no column {text_field!r}; the columns are {', '.join(rows.schema.names)}"
    if column is not None:
        value_type = column.type.value_type if pa.types.is_dictionary(column.type) else column.type
        if is_text(value_type):
            return list(column.to_pylist())
        fault = f"column {text_field!r} has type {column.type}, expected strings"
    structure = structure_of(orjson.loads(row_as_json(rows.slice(0, 1)))) if rows.num_rows else None
    these = f". These are {structure.said}" if structure else ""
    raise InputError(f"input.text_field: {fault}{these}")


def _json_type(value: Any) -> str:
    names = {dict: "object", list: "array", str: "string", bool: "boolean", type(None): "null"}
    return names.get(type(value), "number")


def parse_block(block: Block, at: np.ndarray, shape: Shape, path: Source) -> list[Parsed]:
    """Documents of some records of a block. at: their places, int64 (n,), none of them blank. Raises InputError: the
    text column is missing, or holds no strings."""
    if isinstance(block.content, list):
        return parse_lines([block.content[place] for place in at.tolist()], shape)
    try:
        return parse_rows(block.content.take(plain_array(at)), shape)
    except InputError as error:
        raise InputError(f"{shape.label}{path}: {error}") from None


def raw_bytes(block: Block, place: int) -> bytes:
    """The bytes of a record: a line, or a row as JSON."""
    if isinstance(block.content, list):
        return block.content[place]
    return row_as_json(block.content.take(plain_array(np.array([place]))))


def reject(block: Block, place: int, number: int, reason: str) -> bytes:
    """A line of rejects.jsonl: path (empty), line or row, reason, and the raw bytes (as base64 if not UTF-8)."""
    unit = "line" if isinstance(block.content, list) else "row"
    entry: dict[str, Any] = {"path": "", unit: number, "reason": reason}
    raw = raw_bytes(block, place)
    try:
        entry["raw"] = raw.decode()
    except UnicodeDecodeError:
        entry["raw_base64"] = base64.b64encode(raw).decode()
    return orjson.dumps(entry) + b"\n"


def check_rejects(view: View, inputs: Sequence[Found], rejects: Sequence[bytes], max_share: float) -> None:
    """Check that few records of a view are refused, and that each input holds some. rejects: lines of rejects.jsonl.
    Raises InputError: more than `max_share` of the records are refused, an input holds no usable
    record."""
    read = len(view) + len(rejects)
    shapes = [found.shape for found in inputs for _ in found.files]
    shape_of = dict(zip((file.path for file in view.files), shapes, strict=True))

    def remedy(reject: bytes) -> str:
        """What the first refused record looks like, and what to do."""
        entry = orjson.loads(reject)
        shape, raw = shape_of[entry["path"]], entry.get("raw")
        begins = base64.b64decode(entry["raw_base64"]) if raw is None else raw.encode()
        looks = looks_like(begins, shape.form) if entry["reason"] != EMPTY_TEXT else ""
        looks = f"The first is {looks}.\n" if looks else ""
        return f"{looks}Correct the input (or input.{'text_field' if shape.form == 'text' else 'format'})"

    if len(rejects) > max_share * read:
        listed = "\n  ".join(map(_said, rejects[:_SHOWN_REJECTS]))
        raise InputError(
            f"{len(rejects):,} of {read:,} records were refused ({len(rejects) / read:.1%}), more than "
            f"input.max_reject_share = {max_share:g} allows; nothing is made of them. The first:\n  {listed}\n"
            f"{remedy(rejects[0])}, or raise input.max_reject_share"
        )
    # Each input must hold records, however small its share.
    accepted = {view.files[piece.file].group for piece in view.fragments}
    for group, found in enumerate(inputs):
        paths = {str(path) for path in found.files}
        own = [] if group in accepted else [line for line in rejects if orjson.loads(line)["path"] in paths]
        if own:
            raise InputError(
                f"{found.shape.label}the input holds no usable records: all {len(own):,} were refused, the first: "
                f"{_said(own[0])}\n{remedy(own[0])}"
            )
    if not len(view):
        message = "the input holds no records; expected at least one JSONL line or Parquet row"
        for file in view.files:
            if file.unfinished:
                looks = looks_like(file.unfinished[1].encode()) or "a line still being written, or truncated"
                place = f"{file.path}:{file.lines + 1}"
                message += f". {place}, which ends without a newline and is incomplete JSON, is {looks}"
                break
        raise InputError(message)


def _said(reject: bytes) -> str:
    entry = orjson.loads(reject)
    return f"{entry['path']}:{entry.get('line', entry.get('row'))}: {entry['reason']}"
