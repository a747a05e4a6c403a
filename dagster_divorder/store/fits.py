"""Fits: what is learnt from the corpus, stored under its content hash and pinned by a pointer.

Appended data uses the pinned fit. A pointer belongs to a stage and its recipe, so changed settings make a fit of their
own, and changing them back finds the old one again.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import orjson
import xxhash

from dagster_divorder.errors import StoreError
from dagster_divorder.store.local import LocalStore


@dataclass(frozen=True, slots=True)
class Fit:
    """A pinned fit: the hash of its files, and why it was made."""

    stage: str
    hash: str
    reason: str

    @property
    def folder(self) -> str:
        return f"fits/{self.stage}/{self.hash}"


def pinned(store: LocalStore, stage: str, recipe: str) -> Fit | None:
    """The current fit of a stage under a recipe, None if there is none yet."""
    name = _pointer(stage, recipe)
    return Fit(**orjson.loads(store.read(name))) if store.exists(name) else None


def pin(store: LocalStore, stage: str, recipe: str, files: Mapping[str, bytes], reason: str) -> Fit:
    """Store the files of a fit and make it the current one. The same files are the same fit."""
    fit = Fit(stage, _hash(files), reason)
    for name, data in files.items():
        store.put(f"{fit.folder}/{name}", data)
    pointer = orjson.dumps({"stage": stage, "hash": fit.hash, "reason": reason})
    store.put(_pointer(stage, recipe), pointer, replace=True)
    return fit


def read_fit(store: LocalStore, fit: Fit) -> dict[str, bytes]:
    """The files of a fit.

    Raises:
        StoreError: a file is missing or altered. Fitting again would change later results, so it is not done unasked.
    """
    folder = store.path(fit.folder)
    files = {name.rsplit("/", 1)[1]: store.read(name) for name in store.list(fit.folder)}
    found = _hash(files)
    if found != fit.hash:
        raise StoreError(
            f"fit {folder} is damaged: its files hash to {found}; restore it from a copy, or delete "
            f"{store.path('fits') / fit.stage} and {store.path('pins') / fit.stage} to fit again (later stages are "
            "then computed again)"
        )
    return files


def fit_path(store: LocalStore, fit: Fit) -> Path:
    """Folder of a fit's files, for libraries that read folders."""
    return store.path(fit.folder)


def _pointer(stage: str, recipe: str) -> str:
    return f"pins/{stage}/{recipe}.json"


def _hash(files: Mapping[str, bytes]) -> str:
    digest = xxhash.xxh3_128()
    for name in sorted(files):
        digest.update(f"{name}\0{len(files[name])}\0".encode())
        digest.update(files[name])
    return digest.hexdigest()
