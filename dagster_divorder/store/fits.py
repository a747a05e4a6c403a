"""Fits: what is learnt from the corpus, stored under its content hash and pinned by a pointer.

Appended data uses the pinned fit. A pointer belongs to a stage and its key, so changed settings make a fit of their
own, and changing them back finds the old one again.

Each pin has a record beside the receipts, so that one that is lost is not taken for one that never was: another fit
would change the results of all data, so none is made unasked.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import xxhash

from dagster_divorder.errors import DamagedFileError, StoreError
from dagster_divorder.store.base import Store
from dagster_divorder.store.pointers import read_pointer, write_pointer
from dagster_divorder.store.receipts import HISTORY_FOLDER

PINS = "pins"
RECORDS = f"{HISTORY_FOLDER}/{PINS}"


@dataclass(frozen=True, slots=True)
class Fit:
    """A pinned fit: the hash of its files, and why it was made."""

    stage: str
    hash: str
    reason: str

    @property
    def folder(self) -> str:
        return f"fits/{self.stage}/{self.hash}"


def pinned(store: Store, stage: str, key: str, *, refit: bool = False, name: str | None = None) -> Fit | None:
    """The current fit of a stage under a key, None if there has been none yet. With `refit`, when another one is asked
    for, also None where the one that there was is lost. `name` is the one by which `--refit` asks for another fit.

    Raises:
        StoreError: the pin is damaged, or there has been one.
    """
    pin, record = (f"{folder}/{stage}/{key}.json" for folder in (PINS, RECORDS))
    try:
        fit = read_pin(store, pin, name)
        if fit is None and store.exists(record):
            raise StoreError(
                f"pin {store.where(pin)} is missing, and the results of this store rest on the fit that it named; "
                f"copy {store.where(record)} there to go on with that fit, or {_again(store, stage, name)}"
            )
        if fit and refit:
            read_fit(store, fit, name)
    except StoreError:
        if not refit:
            raise
        return None
    return fit


def read_pin(store: Store, pin: str, name: str | None = None) -> Fit | None:
    """The fit that a pin, a file of the store, leads to; None if there is no such pin."""
    _, stage, file = pin.split("/")
    try:
        fit = read_pointer(store, pin, Fit)
    except DamagedFileError:
        fit = Fit("", "", "")
    if fit and fit.stage != stage:
        raise StoreError(
            f"pin {store.where(pin)} is damaged; copy {store.where(f'{RECORDS}/{stage}/{file}')} there to go on "
            f"with the fit that it named, or {_again(store, stage, name)}"
        )
    return fit


def pin(store: Store, stage: str, key: str, files: Mapping[str, bytes], reason: str) -> Fit:
    """Store the files of a fit and make it the current one. The same files are the same fit."""
    fit = Fit(stage, _hash(files), reason)
    store.delete(*(name for name in store.list(fit.folder) if name.rsplit("/", 1)[1] not in files))
    for name, data in files.items():
        # Replaced even where it is there, so that fitting again mends a damaged fit.
        store.put(f"{fit.folder}/{name}", data, replace=True)
    for folder in (PINS, RECORDS):
        write_pointer(store, f"{folder}/{stage}/{key}.json", fit)
    return fit


def unpin(store: Store, stage: str, key: str) -> None:
    """Remove a pin, and its fit where no other pin names that."""
    fit = read_pin(store, f"{PINS}/{stage}/{key}.json")
    for folder in (RECORDS, PINS):
        store.delete(f"{folder}/{stage}/{key}.json")
    if fit:
        drop_unpinned(store, fit)


def complete_records(store: Store) -> None:
    """Write the records that a killed `pin` had no time for. For who holds the lease."""
    for name in (pin for folder in store.folders(PINS) for pin in store.list(folder)):
        record = f"{HISTORY_FOLDER}/{name}"
        if not store.exists(record):
            store.put(record, store.read(name))


def drop_unpinned(store: Store, fit: Fit) -> bool:
    """Remove the files of a fit that no pin names; False, and nothing is removed, where one does."""
    others = [read_pin(store, name) for name in store.list(f"{PINS}/{fit.stage}")]
    if fit.hash in {other.hash for other in others if other}:
        return False
    store.delete(*store.list(fit.folder))
    return True


def read_fit(store: Store, fit: Fit, name: str | None = None) -> dict[str, bytes]:
    """The files of a fit.

    Raises:
        StoreError: a file is missing or altered. Fitting again would change later results, so it is not done unasked.
    """
    files = {file.rsplit("/", 1)[1]: store.read(file) for file in store.list(fit.folder)}
    found = _hash(files)
    if found != fit.hash:
        state = f"damaged: its files hash to {found}" if files else "missing"
        raise StoreError(
            f"fit {store.where(fit.folder)} is {state}; restore it from a copy, or {_again(store, fit.stage, name)}"
        )
    return files


def _again(store: Store, stage: str, name: str | None) -> str:
    """How to ask for another fit, in words."""
    if name:
        how = f"divorder run --refit {name}"
    else:
        how = f"delete {store.where(f'{PINS}/{stage}')} and {store.where(f'{RECORDS}/{stage}')}"
    return f"{how} to fit again (later stages are then computed again)"


def model_path(store: Store, model: Fit | Path) -> Path:
    """Folder of a model's files on this machine, for libraries that read folders: of a fit, or where the user has
    it."""
    return store.local(model.folder) if isinstance(model, Fit) else model


def _hash(files: Mapping[str, bytes]) -> str:
    digest = xxhash.xxh3_128()
    for name in sorted(files):
        digest.update(f"{name}\0{len(files[name])}\0".encode())
        digest.update(files[name])
    return digest.hexdigest()
