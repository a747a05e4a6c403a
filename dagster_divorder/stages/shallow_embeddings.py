"""shallow_embeddings: per document the pooled rows of the base model's token table, L2-normalised.

Per document fragment: `vectors` float32 (rows, D); a document without tokens has a zero vector.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from dagster_divorder.engine.local import count_workers
from dagster_divorder.pipeline.run import Run
from dagster_divorder.pipeline.stage import PerDocument, content_hash
from dagster_divorder.stages.base_model import load_base_model
from dagster_divorder.store.view import Fragment


def _weights(run: Run) -> np.ndarray:
    from dagster_divorder.core.pool import token_weights

    model = load_base_model(run)
    return token_weights(model.document_frequency, model.documents, run.settings.embedding.pooling)


def _inputs(run: Run) -> dict[str, Any]:
    return {
        "tokens": run.receipt("token_counts").key,
        "table": run.receipt("base_model").facts["table"],
        "weights": content_hash(_weights(run).tolist()),
    }


def _compute(run: Run, fragments: Sequence[Fragment]) -> Iterator[dict[str, np.ndarray]]:
    from dagster_divorder.core.pool import pool

    table, weights, threads = load_base_model(run).table(), _weights(run), count_workers(0)
    for _, tokens in run.files("token_counts").each(fragments):
        yield {"vectors": pool(tokens["ids"], tokens["lengths"], table, weights, threads=threads)}


SHALLOW_EMBEDDINGS = PerDocument(
    name="shallow_embeddings",
    version=1,
    group="embedding",
    kinds=lambda settings: {"numpy"},
    description="One vector per document: the pooled rows of the base model's token table, so that texts on similar "
    "topics lie close.",
    reads=lambda settings: ("raw_docs", "token_counts", "base_model"),
    settings=lambda settings: {"pooling": settings.embedding.pooling},
    inputs=_inputs,
    doing="pooling",
    compute=_compute,
    figures=lambda run, files: {
        "pooling": run.settings.embedding.pooling,
        "dim": run.receipt("base_model").facts["dim"],
    },
)
