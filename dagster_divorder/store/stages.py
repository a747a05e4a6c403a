"""The stage cache: one file per (stage, key, fragment). Present: reuse. Absent: compute."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from dagster_divorder.errors import MissingStageError
from dagster_divorder.store.arrays import pack, unpack
from dagster_divorder.store.local import LocalStore
from dagster_divorder.store.view import Fragment


@dataclass(frozen=True, slots=True)
class StageFiles:
    """Results of one stage under one key."""

    store: LocalStore
    stage: str
    key: str

    @property
    def folder(self) -> str:
        return f"stages/{self.stage}/{self.key}"

    def present(self) -> dict[str, str]:
        """Fragment name -> file."""
        return self.store.sealed(self.folder)

    def put(self, fragment: str, arrays: Mapping[str, np.ndarray]) -> None:
        """Store a fragment's result; arrays have one row a row of the fragment, or as the stage says."""
        self.store.seal(self.folder, fragment, pack(arrays), "safetensors")

    def each(self, fragments: Sequence[Fragment]) -> Iterator[tuple[Fragment, dict[str, np.ndarray]]]:
        """Results fragment by fragment, in the order given.

        Raises:
            MissingStageError: a fragment has no result.
        """
        present = self.present()
        for fragment in fragments:
            if fragment.name not in present:
                raise MissingStageError(
                    f"{self.stage} has no result for fragment {fragment.name}; materialise {self.stage} first"
                )
            yield fragment, unpack(self.store.unseal(present[fragment.name]))

    def column(self, fragments: Sequence[Fragment], name: str) -> np.ndarray:
        """One array over all fragments laid end to end."""
        return np.concatenate([arrays[name] for _, arrays in self.each(fragments)])
