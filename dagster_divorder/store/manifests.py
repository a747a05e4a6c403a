"""The hash that a manifest carries of itself. Light: what a trainer imports needs it too."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import orjson

EXPORT_VERSION = 2
"""Of the files of every export. In version 1 names had no tag, and entries of files no `head`."""
REPLACED_BY = "replaced_by"
"""In a manifest whose files are being replaced: the key of the output that replaces them."""
HEAD_BYTES = 4096
"""Of the beginning of each file, by whose `head`, their sha256, a reader tells files of equal size apart."""


def manifest_check(manifest: dict[str, Any]) -> str:
    """sha256 of a manifest without its `check`: of its JSON without spaces, keys sorted."""
    return hashlib.sha256(orjson.dumps(manifest, option=orjson.OPT_SORT_KEYS)).hexdigest()


def read_whole(file: Path) -> dict[str, Any] | None:
    """As `whole_manifest`, of a file.

    Raises:
        OSError: it cannot be read.
    """
    return whole_manifest(file.read_bytes())


def whole_manifest(data: bytes) -> dict[str, Any] | None:
    """A manifest without its `check`; None if it is not just what was written."""
    try:
        found: dict[str, Any] = orjson.loads(data)
        return found if found.pop("check") == manifest_check(found) else None
    except (orjson.JSONDecodeError, AttributeError, KeyError, TypeError):
        return None
