"""Manifests: the place of an export's manifest, and the hash that each manifest has of itself. The module imports
little, since training scripts load it.

    exports/parquet/     row files and nothing else: any tool opens the folder
    exports/_parquet/    its *neighbour*: manifest.json and the tokenizer

The neighbour lies beside the folder: pandas, pyarrow and Spark skip names with an underscore inside a folder, but
polars and daft do not. Relative to the row folder, the neighbour's manifest is named `_/manifest.json`.
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
"""Version of the files of every export."""
MASKED_VERSION = 4
"""Version of exports that mask tokens from training; readers of up to EXPORT_VERSION know no mask."""
NEIGHBOUR = "_/"
"""Prefix of file names in a folder's neighbour."""
EXPORT_MANIFEST = f"{NEIGHBOUR}manifest.json"
TRAINED = "trained.npy"
"""Suffix of the neighbour's file of an export's trained stretches: int64 (2, K), begin and end of each stretch, as
row x L + place in the row."""
ROWS = "rows.arrow"
"""Suffix of the neighbour's table of an export's rows (`write.exports.row_table`)."""
REPLACED_BY = "replaced_by"
"""Entry of a manifest whose files are being replaced: the key of the new output."""
HEAD_BYTES = 4096
"""Bytes at the beginning of each file; their sha256, `head`, distinguishes files of equal size."""


def manifest_check(manifest: dict[str, Any]) -> str:
    """sha256 of a manifest's JSON without its `check`, without spaces, keys sorted."""
    return hashlib.sha256(orjson.dumps(manifest, option=orjson.OPT_SORT_KEYS)).hexdigest()


def neighbour(place: Place) -> Place:
    """The folder beside a folder, with the same name after an underscore. The neighbour of a root, such as a bucket,
    is `_` inside the root. Links are followed first: a link to a folder has the folder's own neighbour."""
    if isinstance(place, Path):
        real = Path(os.path.realpath(place))
        return real.parent / f"_{real.name}"
    parent, _, name = place.rpartition("/")
    is_root = place.count("/") < (5 if place.scheme == "hf" else 3)  # hf://datasets/owner/name, s3://bucket
    return place / "_" if is_root else type(place)(f"{parent}/_{name}")


@overload
def file_at(place: Path, name: str) -> Path: ...
@overload
def file_at(place: Place, name: str) -> Place: ...
def file_at(place: Place, name: str) -> Place:
    """Path or URL of a named file in a folder or its neighbour."""
    beside = name.removeprefix(NEIGHBOUR)
    return place / name if beside == name else neighbour(place) / beside


def whole_manifest(data: bytes) -> dict[str, Any] | None:
    """A manifest without its `check`; None if it is damaged."""
    try:
        manifest: dict[str, Any] = orjson.loads(data)
        return manifest if manifest.pop("check") == manifest_check(manifest) else None
    except (orjson.JSONDecodeError, AttributeError, KeyError, TypeError):
        return None
