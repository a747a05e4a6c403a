"""shallow_embeddings: the pooled rows of the base model's token table for each document, L2-normalised.

Per document fragment: `vectors` float32 (rows, D); a document without tokens has a zero vector.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np

from dagster_divorder.engine.local import count_workers
from dagster_divorder.pipeline.per_fragment import by_size
from dagster_divorder.pipeline.run import Run
from dagster_divorder.pipeline.stage import PerDocument
from dagster_divorder.stages.text.base_model import load_base_model
from dagster_divorder.store.stages import StageFiles
from dagster_divorder.store.view import Fragment


def pool_tokens(
    files: StageFiles, table: np.ndarray, weights: np.ndarray, fragment: Fragment
) -> dict[str, np.ndarray]:
    """The pooled vectors of a fragment's documents: rows of `table`, float32 (V, D), weighted by `weights`, float32 (at
    most V,)."""
    from dagster_divorder.core.vectors.pool import pool

    tokens, threads = files.read(fragment), count_workers(0)
    return {"vectors": pool(tokens["ids"], tokens["lengths"], table, weights, threads=threads)}


def _embed_by_token_table(run: Run) -> Callable[[Fragment], dict[str, np.ndarray]]:
    from dagster_divorder.core.vectors.pool import token_weights

    model = load_base_model(run)
    weights = token_weights(model.document_frequency, model.documents, run.settings.embedding.pooling)
    return partial(pool_tokens, run.files("token_counts").listed(), model.table(), weights)


SHALLOW_EMBEDDINGS = PerDocument(
    name="shallow_embeddings",
    version=1,
    description="One vector a document: the mean of its tokens' vectors in the base model, weighted by "
    "`embedding.pooling`. Texts of similar words lie close together.",
    reads=("raw_docs", "token_counts", "base_model"),
    settings=("embedding.pooling",),
    doing="pooling",
    compute=_embed_by_token_table,
    needs=lambda run, works: {**by_size(run, works), "threads": 0},
    figures=lambda run, files: {
        "pooling": run.settings.embedding.pooling,
        "dim": run.receipt("base_model").facts["dim"],
    },
)
