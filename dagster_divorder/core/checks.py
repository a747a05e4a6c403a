"""Checks of arguments that several parts of core share."""

from dagster_divorder.errors import InputError


def positive(name: str, value: int) -> int:
    """`value`, if it is 1 or more.

    Raises:
        InputError: it is less.
    """
    if value < 1:
        raise InputError(f"{name} is {value}; expected 1 or more")
    return int(value)
