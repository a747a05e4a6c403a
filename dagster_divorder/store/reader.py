"""Reads results of stages for runs, notebooks and pages."""

from __future__ import annotations

from typing import Any

import numpy as np

from dagster_divorder.errors import MissingStageError
from dagster_divorder.store.arrays import unpack, unpack_parquet
from dagster_divorder.store.base import Store
from dagster_divorder.store.stages import StageFiles, read_fit
from dagster_divorder.store.state import Receipt, load_receipt
from dagster_divorder.store.view import View


class Reader:
    """Reads the last result of each stage, under any settings. Subclasses choose other results.

    Every method raises MissingStageError if the stage has no result, and DamagedFileError if a file of the result is
    missing or altered.
    """

    __slots__ = ("store",)

    def __init__(self, store: Store) -> None:
        self.store = store

    def receipt(self, stage: str) -> Receipt:
        receipt = load_receipt(self.store, stage)
        if receipt is None:
            raise MissingStageError(
                f"{stage} has no result in {self.store.place}; run the pipeline on this store first"
            )
        return receipt

    @property
    def view(self) -> View:
        """The accepted records, in the fragments that hold them."""
        return View.load(self.store, self.receipt("raw_docs").files["view"])

    def files(self, stage: str) -> StageFiles:
        """The results of a per-document stage."""
        return StageFiles(self.store, stage, self.receipt(stage).key)

    def column(self, stage: str, name: str) -> np.ndarray:
        """An array of a per-document stage, over all rows of the document fragments."""
        return self.files(stage).column(self.view.fragments, name)

    def read(self, stage: str, file: str) -> bytes:
        """A file of a whole-corpus result."""
        return self.store.read_verified(self.receipt(stage).files[file])

    def arrays(self, stage: str, file: str) -> dict[str, np.ndarray]:
        """The arrays of a file of a whole-corpus result."""
        return unpack(self.read(stage, file))

    def rows(self, stage: str, file: str) -> list[dict[str, Any]]:
        """The rows of a file of a whole-corpus result."""
        return unpack_parquet(self.read(stage, file)).to_pylist()

    def fit(self, stage: str) -> dict[str, bytes]:
        """The files of a fit."""
        return read_fit(self.store, self.receipt(stage).files["fit"])
