"""Difficulty of documents, for `order.traits`: bits a token, by how often each token has followed the one before it.

Per document fragment: `bits` float64 (rows,), NaN for a document without tokens. The counts are a pinned fit, of a
sample of the documents, so appended documents change no other's difficulty, until hardly any of the documents that it
was made on are left. They are of token ids alone, so every base model has them.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dagster_divorder.core.difficulty import Counts, bits_a_token
from dagster_divorder.pipeline.base_model import load_base_model
from dagster_divorder.pipeline.fragments import fill
from dagster_divorder.pipeline.refresh import corpus_sketch, reason_of_another_corpus, sketch_file
from dagster_divorder.pipeline.run import Run, content_hash
from dagster_divorder.pipeline.sample import MAX_DOCUMENTS, document_index, rows_by_id
from dagster_divorder.pipeline.token_counts import token_files
from dagster_divorder.store.arrays import pack, unpack
from dagster_divorder.store.fits import Fit, pin, pinned, read_fit
from dagster_divorder.store.fragments import DOCUMENTS
from dagster_divorder.store.stages import StageFiles
from dagster_divorder.store.view import Fragment, View, offsets

CODE_VERSION = 1
STAGE = "difficulty"
COUNTS = "counts.safetensors"

SAMPLE_TOKENS = 1 << 24
"""Counted at most: four for each bucket of pairs."""

CLIP_TOKENS = 1 << 14
"""A document is counted with at most this many tokens, so that no book crowds out the rest."""


@dataclass(frozen=True, slots=True)
class Difficulty:
    """`bits` float64 (document rows,), NaN for a document without tokens; `folder` of the results in the store."""

    bits: np.ndarray
    fit: Fit
    folder: str


def measure_difficulty(run: Run, view: View) -> Difficulty:
    """Difficulty of every document of the view, computed where it is not there yet."""
    fit = _fit(run, view)
    tokens = token_files(run)
    files = StageFiles(run.store, STAGE, content_hash(CODE_VERSION, tokens.key, fit.hash))
    token_file, index = tokens.present(), run.store.sealed(f"{DOCUMENTS}/index")
    arrays = unpack(read_fit(run.store, fit)[COUNTS])
    counts = Counts(arrays["tokens"].copy(), arrays["pairs"].copy())

    def measure(fragment: Fragment) -> dict[str, np.ndarray]:
        held = unpack(run.store.unseal(token_file[fragment.name]))
        ids = unpack(run.store.unseal(index[fragment.name]))["id"][:, 0]
        counted = np.where(np.isin(ids, arrays["documents"]), np.minimum(held["lengths"], CLIP_TOKENS), 0)
        return {"bits": bits_a_token(held["ids"], held["lengths"], counted, counts)}

    fill(run, files, view, measure, "measuring difficulty")
    return Difficulty(files.column(view.documents, "bits"), fit, files.folder)


def _fit(run: Run, view: View) -> Fit:
    """The pinned counts, made of the corpus where there are none, or where they are another corpus's."""
    recipe = content_hash(CODE_VERSION, run.receipt("token_counts").key)
    fit = pinned(run.store, STAGE, recipe)
    reason = (
        reason_of_another_corpus(run, view, fit, "greedy_order") if fit else "first run with this tokenizer"
    )
    if reason:
        run.progress.note(f"counting what follows each token ({reason})")
        files = {COUNTS: pack(_count(run, view)), **sketch_file(corpus_sketch(run, view))}
        fit = pin(run.store, STAGE, recipe, files, reason)
    assert fit is not None
    return fit


def _count(run: Run, view: View) -> dict[str, np.ndarray]:
    """tokens int64 (V,) and pairs int32 (H,) as in `core.difficulty`; documents uint64 (n,), rising: the first half of
    the ids of those counted."""
    tokens = token_files(run)
    ids, _ = document_index(run.store, view)
    lengths = np.minimum(tokens.column(view.documents, "lengths"), CLIP_TOKENS)
    rows = rows_by_id(ids, view)[:MAX_DOCUMENTS]
    rows = rows[: max(1, int(np.searchsorted(np.cumsum(lengths[rows]), SAMPLE_TOKENS, side="right")))]
    counted = np.zeros_like(lengths)
    counted[rows] = lengths[rows]
    counts, start = Counts.none(load_base_model(run).info["vocabulary"]), offsets(view.documents)
    for at, (_, held) in enumerate(tokens.each(view.documents)):
        counts.add(held["ids"], held["lengths"], counted[start[at] : start[at + 1]])
    return {"tokens": counts.tokens, "pairs": counts.pairs, "documents": ids[rows, 0]}
