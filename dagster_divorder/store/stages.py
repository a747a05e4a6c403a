"""The stage cache: one file per (stage, key, fragment). Present: reuse. Absent: compute."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeAlias

import numpy as np
import pyarrow as pa

from dagster_divorder.errors import MissingStageError
from dagster_divorder.store.arrays import pack, pack_table, row_array, unpack, unpack_some, unpack_table
from dagster_divorder.store.base import Store
from dagster_divorder.store.view import Fragment, by_fragment, spans


@dataclass(frozen=True, slots=True)
class StageFiles:
    """Results of one stage under one key. Methods that read fragments raise MissingStageError if one has no result.

    known: files from an earlier listing, so that workers need not list them.
    """

    store: Store
    stage: str
    key: str
    known: dict[str, str] | None = field(default=None, compare=False, repr=False)

    @property
    def folder(self) -> str:
        return f"stages/{self.stage}/{self.key}"

    def present(self) -> dict[str, str]:
        """Fragment name -> file."""
        return self.store.hashed(self.folder) if self.known is None else self.known

    def listed(self) -> StageFiles:
        """The same results, with a listing of the current files."""
        return replace(self, known=dict(self.present()))

    def put(self, fragment: str, result: Result) -> str:
        """Store a fragment's result."""
        if isinstance(result, pa.Table):
            return self.store.put_hashed(self.folder, fragment, pack_table(result), "arrow")
        data = pack(result, f"{self.folder}/{fragment}")
        return self.store.put_hashed(self.folder, fragment, data, "safetensors")

    def get(self, file: str) -> Result:
        """The result in a file."""
        data = self.store.read_verified(file)
        return unpack_table(data) if file.endswith(".arrow") else unpack(data)

    def read(self, fragment: Fragment) -> dict[str, np.ndarray]:
        """The result of a fragment."""
        ((_, arrays),) = self.each([fragment])
        return arrays

    def each(self, fragments: Sequence[Fragment]) -> Iterator[tuple[slice, dict[str, np.ndarray]]]:
        """Yields (a fragment's records among all, its result), in the order given."""
        for rows, (fragment, file) in zip(spans(fragments), self._files(fragments), strict=True):
            arrays = unpack(self.store.read_verified(file))
            yield rows, arrays if fragment.picks is None else take_rows(arrays, fragment.picks)

    def at(
        self, fragments: Sequence[Fragment], records: np.ndarray
    ) -> Iterator[tuple[np.ndarray, np.ndarray, dict[str, np.ndarray]]]:
        """Yields (places in `records`, their rows in the fragment, its result) for each fragment that holds such
        records, see `by_fragment`."""
        files = self.listed()
        for number, places, inside in by_fragment(fragments, records):
            yield places, inside, files.read(fragments[number])

    def tables(self, fragments: Sequence[Fragment]) -> Iterator[pa.Table]:
        """Yields each fragment's result as a table, in the order given."""
        return (unpack_table(self.store.read_verified(file)) for _, file in self._files(fragments))

    def _files(self, fragments: Sequence[Fragment]) -> Iterator[tuple[Fragment, str]]:
        present = self.present()
        for fragment in fragments:
            if fragment.name not in present:
                raise MissingStageError(
                    f"{self.stage} has no result for fragment {fragment.name}; materialise {self.stage} first"
                )
            yield fragment, present[fragment.name]

    def column(self, fragments: Sequence[Fragment], name: str) -> np.ndarray:
        """One array over the records of all fragments."""
        return self.columns(fragments, name)[0]

    def columns(self, fragments: Sequence[Fragment], *names: str) -> list[np.ndarray]:
        """Several arrays over all fragments. One pass reads only these arrays."""
        parts = [self._read(file, names) for _, file in self._files(fragments)]
        return [np.concatenate(column) for column in zip(*parts, strict=True)]

    def mapped(self, fragments: Sequence[Fragment], name: str) -> Iterator[np.ndarray]:
        """Yields one array of each fragment, in the order given. Arrays are memory-mapped, so that the system can free
        the memory."""
        return (self._read(file, [name], mapped=True)[0] for _, file in self._files(fragments))

    def _read(self, name: str, columns: Sequence[str], *, mapped: bool = False) -> list[np.ndarray]:
        with self.store.reading(name, mapped=mapped) as file:
            return unpack_some(file, columns, name.rsplit(".", 2)[0])


Result: TypeAlias = Mapping[str, np.ndarray] | pa.Table
"""The result of one fragment: arrays with a row for each record of the fragment, or a table."""
RAGGED = {"ids": "lengths"} | dict.fromkeys(("span_first", "span_last", "span_kind"), "spans")
"""For arrays of results with several items a row: the array with the number of items."""


def take(result: Result, rows: np.ndarray) -> Result:
    """The given rows of a result, int64 (n,)."""
    return result.take(row_array(rows)) if isinstance(result, pa.Table) else take_rows(result, rows)


def take_rows(arrays: Mapping[str, np.ndarray], rows: np.ndarray) -> dict[str, np.ndarray]:
    """The given rows of a stage's result; arrays in RAGGED have several items a row."""
    taken = {}
    for name, array in arrays.items():
        if name not in RAGGED:
            taken[name] = array[rows]
            continue
        counts = arrays[RAGGED[name]].astype(np.int64)
        begins, count = np.cumsum(counts) - counts, counts[rows]
        shift = begins[rows] - (np.cumsum(count) - count)
        taken[name] = array[np.repeat(shift, count) + np.arange(count.sum())]
    return taken


def joined(results: Sequence[Result]) -> Result:
    """Results of one stage, end to end."""
    if isinstance(results[0], pa.Table):
        return pa.concat_tables(results, promote_options="permissive")
    return {name: np.concatenate([result[name] for result in results]) for name in results[0]}
