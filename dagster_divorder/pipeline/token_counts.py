"""token_counts: every document tokenised once; ids kept, so that pooling, packing and exports never tokenise again.

Per document fragment: `ids` (uint16 or uint32, all documents end to end) and `lengths` int64 (rows,). No special tokens
are added.
"""

from __future__ import annotations

import numpy as np

from dagster_divorder.pipeline.base_model import BaseModel, load_base_model
from dagster_divorder.pipeline.fragments import fill
from dagster_divorder.pipeline.raw_docs import load_view
from dagster_divorder.pipeline.run import Run, content_hash
from dagster_divorder.store.fragments import read_content
from dagster_divorder.store.receipts import Receipt
from dagster_divorder.store.stages import StageFiles
from dagster_divorder.store.view import Fragment


def run(run: Run) -> Receipt:
    raw_docs, view, model = run.receipt("raw_docs"), load_view(run), load_base_model(run)
    key = _key(run, model)
    files = StageFiles(run.store, "token_counts", key)
    encoder = None

    def tokenize(fragment: Fragment) -> dict[str, np.ndarray]:
        nonlocal encoder
        encoder = encoder or model.encoder()
        ids, lengths = encoder.encode(read_content(run.store, fragment.file).to_pylist())
        return {"ids": ids, "lengths": lengths}

    delta = fill(run, files, view, tokenize, "tokenising")
    lengths = files.column(view.documents, "lengths")
    return Receipt(
        stage="token_counts",
        recipe=run.settings.recipe("token_counts"),
        key=key,
        version=content_hash(key, raw_docs.version),
        uses={"raw_docs": raw_docs.version, "base_model": model.fit.hash},
        report={
            **delta.report(),
            "tokens": int(lengths[view.document_row].sum()),
            "longest_document": int(lengths[view.document_row].max()),
            "engine": model.info["engine"],
        },
    )


def _key(run: Run, model: BaseModel) -> str:
    return content_hash(run.settings.recipe("token_counts"), model.info["tokenizer"], model.info["engine"])


def token_files(run: Run) -> StageFiles:
    """Token ids and lengths by document fragment."""
    return StageFiles(run.store, "token_counts", run.receipt("token_counts").key)
