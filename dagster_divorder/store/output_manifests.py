"""Manifests of outputs: their shape, how they are read, and whether the named files are whole.

`curated_meta.json` is the manifest of the curated output; exports have another manifest (store/manifests.py).
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import orjson

from dagster_divorder.errors import StoreError
from dagster_divorder.settings.places import Place
from dagster_divorder.store.folders import folder_at
from dagster_divorder.store.manifests import (
    REPLACED_BY,
    file_at,
    manifest_check,
    whole_manifest,
)

MANIFEST = "curated_meta.json"

_NAME = re.compile(r"(_/)?[A-Za-z0-9_][A-Za-z0-9_.-]*")
"""Names of files in a manifest; none leads out of the folder."""


def manifest_bytes(manifest: dict[str, Any]) -> bytes:
    """Bytes of a manifest file, including its own hash."""
    return orjson.dumps(manifest | {"check": manifest_check(manifest)}, option=orjson.OPT_INDENT_2)


def read_manifest(path: Place, name: str = MANIFEST, *, replaced: bool = False) -> dict[str, Any] | None:
    """The named manifest of an output folder; None if it is missing, damaged or foreign.

    replaced: accept a manifest whose files are being replaced, or were when a run was killed. Such a manifest names
    the folder's owner, but not what the files hold. Raises StoreError: the manifest cannot be read."""
    try:
        manifest = whole_manifest(folder_at(path).read(name))
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise StoreError(f"{file_at(path, name)} cannot be read: {error.strerror or error}") from error
    if manifest is None or not all(map(_NAME.fullmatch, manifest["files"])):
        return None
    return manifest if replaced or REPLACED_BY not in manifest else None


def is_whole(path: Place, files: dict[str, dict[str, Any]], manifest: str = MANIFEST) -> bool:
    """Whether every file has its size, and on this machine no later time of writing than the manifest, which is written
    last. (`damaged_file` reads and hashes them.)"""
    sizes = folder_at(path).sizes()
    if any(sizes.get(name) != entry["bytes"] for name, entry in files.items()):
        return False
    if not isinstance(path, Path):
        return True
    written = file_at(path, manifest).stat().st_mtime_ns
    return all(file_at(path, name).stat().st_mtime_ns <= written for name in files)


def why_lacking(path: Place, called: str, key: str, name: str = MANIFEST) -> str | None:
    """Why a folder does not hold the whole output with this key; None if it does. called: the folder, in settings."""
    manifest = read_manifest(path, name)
    if manifest is None:
        return f"{called} holds none"
    if manifest["key"] != key:
        return f"{called} holds the output of other settings or files"
    return None if is_whole(path, manifest["files"], name) else f"files of {called} are gone or altered"
