"""Checks of arguments that several parts of core share."""

import operator

import numpy as np
from numpy.typing import NDArray

from dagster_divorder.errors import InputError


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


def finite(name: str, vectors: NDArray[np.floating]) -> None:
    """InputError if `vectors` (n, D) hold NaN or infinity."""
    if not np.isfinite(vectors).all():
        raise InputError(
            f"{name} holds NaN or infinity; expected finite numbers: embed those documents again"
        )
