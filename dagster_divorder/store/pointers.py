"""Pointers: small JSON files that are replaced in place, such as receipts and pins.

A file that keeps its name cannot carry its hash there, so it carries it inside: `check` hashes the name and the rest.
"""

from __future__ import annotations

from typing import Any

import orjson
import xxhash

from dagster_divorder.errors import DamagedFileError
from dagster_divorder.store.local import LocalStore

_CHECK = "check"


def write_pointer(store: LocalStore, name: str, values: dict[str, Any]) -> None:
    """Replace a pointer; values are JSON (NumPy numbers and arrays too)."""
    plain = orjson.loads(orjson.dumps(values, option=orjson.OPT_SERIALIZE_NUMPY))
    data = orjson.dumps({**plain, _CHECK: _hash(name, plain)}, option=orjson.OPT_INDENT_2)
    store.put(name, data, replace=True)


def read_pointer(store: LocalStore, name: str) -> dict[str, Any] | None:
    """Values of a pointer, None if there is none.

    Raises:
        DamagedFileError: it is not what was written under this name.
    """
    if not store.exists(name):
        return None
    try:
        values = orjson.loads(store.read(name))
        intact = values.pop(_CHECK) == _hash(name, values)
    except (orjson.JSONDecodeError, KeyError, TypeError, AttributeError):
        intact = False
    if not intact:
        raise DamagedFileError(
            f"{store.path(name)} is damaged: its name and content do not match the hash in it; "
            "delete the file and run again, it is then made anew",
            name,
        )
    return values


def _hash(name: str, values: dict[str, Any]) -> str:
    return xxhash.xxh3_128_hexdigest(orjson.dumps([name, values], option=orjson.OPT_SORT_KEYS))
