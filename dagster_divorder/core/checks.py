"""Checks of arguments that several parts of core share."""

import operator

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dagster_divorder.errors import InputError

CHECKED_AT_ONCE = 1 << 20
"""Numbers that `finite` checks at once; bounds the size of its mask."""


def positive(name: str, value: int) -> int:
    """`value`, if it is 1 or more.

    Raises:
        InputError: it is less.
    """
    if value < 1:
        raise InputError(f"{name} is {value}; expected 1 or more")
    return int(value)


def whole_number(name: str, value: int, smallest: int, largest: int | None = None) -> int:
    """`value`, if it is a whole number from `smallest` to `largest`. None is no bound.

    Raises:
        InputError: it is not.
    """
    try:
        # True and False do not count as numbers.
        number = smallest - 1 if isinstance(value, bool) else operator.index(value)
    except TypeError:
        number = smallest - 1
    if number < smallest or (largest is not None and number > largest):
        wanted = f"of {smallest} or more" if largest is None else f"from {smallest:,} to {largest:,}"
        raise InputError(f"{name} is {value!r}; expected a whole number {wanted}")
    return number


def whole_numbers(
    name: str,
    values: ArrayLike,
    length: int | None = None,
    *,
    each: str = "item",
    least: int | None = 0,
    below: int | None = None,
) -> NDArray[np.signedinteger]:
    """`values` (n,), if they are whole numbers in [least, below); unsigned ones as int64.

    length: the expected n; None for any. each: what one number describes, for messages. least, below: None is no bound;
    `below` needs a `least`.

    Raises:
        InputError: the shape or the dtype is wrong, or a number is out of bounds.
    """
    array = np.asarray(values)
    if array.size == 0:
        array = array.astype(np.int64)
    if array.ndim != 1 or length not in (None, len(array)) or array.dtype.kind not in "iu":
        expected = "(n,)" if length is None else f"({length},)"
        raise InputError(
            f"{name} is {array.dtype} of shape {array.shape}; expected whole numbers, one for each {each}: {expected}"
        )
    if array.size and least is not None:
        wrong = array.min()
        if wrong >= least and below is not None:
            wrong = array.max()
        if wrong < least or (below is not None and wrong >= below):
            expected = f"of {least} or more" if below is None else f"in [{least}, {below})"
            raise InputError(f"{name} holds {wrong}; expected numbers {expected}")
    return array if array.dtype.kind == "i" else array.astype(np.int64)


def finite(name: str, vectors: NDArray[np.floating]) -> None:
    """InputError if `vectors` (n, D) hold NaN or infinity."""
    step = max(1, CHECKED_AT_ONCE * len(vectors) // max(1, vectors.size))
    if not all(np.isfinite(vectors[first : first + step]).all() for first in range(0, len(vectors), step)):
        raise InputError(
            f"{name} holds NaN or infinity; expected finite numbers: embed those documents again"
        )
