"""The length of each row of a table: from a column, or in characters of its text.

Letters: N rows.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Collection
from contextlib import suppress
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from dagster_divorder.core.arrow import is_list, is_text
from dagster_divorder.errors import InputError
from dagster_divorder.tables.table import Table
from dagster_divorder.view.words import clip

if TYPE_CHECKING:
    import pyarrow as pa

Tokens = str | None
Ints = NDArray[np.int64]

LOOKED_AT = 64
"""First rows that are read of columns that may not be needed, such as pictures."""
A_ROW = 2520
"""Length of every row if there is neither text nor length. Lists of up to ten values can share it evenly. A length
common to all rows does not change an order."""


def row_tokens(table: Table, tokens: Tokens, by: Collection[str]) -> Ints:
    """Tokens of each row, int64 (N,).

    tokens: the name of a column of whole numbers; or None, for the characters of the text, or A_ROW if no column holds
    text, both with a warning. The text is the column of strings or of conversations (lists of records with strings)
    outside `by` with the most characters.

    Raises:
        InputError: the column does not exist, or a number is missing, negative or not whole.
    """
    if isinstance(tokens, str):
        return _whole(table.column(tokens), f"column {tokens!r}")
    if tokens is not None:
        raise InputError(
            f"tokens is {clip(repr(tokens), 60)}; expected the name of a column of lengths, or None: add lengths as a "
            'column, such as table["tokens"] = table["text"].map(count)'
        )
    characters = _characters(table, by)
    name = max(characters, key=lambda name: int(characters[name].sum()), default="")
    lengths = characters.get(name, np.zeros(0, np.int64))
    if lengths.any():
        told = f": the length of a row is its characters in {name!r}; name a column of lengths"
    else:
        told = ", and no column outside `by` holds text: all rows are equally long; name a column of lengths if they "
        told += "differ"
        lengths = np.full(table.rows, A_ROW)
    warn(f"tokens is not given{told}")
    return lengths


def warn(message: str) -> None:
    """Warns of something at the nearest caller outside this package."""
    frame, calls = sys._getframe(1), 2
    while frame.f_back and frame.f_globals.get("__name__", "").startswith("dagster_divorder."):
        frame, calls = frame.f_back, calls + 1
    warnings.warn(message, stacklevel=calls)


def _characters(table: Table, by: Collection[str]) -> dict[str, Ints]:
    """Column of strings or conversations outside `by` -> characters in its rows, int64 (N,). Columns that cannot be
    read are left out."""
    import pyarrow as pa

    found, first = dict[str, Ints](), table.first(LOOKED_AT)
    for name in table.names:
        with suppress(InputError):
            kind = first.column(name).type
            # Nulls and NaN may come before text, but what is nested or binary, as vectors and pictures, is not read.
            if name in by or ((pa.types.is_nested(kind) or pa.types.is_binary(kind)) and not _counts(kind)):
                continue
            column = table.column(name)
            if _counts(column.type):
                parts = map(_characters_of, column.chunks)
                found[name] = np.concatenate([np.zeros(0, np.int64), *parts])
    return found


def _characters_of(values: pa.Array) -> Ints:
    """Characters in the strings of each value, int64 (n,)."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if is_text(values.type):
        return pc.coalesce(pc.utf8_length(values.cast(pa.large_string())), 0).to_numpy().astype(np.int64)
    if pa.types.is_struct(values.type):
        return sum(map(_characters_of, values.flatten()), np.zeros(len(values), np.int64))
    if is_list(values.type):
        sizes, lists = _characters_of(pc.list_flatten(values)), pc.list_parent_indices(values)
        return np.bincount(np.from_dlpack(lists), sizes, len(values)).astype(np.int64)
    return np.zeros(len(values), np.int64)


def _counts(kind: pa.DataType) -> bool:
    """Whether a type is that of texts, or of conversations, also of empty ones."""
    import pyarrow.types as types

    if not is_list(kind):
        return is_text(kind)
    fields = kind.value_type if types.is_struct(kind.value_type) else ()
    return types.is_null(kind.value_type) or any(field.name in ("content", "value") for field in fields)


def _whole(column: pa.ChunkedArray, title: str) -> Ints:
    import pyarrow as pa
    import pyarrow.compute as pc

    types, kind = pa.types, column.type
    if not len(column):
        return np.zeros(0, np.int64)
    if not (types.is_integer(kind) or types.is_floating(kind) or types.is_decimal(kind)):
        raise InputError(f"tokens is {title}, which holds {kind}; expected whole numbers of 0 or more")
    if column.null_count or (types.is_floating(kind) and pc.any(pc.is_nan(column)).as_py()):
        raise InputError(f"tokens is {title}, which lacks some numbers; expected one for each row: fill them")
    try:
        lengths: Ints = column.cast(pa.int64()).to_numpy()
    except pa.ArrowInvalid as error:
        raise InputError(f"tokens is {title}, and {error}; expected whole numbers of 0 or more") from error
    if lengths.min() < 0:
        raise InputError(f"{title} holds {lengths.min()}; expected numbers of 0 or more")
    return lengths
