"""What is measured on the corpus as a whole and kept while the corpus stays much the same: k_calibration and
ari_comparison. A measure is a pinned fit with a sketch of the documents it was made on."""

from __future__ import annotations

import numpy as np

from dagster_divorder.core.sketch import changed_share, sketch
from dagster_divorder.pipeline.run import Run
from dagster_divorder.pipeline.sample import document_index
from dagster_divorder.store.arrays import pack, unpack
from dagster_divorder.store.fits import Fit, read_fit
from dagster_divorder.store.view import View

SKETCH = "documents.safetensors"


def corpus_sketch(run: Run, view: View) -> np.ndarray:
    """Sketch of the used documents, uint64 (m,), see `core.sketch`."""
    ids, _ = document_index(run.store, view)
    return sketch(ids[view.used_documents(), 0])


def sketch_file(documents: np.ndarray) -> dict[str, bytes]:
    """The file of a fit that says which documents it was measured on."""
    return {SKETCH: pack({"ids": documents})}


def reason_to_measure(run: Run, fit: Fit | None, documents: np.ndarray, refresh: float) -> str | None:
    """Why a measure has to be taken (again), None where it has not: more than `refresh` of the documents, given as a
    sketch, have changed since."""
    if fit is None:
        return "first run with these settings and vectors"
    share = changed_share(unpack(read_fit(run.store, fit)[SKETCH])["ids"], documents)
    return f"{share:.0%} of the documents have changed since" if share > refresh else None
