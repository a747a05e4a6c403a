"""external_embeddings: the vectors of the user's own file (`embedding.path`), L2-normalised, by document.

Per document fragment: `vectors` float32 (rows, D), and `source` uint64 (rows,), a hash of the row of the file that each
came from, 0 where the file had none because no record of the input held the document then.

The stage key names what the file held when it was first read, and is pinned. A file that has grown, was renamed or
moved keeps it, so that only new documents are computed, and nothing is clustered again. Every row is hashed in every
run, unless the input and the file (inode, size, times) are the same; where a known document has another vector there is
a new key.
Records of equal text are one document, which takes the vector of the first of them. A vector of zeros has no
direction; with `embedding.nan_as_zero` one that holds NaN, as of a document that an embedder left out, is read as one.
Cost: the file read once, and rows of new documents again; 70 bytes a document.
Known weakness: vectors that were embedded anew and differ in their last bits are other vectors.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import xxhash

from dagster_divorder.core.unit import unit_rows
from dagster_divorder.errors import InputError
from dagster_divorder.pipeline.fragments import fill
from dagster_divorder.pipeline.raw_docs import load_view
from dagster_divorder.pipeline.run import Run, content_hash
from dagster_divorder.pipeline.sample import document_index
from dagster_divorder.settings import CODE_VERSIONS
from dagster_divorder.store.arrays import unpack
from dagster_divorder.store.fits import Fit, pin, pinned, read_fit
from dagster_divorder.store.fragments import records_folder
from dagster_divorder.store.ids import IdIndex, to_bytes
from dagster_divorder.store.receipts import Receipt, load_receipt
from dagster_divorder.store.stages import StageFiles
from dagster_divorder.store.vectors import Block, NpyVectors, Spool, VectorFile, open_vectors, row_hashes
from dagster_divorder.store.view import Fragment, View, offsets

STAGE = "external_embeddings"
INFO = "vectors.json"


def run(run: Run) -> Receipt:
    raw_docs, view = run.receipt("raw_docs"), load_view(run)
    settings = run.settings
    path = settings.embedding.path
    assert path is not None
    recipe = settings.recipe(STAGE)
    figures = raw_docs.report
    file = open_external(
        path,
        records=len(view),
        documents=figures["documents"],
        refused=figures["rejected_records"],
        rejects=run.store.path(raw_docs.files["rejects"]),
        nan_as_zero=settings.embedding.nan_as_zero,
    )
    read_as = content_hash(_state(path), raw_docs.version)
    last = load_receipt(run.store, STAGE)
    if last and last.recipe == recipe and last.report["read_as"] == read_as and _is_whole(run, view, last):
        again = {
            "new_documents": 0,
            "reused_documents": last.report["documents"],
            "read": "no: it has not changed",
        }
        return replace(last, report={**last.report, **again})
    with Spool(file, run.store.root) as spool:
        found, fit, key = _read(run, view, file, last, spool)
        files, start = StageFiles(run.store, STAGE, key), offsets(view.documents)
        rows_of = {
            fragment.name: slice(start[at], start[at + 1]) for at, fragment in enumerate(view.documents)
        }

        def vectors_of(fragment: Fragment) -> dict[str, np.ndarray]:
            row, source = found.row[rows_of[fragment.name]], found.source[rows_of[fragment.name]]
            taken = spool.take(row[row >= 0])
            if not np.array_equal(row_hashes(taken), source[row >= 0]):
                raise InputError(f"{path} changed while it was read; run again")
            vectors = np.zeros((len(row), file.dims), np.float32)
            vectors[row >= 0] = unit_rows(taken)
            return {"vectors": vectors, "source": source}

        delta = fill(run, files, view, vectors_of, "storing vectors")
    used = view.used_documents()
    zero = row_hashes(np.zeros((1, file.dims), file.dtype))
    return Receipt(
        stage=STAGE,
        recipe=recipe,
        key=key,
        version=content_hash(key, raw_docs.version),
        uses={"raw_docs": raw_docs.version},
        files={"fit": fit.folder},
        report={
            **delta.report(),
            "path": str(path),
            "dim": file.dims,
            "dtype": str(file.dtype),
            "keyed_by": file.keyed_by,
            "rows": file.rows,
            "read": found.reason,
            "rows_of_no_document": found.unmatched,
            "copies_with_other_vectors": found.disagreeing,
            "zero_vectors": int((found.source[used] == zero).sum()),
            "read_as": read_as,
        },
    )


def open_external(
    path: Path, *, records: int, documents: int, refused: int, rejects: Path, nan_as_zero: bool = False
) -> VectorFile:
    """The vectors of an input of so many accepted and refused records; `rejects` is where those are named; nan_as_zero
    as in `open_vectors`.

    Raises:
        InputError: they cannot be read, or there is another number of rows than of records.
    """
    file = open_vectors(path, nan_as_zero=nan_as_zero)
    if not isinstance(file, NpyVectors) or file.rows == records:
        return file
    if file.rows == records + refused:
        remedy = f"leave out the rows of the {refused:,} refused records, whose lines {rejects} names"
    elif file.rows > records:
        remedy = "embed the input as it is now, in its order"
    else:
        remedy = "embed the records that have come, and save all rows in input order"
    raise InputError(
        f"{path} has {file.rows:,} rows; the input has {records:,} records ({documents:,} distinct documents; "
        f"{refused:,} more records were refused); expected a row for each accepted record, in input order: {remedy}, "
        "or write a Parquet file with a column doc_id and a vector"
    )


def _state(path: Path) -> list[int]:
    """What changes with a file. Its time of change is the system's own: no program can set it back."""
    found = path.stat()
    return [found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns]


def _is_whole(run: Run, view: View, last: Receipt) -> bool:
    present = StageFiles(run.store, last.stage, last.key).present()
    return all(fragment.name in present for fragment in view.documents)


@dataclass(frozen=True, slots=True)
class _Found:
    """What a file holds for the documents of a view.

    By document row: `row` int64, the row of the file, -1 where it has none; `source` uint64, that row's hash, 0 where
    it has none. `unmatched`: rows of no document; `disagreeing`: records whose vector is not that of the first record
    of the same text. `reason`: why it was read into the stage key that it has.
    """

    row: np.ndarray
    source: np.ndarray
    unmatched: int
    disagreeing: int
    reason: str = ""


@dataclass(frozen=True, slots=True)
class _Stored:
    """What is stored under a stage key, by document row: `there` bool, whether its fragment is, and `source` uint64, 0
    where it is not. `fit` pins the key, None where that is another path's."""

    key: str
    dims: int
    fit: Fit | None
    there: np.ndarray
    source: np.ndarray


def _stored(run: Run, view: View, key: str, dims: int, fit: Fit | None = None) -> _Stored:
    there, source = np.zeros(view.document_rows, bool), np.zeros(view.document_rows, np.uint64)
    if key:
        files, start = StageFiles(run.store, STAGE, key), offsets(view.documents)
        present = files.present()
        for at, fragment in enumerate(view.documents):
            if fragment.name in present:
                there[start[at] : start[at + 1]] = True
                source[start[at] : start[at + 1]] = files.column([fragment], "source")
    return _Stored(key, dims, fit, there, source)


def _read(
    run: Run, view: View, file: VectorFile, last: Receipt | None, spool: Spool
) -> tuple[_Found, Fit, str]:
    """What the file holds, and the fit that pins its stage key.

    The pinned key, or that of the last run, which may have read a file of another name, if no document that is stored
    under it has another vector now; else a new one, and the file is read again, as all of it has to be stored.
    """
    recipe = run.settings.recipe(STAGE)
    current = pinned(run.store, STAGE, recipe)
    candidates: list[tuple[str, int, Fit | None]] = []
    if current:
        info = _info(run, current)
        candidates.append((info["key"], info["dims"], current))
    same_code = last is not None and last.recipe.partition("-")[0] == recipe.partition("-")[0]
    if last and same_code and last.key not in [key for key, _, _ in candidates]:
        candidates.append((last.key, last.report["dim"], None))
    why = ""
    for key, dims, fit in candidates:
        if dims != file.dims:
            why = why or f"the vectors have {file.dims} dims now, not {dims}"
            continue
        stored = _stored(run, view, key, dims, fit)
        found = _scan(run, view, file, stored, spool)
        there = stored.there & view.used_documents()
        other = int((there & (stored.source != found.source)).sum())
        if fit and not other:
            return replace(found, reason=f"no: pinned ({fit.reason})"), fit, key
        if there.any() and not other:
            why = "the vectors of the last run"
            return replace(found, reason=why), _pin(run, key, file.dims, why), key
        if fit:
            why = f"{other:,} of {int(there.sum()):,} known documents have another vector now"
    why = why or "first run with these vectors"
    found = _scan(run, view, file, _stored(run, view, "", file.dims), spool)
    content = xxhash.xxh3_128_hexdigest(found.source[view.document_row])
    key = content_hash(STAGE, CODE_VERSIONS[STAGE], file.dims, content)
    return replace(found, reason=why), _pin(run, key, file.dims, why), key


def _scan(run: Run, view: View, file: VectorFile, stored: _Stored, spool: Spool) -> _Found:
    """Read the file once, check what of it is not stored, and keep in the spool what has to be.

    Raises:
        InputError: NaN or infinity, an id that comes again with another vector, documents without one.
    """
    first_record = _first_of(view.document_row, view.document_rows)
    record_of = _records(run, view, file, first_record)
    row = np.full(view.document_rows, -1, np.int64)
    source = np.zeros(view.document_rows, np.uint64)
    copies: list[tuple[np.ndarray, np.ndarray]] = []
    unmatched = 0
    spool.clear()
    with run.progress("reading vectors", file.rows, "rows") as advance:
        for block in file.blocks():
            hashes = row_hashes(block.vectors)
            record = record_of(block)
            document = np.where(record < 0, -1, view.document_row[record])
            leads = (document >= 0) & (first_record[document] == record)
            unmatched += int((document < 0).sum())
            _check_finite(file, block, np.flatnonzero((document >= 0) & (stored.source[document] != hashes)))
            at = np.flatnonzero(leads)
            of = document[at]
            to_store = at[~stored.there[of]]
            spool.keep(block.first + to_store, block.vectors[to_store])
            # Of several values for one place the last stays, so this leaves the first.
            new = row[of] < 0
            row[of[new][::-1]] = (block.first + at[new])[::-1]
            source[of[new][::-1]] = hashes[at[new]][::-1]
            for again in np.flatnonzero(source[of] != hashes[at])[:1]:
                raise InputError(
                    f"{file.path}: rows {row[of[again]]} and {block.first + at[again]} have the same {file.keyed_by} "
                    "and different vectors; expected one vector for each: leave out one of the rows"
                )
            other = ~leads & (document >= 0)
            copies.append((document[other], hashes[other]))
            advance(len(hashes))
    lacking = view.used_documents() & (row < 0)
    if lacking.any():
        ids, _ = document_index(run.store, view)
        raise InputError(
            f"{file.path} has no vector for {int(lacking.sum()):,} of {int(view.used_documents().sum()):,} documents, "
            f"the first of them doc_id {to_bytes(ids[lacking][:1]).hex()}; expected one for each: embed them and add "
            "their rows"
        )
    disagreeing = sum(int((source[of] != hashes).sum()) for of, hashes in copies)
    return _Found(row, source, unmatched, disagreeing)


def _check_finite(file: VectorFile, block: Block, rows: np.ndarray) -> None:
    vectors = block.vectors if len(rows) == len(block.vectors) else block.vectors[rows]
    finite = np.isfinite(vectors)
    if not finite.all():
        row, column = (int(place[0]) for place in np.nonzero(~finite))
        raise InputError(
            f"{file.path}: row {block.first + rows[row]} (counted from 0) holds {vectors[row, column]} in column "
            f"{column}; expected finite numbers: embed that document again, or set embedding.nan_as_zero = true, under "
            "which rows with NaN count as zero vectors"
        )


def _first_of(codes: np.ndarray, size: int) -> np.ndarray:
    """Where each code in [0, size) comes first, int64 (size + 1,); -1 for those that do not, and for the code -1."""
    first = np.full(size + 1, -1, np.int64)
    first[codes[::-1]] = np.arange(len(codes) - 1, -1, -1)
    return first


def _records(
    run: Run, view: View, file: VectorFile, first_record: np.ndarray
) -> Callable[[Block], np.ndarray]:
    """A function of a block: input positions int64 (n,) of the records that its rows belong to, -1 where there is none.

    Of a document that is named by `doc_id` it is the first record.
    """
    if file.keyed_by == "row":

        def by_row(block: Block) -> np.ndarray:
            for at in np.flatnonzero((block.keys < 0) | (block.keys >= len(view)))[:1]:
                raise InputError(
                    f"{file.path}: 'row' is {block.keys[at]} in row {block.first + at}; expected the number of a "
                    f"record, 0 to {len(view) - 1:,}: number the records in input order from 0"
                )
            return block.keys

        return by_row

    index = IdIndex()
    if file.keyed_by == "doc_id":
        index.add(document_index(run.store, view)[0])
        position = first_record
    else:
        present = run.store.sealed(f"{records_folder(run.receipt('raw_docs').key)}/index")
        parts = [unpack(run.store.unseal(present[part.name]))["id"] for part in view.records]
        index.add(np.concatenate(parts))
        position = _first_of(view.record_row, index.size)
    return lambda block: position[index.find(block.keys)]


def pinned_key(run: Run) -> str | None:
    """The stage key of the vectors at `embedding.path`, None before they have been read."""
    fit = pinned(run.store, STAGE, run.settings.recipe(STAGE))
    return str(_info(run, fit)["key"]) if fit else None


def _info(run: Run, fit: Fit) -> dict[str, Any]:
    info: dict[str, Any] = orjson.loads(read_fit(run.store, fit)[INFO])
    return info


def _pin(run: Run, key: str, dims: int, reason: str) -> Fit:
    files = {INFO: orjson.dumps({"key": key, "dims": dims})}
    return pin(run.store, STAGE, run.settings.recipe(STAGE), files, reason)
