"""difficulty: bits a token of each document, from how often each token follows the one before it (`order.traits`).

Per document fragment: `bits` float64 (rows,), NaN for a document without tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

import numpy as np

from dagster_divorder.core.text.difficulty import Counts, bits_a_token
from dagster_divorder.pipeline.run import Run
from dagster_divorder.pipeline.stage import PerDocument
from dagster_divorder.stages.text.difficulty_counts import CLIP_TOKENS, COUNTS
from dagster_divorder.store.arrays import unpack
from dagster_divorder.store.fragments import DOCUMENTS
from dagster_divorder.store.stages import StageFiles
from dagster_divorder.store.view import Fragment


def measure(
    files: StageFiles, index: Mapping[str, str], counts: Counts, documents: np.ndarray, fragment: Fragment
) -> dict[str, np.ndarray]:
    """The bits a token of the documents of a fragment. files: tokens. index: fragment -> its file of ids. documents:
    uint64 (n,), first halves of the ids of the documents in `counts`."""
    tokens = files.read(fragment)
    ids = unpack(files.store.read_verified(index[fragment.name]))["id"][:, 0]
    counted = np.where(np.isin(ids, documents), np.minimum(tokens["lengths"], CLIP_TOKENS), 0)
    # `bits_a_token` modifies the counts.
    counts = Counts(counts.tokens.copy(), counts.pairs.copy())
    return {"bits": bits_a_token(tokens["ids"], tokens["lengths"], counted, counts)}


def _score_difficulty(run: Run) -> Callable[[Fragment], dict[str, np.ndarray]]:
    index, arrays = run.store.hashed(f"{DOCUMENTS}/index"), unpack(run.fit("difficulty_counts")[COUNTS])
    counts = Counts(arrays["tokens"], arrays["pairs"])
    return partial(measure, run.files("token_counts").listed(), dict(index), counts, arrays["documents"])


DIFFICULTY = PerDocument(
    name="difficulty",
    version=1,
    asset=False,
    description="How hard the tokens of each document are to predict.",
    reads=("raw_docs", "token_counts", "difficulty_counts"),
    doing="measuring difficulty",
    compute=_score_difficulty,
)
