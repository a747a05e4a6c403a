"""Fits: what is learnt from the corpus, stored under its content hash and pinned by a pointer.

Appended data uses the pinned fit. A pointer belongs to a stage and its recipe, so changed settings make a fit of their
own, and changing them back finds the old one again.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import xxhash

from dagster_divorder.errors import DamagedFileError, StoreError
from dagster_divorder.store.local import LocalStore
from dagster_divorder.store.pointers import read_pointer, write_pointer


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
    """The current fit of a stage under a recipe, None if there is none yet.

    Raises:
        StoreError: the pointer is damaged. Fitting again would change later results, so it is not done unasked.
    """
    return read_pin(store, f"pins/{stage}/{recipe}.json")


def read_pin(store: LocalStore, name: str) -> Fit | None:
    """The fit that a pointer names, None if there is no such pointer; `pinned` by the pointer's name in the store."""
    try:
        return read_pointer(store, name, Fit)
    except DamagedFileError:
        raise StoreError(
            f"pin {store.path(name)} is damaged; restore it from a copy, or delete it to fit again (later stages are "
            "then computed again)"
        ) from None


def pin(store: LocalStore, stage: str, recipe: str, files: Mapping[str, bytes], reason: str) -> Fit:
    """Store the files of a fit and make it the current one. The same files are the same fit."""
    fit = Fit(stage, _hash(files), reason)
    for name, data in files.items():
        # Replaced even where it is there, so that fitting again mends a damaged fit.
        store.put(f"{fit.folder}/{name}", data, replace=True)
    write_pointer(store, f"pins/{stage}/{recipe}.json", fit)
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


def _hash(files: Mapping[str, bytes]) -> str:
    digest = xxhash.xxh3_128()
    for name in sorted(files):
        digest.update(f"{name}\0{len(files[name])}\0".encode())
        digest.update(files[name])
    return digest.hexdigest()
