"""The length of each row of a table: from a column, from a function of its text, or in characters of its text.

Letters: N rows.
"""

from __future__ import annotations

import contextlib
import sys
import warnings
from collections.abc import Callable, Collection
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dagster_divorder.core.arrow import is_list, is_text
from dagster_divorder.core.checks import whole_numbers
from dagster_divorder.errors import InputError
from dagster_divorder.tables.table import Table, numbers_of
from dagster_divorder.view.words import clip

if TYPE_CHECKING:
    import pyarrow as pa

Tokens = str | Callable[[str], int] | None

LOOKED_AT = 64
"""First rows; their types show which columns hold text."""

TEXTS = 1 << 12
"""Texts that are Python strings at the same time."""

A_ROW = 2520
"""Length of every row if there is neither text nor length. Lists of up to ten values can share it evenly. A length
common to all rows does not change an order."""


def row_tokens(table: Table, tokens: Tokens, by: Collection[str]) -> NDArray[np.int64]:
    """Tokens of each row, int64 (N,).

    tokens: the name of a column of whole numbers; a function from a row's text to a whole number, called once for each
    row that is not null (nulls count 0); or None, for the characters of the text, with a warning, or A_ROW if no column
    holds text. The text is the column of strings outside `by` with the most characters; without one, characters are
    those of a column of conversations (lists of records with strings).

    Raises:
        InputError: the column does not exist, or a number is missing, negative or not whole.
    """
    if isinstance(tokens, str):
        return _whole(table.column(tokens), tokens)
    if tokens is not None and not callable(tokens):
        raise InputError(
            f"tokens is {clip(repr(tokens), 60)}; expected the name of a column of lengths, a function of a row's "
            "text, or None: add lengths to the table as a column"
        )
    text = _longest(table, by, is_text)
    if tokens is not None:
        if text is None:
            raise InputError(
                "tokens is a function of a row's text, and no column outside `by` holds text; name a column"
            )
        column = table.column(text)
        # TEXTS at a time, so that texts are not copied all at once.
        texts = (
            value
            for first in range(0, len(column), TEXTS)
            for value in column.slice(first, TEXTS).to_pylist()
        )
        return _checked([0 if value is None else tokens(value) for value in texts], "what tokens gives")
    name = text or _longest(table, by, _holds_turns)
    if name is None:
        return np.full(table.rows, A_ROW)
    function = ", or give a function of a text" if text else ""
    warnings.warn(
        f"tokens is not given: the length of a row is its characters in {name!r}; name a column of lengths{function}",
        stacklevel=outside(),
    )
    return _characters(table, name)


def outside() -> int:
    """The stack level of the nearest caller outside this package, so that a warning points there."""
    frame, calls = sys._getframe(1), 1
    while frame.f_back and frame.f_globals.get("__name__", "").startswith("dagster_divorder."):
        frame, calls = frame.f_back, calls + 1
    return calls


def _characters(table: Table, name: str) -> NDArray[np.int64]:
    return np.concatenate(
        [_characters_of(chunk) for chunk in table.column(name).chunks] or [np.zeros(0, np.int64)]
    )


def _characters_of(values: pa.Array) -> NDArray[np.int64]:
    """Characters in the strings of each value, int64 (n,)."""
    import pyarrow as pa
    import pyarrow.compute as pc

    kind = values.type
    if is_text(kind):
        return numbers_of(pa.chunked_array([pc.coalesce(pc.utf8_length(values.cast(pa.large_string())), 0)]))
    if pa.types.is_struct(kind):
        return sum(map(_characters_of, values.flatten()), np.zeros(len(values), np.int64))
    if is_list(kind):
        sizes = _characters_of(pc.list_flatten(values))
        lists = np.from_dlpack(pc.list_parent_indices(values))
        return np.bincount(lists, sizes, len(values)).astype(np.int64)
    return np.zeros(len(values), np.int64)


def _holds_turns(kind: pa.DataType) -> bool:
    """Whether a type is that of conversations: lists of records."""
    import pyarrow.types as types

    return is_list(kind) and types.is_struct(kind.value_type)


def _longest(table: Table, by: Collection[str], is_wanted: Callable[[pa.DataType], bool]) -> str | None:
    """The column outside `by` of the wanted types with the most characters; None if there is none."""
    first = table.first(LOOKED_AT)
    names = []
    for name in table.names:
        with contextlib.suppress(InputError):
            if name not in by and is_wanted(first.column(name).type):
                names.append(name)
    if len(names) < 2:
        return names[0] if names else None
    return max(names, key=lambda name: int(_characters(table, name).sum()))


def _whole(column: pa.ChunkedArray, name: str) -> NDArray[np.int64]:
    import pyarrow as pa
    import pyarrow.compute as pc

    title = f"column {name!r}"
    if not len(column):
        return np.zeros(0, np.int64)
    types, kind = pa.types, column.type
    if not (types.is_integer(kind) or types.is_floating(kind) or types.is_decimal(kind)):
        raise InputError(f"tokens is {title}, which holds {kind}; expected whole numbers of 0 or more")
    if column.null_count or (types.is_floating(kind) and pc.any(pc.is_nan(column)).as_py()):
        raise InputError(f"tokens is {title}, which lacks some numbers; expected one for each row: fill them")
    try:
        numbers = column.cast(pa.int64())
    except pa.ArrowInvalid as error:
        raise InputError(f"tokens is {title}, and {error}; expected whole numbers of 0 or more") from error
    return _checked(numbers_of(numbers), title)


def _checked(numbers: ArrayLike, title: str) -> NDArray[np.int64]:
    return whole_numbers(title, numbers, each="row").astype(np.int64, copy=False)
