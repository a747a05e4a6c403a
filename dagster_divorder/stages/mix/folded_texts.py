"""folded_texts: ids of documents that are equal for texts which differ in nothing but case and white space.

Per fragment: `folded` uint64 (rows, 2), of the words of `core.mix.heldout.folded`.
"""

from __future__ import annotations

from functools import partial

import numpy as np
import pyarrow as pa

from dagster_divorder.chats.document import all_words
from dagster_divorder.core.mix.heldout import folded
from dagster_divorder.corpus.stored import Records
from dagster_divorder.pipeline.stage import PerDocument
from dagster_divorder.store.ids import hash_all, words
from dagster_divorder.store.view import Fragment


def folded_ids(texts: pa.ChunkedArray) -> np.ndarray:
    """Ids of the folded words of texts, uint64 (n, 2)."""
    parts = (part.to_pylist() for part in all_words(texts).chunks)
    return words(b"".join(hash_all([folded(text).encode() for text in part]) for part in parts))


def fold(records: Records, fragment: Fragment) -> dict[str, np.ndarray]:
    """The ids of a fragment's documents."""
    return {"folded": folded_ids(pa.chunked_array([records.texts(fragment)]))}


FOLDED_TEXTS = PerDocument(
    name="folded_texts",
    version=1,
    asset=False,
    description="Ids of texts without regard to case and white space.",
    reads=("raw_docs",),
    doing="folding texts",
    compute=lambda run: partial(fold, run.records),
)
