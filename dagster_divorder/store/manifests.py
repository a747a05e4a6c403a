"""Manifests: the place of an export's manifest, and the hash that each manifest has of itself. Imports little, since
training scripts load it.

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
"""Version of the files of every export. In version 1 names had no tag, and entries of files no `head`; up to version 2
the manifest and the tokenizer lay among the files of rows."""
MASKED_VERSION = 4
"""Version of exports of which not every token is trained on; readers of up to EXPORT_VERSION know no mask."""
NEIGHBOUR = "_/"
"""Prefix of names of files in the neighbour of a folder."""
EXPORT_MANIFEST = f"{NEIGHBOUR}manifest.json"
OLD_EXPORT_MANIFEST = "manifest.json"
TRAINED = "trained.npy"
"""How the name ends of a neighbour's file of the trained stretches of an export: int64 (2, K), the places, counted as
row x L + place in the row, at which each begins and ends."""
REPLACED_BY = "replaced_by"
"""Entry of a manifest whose files are being replaced: the key of the new output."""
HEAD_BYTES = 4096
"""Bytes at the beginning of each file. Their sha256, `head`, tells files of equal size apart."""


def manifest_check(manifest: dict[str, Any]) -> str:
    """sha256 of a manifest without its `check`: of its JSON without spaces, keys sorted."""
    return hashlib.sha256(orjson.dumps(manifest, option=orjson.OPT_SORT_KEYS)).hexdigest()


def neighbour(place: Place) -> Place:
    """The folder beside a folder, of the same name after an underscore; the neighbour of a root, such as a bucket, is
    `_` in it. Links are followed first: a link to a folder has the folder's own neighbour."""
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
    """Path or URL of the file of this name in a folder or its neighbour."""
    beside = name.removeprefix(NEIGHBOUR)
    return place / name if beside == name else neighbour(place) / beside


def export_manifest_file(folder: Path) -> Path:
    """Path of an export's manifest, whether it exists or not; up to version 2 it lay in the folder itself."""
    new, old = file_at(folder, EXPORT_MANIFEST), folder / OLD_EXPORT_MANIFEST
    return old if old.is_file() and not new.is_file() else new


def read_whole(file: Path) -> dict[str, Any] | None:
    """`whole_manifest` of a file.

    Raises:
        OSError: it cannot be read.
    """
    return whole_manifest(file.read_bytes())


def whole_manifest(data: bytes) -> dict[str, Any] | None:
    """A manifest without its `check`; None if it is damaged."""
    try:
        manifest: dict[str, Any] = orjson.loads(data)
        return manifest if manifest.pop("check") == manifest_check(manifest) else None
    except (orjson.JSONDecodeError, AttributeError, KeyError, TypeError):
        return None
