"""Fragments: immutable runs of some thousands of records or documents, named by the hash of their ids.

A fragment is two files. The *content* is an Arrow IPC file of one column, zstd-compressed: `record` (a JSONL line, or a
struct of a Parquet row's columns) or `text`. The *index* is a few words a row (ids, sizes), so that a run knows what is
stored without reading content. The index is written last: a fragment exists once its index does.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from blake3 import blake3

from dagster_divorder.chats.document import all_words
from dagster_divorder.errors import StoreError
from dagster_divorder.store.arrays import pack, unpack
from dagster_divorder.store.base import Store
from dagster_divorder.store.ids import ID_BYTES, to_bytes
from dagster_divorder.store.view import Fragment

DOCUMENTS = "documents"
SHAPE = "shape"
"""Column of the index of record fragments of several inputs: the shape of each record, uint64 (n,)."""
FRAGMENT_ROWS = 8192
FRAGMENT_BYTES = 32 << 20
"""A fragment is full at this many rows or bytes of content, before compression."""

_WRITE = pa.ipc.IpcWriteOptions(compression=pa.Codec("zstd", 1))


def records_folder(key: str) -> str:
    """Folder of the record fragments of a key."""
    return f"records/{key}"


def fragment_name(index: Mapping[str, np.ndarray]) -> str:
    """Name of the fragment with this index."""
    return blake3(to_bytes(row_ids(index))).hexdigest(ID_BYTES)


def row_ids(index: Mapping[str, np.ndarray]) -> np.ndarray:
    """Distinct ids of the rows of an index, uint64 (n, 2): they depend on the shapes where there are some."""
    return of_shape(index["id"], index[SHAPE]) if SHAPE in index else index["id"]


def of_shape(ids: np.ndarray, shape: np.ndarray | int) -> np.ndarray:
    """Ids, uint64 (n, 2), changed by the shapes of their records, uint64 (n,) or one for all; shape 0 changes none."""
    return np.stack([ids[:, 0] ^ np.asarray(shape, np.uint64), ids[:, 1]], axis=1)


@dataclass(frozen=True, slots=True)
class Fragments:
    """The fragments of one folder.

    Row order inside a fragment is fixed; the fragments' own order is the caller's.
    """

    store: Store
    folder: str

    def put(self, content: pa.Array, index: Mapping[str, np.ndarray]) -> str:
        """Write a fragment and return its name. index: of n rows; its `id`, uint64 (n, 2), are the rows' ids."""
        name = fragment_name(index)
        sink = pa.BufferOutputStream()
        table = pa.table({"content": content})
        with pa.ipc.new_file(sink, table.schema, options=_WRITE) as writer:
            writer.write_table(table)
        self.store.put_hashed(self.folder, name, memoryview(sink.getvalue()), "arrow")
        self.store.put_hashed(f"{self.folder}/index", name, pack(index), "safetensors")
        return name

    def delete(self, *names: str) -> None:
        """Remove fragments, indexes first."""
        for folder in (f"{self.folder}/index", self.folder):
            files = self.store.list(folder)
            self.store.delete(*(file for file in files if file.rsplit("/", 1)[1].split(".", 1)[0] in names))

    def indexes(self) -> Iterator[tuple[str, dict[str, np.ndarray]]]:
        """Name and index of every fragment, by name."""
        for name, file in self.store.hashed(f"{self.folder}/index").items():
            yield name, unpack(self.store.read_verified(file))

    def files(self) -> dict[str, str]:
        """Name -> content file of every fragment."""
        return self.store.hashed(self.folder)


def index_parts(
    store: Store, folder: str, fragments: Sequence[Fragment], column: str
) -> Iterator[np.ndarray]:
    """A column of the index of each fragment of a folder: `id`, uint64 (n, 2), or `size` in bytes, int64 (n,)."""
    present = store.hashed(f"{folder}/index")
    return (unpack(store.read_verified(present[fragment.name]))[column] for fragment in fragments)


def index_column(store: Store, folder: str, fragments: Sequence[Fragment], column: str) -> np.ndarray:
    """A column of the index of all fragments laid end to end (see `index_parts`)."""
    rows = sum(fragment.rows for fragment in fragments)
    whole = np.empty((rows, 2), np.uint64) if column == "id" else np.empty(rows, np.int64)
    # Filled part by part: `np.concatenate` would need all parts in memory beside it.
    end = 0
    for part in index_parts(store, folder, fragments, column):
        whole[end : end + len(part)] = part
        end += len(part)
    return whole


def read_words(store: Store, file: str) -> pa.ChunkedArray:
    """The texts of a fragment of documents, in row order, of conversations without roles and control tokens
    (`chats.document.words`).

    Raises:
        StoreError: as `read_content`.
    """
    return all_words(read_content(store, file))


def read_content(store: Store, file: str) -> pa.ChunkedArray:
    """Content of a fragment, in row order.

    Raises:
        StoreError: the file is missing or damaged.
    """
    data = pa.py_buffer(store.read_verified(file))
    try:
        return pa.ipc.open_file(data).read_all().column("content")
    except (pa.ArrowInvalid, KeyError) as error:
        raise StoreError(f"{store.where(file)} is not a fragment of this version: {error}") from error
