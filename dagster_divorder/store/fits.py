"""Files of fits, which are learnt from the corpus: each fit has a folder, named by the hash of all its files.

Files keep their own names in it, because libraries read a model's folder. Appended data uses the fit unchanged. A lost
or altered fit is made again only on request, because a new fit would change the results of all data.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import xxhash

from dagster_divorder.errors import StoreError
from dagster_divorder.store.base import Store

FITS = "fits"


def put_fit(store: Store, stage: str, files: Mapping[str, bytes]) -> str:
    """Store the files of a fit; returns its folder. The same files have the same folder."""
    folder = f"{FITS}/{stage}/{_hash(files)}"
    # Fitting again mends a damaged fit.
    damaged = [file for file in store.list(folder) if store.read(file) != files.get(file.rpartition("/")[2])]
    store.delete(*damaged)
    for name, data in files.items():
        store.put(f"{folder}/{name}", data)
    return folder


def read_fit(store: Store, folder: str, name: str | None = None) -> dict[str, bytes]:
    """The files of a fit. name: the fit's name for `--refit`, for the message. Raises StoreError: a file is missing
    or altered."""
    files = {file.rpartition("/")[2]: store.read(file) for file in store.list(folder)}
    stages, _, expected = folder.rpartition("/")
    actual = _hash(files)
    if actual != expected:
        again = f"divorder run --refit {name}" if name else f"delete {store.where(stages)}"
        raise StoreError(
            f"fit {store.where(folder)} is {f'damaged: its files hash to {actual}' if files else 'missing'}; restore "
            f"it from a copy, or {again} to fit again (later stages are then computed again)"
        )
    return files


def model_path(store: Store, model: str | Path) -> Path:
    """Folder of a model's files on this machine, for libraries that read folders. model: the folder of a fit in the
    store, or the user's own path."""
    return store.local(model) if isinstance(model, str) else model


def _hash(files: Mapping[str, bytes]) -> str:
    digest = xxhash.xxh3_128()
    for name in sorted(files):
        digest.update(f"{name}\0{len(files[name])}\0".encode())
        digest.update(files[name])
    return digest.hexdigest()
