"""Pointers: small JSON files that are replaced in place, such as receipts and pins.

A file that keeps its name cannot carry its hash there, so it carries it inside: `check` hashes its name and the rest,
so that a pointer copied over another one is noticed too.
"""

from __future__ import annotations

import functools
from typing import Any, TypeVar

import orjson
import xxhash
from pydantic import TypeAdapter, ValidationError

from dagster_divorder.errors import DamagedFileError
from dagster_divorder.store.base import Store

Values = TypeVar("Values")

_CHECK = "check"


def write_pointer(store: Store, name: str, values: Any) -> None:
    """Replace a pointer; values are a dataclass of what JSON holds (NumPy numbers and arrays too)."""
    plain = orjson.loads(orjson.dumps(values, option=orjson.OPT_SERIALIZE_NUMPY))
    data = orjson.dumps({**plain, _CHECK: _hash(name, plain)}, option=orjson.OPT_INDENT_2)
    store.put(name, data, replace=True)


def read_pointer(store: Store, name: str, of: type[Values]) -> Values | None:
    """Values of a pointer, a dataclass `of` what was written, None if there is none.

    Raises:
        DamagedFileError: it is not what was written under this name.
    """
    if not store.exists(name):
        return None
    try:
        plain = orjson.loads(store.read(name))
        if plain.pop(_CHECK) == _hash(name, plain):
            values: Values = _shape(of).validate_python(plain)  # type: ignore[arg-type]
            return values
    except (orjson.JSONDecodeError, KeyError, TypeError, AttributeError, ValidationError):
        pass
    raise DamagedFileError(
        f"{store.where(name)} is damaged: its content and its name do not match the hash in it; "
        "delete the file and run again, it is then made anew",
        name,
    )


@functools.cache
def _shape(of: Any) -> TypeAdapter[Any]:
    return TypeAdapter(of)


def _hash(name: str, plain: dict[str, Any]) -> str:
    # Of the name the last two parts, which a pin and its record share: either may be copied to the other's place.
    return xxhash.xxh3_128_hexdigest(orjson.dumps([name.split("/")[-2:], plain], option=orjson.OPT_SORT_KEYS))
