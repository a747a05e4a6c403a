"""The model of deep_embeddings: a checkpoint that somebody trained, or the decoder of the bootstrap base model.

The decoder is a pinned fit of its own, made when deep_embeddings first asks for it: appended documents use it as it is,
and it is made again only with the base model that it rests on, another `deep.train_tokens` or another seed.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import orjson

from dagster_divorder.engine.local import count_workers
from dagster_divorder.errors import SettingsError
from dagster_divorder.models.checkpoint import POOLING, TOKENIZER, locate, signature, weight_files
from dagster_divorder.pipeline.base_model import BOOTSTRAP, BaseModel, load_base_model
from dagster_divorder.pipeline.raw_docs import load_view
from dagster_divorder.pipeline.run import Run, content_hash
from dagster_divorder.pipeline.sample import document_index, rows_by_id
from dagster_divorder.pipeline.token_counts import token_files
from dagster_divorder.store.fits import Fit, fit_path, pin, pinned, read_fit
from dagster_divorder.store.receipts import load_receipt
from dagster_divorder.store.view import offsets

if TYPE_CHECKING:
    from dagster_divorder.models.decoder import Pairs

FIT = "deep_model"
VERSION = 1
"""Raised when training gives other bytes for the same corpus."""

INFO = "deep_model.json"

WHOLE_BYTES = 4 << 30
"""Weights up to this size are hashed whole (1 to 4 s); larger ones by size, beginning, end and SAMPLES blocks."""
SAMPLES = 256
BLOCK_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class DeepModel:
    """`directory` holds an ordinary Hugging Face checkpoint; `fingerprint` names its content; `fit` is the pinned fit
    that it lies in, None where somebody else trained it; `info` says how it was trained (`models.decoder.train`), or
    by which files it is known again, and how much of its weights was hashed."""

    directory: Path
    fingerprint: str
    fit: Fit | None
    info: dict[str, Any]


def load_deep_model(run: Run) -> DeepModel:
    """The model that `deep.model` names; the bootstrap's is trained first where it is not there.

    Raises:
        InputError: no checkpoint, or not all of it.
        SettingsError: `deep.model` is `bootstrap` and `model.base` is not.
    """
    name = run.settings.deep_model
    if name != BOOTSTRAP:
        setting = "deep.model" if run.settings.deep.model else "model.base"
        directory = locate(name, weights="all", setting=setting, revision=run.settings.deep_revision)
        # Before anything is read: what changes meanwhile is noticed next time.
        files, last = signature(directory), load_receipt(run.store, "deep_embeddings")
        known = last.report.get("checkpoint") if last else None
        if files and known and known["files"] == files and known["directory"] == str(directory):
            return DeepModel(directory, known["fingerprint"], None, known)
        fingerprint, hashed = checkpoint_fingerprint(directory)
        info = {
            "directory": str(directory),
            "files": files,
            "fingerprint": fingerprint,
            "weights_hashed": hashed,
        }
        return DeepModel(directory, fingerprint, None, info)
    if run.settings.model.base != BOOTSTRAP:
        raise SettingsError(
            f'deep.model is "{BOOTSTRAP}" and model.base is {run.settings.model.base!r}; the bootstrap decoder reads '
            f'the bootstrap token table: set model.base = "{BOOTSTRAP}" too, or leave deep.model out to use model.base'
        )
    base = load_base_model(run)
    recipe = f"{VERSION}-{content_hash(run.settings.deep.train_tokens, run.settings.seed, base.fit.hash)}"
    fit = pinned(run.store, FIT, recipe)
    if fit is None:
        # The token table, beside which the decoder's own weights are small.
        size = 4 * len(base.document_frequency) * base.info["dim"]
        with run.store.scratch(size, "the decoder") as folder:
            trained = _train(run, base, folder)
        fit = pin(run.store, FIT, recipe, trained, "first run with these settings and base model")
    info = orjson.loads(read_fit(run.store, fit)[INFO])
    return DeepModel(fit_path(run.store, fit), fit.hash, fit, info)


def checkpoint_fingerprint(directory: Path) -> tuple[str, str]:
    """xxh3-128, in hex, of what decides a model's hidden states and their pooling, and how much of the weights was
    read: `whole`, or `samples` above WHOLE_BYTES (training changes every block of a file, whatever its size)."""
    from xxhash import xxh3_128

    weights = weight_files(directory)
    whole = sum(path.stat().st_size for path in weights) <= WHOLE_BYTES
    state = xxh3_128()
    for name in ("config.json", TOKENIZER, POOLING):
        path = directory / name
        state.update(name.encode())
        state.update(path.read_bytes() if path.is_file() else b"")
    for path in weights:
        size = path.stat().st_size
        state.update(f"{path.name} {size} ".encode())
        blocks = -(-size // BLOCK_BYTES)
        chosen = (
            range(blocks) if whole else np.unique(np.linspace(0, blocks - 1, SAMPLES).astype(int)).tolist()
        )
        with path.open("rb") as file:
            for block in chosen:
                file.seek(block * BLOCK_BYTES)
                state.update(file.read(BLOCK_BYTES))
    return state.hexdigest(), "whole" if whole else "samples"


def _train(run: Run, base: BaseModel, folder: Path) -> dict[str, bytes]:
    from dagster_divorder.core.pool import token_weights
    from dagster_divorder.models.decoder import train

    pairs, ids = _pairs(run)
    weights = token_weights(base.document_frequency, base.documents, "idf")
    run.progress.note(f"training the bootstrap decoder on {len(ids):,} tokens")
    with run.progress("training", len(ids), "tokens") as advance:
        info = train(
            base.directory,
            folder,
            weights,
            pairs,
            ids,
            seed=run.settings.seed,
            threads=count_workers(run.settings.engine.workers),
            advance=advance,
        )
    files = {path.name: path.read_bytes() for path in sorted(folder.iterdir())}
    return {**files, INFO: orjson.dumps(info)}


def _pairs(run: Run) -> tuple[Pairs, np.ndarray]:
    """What to train on, out of the documents of the lowest ids, and its tokens as `Pairs.span_starts` lays them out."""
    from dagster_divorder.models.decoder import plan

    view, tokens = load_view(run), token_files(run)
    document_ids, _ = document_index(run.store, view)
    rows = rows_by_id(document_ids, view)
    lengths = tokens.column(view.documents, "lengths")
    pairs = plan(lengths[rows], run.settings.deep.train_tokens, seed=run.settings.seed)
    row, length, places = np.repeat(rows[pairs.document], 2), np.repeat(pairs.length, 2), pairs.span_starts
    by_row, start = np.argsort(row, kind="stable"), offsets(view.documents)
    cuts = np.searchsorted(row[by_row], start)
    read = [at for at in range(len(view.documents)) if cuts[at] < cuts[at + 1]]
    ids = np.zeros(0, np.uint16)
    for at, (_, stored) in zip(read, tokens.each([view.documents[at] for at in read]), strict=True):
        if not len(ids):
            ids = np.empty(places[-1], stored["ids"].dtype)
        spans = by_row[cuts[at] : cuts[at + 1]]
        document_starts = np.cumsum(stored["lengths"]) - stored["lengths"]
        begins = document_starts[row[spans] - start[at]] + pairs.begin.ravel()[spans]
        ids[_ranges(places[spans], length[spans])] = stored["ids"][_ranges(begins, length[spans])]
    return pairs, ids


def _ranges(starts: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """Whole numbers from each start on, as many as its length, end to end."""
    before = np.cumsum(lengths) - lengths
    return np.arange(lengths.sum()) + np.repeat(starts - before, lengths)
