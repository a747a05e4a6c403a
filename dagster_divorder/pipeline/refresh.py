"""How long a fit goes on describing the corpus: by a sketch, kept with it, of the documents that it was made on.

What is measured on the corpus as a whole, k_calibration and ari_comparison, is kept while the corpus stays much the
same. Any other fit is kept as the corpus grows, and no longer belongs to it once hardly any of its documents are left.
"""

from __future__ import annotations

import numpy as np

from dagster_divorder.core.sketch import changed_share, left_share, sketch
from dagster_divorder.pipeline.run import Run
from dagster_divorder.pipeline.sample import document_index
from dagster_divorder.store.arrays import pack, unpack
from dagster_divorder.store.fits import Fit, read_fit
from dagster_divorder.store.receipts import load_receipt
from dagster_divorder.store.view import View

SKETCH = "documents.safetensors"

MIN_SHARE_LEFT = 0.1
"""A corpus that holds less of a fit's documents than this is another corpus."""


def corpus_sketch(run: Run, view: View) -> np.ndarray:
    """Sketch of the used documents, uint64 (m,), see `core.sketch`."""
    return sketch(_used_ids(run, view))


def sketch_file(documents: np.ndarray) -> dict[str, bytes]:
    """The file of a fit that says which documents, given as a sketch, it was made on."""
    return {SKETCH: pack({"ids": documents})}


def documents_left(run: Run, view: View, fit: Fit) -> float:
    """Share of the documents that a fit was made on that the corpus still holds; 1 where the fit does not say."""
    files = read_fit(run.store, fit)
    return left_share(unpack(files[SKETCH])["ids"], _used_ids(run, view)) if SKETCH in files else 1.0


def reason_of_another_corpus(run: Run, view: View, fit: Fit, stage: str) -> str | None:
    """Why a fit no longer belongs to the corpus, None where it does. What `stage` last made of this fit and this corpus
    has answered that already."""
    last = load_receipt(run.store, stage)
    if (
        last
        and last.uses.get("raw_docs") == run.receipt("raw_docs").version
        and fit.folder in last.files.values()
    ):
        return None
    left = documents_left(run, view, fit)
    return f"{left:.0%} of the documents that it was made on are left" if left < MIN_SHARE_LEFT else None


def _used_ids(run: Run, view: View) -> np.ndarray:
    """The first half of the id of every used document, uint64 (N,)."""
    ids, _ = document_index(run.store, view)
    return ids[view.used_documents(), 0]


def reason_to_measure(run: Run, fit: Fit | None, documents: np.ndarray, refresh: float) -> str | None:
    """Why a measure has to be taken (again), None where it has not: more than `refresh` of the documents, given as a
    sketch, have changed since."""
    if fit is None:
        return "first run with these settings and vectors"
    share = changed_share(unpack(read_fit(run.store, fit)[SKETCH])["ids"], documents)
    return f"{share:.0%} of the documents have changed since" if share > refresh else None
