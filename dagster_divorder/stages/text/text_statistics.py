"""text_statistics: how far the text of each document compresses, and how varied its words are (`curriculum.score`).

Per document fragment: `compression` and `lexical_diversity` float64 (rows,) of a document's words
(`store.fragments.read_words`), NaN if it has too few; see `core.text.statistics`.
"""

from __future__ import annotations

from functools import partial

import numpy as np

from dagster_divorder.pipeline.stage import PerDocument
from dagster_divorder.stages.corpus.fields import computed_score
from dagster_divorder.store.base import Store
from dagster_divorder.store.fragments import read_words
from dagster_divorder.store.view import Fragment


def describe(store: Store, fragment: Fragment) -> dict[str, np.ndarray]:
    """The statistics of the documents of a fragment."""
    from dagster_divorder.core.text.statistics import compression_ratio, lexical_diversity

    parts = read_words(store, fragment.file).chunks
    return {
        "compression": np.concatenate([compression_ratio(part) for part in parts]),
        "lexical_diversity": np.concatenate([lexical_diversity(part) for part in parts]),
    }


TEXT_STATISTICS = PerDocument(
    name="text_statistics",
    version=1,
    asset=False,
    description="How far the text of each document compresses, and how varied its words are.",
    reads=("raw_docs",),
    when=lambda settings: computed_score(settings) in ("compression", "lexical_diversity"),
    doing="measuring texts",
    compute=lambda run: partial(describe, run.store),
)
