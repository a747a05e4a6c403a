"""Vectors as they are clustered: the results of a stage of vectors, seen as they are or along principal components.

Letters: N accepted records, n rows, D dims of the space.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import IO

import numpy as np

from dagster_divorder.core.pca import Pca, project
from dagster_divorder.engine.local import count_workers
from dagster_divorder.store.base import Store
from dagster_divorder.store.receipts import Receipt
from dagster_divorder.store.stages import StageFiles
from dagster_divorder.store.view import Fragment, View, offsets

RESULTS = "results"


@dataclass(frozen=True, slots=True)
class Space:
    """Vectors as they are clustered.

    `files` hold them; `centre`: take away what all documents share before clustering (components have done so);
    `components`: None where vectors are taken as they are.
    """

    files: StageFiles
    centre: bool
    components: Pca | None = None

    def listed(self) -> Space:
        """The same, for workers (`StageFiles.listed`)."""
        return replace(self, files=self.files.listed())

    def read(self, fragment: Fragment) -> np.ndarray:
        """Vectors float32 (rows, D) of a fragment."""
        return self.transform(self.files.read(fragment)["vectors"])

    def each(self, fragments: Sequence[Fragment]) -> Iterator[tuple[Fragment, np.ndarray]]:
        """Vectors float32 (rows, D) fragment by fragment, in the order given."""
        for fragment, arrays in self.files.each(fragments):
            yield fragment, self.transform(arrays["vectors"])

    def transform(self, stored: np.ndarray) -> np.ndarray:
        """Vectors float32 (n, D) of this space, of vectors as the stage stores them."""
        vectors = stored.astype(np.float32, copy=False)
        return project(vectors, self.components, threads=count_workers(0)) if self.components else vectors

    def dims(self, view: View) -> int:
        return int(next(self.each(view.documents[:1]))[1].shape[1])

    def rows(self, view: View, rows: np.ndarray) -> np.ndarray:
        """Vectors of some document rows, float32 (n, D), in the order of `rows`."""
        start = offsets(view.documents)
        by_row = np.argsort(rows)
        ordered = rows[by_row]
        cuts = np.searchsorted(ordered, start)
        # Of no row at all the first fragment still tells the dims.
        wanted = np.flatnonzero(np.diff(cuts)).tolist() or [0]
        parts = np.empty((0, 0), dtype=np.float32)
        fragments = [view.documents[at] for at in wanted]
        for at, (_, arrays) in zip(wanted, self.files.each(fragments), strict=True):
            low, high = cuts[at : at + 2]
            vectors = self.transform(arrays["vectors"][ordered[low:high] - start[at]])
            if not parts.size:
                parts = np.empty((len(rows), vectors.shape[1]), dtype=np.float32)
            parts[by_row[low:high]] = vectors
        return parts


def embeddings_file(receipt: Receipt) -> str:
    """Name in the store of the vectors gathered into one file."""
    return f"{RESULTS}/{_kind(receipt)}-{receipt.version}.npy"


def _kind(receipt: Receipt) -> str:
    return "gradients" if receipt.stage == "gradient_embeddings" else "embeddings"


def map_vectors(store: Store, view: View, receipt: Receipt) -> np.ndarray:
    """Vectors of the accepted records in input order, as stored, (N, D), memory-mapped read-only.

    `receipt` is that of a stage of vectors. The first call writes them to one file in the store, fragment by fragment;
    later ones map it. Who calls this holds the store's lease, or knows that the file is there.
    """
    name = embeddings_file(receipt)
    if not store.exists(name):
        files = StageFiles(store, receipt.stage, receipt.key)
        for old in store.list(RESULTS):
            if re.fullmatch(rf"{RESULTS}/{_kind(receipt)}-[0-9a-f]{{32}}\.npy", old):
                store.delete(old)
        store.put(name, lambda file: _write_vectors(file, view, files))
    return np.load(store.local(name), mmap_mode="r", allow_pickle=False)


def _write_vectors(file: IO[bytes], view: View, files: StageFiles) -> None:
    """A .npy file of the vectors of the records, each run of neighbours where it belongs."""
    records = np.argsort(view.document_row, kind="stable")
    cuts = np.searchsorted(view.document_row, offsets(view.documents), sorter=records)
    begin = 0
    for at, (_, arrays) in enumerate(files.each(view.documents)):
        vectors = arrays["vectors"]
        if not at:
            about = {
                "descr": vectors.dtype.str,
                "fortran_order": False,
                "shape": (len(view), vectors.shape[1]),
            }
            np.lib.format.write_array_header_1_0(file, about)
            begin = file.tell()
        of = np.sort(records[cuts[at] : cuts[at + 1]])
        rows = view.document_row[of] - offsets(view.documents)[at]
        for run in np.split(np.arange(len(of)), np.flatnonzero(np.diff(of) != 1) + 1):
            file.seek(begin + int(of[run[0]]) * vectors[0].nbytes)
            file.write(vectors[rows[run]].tobytes())
