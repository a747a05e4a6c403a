"""shallow_embeddings: per document the pooled rows of the base model's token table, L2-normalised.

Per document fragment: `vectors` float32 (rows, D); a document without tokens has a zero vector.
"""

from __future__ import annotations

import os

import numpy as np

from dagster_divorder.pipeline.base_model import load_base_model
from dagster_divorder.pipeline.fragments import fill
from dagster_divorder.pipeline.raw_docs import load_view
from dagster_divorder.pipeline.run import Run, content_hash
from dagster_divorder.pipeline.token_counts import token_files
from dagster_divorder.store.arrays import unpack
from dagster_divorder.store.receipts import Receipt
from dagster_divorder.store.stages import StageFiles
from dagster_divorder.store.view import Fragment


def run(run: Run) -> Receipt:
    from dagster_divorder.core.pool import pool, token_weights

    raw_docs, view, model = run.receipt("raw_docs"), load_view(run), load_base_model(run)
    tokens = token_files(run)
    pooling = run.settings.embedding.pooling
    weights = token_weights(model.document_frequency, model.documents, pooling)
    key = content_hash(
        run.settings.recipe("shallow_embeddings"),
        tokens.key,
        model.info["table"],
        content_hash(weights.tolist()),
    )
    files = StageFiles(run.store, "shallow_embeddings", key)
    token_file = tokens.present()
    table = None

    def embed(fragment: Fragment) -> dict[str, np.ndarray]:
        nonlocal table
        if table is None:
            table = model.table()
        ids = unpack(run.store.unseal(token_file[fragment.name]))
        return {"vectors": pool(ids["ids"], ids["lengths"], table, weights, threads=os.cpu_count() or 1)}

    delta = fill(run, files, view, embed, "pooling")
    return Receipt(
        stage="shallow_embeddings",
        recipe=run.settings.recipe("shallow_embeddings"),
        key=key,
        version=content_hash(key, raw_docs.version),
        uses={
            "raw_docs": raw_docs.version,
            "base_model": model.fit.hash,
            "token_counts": run.receipt("token_counts").version,
        },
        report={**delta.report(), "pooling": pooling, "dim": model.info["dim"]},
    )


def vector_files(run: Run) -> StageFiles:
    """Vectors by document fragment."""
    return StageFiles(run.store, "shallow_embeddings", run.receipt("shallow_embeddings").key)
