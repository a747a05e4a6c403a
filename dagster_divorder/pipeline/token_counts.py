"""token_counts: every document tokenised once; ids kept, so that pooling, packing and exports never tokenise again.

Per document fragment: `ids` (uint16 or uint32, all documents end to end) and `lengths` int64 (rows,). No special tokens
are added.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from dagster_divorder.engine.local import count_workers
from dagster_divorder.errors import InputError
from dagster_divorder.models.tokenize import load_encoder
from dagster_divorder.pipeline.base_model import BaseModel, load_base_model
from dagster_divorder.pipeline.fragments import fill
from dagster_divorder.pipeline.raw_docs import load_view
from dagster_divorder.pipeline.run import Run, content_hash
from dagster_divorder.settings import Settings
from dagster_divorder.store.fragments import read_content
from dagster_divorder.store.local import LocalStore
from dagster_divorder.store.receipts import Receipt
from dagster_divorder.store.stages import StageFiles
from dagster_divorder.store.view import Fragment, View

if TYPE_CHECKING:
    from dagster_divorder.models.tokenize import Encoder, Engine

WORKER_BYTES = 128 << 20
"""One worker for this much stored (compressed) text. A worker starts in a second and gets up to speed in another, since
gigatoken learns the corpus's words, and tokenises some 40 MB of stored text a second then."""
SLICE_ROWS = 1024
"""Rows that are Python objects at a time."""


def run(run: Run) -> Receipt:
    raw_docs, view, model = run.receipt("raw_docs"), load_view(run), load_base_model(run)
    key = tokens_key(run.settings, model)
    files = StageFiles(run.store, "token_counts", key)
    tokenize = Tokenize(run.store, str(model.directory), model.info["tokenizer"], model.info["engine"])
    delta = fill(run, files, view, tokenize, "tokenising", workers=_workers(run, files, view))
    lengths = files.column(view.documents, "lengths")
    if not lengths[view.document_row].any():
        raise InputError(
            f"the tokenizer in {model.directory} makes no token of any of the {len(view):,} documents; expected one "
            'that knows their languages: set model.base to another model, or to "bootstrap"'
        )
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


@dataclass(frozen=True, slots=True)
class Tokenize:
    """Tokenises a fragment: `ids` and `lengths` as above; picklable, for worker processes. `tokenizer` is the
    fingerprint of the one in `directory`."""

    store: LocalStore
    directory: str
    tokenizer: str
    engine: Engine

    def __call__(self, fragment: Fragment) -> dict[str, np.ndarray]:
        encoder = _encoder(self.directory, self.tokenizer, self.engine)
        content = read_content(self.store, fragment.file)
        parts = [
            encoder.encode(content.slice(first, SLICE_ROWS).to_pylist())
            for first in range(0, len(content), SLICE_ROWS)
        ]
        ids, lengths = zip(*parts, strict=True)
        return {"ids": np.concatenate(ids), "lengths": np.concatenate(lengths)}


@functools.lru_cache(maxsize=1)
def _encoder(directory: str, tokenizer: str, engine: Engine) -> Encoder:
    """The encoder of a directory while it holds this tokenizer (its fingerprint)."""
    return load_encoder(directory, engine)


def _workers(run: Run, files: StageFiles, view: View) -> int:
    """Processes to tokenise in: one worker a WORKER_BYTES of stored text that is to be tokenised, up to the setting."""
    present = files.present()
    size = sum(
        run.store.path(fragment.file).stat().st_size
        for fragment in view.documents
        if fragment.name not in present
    )
    wanted = size // WORKER_BYTES
    return min(count_workers(run.settings.engine.workers), wanted) if wanted > 1 else 1


def tokens_key(settings: Settings, model: BaseModel) -> str:
    """Stage key of token_counts."""
    return content_hash(settings.recipe("token_counts"), model.info["tokenizer"], model.info["engine"])


def token_files(run: Run) -> StageFiles:
    """Token ids and lengths by document fragment."""
    return StageFiles(run.store, "token_counts", run.receipt("token_counts").key)
