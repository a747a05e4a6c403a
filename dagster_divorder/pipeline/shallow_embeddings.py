"""shallow_embeddings: per document the pooled rows of the base model's token table, L2-normalised.

Per document fragment: `vectors` float32 (rows, D); a document without tokens has a zero vector.
"""

from __future__ import annotations

import numpy as np

from dagster_divorder.engine.local import count_workers
from dagster_divorder.pipeline.base_model import BaseModel, load_base_model
from dagster_divorder.pipeline.fragments import fill
from dagster_divorder.pipeline.raw_docs import load_view
from dagster_divorder.pipeline.run import Run, content_hash
from dagster_divorder.pipeline.token_counts import token_files
from dagster_divorder.settings import Settings
from dagster_divorder.store.arrays import unpack
from dagster_divorder.store.receipts import Receipt
from dagster_divorder.store.stages import StageFiles
from dagster_divorder.store.view import Fragment


def run(run: Run) -> Receipt:
    from dagster_divorder.core.pool import pool

    raw_docs, view, model = run.receipt("raw_docs"), load_view(run), load_base_model(run)
    tokens = token_files(run)
    weights = _weights(run.settings, model)
    key = vectors_key(run.settings, model, tokens.key)
    files = StageFiles(run.store, "shallow_embeddings", key)
    token_file = tokens.present()
    table = None

    def embed(fragment: Fragment) -> dict[str, np.ndarray]:
        nonlocal table
        if table is None:
            table = model.table()
        ids = unpack(run.store.unseal(token_file[fragment.name]))
        return {"vectors": pool(ids["ids"], ids["lengths"], table, weights, threads=count_workers(0))}

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
        report={**delta.report(), "pooling": run.settings.embedding.pooling, "dim": model.info["dim"]},
    )


def _weights(settings: Settings, model: BaseModel) -> np.ndarray:
    from dagster_divorder.core.pool import token_weights

    return token_weights(model.document_frequency, model.documents, settings.embedding.pooling)


def vectors_key(settings: Settings, model: BaseModel, tokens_key: str) -> str:
    """Stage key of shallow_embeddings."""
    return content_hash(
        settings.recipe("shallow_embeddings"),
        tokens_key,
        model.info["table"],
        content_hash(_weights(settings, model).tolist()),
    )
