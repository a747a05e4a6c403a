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
    candidates = _candidates(run, view, file, last)
    with Spool(file, run.store.root) as spool:
        found = _scan(run, view, file, candidates[0] if candidates else _nothing_known(view), spool)
        fit, key, reason = _known_as(run, view, file, found, candidates)
        files = StageFiles(run.store, STAGE, key)
        present, start = files.present(), offsets(view.documents)
        rows_of = {
            fragment.name: slice(start[at], start[at + 1])
            for at, fragment in enumerate(view.documents)
            if fragment.name not in present
        }
        wanted = np.concatenate([found.row[:0], *(found.row[rows] for rows in rows_of.values())])
        spool.ready(np.unique(wanted[wanted >= 0]))

        def read(fragment: Fragment) -> dict[str, np.ndarray]:
            rows = rows_of[fragment.name]
            return {
                "vectors": _vectors(file, spool, found.row[rows], found.source[rows]),
                "source": found.source[rows],
            }

        delta = fill(run, files, view, read, "storing vectors")
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
            "read": reason,
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
    of the same text.
    """

    row: np.ndarray
    source: np.ndarray
    unmatched: int
    disagreeing: int


@dataclass(frozen=True, slots=True)
class _Known:
    """What is stored under a stage key, by document row: `there` bool, whether its fragment is, and `source` uint64, 0
    where it is not. `fit` pins the key, None where that is another path's."""

    key: str
    dims: int
    there: np.ndarray
    source: np.ndarray
    fit: Fit | None = None


def _nothing_known(view: View) -> _Known:
    return _Known("", 0, np.zeros(view.document_rows, bool), np.zeros(view.document_rows, np.uint64))


def _stored(run: Run, view: View, key: str, dims: int, fit: Fit | None = None) -> _Known:
    known = replace(_nothing_known(view), key=key, dims=dims, fit=fit)
    files, start = StageFiles(run.store, STAGE, key), offsets(view.documents)
    present = files.present()
    for at, fragment in enumerate(view.documents):
        if fragment.name in present:
            rows = slice(start[at], start[at + 1])
            known.there[rows] = True
            known.source[rows] = files.column([fragment], "source")
    return known


def _scan(run: Run, view: View, file: VectorFile, known: _Known, spool: Spool) -> _Found:
    """Read the file once, check what of it is not known, and keep what may have to be stored.

    Raises:
        InputError: NaN or infinity, an id that comes again with another vector, documents without one.
    """
    locate = _locator(run, view, file)
    row = np.full(view.document_rows, -1, np.int64)
    source = np.zeros(view.document_rows, np.uint64)
    copies: list[tuple[np.ndarray, np.ndarray]] = []
    unmatched = 0
    with run.progress("reading vectors", file.rows, "rows") as advance:
        for block in file.blocks():
            hashes = row_hashes(block.vectors)
            document, leads = locate(block.keys, block.first)
            unmatched += int((document < 0).sum())
            unknown = np.flatnonzero((document >= 0) & (known.source[document] != hashes))
            if len(unknown):
                _check_finite(file, block, unknown)
            at = np.flatnonzero(leads)
            of = document[at]
            new = row[of] < 0
            to_store = at[~known.there[of]]
            if len(to_store):
                spool.keep(block.first + to_store, block.vectors[to_store])
            # Of several values for one place the last stays, so this leaves the first.
            row[of[new][::-1]] = (block.first + at[new])[::-1]
            source[of[new][::-1]] = hashes[at[new]][::-1]
            for again in np.flatnonzero(source[of] != hashes[at])[:1]:
                raise InputError(
                    f"{file.path}: rows {row[of[again]]} and {block.first + at[again]} have the same {file.keyed_by} "
                    "and different vectors; expected one vector for each: leave out one of the rows"
                )
            other = np.flatnonzero(~leads & (document >= 0))
            if len(other):
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


Locate = Callable[[np.ndarray, int], tuple[np.ndarray, np.ndarray]]


def _locator(run: Run, view: View, file: VectorFile) -> Locate:
    """A function of the keys of a block and its first row: document row of each, int64 (n,), -1 where the input holds
    no such document; and whether it leads, bool (n,), being the first record of its document."""
    first_record = np.full(view.document_rows, -1, np.int64)
    first_record[view.document_row[::-1]] = np.arange(len(view) - 1, -1, -1)

    def of_records(records: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        document = np.where(records < 0, -1, view.document_row[records])
        return document, (records >= 0) & (first_record[document] == records)

    if file.keyed_by == "row":

        def by_row(keys: np.ndarray, first: int) -> tuple[np.ndarray, np.ndarray]:
            for at in np.flatnonzero((keys < 0) | (keys >= len(view)))[:1]:
                raise InputError(
                    f"{file.path}: 'row' is {keys[at]} in row {first + at}; expected the number of a record, 0 to "
                    f"{len(view) - 1:,}: number the records in input order from 0"
                )
            return of_records(keys)

        return by_row

    index = IdIndex()
    if file.keyed_by == "doc_id":
        index.add(document_index(run.store, view)[0])
        used = view.used_documents()

        def by_document(keys: np.ndarray, first: int) -> tuple[np.ndarray, np.ndarray]:
            document = index.find(keys)
            leads = (document >= 0) & used[document]
            return np.where(leads, document, -1), leads

        return by_document

    present = run.store.sealed(f"{records_folder(run.receipt('raw_docs').key)}/index")
    index.add(np.concatenate([unpack(run.store.unseal(present[part.name]))["id"] for part in view.records]))
    record_at = np.full(index.size, -1, np.int64)
    record_at[view.record_row[::-1]] = np.arange(len(view) - 1, -1, -1)

    def by_record(keys: np.ndarray, first: int) -> tuple[np.ndarray, np.ndarray]:
        stored = index.find(keys)
        return of_records(np.where(stored < 0, -1, record_at[stored]))

    return by_record


def _vectors(file: VectorFile, spool: Spool, rows: np.ndarray, source: np.ndarray) -> np.ndarray:
    """Unit vectors float32 (n, D) of some rows of the file, zero for -1; `source` is their hashes."""
    there = rows >= 0
    taken = spool.take(rows[there])
    if not np.array_equal(row_hashes(taken), source[there]):
        raise InputError(f"{file.path} changed while it was read; run again")
    vectors = np.zeros((len(rows), file.dims), np.float32)
    vectors[there] = unit_rows(taken)
    return vectors


def pinned_key(run: Run) -> str | None:
    """The stage key of the vectors at `embedding.path`, None before they have been read."""
    fit = pinned(run.store, STAGE, run.settings.recipe(STAGE))
    return str(_info(run, fit)["key"]) if fit else None


def _info(run: Run, fit: Fit) -> dict[str, Any]:
    info: dict[str, Any] = orjson.loads(read_fit(run.store, fit)[INFO])
    return info


def _candidates(run: Run, view: View, file: VectorFile, last: Receipt | None) -> list[_Known]:
    """What is stored under the pinned key, and under that of the last run, which may have read a file of another
    name."""
    recipe = run.settings.recipe(STAGE)
    found = []
    if fit := pinned(run.store, STAGE, recipe):
        info = _info(run, fit)
        found.append(_stored(run, view, info["key"], info["dims"], fit))
    same_code = last is not None and last.recipe.partition("-")[0] == recipe.partition("-")[0]
    if last and same_code and last.key not in [known.key for known in found]:
        found.append(_stored(run, view, last.key, last.report["dim"]))
    return found


def _known_as(
    run: Run, view: View, file: VectorFile, found: _Found, candidates: list[_Known]
) -> tuple[Fit, str, str]:
    """The fit, the stage key that it pins, and why it is that one: the pinned key or the last run's, if no document
    that is stored under it has another vector now, else a new one."""
    why = ""
    for known in candidates:
        there = known.there & view.used_documents()
        other = int((there & (known.source != found.source)).sum())
        if known.dims != file.dims:
            why = why or f"the vectors have {file.dims} dims now, not {known.dims}"
        elif known.fit and not other:
            return known.fit, known.key, f"no: pinned ({known.fit.reason})"
        elif there.any() and not other:
            why = "the vectors of the last run"
            return _pin(run, known.key, file.dims, why), known.key, why
        elif known.fit:
            why = f"{other:,} of {int(there.sum()):,} known documents have another vector now"
    content = xxhash.xxh3_128_hexdigest(found.source[view.document_row])
    key = content_hash(STAGE, CODE_VERSIONS[STAGE], file.dims, content)
    why = why or "first run with these vectors"
    return _pin(run, key, file.dims, why), key, why


def _pin(run: Run, key: str, dims: int, reason: str) -> Fit:
    files = {INFO: orjson.dumps({"key": key, "dims": dims})}
    return pin(run.store, STAGE, run.settings.recipe(STAGE), files, reason)
