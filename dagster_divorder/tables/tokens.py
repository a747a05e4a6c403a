"""How long each row of a table is: a column says it, a function of its text, or the characters of its text.

Letters: N rows.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Collection
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dagster_divorder.core.arrow import is_text
from dagster_divorder.core.checks import whole_numbers
from dagster_divorder.errors import InputError
from dagster_divorder.tables.table import Table, open_table

if TYPE_CHECKING:
    import pyarrow as pa

Tokens = str | Callable[[str], int] | None

LOOKED_AT = 64
"""Rows at the beginning, whose types say which columns hold text."""

TEXTS = 1 << 12
"""Texts that are strings of Python at once."""

A_ROW = 2520
"""Of a row without text and length: as many as lists of up to ten values share evenly. What all rows have alike makes
no difference to an order."""


def row_tokens(table: Table, tokens: Tokens, by: Collection[str]) -> NDArray[np.int64]:
    """Tokens of each row, int64 (N,).

    tokens: the name of a column of whole numbers; a function from a row's text to whole numbers, called once a row, a
    null without it counting 0; or None, for the characters of its text, with a warning that says so, and A_ROW where no
    column holds text. A row's text is its value in the column of strings, not among `by`, that has most characters.

    Raises:
        InputError: there is no such column, or a number is missing, negative or not whole.
    """
    if isinstance(tokens, str):
        return _whole(table.column(tokens), tokens)
    if tokens is not None and not callable(tokens):
        raise InputError(
            f"tokens is {tokens!r}; expected the name of a column of lengths, a function of a row's text, or None"
        )
    name = _longest_text(table, by)
    if name is None:
        if tokens is not None:
            raise InputError(
                "tokens is a function of a row's text, and no column outside `by` holds text; name a column"
            )
        return np.full(table.rows, A_ROW)
    if tokens is not None:
        column = table.column(name)
        # A part at a time, so that no second copy of all texts is held.
        texts = (
            text for first in range(0, len(column), TEXTS) for text in column.slice(first, TEXTS).to_pylist()
        )
        return _checked([0 if text is None else tokens(text) for text in texts], "what tokens gives")
    warnings.warn(
        f"tokens is not given: rows are as long as their column {name!r} has characters; "
        "name a column of lengths, or give a function of a text",
        stacklevel=_outside(),
    )
    return _characters(table, name)


def _outside() -> int:
    """How many calls up the first one is that comes from outside this package, for a warning there."""
    frame, calls = sys._getframe(1), 1
    while frame.f_back and frame.f_globals.get("__name__", "").startswith("dagster_divorder."):
        frame, calls = frame.f_back, calls + 1
    return calls


def _characters(table: Table, name: str) -> NDArray[np.int64]:
    import pyarrow as pa
    import pyarrow.compute as pc

    parts = [
        pc.coalesce(pc.utf8_length(chunk.cast(pa.large_string())), 0) for chunk in table.column(name).chunks
    ]
    return np.concatenate([np.zeros(0, np.int64), *(np.from_dlpack(part.cast(pa.int64())) for part in parts)])


def _longest_text(table: Table, by: Collection[str]) -> str | None:
    first = open_table(table.take(np.arange(min(table.rows, LOOKED_AT))))
    found = []
    for name in table.names:
        if name in by:
            continue
        try:
            text = is_text(first.column(name).type)
        except InputError:
            continue
        if text:
            found.append(name)
    if len(found) < 2:
        return found[0] if found else None
    return max(found, key=lambda name: int(_characters(table, name).sum()))


def _whole(column: pa.ChunkedArray, name: str) -> NDArray[np.int64]:
    import pyarrow as pa
    import pyarrow.compute as pc

    what = f"column {name!r}"
    if not len(column):
        return np.zeros(0, np.int64)
    types, of = pa.types, column.type
    if not (types.is_integer(of) or types.is_floating(of) or types.is_decimal(of)):
        raise InputError(f"tokens is {what}, which holds {of}; expected whole numbers of 0 or more")
    if column.null_count or (types.is_floating(of) and pc.any(pc.is_nan(column)).as_py()):
        raise InputError(f"tokens is {what}, which lacks some numbers; expected one for each row: fill them")
    try:
        numbers = column.cast(pa.int64())
    except pa.ArrowInvalid as error:
        raise InputError(f"tokens is {what}, and {error}; expected whole numbers of 0 or more") from error
    return _checked(
        np.concatenate([np.zeros(0, np.int64), *(np.from_dlpack(chunk) for chunk in numbers.chunks)]), what
    )


def _checked(numbers: ArrayLike, what: str) -> NDArray[np.int64]:
    return whole_numbers(what, numbers, each="row").astype(np.int64, copy=False)
