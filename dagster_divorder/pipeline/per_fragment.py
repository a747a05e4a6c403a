"""Computes and stores results of fragments where the engine runs them: in this process, a worker or another machine.

Only the names of the results come back. A name has the hash of the result's bytes, so a fragment is stored once even if
it is computed twice, for example because a worker died before it reported.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np
import pyarrow as pa

from dagster_divorder.engine.base import Needs
from dagster_divorder.engine.progress import Advance
from dagster_divorder.errors import DiskFullError
from dagster_divorder.store.arrays import pack_table
from dagster_divorder.store.base import Store
from dagster_divorder.store.stages import StageFiles
from dagster_divorder.store.view import Fragment

if TYPE_CHECKING:
    from dagster_divorder.pipeline.run import Run

WORKER_BYTES = 128 << 20
"""Stored (compressed) text for each worker. A worker starts in a second and reaches full speed after another second,
when gigatoken has learnt the corpus's words; then it tokenises some 40 MB of stored text a second."""

Result: TypeAlias = "Mapping[str, np.ndarray] | pa.Table"
"""The result of one fragment: arrays with a row for each row of the fragment, or a table."""

Computed: TypeAlias = "Result | tuple[Result, Any]"
"""A result, alone or with a value that tells the stage how it was computed."""


class StoredFragment(NamedTuple):
    """A fragment whose result is stored. rows: their number. about: what `compute` tells the stage besides the
    result."""

    rows: int
    about: Any


@dataclass(frozen=True, slots=True)
class ComputeAndStore:
    """Computes the result of a fragment and stores it under the stage's key. Picklable if `compute` is."""

    store: Store
    stage: str
    key: str
    compute: Callable[..., Computed]

    def __call__(self, fragment: Fragment, **tells: Advance) -> StoredFragment:
        """tells: `advance` if `compute` takes it.

        Raises:
            DiskFullError: with `row_bytes`, the bytes that a row takes.
        """
        computed = self.compute(fragment, **tells)
        result, about = computed if isinstance(computed, tuple) else (computed, None)
        files = StageFiles(self.store, self.stage, self.key)
        table = isinstance(result, pa.Table)
        try:
            if table:
                self.store.put_hashed(files.folder, fragment.name, pack_table(result), "arrow")
            else:
                files.put(fragment.name, result)
        except DiskFullError as error:
            size = result.nbytes if table else sum(array.nbytes for array in result.values())
            error.row_bytes = size / fragment.rows
            raise
        return StoredFragment(fragment.rows, about)


def by_size(run: Run, fragments: Sequence[Fragment]) -> Needs:
    """One worker for each WORKER_BYTES of stored content."""
    stored = run.store.stats(fragments[0].file.rpartition("/")[0])
    size = sum(stored[fragment.file].size for fragment in fragments if fragment.file in stored)
    return {"workers": size // WORKER_BYTES}


def threaded_by_size(run: Run, fragments: Sequence[Fragment]) -> Needs:
    """As `by_size`, for a function that uses several threads."""
    return {**by_size(run, fragments), "threads": 0}
