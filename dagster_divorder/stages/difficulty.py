"""difficulty: bits a token of each document, by how often each token has followed the one before it (`order.traits`).

Per document fragment: `bits` float64 (rows,), NaN for a document without tokens.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from dagster_divorder.core.difficulty import Counts, bits_a_token
from dagster_divorder.pipeline.run import Run
from dagster_divorder.pipeline.stage import PerDocument
from dagster_divorder.stages.difficulty_counts import CLIP_TOKENS, COUNTS
from dagster_divorder.store.arrays import unpack
from dagster_divorder.store.fragments import DOCUMENTS
from dagster_divorder.store.view import Fragment


def _compute(run: Run, fragments: Sequence[Fragment]) -> Iterator[dict[str, np.ndarray]]:
    index, arrays = run.store.hashed(f"{DOCUMENTS}/index"), unpack(run.fit("difficulty_counts")[COUNTS])
    counts = Counts(arrays["tokens"].copy(), arrays["pairs"].copy())
    for fragment, tokens in run.files("token_counts").each(fragments):
        ids = unpack(run.store.read_verified(index[fragment.name]))["id"][:, 0]
        counted = np.where(np.isin(ids, arrays["documents"]), np.minimum(tokens["lengths"], CLIP_TOKENS), 0)
        yield {"bits": bits_a_token(tokens["ids"], tokens["lengths"], counted, counts)}


DIFFICULTY = PerDocument(
    name="difficulty",
    version=1,
    asset=False,
    description="How hard the tokens of each document are to predict.",
    reads=lambda settings: ("raw_docs", "token_counts", "difficulty_counts"),
    doing="measuring difficulty",
    compute=_compute,
)
