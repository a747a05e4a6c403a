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

NOT_JSON = "not valid JSON"
"""How the reason begins where no parser reads a line: the last one of a growing file may still be being written."""
CR_ENDS = "CR line ends, expected LF or CRLF; convert them with tr '\\r' '\\n'"


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
            reason = CR_ENDS if b"\r" in line else f"{NOT_JSON}: {error}"
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
    if rows.schema.names.count(text_field) != 1:
        found = "several columns" if text_field in rows.schema.names else "no column"
        raise InputError(
            f"input.text_field: {found} {text_field!r}; the columns are {', '.join(rows.schema.names)}"
        )
    column = rows.column(text_field)
    value_type = column.type.value_type if pa.types.is_dictionary(column.type) else column.type
    if not is_text(value_type):
        raise InputError(f"input.text_field: column {text_field!r} has type {column.type}, expected strings")
    unreadable = _invalid_text(rows)
    texts: list[bytes | None] = []
    reasons: list[str] = []
    for at, value in enumerate(column.cast(value_type).cast(pa.large_binary()).to_pylist()):
        reason = "null text" if value is None else "" if value else "empty text"
        if at in unreadable:
            what = "text" if unreadable[at] == text_field else f"column {unreadable[at]!r}"
            reason = f"{what} is not valid UTF-8"
        if reason:
            reasons.append(reason)
        texts.append(None if reason else value)
    return texts, reasons


def is_text(of: pa.DataType) -> bool:
    """Whether a type is one of Arrow's string types."""
    return pa.types.is_string(of) or pa.types.is_large_string(of) or pa.types.is_string_view(of)


def _invalid_text(rows: pa.RecordBatch) -> dict[int, str]:
    """Row -> the first column in which it holds bytes that are no UTF-8 (Parquet does not promise that)."""
    found: dict[int, str] = {}
    for name, column in zip(rows.schema.names, rows.columns, strict=True):
        if not _is_valid(column):
            plain = column.dictionary_decode() if pa.types.is_dictionary(column.type) else column
            # Taken, not sliced: a slice of a nested column is checked with all of its values.
            bad = [at for at in range(len(plain)) if not _is_valid(plain.take(pa.array([at])))]
            found = dict.fromkeys(bad, name) | found
    return found


def _is_valid(column: pa.Array) -> bool:
    try:
        column.validate(full=True)
    except pa.ArrowInvalid:
        return False
    return True


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
    if is_text(value_type):
        column = column.cast(pa.large_binary())
    if pa.types.is_binary(column.type) or pa.types.is_large_binary(column.type):
        encoded = [value or b"" for value in column.to_pylist()]
    else:
        encoded = [_spelled(value) for value in column]
    digests = b"".join([xxhash.xxh3_128_digest(value) for value in encoded])
    raw = np.frombuffer(digests, dtype=np.uint8).reshape(len(column), 16)
    return np.concatenate([valid, raw], axis=1)


def _spelled(value: pa.Scalar) -> bytes:
    try:
        return repr(value.as_py()).encode()
    except UnicodeDecodeError:
        return b"not valid UTF-8"  # refused by parse_rows, so that it need not tell two rows apart


def row_as_json(row: pa.RecordBatch) -> bytes:
    """One Parquet row as JSON for people to read: bytes that are no text escaped, types that JSON lacks spelled out."""
    values = {}
    for name, column in zip(row.schema.names, row.columns, strict=True):
        if _is_valid(column):
            values[name] = column.to_pylist()[0]
        elif is_text(column.type):
            values[name] = column.cast(pa.large_binary()).to_pylist()[0].decode(errors="backslashreplace")
        else:
            values[name] = "(holds text that is not valid UTF-8)"
    return orjson.dumps(values, default=repr, option=orjson.OPT_NON_STR_KEYS)


def reject_line(path: str, place: dict[str, int], reason: str, raw: bytes) -> bytes:
    """A line of rejects.jsonl: where, why, and the raw bytes (as base64 where they are not UTF-8)."""
    entry: dict[str, Any] = {"path": path, **place, "reason": reason}
    try:
        entry["raw"] = raw.decode()
    except UnicodeDecodeError:
        entry["raw_base64"] = base64.b64encode(raw).decode()
    return orjson.dumps(entry) + b"\n"


def reject_long(path: str, unit: str, number: int, size: int, begins: bytes) -> tuple[bytes, str]:
    """A line of rejects.jsonl for a line or row that is too long, with its first bytes for people to read; and why."""
    reason = f"a {unit} of {size:,} bytes, more than input.max_record_bytes allows"
    if unit == "line" and b"\r" in begins:
        reason = f"{reason}: {CR_ENDS}"
    entry = {"path": path, unit: number, "reason": reason, "begins": begins.decode(errors="backslashreplace")}
    return orjson.dumps(entry) + b"\n", reason
