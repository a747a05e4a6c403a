"""Per-document stages: compute each fragment that has no result under the stage's key, reuse the others."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from dagster_divorder.engine.local import each
from dagster_divorder.errors import DiskFullError
from dagster_divorder.pipeline.run import Run
from dagster_divorder.store.local import megabytes
from dagster_divorder.store.stages import StageFiles
from dagster_divorder.store.view import Fragment, View, offsets

Compute = Callable[[Fragment], dict[str, np.ndarray]]
Keep = Callable[[dict[str, np.ndarray]], dict[str, np.ndarray]]


@dataclass(frozen=True, slots=True)
class Delta:
    """Distinct documents of the view whose result was there, and those computed now."""

    new: np.ndarray
    """bool (document rows,): computed now."""
    new_documents: int
    reused_documents: int

    def report(self) -> dict[str, int]:
        """The figures every per-document stage shows."""
        return {
            "documents": self.new_documents + self.reused_documents,
            "new_documents": self.new_documents,
            "reused_documents": self.reused_documents,
        }


def fill(
    run: Run,
    files: StageFiles,
    view: View,
    compute: Compute,
    what: str,
    *,
    workers: int = 1,
    threads: int = 1,
    keep: Keep = lambda arrays: arrays,
) -> Delta:
    """Make every document fragment of the view have its result; with `workers`, of `threads` each, `compute` is
    pickled. `keep` says what of a result is stored."""
    present = files.present()
    missing = [fragment for fragment in view.documents if fragment.name not in present]
    with run.progress(what, sum(fragment.rows for fragment in missing), "documents") as advance:
        left = sum(fragment.rows for fragment in missing)
        results = each(compute, missing, workers, threads=threads)
        for fragment, arrays in zip(missing, map(keep, results), strict=True):
            try:
                files.put(fragment.name, arrays)
            except DiskFullError as error:
                rest = sum(array.nbytes for array in arrays.values()) * left // fragment.rows
                message = f"{error}; {files.stage} takes about {megabytes(rest)} more in all"
                raise DiskFullError(message) from error
            left -= fragment.rows
            advance(fragment.rows)
    new = np.zeros(view.document_rows, dtype=bool)
    start = offsets(view.documents)
    for at, fragment in enumerate(view.documents):
        if fragment.name not in present:
            new[start[at] : start[at + 1]] = True
    used = view.used_documents()
    new_documents = int((new & used).sum())
    return Delta(new & used, new_documents, int(used.sum()) - new_documents)
