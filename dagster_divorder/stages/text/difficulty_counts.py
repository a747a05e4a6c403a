"""difficulty_counts: counts how often each token follows another, in a sample of the documents.

The counts need only token ids, so they work with every base model. The fit is pinned, so appended documents do not
change the difficulty of others.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from dagster_divorder.core.text.difficulty import Counts
from dagster_divorder.engine.progress import counted
from dagster_divorder.pipeline.drift import another_corpus
from dagster_divorder.pipeline.run import Run
from dagster_divorder.pipeline.stage import PinnedFit
from dagster_divorder.stages.mix.heldout import fit_inputs, fit_reads, fit_rows
from dagster_divorder.store.arrays import pack
from dagster_divorder.store.sample import MAX_DOCUMENTS, document_ids

COUNTS = "counts.safetensors"

SAMPLE_TOKENS = 1 << 24
"""Most tokens that are counted: four for each bucket of pairs."""

CLIP_TOKENS = 1 << 14
"""Most tokens of one document that are counted, so that no book crowds out the rest."""


def _count_token_pairs(run: Run) -> Mapping[str, bytes]:
    """tokens int64 (V,) and pairs int32 (H,) as in `core.text.difficulty`; documents uint64 (n,), rising: first halves
    of the ids of the counted documents."""
    view, tokens = run.view, run.files("token_counts")
    lengths = np.minimum(tokens.column(view.documents, "lengths"), CLIP_TOKENS)
    rows = fit_rows(run, "difficulty_counts", MAX_DOCUMENTS)
    rows = rows[: max(1, int(np.searchsorted(np.cumsum(lengths[rows]), SAMPLE_TOKENS, side="right")))]
    taken = np.zeros_like(lengths)
    taken[rows] = lengths[rows]
    counts = Counts.none(run.receipt("base_model").facts["vocabulary"])
    each = tokens.each(view.documents)
    for part, stored in counted(run.progress, "counting", each, len(view.documents), "fragments"):
        counts.add(stored["ids"], stored["lengths"], taken[part])
    ids = document_ids(run.store, view)[rows, 0]
    return {COUNTS: pack({"tokens": counts.tokens, "pairs": counts.pairs, "documents": ids})}


DIFFICULTY_COUNTS = PinnedFit(
    name="difficulty_counts",
    version=1,
    asset=False,
    description="How often each token follows another.",
    reads=lambda settings: (
        *("raw_docs", "base_model", "token_counts"),
        *fit_reads(settings, "difficulty_counts"),
    ),
    inputs=lambda run: {
        "tokens": run.receipt("token_counts").key,
        **fit_inputs(run, "difficulty_counts"),
    },
    doing="counting what follows each token",
    compute=_count_token_pairs,
    refit="bins",
    drift=another_corpus,
)
