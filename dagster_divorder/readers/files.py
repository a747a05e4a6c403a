"""The files of an export, mapped in their state at opening.

Guarantee: a read gives the bytes that the manifest names, or raises StoreError. The first PINNED files of rows are
mapped at opening, and a mapped file keeps its bytes after its name is removed, so a reader can finish the plan that it
opened. Further files are mapped on first reading; another plan may have replaced them by then.
"""

from __future__ import annotations

import hashlib
import io
import os
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from dagster_divorder.errors import StoreError
from dagster_divorder.store.manifests import EXPORT_MANIFEST, HEAD_BYTES, file_at, whole_manifest

PINNED = 256
"""Files mapped at opening. Each takes a descriptor; the usual limit of a process is 1,024."""


def padded_rows(ids: np.ndarray, tokens: np.ndarray, length: int, padding: int) -> np.ndarray:
    """Ids (T,) of rows of `tokens`, int (n,), as (n, length), short rows padded; a view if no row is short."""
    if len(ids) == len(tokens) * length:
        return ids.reshape(-1, length)
    rows = np.full((len(tokens), length), padding, ids.dtype)
    rows[np.arange(length) < tokens[:, None]] = ids
    return rows


class Files:
    """The files of an export, by the names in its manifest.

    Raises:
        StoreError: a file is missing or altered.
    """

    def __init__(self, path: Path, manifest: dict[str, Any]) -> None:
        self.path, self._manifest = path, manifest
        self.map = lru_cache(PINNED)(self._mapped)

    def pin(self, names: Sequence[str]) -> None:
        """Maps the first of these files now."""
        for name in names[:PINNED]:
            self.map(name)

    def check_sizes(self) -> None:
        """Checks that every file exists and has its size."""
        for name, entry in self._manifest["files"].items():
            try:
                size = os.stat(file_at(self.path, name)).st_size
            except FileNotFoundError:
                raise self._wrong(name, "is missing") from None
            if size != entry["bytes"]:
                raise self._wrong(name, f"has {size} bytes, and {entry['bytes']} were written")

    def array(self, end: str) -> np.ndarray:
        """The array in the .npy file with this ending, mapped."""
        names = [name for name in self._manifest["files"] if name.endswith(end)]
        if not names:
            raise StoreError(f"the manifest of {self.path} names no file *{end}; export again")
        mapped = self.map(names[0])
        head = io.BytesIO(mapped[:HEAD_BYTES].tobytes())
        np.lib.format.read_magic(head)
        shape, _, dtype = np.lib.format.read_array_header_1_0(head)
        return mapped[head.tell() :].view(dtype).reshape(shape)

    def _mapped(self, name: str) -> np.ndarray:
        """The bytes of a file, uint8."""
        entry = self._manifest["files"][name]
        try:
            mapped = np.asarray(np.memmap(file_at(self.path, name), np.uint8, "r"))
        except (FileNotFoundError, ValueError):
            # NumPy cannot map empty files.
            raise self._wrong(name, "is missing or empty") from None
        if len(mapped) != entry["bytes"]:
            raise self._wrong(name, f"has {len(mapped)} bytes, and {entry['bytes']} were written")
        if entry["head"] != hashlib.sha256(mapped[:HEAD_BYTES].data).hexdigest():
            raise self._wrong(name, "is not the file that the manifest names")
        return mapped

    def _wrong(self, name: str, fault: str) -> StoreError:
        manifest = file_at(self.path, EXPORT_MANIFEST)
        now = whole_manifest(manifest.read_bytes()) if manifest.is_file() else None
        if now and now.get("key") != self._manifest.get("key"):
            return StoreError(
                f"{self.path} was replaced during reading: it was opened with the plan {self._manifest['plan']}, "
                f"and now holds {now.get('plan')}; open it again to train on the new plan, or export the old one into "
                "another folder to go on with that"
            )
        return StoreError(
            f"{file_at(self.path, name)} {fault}; export again, or copy the folder and its neighbour again"
        )
