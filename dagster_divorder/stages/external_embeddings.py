"""external_embeddings: the vectors of the user's own file (`embedding.path`), L2-normalised, by document.

Per document fragment: `vectors` float32 (rows, D), and `source` uint64 (rows,), a hash of the row of the file that each
came from, 0 where the file had none because no record of the input held the document then.

The key names what the file held when it was first read, found again by what is stored: a file that has grown, was
renamed or moved has the same, so that only new documents are computed, and nothing is clustered again. Every row is
hashed in every run, unless the input and the file (inode, size, times) are the same; where a known document has
another vector there is a new key.
Records of equal text are one document, which takes the vector of the first of them. A vector of zeros has no
direction; with `embedding.nan_as_zero` one that holds NaN, as of a document that an embedder left out, is read as one.
Cost: the file read once, and rows of new documents again; 70 bytes a document.
Known weakness: vectors that were embedded anew and differ in their last bits are other vectors.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import xxhash

from dagster_divorder.core.unit import unit_rows
from dagster_divorder.errors import InputError
from dagster_divorder.pipeline.run import Run, ToBeMadeError
from dagster_divorder.pipeline.stage import Decision, PerDocument, content_hash
from dagster_divorder.settings import Settings
from dagster_divorder.stages.components import kinds_of
from dagster_divorder.stages.ids import IDS, id_hashes, own_ids
from dagster_divorder.stages.raw_docs import record_index
from dagster_divorder.store.ids import IdIndex, distinct, to_bytes
from dagster_divorder.store.receipts import load_receipt
from dagster_divorder.store.sample import document_index
from dagster_divorder.store.stages import StageFiles
from dagster_divorder.store.vectors import Block, NpyVectors, Spool, VectorFile, open_vectors, row_hashes
from dagster_divorder.store.view import Fragment, View, offsets

STAGE = "external_embeddings"
TENTATIVE = "a known document has another vector in embedding.path"


@dataclass(frozen=True, kw_only=True, eq=False)
class _ExternalEmbeddings(PerDocument):
    """What is stored says which vectors a file holds, so the key is found by reading the file."""

    def key(self, run: Run) -> str:
        file, last = _open(run), load_receipt(run.store, self.name)
        ids = [run.settings.input.id_field] if file.keyed_by == "id" else []
        read_as = content_hash(
            _state(file.path), run.receipt("raw_docs").version, self.fingerprint(run.settings), *ids
        )
        known = last is not None and last.facts["read_as"] == read_as
        if last and (known or (run.planning and not run.has_view)):
            run.memo |= {"read_as": read_as, "facts": last.facts}
            if run.planning or not self.missing(run, last.key):
                run.observed["read"] = "no: it has not changed"
                return last.key
        if "found" not in run.memo:
            # Before the store is written to: while planning there may be neither.
            view = run.view
            spool = Spool(file, run.store.root)
            found, key = _read(run, view, file, last.key if last else "", spool)
            used = view.used_documents()
            zero = row_hashes(np.zeros((1, file.dims), file.dtype))
            facts = {
                "path": str(file.path),
                "dim": file.dims,
                "dtype": str(file.dtype),
                "keyed_by": file.keyed_by,
                "rows": file.rows,
                "read": found.reason,
                "rows_of_no_document": found.unmatched,
                "copies_with_other_vectors": found.disagreeing,
                "zero_vectors": int((found.source[used] == zero).sum()),
            }
            run.memo |= {"read_as": read_as, "facts": facts, "found": found, "spool": spool, "key": key}
        return str(run.memo["key"])

    def decide(self, run: Run) -> Decision:
        decision = super().decide(run)
        return replace(decision, unless=TENTATIVE) if run.planning and not run.has_view else decision


def _open(run: Run) -> VectorFile:
    facts, path = run.receipt("raw_docs").facts, run.settings.embedding.path
    assert path is not None
    files = run.receipt("raw_docs").files
    return open_external(
        path,
        records=facts["records"],
        documents=facts["documents"],
        refused=facts["rejected_records"],
        rejects=run.store.path(files.get("rejects", "rejects")),
        nan_as_zero=run.settings.embedding.nan_as_zero,
        id_field=run.settings.input.id_field,
    )


def _vectors_are_there(run: Run) -> None:
    """A file of vectors that is missing, cut short or of another kind is found before the corpus is read."""
    assert run.settings.embedding.path is not None
    open_vectors(run.settings.embedding.path)


def _compute(run: Run, fragments: Sequence[Fragment]) -> Iterator[dict[str, np.ndarray]]:
    found, view, path = run.memo["found"], run.view, run.settings.embedding.path
    start = dict(zip([part.name for part in view.documents], offsets(view.documents).tolist(), strict=False))
    with run.memo["spool"] as spool:
        for fragment in fragments:
            rows = slice(start[fragment.name], start[fragment.name] + fragment.rows)
            row, source = found.row[rows], found.source[rows]
            taken = spool.take(row[row >= 0])
            if not np.array_equal(row_hashes(taken), source[row >= 0]):
                raise InputError(f"{path} changed while it was read; run again")
            vectors = np.zeros((len(row), taken.shape[1]), np.float32)
            vectors[row >= 0] = unit_rows(taken)
            yield {"vectors": vectors, "source": source}


def open_external(
    path: Path,
    *,
    records: int,
    documents: int,
    refused: int,
    rejects: Path,
    nan_as_zero: bool,
    id_field: str | None,
) -> VectorFile:
    """The vectors of an input of so many accepted and refused records; `rejects` is where those are named; nan_as_zero
    and id_field as in `open_vectors`.

    Raises:
        InputError: they cannot be read, or there is another number of rows than of records.
    """
    file = open_vectors(path, nan_as_zero=nan_as_zero, id_field=id_field)
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
    """What is stored under a key, by document row: `there` bool, whether its fragment is, and `source` uint64, 0 where
    it is not; `dims` of the vectors, None where nothing is."""

    there: np.ndarray
    source: np.ndarray
    dims: int | None


def _stored(run: Run, view: View, key: str) -> _Stored:
    there, source = np.zeros(view.document_rows, bool), np.zeros(view.document_rows, np.uint64)
    files, start, dims = StageFiles(run.store, STAGE, key), offsets(view.documents), None
    present = files.present() if key else {}
    for at, fragment in enumerate(view.documents):
        if fragment.name in present:
            there[start[at] : start[at + 1]] = True
            source[start[at] : start[at + 1]] = files.column([fragment], "source")
            if dims is None:
                ((_, arrays),) = files.each([fragment])
                dims = arrays["vectors"].shape[1]
    return _Stored(there, source, dims)


def _read(run: Run, view: View, file: VectorFile, last: str, spool: Spool) -> tuple[_Found, str]:
    """What the file holds, and its key: one under which no document is stored that has another vector now, that of the
    last run before others, else a new one."""
    folders = [folder.rsplit("/", 1)[1] for folder in run.store.folders(f"stages/{STAGE}")]
    keys = [key for key in dict.fromkeys([last, *folders]) if key in folders and key.startswith(_CODE)]
    stored = _stored(run, view, keys[0] if keys else "")
    found, used = _scan(run, view, file, stored, spool), view.used_documents()
    why = "first run with these vectors"
    for number, key in enumerate(keys):
        of = _stored(run, view, key) if number else stored
        there = of.there & used
        other = int((there & (of.source != found.source)).sum())
        if there.any() and not other and of.dims == file.dims:
            if number:
                found = _scan(run, view, file, of, spool)
            return replace(found, reason="no: they are stored"), key
        if not number and there.any():
            why = f"{other:,} of {int(there.sum()):,} known documents have another vector now"
            if of.dims != file.dims:
                why = f"the vectors have {file.dims} dims now, not {of.dims}"
    if keys:
        found = _scan(run, view, file, _stored(run, view, ""), spool)
    content = xxhash.xxh3_128_hexdigest(found.source[view.document_row])
    return replace(found, reason=why), f"{_CODE}{content_hash(file.dims, content)}"


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
                own = own_ids(run, record[at[[again]]])[0] if file.keyed_by == "id" else None
                raise InputError(
                    f"{file.path}: rows {row[of[again]]} and {block.first + at[again]} have the same {file.keyed_by}"
                    f"{'' if own is None else f' ({own!r})'} and different vectors; expected one vector for each: "
                    "leave out one of the rows"
                )
            other = ~leads & (document >= 0)
            copies.append((document[other], hashes[other]))
            advance(len(hashes))
    lacking = view.used_documents() & (row < 0)
    if lacking.any():
        ids, _ = document_index(run.store, view)
        own = own_ids(run, first_record[:-1][lacking][:1])[0] if file.keyed_by == "id" else None
        shown = f"doc_id {to_bytes(ids[lacking][:1]).hex()}" if own is None else f"id {own!r}"
        raise InputError(
            f"{file.path} has no vector for {int(lacking.sum()):,} of {int(view.used_documents().sum()):,} documents, "
            f"the first of them {shown}; expected one for each: embed them and add their rows"
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
    if file.keyed_by == "id":
        if run.planning and IDS.missing(run, run.receipt("ids").key):
            raise ToBeMadeError("ids")
        records, hashes = id_hashes(run.files("ids"), view)
        once, document = distinct(hashes), view.document_row[records]
        shared = np.flatnonzero(document != document[once.first][once.inverse])
        for at in shared[:1]:
            raise InputError(
                f"{file.path} is joined by {run.settings.input.id_field!r}, and {len(shared):,} records have an id "
                f"that a record of another text has, the first {own_ids(run, records[[at]])[0]!r}; expected ids that "
                "tell texts apart: make them unique, or join by record_id, as load_results(store).documents shows it"
            )
        index.add(hashes[once.first])
        position = np.append(records[once.first], -1)
    elif file.keyed_by == "doc_id":
        index.add(document_index(run.store, view)[0])
        position = first_record
    else:
        index.add(record_index(run, "id"))
        position = _first_of(view.record_row, index.size)
    return lambda block: position[index.find(block.keys)]


def _facts(run: Run) -> dict[str, Any]:
    return {**run.memo["facts"], "read_as": run.memo["read_as"]}


def _figures(run: Run, files: StageFiles) -> dict[str, Any]:
    return {name: value for name, value in run.memo["facts"].items() if name != "read_as"}


def _is_there(settings: Settings) -> bool:
    return "external" in (*kinds_of(settings), *settings.ari_comparison.spaces)


EXTERNAL_EMBEDDINGS = _ExternalEmbeddings(
    name=STAGE,
    version=2,
    group="embedding",
    kinds=lambda settings: {"numpy"},
    description="One vector a document from a file of your own (`embedding.path`), checked and L2-normalised.",
    reads=lambda settings: ("raw_docs", *(["ids"] if settings.input.id_field else [])),
    settings=lambda settings: {
        "path": str(settings.embedding.path),
        "nan_as_zero": settings.embedding.nan_as_zero,
    },
    when=_is_there,
    doing="storing vectors",
    check_settings=_vectors_are_there,
    compute=_compute,
    facts=_facts,
    figures=_figures,
)

_CODE = f"{EXTERNAL_EMBEDDINGS.version}-"
"""How keys of this code begin."""
