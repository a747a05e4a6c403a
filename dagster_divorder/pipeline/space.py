"""The space that documents are clustered in: which stage's vectors, and how they are seen.

Letters: N accepted records, n rows, D dims of the space.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import IO

import numpy as np

from dagster_divorder.errors import MissingStageError
from dagster_divorder.pipeline.run import Run
from dagster_divorder.store.local import LocalStore
from dagster_divorder.store.receipts import Receipt, load_receipt
from dagster_divorder.store.stages import StageFiles
from dagster_divorder.store.view import Fragment, View, offsets

STAGE_OF = {
    "shallow": "shallow_embeddings",
    "deep": "deep_embeddings",
    "external": "external_embeddings",
}


@dataclass(frozen=True, slots=True)
class Space:
    """Vectors as they are clustered.

    `stage` made them; `version` is that of its result; `centre`: take away what all documents share before clustering.
    """

    stage: str
    files: StageFiles
    version: str
    centre: bool

    @property
    def key(self) -> str:
        """Names what the vectors of a fragment depend on besides the fragment."""
        return self.files.key

    def each(self, fragments: Sequence[Fragment]) -> Iterator[tuple[Fragment, np.ndarray]]:
        """Vectors float32 (rows, D) fragment by fragment, in the order given."""
        for fragment, arrays in self.files.each(fragments):
            yield fragment, arrays["vectors"].astype(np.float32, copy=False)

    def rows(self, view: View, rows: np.ndarray) -> np.ndarray:
        """Vectors of some document rows, float32 (n, D), in the order of `rows`."""
        start = offsets(view.documents)
        parts: np.ndarray | None = None
        by_row = np.argsort(rows)
        ordered = rows[by_row]
        for at, (_, vectors) in enumerate(self.each(view.documents)):
            low, high = np.searchsorted(ordered, start[at : at + 2])
            if parts is None:
                parts = np.empty((len(rows), vectors.shape[1]), dtype=np.float32)
            parts[by_row[low:high]] = vectors[ordered[low:high] - start[at]]
        assert parts is not None
        return parts


def chosen_kind(run: Run) -> str:
    """The kind of vectors that are clustered: `embedding.kind`, or what ari_comparison chose."""
    kind = run.settings.embedding.kind
    return str(run.receipt("ari_comparison").report["chosen"]) if kind == "auto" else kind


def chosen_space(run: Run) -> Space:
    """The space that documents are clustered in.

    Raises:
        MissingStageError: its stage has not run with these settings.
    """
    return load_space(run, chosen_kind(run))


def load_space(run: Run, kind: str) -> Space:
    """The space of a kind of vectors, `shallow`, `deep` or `external`. MissingStageError as in `chosen_space`."""
    receipt = run.receipt(STAGE_OF[kind])
    centre = kind != "shallow" or run.settings.embedding.pooling != "mean"
    return Space(receipt.stage, StageFiles(run.store, receipt.stage, receipt.key), receipt.version, centre)


def receipt_of_vectors(store: LocalStore, clusters: Receipt) -> Receipt:
    """The receipt of the vectors that clusters were made from. MissingStageError where it is gone."""
    for stage in STAGE_OF.values():
        if stage in clusters.uses and (receipt := load_receipt(store, stage)):
            return receipt
    raise MissingStageError(f"the vectors of the clusters in {store.root} are gone; run the pipeline again")


def embeddings_file(receipt: Receipt) -> str:
    """Name in the store of the vectors gathered into one file."""
    return f"results/embeddings-{receipt.version}.npy"


def map_vectors(store: LocalStore, view: View, receipt: Receipt) -> np.ndarray:
    """Vectors of the accepted records in input order, as stored, (N, D), memory-mapped read-only.

    `receipt` is that of a stage of vectors. The first call writes them to one file in the store; later ones map it.
    """
    name = embeddings_file(receipt)
    if not store.exists(name):
        files = StageFiles(store, receipt.stage, receipt.key)

        def write(file: IO[bytes]) -> None:
            stored = files.column(view.documents, "vectors")[view.document_row]
            np.lib.format.write_array(file, stored, allow_pickle=False)

        for old in store.list("results"):
            store.delete(old)
        store.put(name, write)
    return np.load(store.path(name), mmap_mode="r", allow_pickle=False)
