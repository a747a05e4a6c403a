"""The stage cache: one file per (stage, key, fragment). Present: reuse. Absent: compute."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import pyarrow as pa

from dagster_divorder.errors import DamagedFileError, MissingStageError
from dagster_divorder.store.arrays import MappedFile, pack, unpack, unpack_some, unpack_table
from dagster_divorder.store.base import Store
from dagster_divorder.store.view import Fragment, by_fragment, spans


@dataclass(frozen=True, slots=True)
class StageFiles:
    """Results of one stage under one key."""

    store: Store
    stage: str
    key: str
    known: dict[str, str] | None = field(default=None, compare=False, repr=False)
    """Files from an earlier listing, so that workers need not list them."""

    @property
    def folder(self) -> str:
        return f"stages/{self.stage}/{self.key}"

    def present(self) -> dict[str, str]:
        """Fragment name -> file."""
        return self.store.hashed(self.folder) if self.known is None else self.known

    def listed(self) -> StageFiles:
        """The same results, with a listing of the current files."""
        return replace(self, known=dict(self.present()))

    def put(self, fragment: str, arrays: Mapping[str, np.ndarray]) -> str:
        """Store a fragment's result: arrays with one row for each fragment row, or as the stage defines them."""
        return put_arrays(self.store, self.folder, fragment, arrays)

    def read(self, fragment: Fragment) -> dict[str, np.ndarray]:
        """The result of a fragment.

        Raises:
            MissingStageError: the fragment has no result.
        """
        ((_, arrays),) = self.each([fragment])
        return arrays

    def each(self, fragments: Sequence[Fragment]) -> Iterator[tuple[slice, dict[str, np.ndarray]]]:
        """Yields (a fragment's rows when all are laid end to end, its result), in the order given.

        Raises:
            MissingStageError: a fragment has no result.
        """
        for rows, (_, file) in zip(spans(fragments), self._files(fragments), strict=True):
            yield rows, unpack(self.store.read_verified(file))

    def at(
        self, fragments: Sequence[Fragment], rows: np.ndarray
    ) -> Iterator[tuple[np.ndarray, np.ndarray, dict[str, np.ndarray]]]:
        """Yields (places in `rows`, their rows in the fragment, its result) for each fragment that holds such rows, see
        `by_fragment`.

        Raises:
            MissingStageError: a fragment has no result.
        """
        files = self.listed()
        for number, places, inside in by_fragment(fragments, rows):
            yield places, inside, files.read(fragments[number])

    def tables(self, fragments: Sequence[Fragment]) -> Iterator[pa.Table]:
        """Yields each fragment's result as a table, in the order given.

        Raises:
            MissingStageError: a fragment has no result.
        """
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
        """One array over all fragments laid end to end."""
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
        try:
            with MappedFile(self.store.local(name)) if mapped else self.store.open_file(name) as file:
                return unpack_some(file, columns, name.rsplit(".", 2)[0])
        except (OSError, ValueError) as error:
            raise DamagedFileError(
                f"{self.store.where(name)} is damaged: {error}; delete it and run again", name
            ) from error


def put_arrays(store: Store, folder: str, fragment: str, arrays: Mapping[str, np.ndarray]) -> str:
    """Store a fragment's result in a folder of results."""
    return store.put_hashed(folder, fragment, pack(arrays, f"{folder}/{fragment}"), "safetensors")
