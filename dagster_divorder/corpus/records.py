"""Parses records: the text of each, or the reason of its refusal."""

from __future__ import annotations

import base64
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import orjson
import pyarrow as pa

from dagster_divorder.chats.document import MARK, as_document
from dagster_divorder.chats.forms import (
    NAMES,
    another_form,
    conversation_of_record,
    form_of,
    refuse_written,
    without_nulls,
)
from dagster_divorder.core.arrow import is_text
from dagster_divorder.core.fields import column_at, value_at
from dagster_divorder.corpus.columns import id_of
from dagster_divorder.corpus.inputs import Block, row_at
from dagster_divorder.corpus.json_records import parse
from dagster_divorder.corpus.looks import looks_like, structure_of
from dagster_divorder.corpus.parquet_rows import json_values, row_as_json
from dagster_divorder.corpus.shapes import Shape
from dagster_divorder.errors import InputError, RejectLimitError
from dagster_divorder.store.arrays import row_array
from dagster_divorder.store.sources import Source
from dagster_divorder.store.view import View

if TYPE_CHECKING:
    from dagster_divorder.corpus.find import Found

Item = TypeVar("Item")

_SHOWN_REJECTS = 10
NOT_JSON = "not valid JSON"
"""Start of the reason if a line is not JSON: the last line of a growing file may be incomplete."""
_MISSING = object()
EMPTY_TEXT = "empty text"
MARKED = (
    "the text begins with the control character U+001E, which marks conversations in the store; remove it"
)
CR_ENDS = "CR line ends, expected LF or CRLF; convert them with tr '\\r' '\\n'"


Parsed = bytes | str
"""A document as UTF-8, or the reason why its record is refused."""


def _each(items: Iterable[Item], document_of: Callable[[Item], bytes]) -> list[Parsed]:
    """document_of: raises InputError with the reason if it refuses an item."""
    parsed: list[Parsed] = []
    for item in items:
        try:
            parsed.append(document_of(item))
        except InputError as error:
            parsed.append(str(error))
    return parsed


def parse_lines(lines: Sequence[bytes], shape: Shape) -> list[Parsed]:
    """Documents of JSONL lines.

    Refused: invalid JSON or UTF-8, lone surrogates, no object, and whatever `_text_of` or `conversation_in` refuses.
    """

    def document_of(line: bytes) -> bytes:
        try:
            record = parse(line)
        except orjson.JSONDecodeError as error:
            raise InputError(CR_ENDS if b"\r" in line else f"{NOT_JSON}: {error}") from None
        if not isinstance(record, dict):
            raise InputError(f"a JSON {_json_type(record)}, expected an object")
        return _text_of(record, shape.text_field) if shape.form == "text" else conversation_in(record, shape)

    return _each(lines, document_of)


def _text_of(record: Mapping[str, Any], text_field: str) -> bytes:
    """
    Raises:
        InputError: the field is missing, not a string, or empty.
    """
    text = value_at(record, text_field, _MISSING)
    if text is _MISSING:
        other = form_of(record)
        for name in record if other is None else ():
            refuse_written(record[name], name)
        raise InputError(another_form(other, "text") if other else f"no field {text_field!r}")
    if not isinstance(text, str):
        raise InputError(f"field {text_field!r} is a JSON {_json_type(text)}, expected a string")
    if not text:
        raise InputError(EMPTY_TEXT)
    if text.startswith(MARK):
        raise InputError(MARKED)
    refuse_written(text, text_field)
    return text.encode()


def conversation_in(record: Mapping[str, Any], shape: Shape) -> bytes:
    """The document of a record that is not plain text, UTF-8.

    Raises:
        InputError: the record does not have the shape's form, or the chat template refuses it.
    """
    conversation = conversation_of_record(record, shape.form)
    if shape.chat_template is not None:
        shape.chat_template.check(conversation)
    try:
        return as_document(conversation)
    except orjson.JSONEncodeError as error:
        raise InputError(f"cannot be written as JSON: {error}") from None


def parse_rows(rows: pa.RecordBatch, shape: Shape) -> list[Parsed]:
    """Documents of Parquet rows. A null inside the row of a conversation counts as a missing key, because Arrow's
    structs do not distinguish them.

    Raises:
        InputError: the text column is missing or does not hold strings, so no row of the file can be read.
    """
    is_text_form = shape.form == "text"
    invalid = _invalid_rows(rows, shape.text_field if is_text_form else "")
    texts = _texts_of(rows, shape.text_field) if is_text_form else []
    read = {*NAMES, "text"}
    names = [name for name in rows.schema.names if name in read and rows.schema.names.count(name) == 1]
    columns = [] if is_text_form else [json_values(rows.column(name), objects=True) for name in names]

    def document_of(at: int) -> bytes:
        if at in invalid:
            raise InputError(invalid[at])
        if not is_text_form:
            values = zip(names, (column[at] for column in columns), strict=True)
            record = {name: without_nulls(value) for name, value in values if value is not None}
            return conversation_in(record, shape)
        text = texts[at]
        if not text:
            raise InputError("null text" if text is None else EMPTY_TEXT)
        if text.startswith(MARK.encode()):
            raise InputError(MARKED)
        refuse_written(text.decode(), shape.text_field)
        return text

    return _each(range(rows.num_rows), document_of)


def _texts_of(rows: pa.RecordBatch, text_field: str) -> list[bytes | None]:
    """Values of the text column; they may not be UTF-8.

    Raises:
        InputError: see `parse_rows`.
    """
    column = column_at(rows, text_field)
    if column is None:
        raise InputError(
            f"input.text_field: no column {text_field!r}; the columns are {', '.join(rows.schema.names)}"
            f"{_rows_look_like(rows)}"
        )
    value_type = column.type.value_type if pa.types.is_dictionary(column.type) else column.type
    if not is_text(value_type):
        raise InputError(
            f"input.text_field: column {text_field!r} has type {column.type}, expected strings{_rows_look_like(rows)}"
        )
    texts: list[bytes | None] = column.cast(value_type).cast(pa.large_binary()).to_pylist()
    return texts


def _rows_look_like(rows: pa.RecordBatch) -> str:
    """The end of a message: what rows hold instead of one text each; "" if unknown."""
    if not rows.num_rows:
        return ""
    structure = structure_of(orjson.loads(row_as_json(rows.slice(0, 1))))
    return f". These are {structure.said(by_jq=False)}" if structure else ""


def _invalid_rows(rows: pa.RecordBatch, text_field: str) -> dict[int, str]:
    """Row -> the fault of its first column with a value that the type does not allow, such as invalid UTF-8 or a time
    of 25 hours. A Parquet file may hold such values."""
    fault_of: dict[int, str] = {}
    for name, column in zip(rows.schema.names, rows.columns, strict=True):
        if _fault(column):
            subject = "text" if name == text_field else f"column {name!r}"
            plain = column.dictionary_decode() if pa.types.is_dictionary(column.type) else column
            # Taken, not sliced: for a slice of a nested column, Arrow checks all values.
            faults = ((at, _fault(plain.take(row_array(np.array([at]))))) for at in range(len(plain)))
            fault_of = {at: f"{subject} {fault}" for at, fault in faults if fault} | fault_of
    return fault_of


def _fault(column: pa.Array) -> str:
    try:
        column.validate(full=True)
    except pa.ArrowInvalid as error:
        return "is not valid UTF-8" if "UTF8" in str(error) else f"is not valid: {error}"
    return ""


def _json_type(value: Any) -> str:
    names = {dict: "object", list: "array", str: "string", bool: "boolean", type(None): "null"}
    return names.get(type(value), "number")


def parse_block(block: Block, at: np.ndarray, shape: Shape, path: Source) -> list[Parsed]:
    """Documents of some records of a block. at: their places, int64 (n,), none of them blank.

    Raises:
        InputError: the text column is missing, or holds no strings.
    """
    rest = at[~np.isin(at, list(block.long))] if block.long else at
    if isinstance(block.content, list):
        parsed = parse_lines([block.content[place] for place in rest.tolist()], shape)
    else:
        try:
            parsed = parse_rows(block.content.take(row_array(rest)), shape)
        except InputError as error:
            raise InputError(f"{shape.label}{path}: {error}") from None
    for number, place in enumerate(at.tolist() if block.long else ()):
        if long := block.long.get(place):
            ends = f": {CR_ENDS}" if _unit(block) == "line" and b"\r" in long.begins else ""
            reason = f"a {_unit(block)} of {long.size:,} bytes is too large for a record{ends}"
            parsed.insert(number, reason)
    return parsed


def _unit(block: Block) -> str:
    return "line" if isinstance(block.content, list) else "row"


def raw_bytes(block: Block, place: int) -> bytes:
    """The bytes of a record: a line, a row as JSON, or the first bytes of a record that is too long."""
    if long := block.long.get(place):
        return long.begins
    if isinstance(block.content, list):
        return block.content[place]
    return row_as_json(row_at(block.content, place))


def reject(block: Block, place: int, number: int, reason: str) -> bytes:
    """A line of rejects.jsonl: path (empty), line or row, reason, and the raw bytes (as base64 if not UTF-8; of a too
    long record only the first ones)."""
    entry: dict[str, Any] = {"path": "", _unit(block): number, "reason": reason}
    raw = raw_bytes(block, place)
    if place in block.long:
        entry["begins"] = raw.decode(errors="backslashreplace")
    else:
        try:
            entry["raw"] = raw.decode()
        except UnicodeDecodeError:
            entry["raw_base64"] = base64.b64encode(raw).decode()
    return orjson.dumps(entry) + b"\n"


def reject_bytes(reject: bytes) -> bytes:
    """The bytes of the record in a line of rejects.jsonl."""
    entry = orjson.loads(reject)
    if "raw_base64" in entry:
        return base64.b64decode(entry["raw_base64"])
    return str(entry.get("raw", entry.get("begins"))).encode()


def with_id(reject: bytes, field_of: Mapping[str, str | None]) -> bytes:
    """A line of rejects.jsonl that begins with the refused record's own `id`, if readable. field_of: field of the ids
    by file."""
    entry = orjson.loads(reject)
    field = field_of.get(entry["path"])
    try:
        own_id = id_of(entry.get("raw", "").encode(), field) if field else None
    except orjson.JSONDecodeError:
        return reject
    return reject if own_id is None else orjson.dumps({"id": own_id, **entry}) + b"\n"


def check_rejects(view: View, inputs: Sequence[Found], rejects: Sequence[bytes], max_share: float) -> None:
    """Check that few records of a view are refused, and that each input holds some. rejects: lines of rejects.jsonl.

    Raises:
        RejectLimitError: more than `max_share` of the records are refused.
        InputError: an input holds no usable record.
    """
    read = len(view) + len(rejects)
    shape_of = dict(
        zip(
            (file.path for file in view.files),
            (found.shape for found in inputs for _ in found.files),
            strict=True,
        )
    )
    if len(rejects) > max_share * read:
        listed = "\n  ".join(map(_said, rejects[:_SHOWN_REJECTS]))
        shape, looks = shape_of[orjson.loads(rejects[0])["path"]], _looks_like(rejects[0], shape_of)
        raise RejectLimitError(
            f"{len(rejects):,} of {read:,} records were refused ({len(rejects) / read:.1%}), more than "
            f"input.max_reject_share = {max_share:g} allows; nothing is made of them. The first:\n  {listed}\n"
            f"{looks}Correct the input (or {shape.setting}), or raise input.max_reject_share"
        )
    accepted = Counter[int]()
    for piece in view.pieces:
        accepted[view.files[piece.file].group] += piece.rows
    # Each input must hold records, however small its share.
    for group, found in enumerate(inputs):
        paths = {str(path) for path in found.files}
        own = [] if accepted[group] else [line for line in rejects if orjson.loads(line)["path"] in paths]
        if own:
            with found.shape.naming():
                raise InputError(
                    f"the input holds no usable records: all {len(own):,} were refused, the first: {_said(own[0])}\n"
                    f"{_looks_like(own[0], shape_of)}Correct the input (or {found.shape.setting})"
                )
    if not len(view):
        message = "the input holds no records; expected at least one JSONL line or Parquet row"
        for file in view.files:
            if file.unfinished:
                looks = looks_like(file.unfinished[1]) or "a line still being written, or truncated"
                raise InputError(
                    f"{message}. {file.path}:{file.lines + 1}, which ends without a newline and is incomplete JSON, is "
                    f"{looks}"
                )
        raise InputError(message)


def _said(reject: bytes) -> str:
    entry = orjson.loads(reject)
    return f"{entry['path']}:{entry.get('line', entry.get('row'))}: {entry['reason']}"


def _looks_like(reject: bytes, shape_of: Mapping[str, Shape]) -> str:
    entry = orjson.loads(reject)
    if entry["reason"] == EMPTY_TEXT:
        return ""
    looks = looks_like(reject_bytes(reject), shape_of[entry["path"]].form)
    return f"The first is {looks}.\n" if looks else ""
