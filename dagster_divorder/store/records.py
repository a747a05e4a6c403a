"""Records to ids and texts: what a record is called, which document it holds, or why it is refused."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from typing import Any

import numpy as np
import orjson
import pyarrow as pa
import xxhash

from dagster_divorder.errors import InputError


def parse_lines(lines: Sequence[bytes], text_field: str) -> tuple[list[bytes | None], list[str]]:
    """Texts of JSONL lines as UTF-8, None where a line is refused; and the reasons of the refusals, in order.

    Refused: invalid JSON or UTF-8, lone surrogates, no object, the field missing, not a string, or empty.
    """
    texts: list[bytes | None] = []
    reasons: list[str] = []
    for line in lines:
        text: Any = None
        try:
            record = orjson.loads(line)
        except orjson.JSONDecodeError as error:
            reason = f"not valid JSON: {error}"
        else:
            if not isinstance(record, dict):
                reason = f"a JSON {_json_type(record)}, expected an object"
            elif text_field not in record:
                reason = f"no field {text_field!r}"
            else:
                text = record[text_field]
                reason = _text_fault(text, text_field)
        if reason:
            texts.append(None)
            reasons.append(reason)
        else:
            texts.append(text.encode())
        reason = ""
    return texts, reasons


def parse_rows(rows: pa.RecordBatch, text_field: str) -> tuple[list[bytes | None], list[str]]:
    """The same for Parquet rows.

    Raises:
        InputError: the text column is missing or does not hold strings; then no row of the file can be read.
    """
    if text_field not in rows.schema.names:
        raise InputError(
            f"input.text_field: no column {text_field!r}; the columns are {', '.join(rows.schema.names)}"
        )
    column = rows.column(text_field)
    value_type = column.type.value_type if pa.types.is_dictionary(column.type) else column.type
    if not (
        pa.types.is_string(value_type)
        or pa.types.is_large_string(value_type)
        or pa.types.is_string_view(value_type)
    ):
        raise InputError(f"input.text_field: column {text_field!r} has type {column.type}, expected strings")
    texts: list[bytes | None] = []
    reasons: list[str] = []
    # Cast to binary: Parquet does not promise valid UTF-8, and decoding has to fail for one row, not for all.
    for value in column.cast(value_type).cast(pa.large_binary()).to_pylist():
        reason = "null text" if value is None else "" if value else "empty text"
        if value:
            try:
                value.decode()
            except UnicodeDecodeError as error:
                reason = f"text is not valid UTF-8: {error}"
        if reason:
            reasons.append(reason)
        texts.append(None if reason else value)
    return texts, reasons


def _text_fault(text: Any, text_field: str) -> str:
    if not isinstance(text, str):
        return f"field {text_field!r} is a JSON {_json_type(text)}, expected a string"
    return "" if text else "empty text"


def _json_type(value: Any) -> str:
    names = {dict: "object", list: "array", str: "string", bool: "boolean", type(None): "null"}
    return names.get(type(value), "number")


def row_ids(rows: pa.RecordBatch) -> bytes:
    """Concatenated 16-byte ids of Parquet rows: equal rows of equal schemas have equal ids.

    Each column gives every row a fixed number of bytes (a validity byte, then the value, or the hash of a value of
    varying length); a row's id is the hash of these under the schema.
    """
    parts = [_column_bytes(column) for column in rows.columns]
    matrix = np.concatenate(parts, axis=1) if parts else np.empty((rows.num_rows, 0), dtype=np.uint8)
    width = matrix.shape[1]
    data = memoryview(np.ascontiguousarray(matrix).tobytes())
    seed = xxhash.xxh3_64_intdigest(str(rows.schema.remove_metadata()).encode())
    return b"".join(
        [
            xxhash.xxh3_128_digest(data[row * width : (row + 1) * width], seed=seed)
            for row in range(rows.num_rows)
        ]
    )


def _column_bytes(column: pa.Array) -> np.ndarray:
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    valid = np.asarray(column.is_valid().to_numpy(zero_copy_only=False), dtype=np.uint8)[:, None]
    value_type = column.type
    if pa.types.is_integer(value_type) or pa.types.is_floating(value_type) or pa.types.is_boolean(value_type):
        values = column.fill_null(pa.scalar(0).cast(value_type)).to_numpy(zero_copy_only=False)
        raw = np.ascontiguousarray(values).view(np.uint8).reshape(len(column), -1)
        return np.concatenate([valid, raw], axis=1)
    if pa.types.is_string(value_type) or pa.types.is_large_string(value_type):
        column = column.cast(pa.large_binary())
    if pa.types.is_binary(column.type) or pa.types.is_large_binary(column.type):
        encoded = [value or b"" for value in column.to_pylist()]
    else:
        encoded = [repr(value).encode() for value in column.to_pylist()]
    digests = b"".join([xxhash.xxh3_128_digest(value) for value in encoded])
    raw = np.frombuffer(digests, dtype=np.uint8).reshape(len(column), 16)
    return np.concatenate([valid, raw], axis=1)


def reject_line(path: str, place: dict[str, int], reason: str, raw: bytes) -> bytes:
    """A line of rejects.jsonl: where, why, and the raw bytes (as base64 where they are not UTF-8)."""
    entry: dict[str, Any] = {"path": path, **place, "reason": reason}
    try:
        entry["raw"] = raw.decode()
    except UnicodeDecodeError:
        entry["raw_base64"] = base64.b64encode(raw).decode()
    return orjson.dumps(entry) + b"\n"
