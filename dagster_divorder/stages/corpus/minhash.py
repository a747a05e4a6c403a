"""minhash: a MinHash signature of every document, for finding near copies.

Per document fragment: `signature` uint32 (rows, SLOTS), a function of the text alone (core/text/minhash.py).
"""

from __future__ import annotations

from functools import partial

import numpy as np

from dagster_divorder.pipeline.stage import PerDocument
from dagster_divorder.store.base import Store
from dagster_divorder.store.fragments import read_words
from dagster_divorder.store.view import Fragment


def sign(store: Store, fragment: Fragment) -> dict[str, np.ndarray]:
    """The signatures of the documents of a fragment."""
    from dagster_divorder.core.text.minhash import signatures

    texts = read_words(store, fragment.file)
    return {"signature": np.concatenate([signatures(part) for part in texts.chunks])}


MINHASH = PerDocument(
    name="minhash",
    version=2,
    asset=False,
    description="A signature of every document, for finding near copies.",
    reads=("raw_docs",),
    doing="signing documents",
    compute=lambda run: partial(sign, run.store),
)
