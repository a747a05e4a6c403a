"""Manifests of outputs: their shape, how they are read, and whether the named files are whole.

`curated_meta.json` is the manifest of the curated output; exports have another manifest (store/manifests.py).
"""

from __future__ import annotations

import hashlib
import io
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import orjson

from dagster_divorder.engine.progress import Advance
from dagster_divorder.errors import StoreError
from dagster_divorder.settings.places import Place
from dagster_divorder.store.folders import folder_at
from dagster_divorder.store.manifests import (
    REPLACED_BY,
    file_at,
    manifest_check,
    whole_manifest,
)
from dagster_divorder.store.sources import settled_identity

MANIFEST = "curated_meta.json"
REHASH_BYTES = 10 << 30
"""Local outputs up to this size are hashed again to check them; for larger or remote outputs only sizes are
compared."""


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


def is_whole(path: Place, files: dict[str, dict[str, Any]]) -> bool:
    """Whether every file of a manifest has its size; for local outputs up to REHASH_BYTES in all, also its hash."""
    return verified_files(path, files, {}) is not None


def verified_files(
    path: Place, files: dict[str, dict[str, Any]], known: Mapping[str, list[Any]]
) -> dict[str, list[Any]] | None:
    """As `is_whole`; None if a file is not whole. Otherwise path of a file -> its sha256 and `settled_identity`, for a
    later call: a file that still has what is `known` of it is not hashed again."""
    sizes = folder_at(path).sizes()
    if any(sizes.get(name) != entry["bytes"] for name, entry in files.items()):
        return None
    if not isinstance(path, Path) or sum(entry["bytes"] for entry in files.values()) > REHASH_BYTES:
        return {}
    verified, unknown = {}, {}
    for name, entry in files.items():
        file = file_at(path, name)
        # Taken before the file is hashed, so that a later write has another identity.
        if identity := settled_identity(file):
            verified[str(file)] = [entry["sha256"], *identity]
        if not identity or known.get(str(file)) != verified[str(file)]:
            unknown[name] = entry
    return verified if damaged_file(path, unknown) is None else None


def damaged_file(
    path: Place, files: dict[str, dict[str, Any]], advance: Advance = lambda size: None
) -> str | None:
    """A message about the first file that is missing or has another size or sha256; None if all files are whole.
    advance: receives the bytes of each checked file."""
    for name, entry in files.items():
        try:
            with folder_at(path).open(name) as opened:
                assert isinstance(opened, io.RawIOBase)
                sha256 = hashlib.file_digest(opened, "sha256").hexdigest()
                size = opened.tell()
        except OSError as error:
            return f"{file_at(path, name)} cannot be read ({error.strerror or error})"
        if size != entry["bytes"]:
            return f"{file_at(path, name)} has {size:,} bytes, expected {entry['bytes']:,}"
        if sha256 != entry["sha256"]:
            return f"{file_at(path, name)} was altered: its sha256 is {sha256}, expected {entry['sha256']}"
        advance(size)
    return None
