"""Which records there are and how often, whatever their order: their number, their bytes, and the sum of their ids.

The sum is of 128-bit ids modulo 2^128, so it can be taken block by block, in any order, and from the ids alone. Equal
multisets have equal sums; that two others do by accident has a chance of 2^-128. (Who can choose records freely can
make sums collide: this is no signature. The manifest's sha256 are.)
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import orjson

from dagster_divorder.store.arrays import unpack
from dagster_divorder.store.fragments import read_content, records_folder
from dagster_divorder.store.ids import hash_all, words
from dagster_divorder.store.inputs import BLOCK_BYTES, read_batches
from dagster_divorder.store.local import LocalStore
from dagster_divorder.store.records import row_ids
from dagster_divorder.store.view import View

_HALF = np.uint64(0xFFFFFFFF)


@dataclass(frozen=True, slots=True)
class Multiset:
    """records: how many; ids: the sum of their ids; bytes: of the lines with their ends, 0 for rows of Parquet."""

    records: int = 0
    ids: int = 0
    bytes: int = 0

    def __add__(self, other: Multiset) -> Multiset:
        return Multiset(
            self.records + other.records, (self.ids + other.ids) % (1 << 128), self.bytes + other.bytes
        )


def sum_of_ids(ids: np.ndarray, times: np.ndarray) -> int:
    """Sum of uint64 (n, 2) ids, each int64 (n,) times, modulo 2^128; up to 2^32 ids in all."""
    times = times.astype(np.uint64)
    high, low = ids[:, 0], ids[:, 1]
    shift = np.uint64(32)
    # Halves of words, so that no sum overflows.
    parts = (high >> shift, high & _HALF, low >> shift, low & _HALF)
    return sum(
        int((part * times).sum()) << place for part, place in zip(parts, (96, 64, 32, 0), strict=True)
    ) % (1 << 128)


def _of_values(values: list[bytes], size: int, times: np.ndarray | None = None) -> Multiset:
    times = np.ones(len(values), np.int64) if times is None else times
    return Multiset(int(times.sum()), sum_of_ids(words(hash_all(values)), times), size)


def stored(store: LocalStore, view: View, key: str) -> Multiset:
    """The records of a view, each as often as it is in the input, from the index of their fragments under `key`.

    The content is not read: a record's id is the hash of its bytes.
    """
    present = store.sealed(f"{records_folder(key)}/index")
    found = Multiset()
    for times, name in _times(view):
        index = unpack(store.unseal(present[name]))
        size = int(((index["size"] + 1) * times).sum()) if view.kind == "jsonl" else 0
        found += Multiset(int(times.sum()), sum_of_ids(index["id"], times), size)
    return found


def stored_as_json(store: LocalStore, view: View) -> Multiset:
    """The Parquet rows of a view as the JSON lines that an output of them holds; their content is read."""
    found = Multiset()
    for (times, _), fragment in zip(_times(view), view.records, strict=True):
        first = 0
        for chunk in read_content(store, fragment.file).chunks:
            lines = [orjson.dumps(row, default=str) for row in chunk.to_pylist()]
            counts = times[first : first + len(lines)]
            sizes = np.fromiter(map(len, lines), np.int64, len(lines)) + 1
            found += _of_values(lines, int((sizes * counts).sum()), counts)
            first += len(lines)
    return found


def _times(view: View) -> Iterator[tuple[np.ndarray, str]]:
    """How often each record of a fragment is in the input, int64 (rows,), and the fragment's name."""
    times = np.bincount(view.record_row, minlength=sum(fragment.rows for fragment in view.records))
    first = 0
    for fragment in view.records:
        yield times[first : first + fragment.rows], fragment.name
        first += fragment.rows


def written(files: Iterable[Path]) -> Multiset:
    """The records of JSONL and Parquet files as an output holds them: a line ends with a line feed, and nothing else.

    Raises:
        OSError, InputError: a file cannot be read.
    """
    found = Multiset()
    for path in files:
        for part in _rows_of(path) if path.suffix == ".parquet" else _lines_of(path):
            found += part
    return found


def _rows_of(path: Path) -> Iterator[Multiset]:
    for rows in read_batches(path, None):
        if rows.num_rows:
            ids = words(row_ids(rows))
            yield Multiset(rows.num_rows, sum_of_ids(ids, np.ones(len(ids), np.int64)))


def _lines_of(path: Path) -> Iterator[Multiset]:
    rest = b""
    with open(path, "rb", buffering=0) as file:
        while block := file.read(BLOCK_BYTES):
            *lines, rest = (rest + block).split(b"\n")
            yield _of_values(lines, sum(map(len, lines)) + len(lines))
    if rest:
        yield _of_values([rest], len(rest))
