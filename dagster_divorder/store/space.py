"""Vectors for clustering: a vector stage's results.

Letters: N accepted records, n rows, D dims of the space.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import IO

import numpy as np

from dagster_divorder.store.base import Store
from dagster_divorder.store.stages import StageFiles
from dagster_divorder.store.state import Receipt
from dagster_divorder.store.view import Fragment, View

RESULTS = "results"
SAMPLE_BYTES = 1 << 30
"""Most bytes of vectors that a fit reads."""


@dataclass(frozen=True, slots=True)
class Space:
    """Vectors for clustering.

    files: the stored vectors. centre: subtract the mean before clustering.
    """

    files: StageFiles
    centre: bool

    def listed(self) -> Space:
        """The same space for workers (`StageFiles.listed`)."""
        return replace(self, files=self.files.listed())

    def read(self, fragment: Fragment) -> np.ndarray:
        """Vectors float32 (rows, D) of a fragment."""
        return self.files.read(fragment)["vectors"]

    def dims(self, view: View) -> int:
        return int(self.read(view.fragments[0]).shape[1])

    def most_rows(self, view: View, size: int = SAMPLE_BYTES) -> int:
        """Number of vectors that fit in `size` bytes, at least 1."""
        return max(1, size // (4 * self.dims(view)))

    def rows(self, view: View, rows: np.ndarray) -> np.ndarray:
        """Vectors of records, float32 (n, D), in the order of `rows`."""
        if not len(rows):
            return np.empty((0, self.dims(view)), np.float32)
        vectors = np.empty((0, 0), np.float32)
        for places, inside, arrays in self.files.at(view.fragments, rows):
            part = arrays["vectors"][inside]
            if not vectors.size:
                vectors = np.empty((len(rows), part.shape[1]), np.float32)
            vectors[places] = part
        return vectors


def embeddings_file(receipt: Receipt) -> str:
    """Store name of the file with all vectors."""
    kind = "gradients" if receipt.stage == "gradient_embeddings" else "embeddings"
    return f"{RESULTS}/{kind}-{receipt.version}.npy"


def map_vectors(store: Store, view: View, receipt: Receipt) -> np.ndarray:
    """Stored vectors of the accepted records in input order, (N, D), memory-mapped read-only.

    receipt: a vector stage's receipt. The first call writes one file to the store, fragment by fragment; later calls
    map that file. A complete run on a folder, or `divorder prune`, removes it once it is not current.
    """
    name, files = embeddings_file(receipt), StageFiles(store, receipt.stage, receipt.key)

    def write(file: IO[bytes]) -> None:
        for rows, arrays in files.each(view.fragments):
            vectors = arrays["vectors"]
            if not rows.start:
                shape = (len(view), vectors.shape[1])
                header = {"descr": vectors.dtype.str, "fortran_order": False, "shape": shape}
                np.lib.format.write_array_header_1_0(file, header)
            file.write(vectors.tobytes())

    if not store.exists(name):
        store.put(name, write)
    return np.load(store.local(name), mmap_mode="r", allow_pickle=False)
