"""external_embeddings: the vectors of the user's own file (`embedding.path`), L2-normalised, by document.

Per document fragment: `vectors` float32 (rows, D), and `source` uint64 (rows,), a hash of the file's row.

The key names the vectors in the file when it was first read; later runs find it by the stored hashes. A file that has
grown, was renamed or moved keeps its key, so only new documents are computed, and nothing is clustered again. If a
known document has another vector, the key is new. Records of equal text are one document, which takes the vector of the
first record. A vector of zeros has no direction.
Cost: every run and plan hashes the file's rows; rows of new documents are read again; 70 bytes a document.
Known weakness: after embedding the same texts again, vectors that differ in their last bits count as other vectors."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import xxhash

from dagster_divorder.core.vectors.unit import unit_rows
from dagster_divorder.corpus.vectors import VectorFile, open_vectors, row_hashes
from dagster_divorder.errors import InputError
from dagster_divorder.pipeline.run import Run
from dagster_divorder.pipeline.stage import PerDocument
from dagster_divorder.stages.topics.components import kinds_of
from dagster_divorder.store.ids import places
from dagster_divorder.store.stages import StageFiles
from dagster_divorder.store.state import load_receipt
from dagster_divorder.store.view import Fragment, spans

STAGE = "external_embeddings"


class _Read(NamedTuple):
    """The user's file as read. source: of each record, the hash of its text's row, uint64. name: of its vectors. why:
    it was read."""

    file: VectorFile
    source: np.ndarray
    name: str
    why: str


def _read(run: Run) -> _Read:
    """The user's file, read once a run."""
    if "read" not in run.memo:
        file = _open(run)
        source = _scan(run, file)
        run.memo["read"] = _Read(file, source, *_name(run, file, source))
    return run.memo["read"]


def _name(run: Run, file: VectorFile, source: np.ndarray) -> tuple[str, str]:
    """(name of the vectors with these hashes, why the file was read): the last run's name if no known document has
    another vector under it; else a hash."""
    why, last = "first run with these vectors", load_receipt(run.store, STAGE)
    if last and "vectors" in last.facts:
        files, fragments = StageFiles(run.store, STAGE, last.key).listed(), run.records.fragments
        kept = [Fragment(name, 0) for name in files.present().keys() & fragments.present().keys()]
        known = np.concatenate([np.empty((0, 2), np.uint64), *fragments.parts(kept, "text")])
        at = places(run.records.text_ids(run.view.fragments), known)
        stored = at >= 0
        if stored.any():
            other = int((files.column(kept, "source")[at[stored]] != source[stored]).sum())
            if not other:
                return last.facts["vectors"], "no: they are stored"
            why = f"{other:,} of {int(stored.sum()):,} known documents have another vector now"
            if last.facts["dim"] != file.dims:
                why = f"the vectors have {file.dims} dims now, not {last.facts['dim']}"
    return xxhash.xxh3_128_hexdigest(source.tobytes()), why


def _open(run: Run) -> VectorFile:
    """
    Raises:
        InputError: the vectors cannot be read, or the numbers of rows and records differ.
    """
    file, raw_docs = open_vectors(run.settings.embedding.path), run.receipt("raw_docs")
    records, refused = raw_docs.facts["records"], raw_docs.facts["rejected_records"]
    if file.rows == records:
        return file
    if file.rows == records + refused:
        rejects = run.store.where(raw_docs.files.get("rejects", "rejects"))
        remedy = f"leave out the rows of the {refused:,} refused records, whose lines {rejects} names"
    elif file.rows > records:
        remedy = "embed the input as it is now, in its order"
    else:
        remedy = "embed the new records, and save all rows in input order"
    raise InputError(
        f"{file.path} has {file.rows:,} rows; the input has {records:,} records "
        f"({raw_docs.facts['texts']:,} distinct texts; {refused:,} more records were refused); expected a row "
        f"for each accepted record, in input order: {remedy}"
    )


def _take(
    file: VectorFile, row: np.ndarray, source: np.ndarray, places: Mapping[str, slice], fragment: Fragment
) -> dict[str, np.ndarray]:
    """The vectors of a fragment's documents. Of each record, `row` int64, the first with its text, and `source`, see
    `_Read`. places: the records of each fragment."""
    whole = places[fragment.name]
    inside = whole if fragment.picks is None else whole.start + fragment.picks
    taken = file.take(row[inside])
    if not np.array_equal(row_hashes(taken), source[inside]):
        raise InputError(f"{file.path} changed while it was read; run again")
    return {"vectors": unit_rows(taken), "source": source[inside]}


def _take_from(run: Run) -> Callable[[Fragment], dict[str, np.ndarray]]:
    fragments, read = run.view.fragments, _read(run)
    inside = dict(zip([fragment.name for fragment in fragments], spans(fragments), strict=True))
    return partial(_take, read.file, run.copies, read.source, inside)


def _scan(run: Run, file: VectorFile) -> np.ndarray:
    """Read the file once: `source` of `_Read`. Raises InputError: a vector holds NaN or infinity."""
    hashes = []
    with run.progress("reading vectors", file.rows, "rows") as advance:
        for first, vectors in file.blocks():
            for bad in np.flatnonzero(~np.isfinite(vectors).all(axis=1))[:1]:
                column = int(np.isfinite(vectors[bad]).argmin())
                raise InputError(
                    f"{file.path}: row {first + bad} (counted from 0) holds {vectors[bad, column]} in column {column}; "
                    "expected finite numbers: embed that document again, or write zeros, which have no direction"
                )
            hashes.append(row_hashes(vectors))
            advance(len(vectors))
    return np.concatenate(hashes)[run.copies]


def _figures(run: Run) -> dict[str, Any]:
    file, _, _, why = _read(run)
    return {
        "path": str(file.path),
        "dim": file.dims,
        "dtype": str(file.dtype),
        "rows": file.rows,
        "read": why,
    }


EXTERNAL_EMBEDDINGS = PerDocument(
    name=STAGE,
    version=3,
    description="One vector a document, from a file of your own (`embedding.path`), checked and L2-normalised.",
    reads=("raw_docs",),
    settings=("embedding.path",),
    when=lambda settings: "external" in (*kinds_of(settings), *settings.embedding.compared),
    doing="storing vectors",
    # A file that is missing, truncated or of another kind is refused before the corpus is read.
    check=lambda run: open_vectors(run.settings.embedding.path),
    decided_by=lambda run: {"dim": _read(run).file.dims, "vectors": _read(run).name},
    compute=_take_from,
    by_text=True,
    needs=lambda run, fragments: {"workers": 1},  # which sees the file
    facts=lambda run: {"dim": _read(run).file.dims, "vectors": _read(run).name},
    figures_now=_figures,
)
