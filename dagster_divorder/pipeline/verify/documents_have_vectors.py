"""documents_have_vectors: what is clustered says something of the documents: few vectors are zero, or stand in for one
that was not finite."""

from __future__ import annotations

import numpy as np

from dagster_divorder.pipeline.raw_docs import load_view
from dagster_divorder.pipeline.run import Run
from dagster_divorder.pipeline.space import chosen_vectors
from dagster_divorder.pipeline.verify import Finding
from dagster_divorder.store.stages import StageFiles
from dagster_divorder.store.view import offsets

MOST = 0.01


def look(run: Run) -> Finding:
    view, vectors = load_view(run), chosen_vectors(run)
    used, start = view.used_documents(), offsets(view.documents)
    stored = StageFiles(run.store, vectors.stage, vectors.key).each(view.documents)
    zero = sum(
        int((used[start[at] : start[at + 1]] & ~arrays["vectors"].any(axis=1)).sum())
        for at, (_, arrays) in enumerate(stored)
    )
    # Those of deep_embeddings that have their fragment's mean.
    flagged = vectors.report.get("flagged_documents", 0)
    documents = int(np.count_nonzero(used))
    share = (zero + flagged) / documents
    return Finding(
        passed=share <= MOST,
        text=f"Of {documents:,} documents {zero:,} have a zero vector and {flagged:,} had none that is finite, "
        f"{share:.2%}; at most {MOST:.0%} should.",
        remedy=f"look at what {vectors.stage} was made with: documents without tokens have zero vectors, a model with "
        'damaged weights or too narrow a type (deep.dtype; "float32" is the widest) has vectors that are not finite',
        figures={"zero": zero, "not_finite": flagged, "share": share},
    )
