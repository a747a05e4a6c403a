"""Manifests: where that of an export lies, and the hash that each carries of itself. Light: what a trainer imports
needs it too.

    exports/parquet/     the files of rows, and nothing else: any tool opens the folder
    exports/_parquet/    its *neighbour*: manifest.json and the tokenizer

pandas, pyarrow and Spark skip names with an underscore in a folder that they read; polars and daft skip none, so the
neighbour lies beside the folder. A file of the neighbour is named `_/manifest.json`, relative to the folder of rows.
"""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload

import orjson

if TYPE_CHECKING:
    from dagster_divorder.settings.places import Place

EXPORT_VERSION = 3
"""Of the files of every export. In version 1 names had no tag, and entries of files no `head`; up to version 2 the
manifest and the tokenizer lay among the files of rows."""
NEIGHBOUR = "_/"
"""How names of files in the neighbour of a folder begin."""
EXPORT_MANIFEST = f"{NEIGHBOUR}manifest.json"
OLD_EXPORT_MANIFEST = "manifest.json"
REPLACED_BY = "replaced_by"
"""In a manifest whose files are being replaced: the key of the output that replaces them."""
HEAD_BYTES = 4096
"""Of the beginning of each file, by whose `head`, their sha256, a reader tells files of equal size apart."""


def manifest_check(manifest: dict[str, Any]) -> str:
    """sha256 of a manifest without its `check`: of its JSON without spaces, keys sorted."""
    return hashlib.sha256(orjson.dumps(manifest, option=orjson.OPT_SORT_KEYS)).hexdigest()


def neighbour(place: Place) -> Place:
    """The folder beside a folder, named as it is with an underscore before; that of a root, such as a bucket, is `_` in
    it. Links are followed first, so a link to a folder finds the folder's own neighbour."""
    if isinstance(place, Path):
        real = Path(os.path.realpath(place))
        return real.parent / f"_{real.name}"
    parent, _, name = place.rpartition("/")
    is_root = place.count("/") < (5 if place.scheme == "hf" else 3)  # hf://datasets/user/name, s3://bucket
    return place / "_" if is_root else type(place)(f"{parent}/_{name}")


@overload
def file_at(place: Path, name: str) -> Path: ...
@overload
def file_at(place: Place, name: str) -> Place: ...
def file_at(place: Place, name: str) -> Place:
    """Where the file of a folder lies that has this name."""
    beside = name.removeprefix(NEIGHBOUR)
    return place / name if beside == name else neighbour(place) / beside


def export_manifest_file(folder: Path) -> Path:
    """Where the manifest of an export lies, or would; up to version 2 it lay in the folder itself."""
    new, old = file_at(folder, EXPORT_MANIFEST), folder / OLD_EXPORT_MANIFEST
    return old if old.is_file() and not new.is_file() else new


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
