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

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import xxhash

from dagster_divorder.core.distinct import distinct_values
from dagster_divorder.core.vectors.unit import unit_rows
from dagster_divorder.corpus.vectors import (
    Block,
    NpyVectors,
    ParquetVectors,
    VectorFile,
    open_vectors,
    row_hashes,
)
from dagster_divorder.errors import InputError
from dagster_divorder.pipeline.per_fragment import StoredFragment
from dagster_divorder.pipeline.run import Run, ToBeMadeError
from dagster_divorder.pipeline.stage import Decision, PerDocument, content_hash
from dagster_divorder.settings import Settings
from dagster_divorder.stages.corpus.ids import IDS, id_hashes, own_ids
from dagster_divorder.stages.corpus.raw_docs import record_index
from dagster_divorder.stages.topics.components import kinds_of
from dagster_divorder.store.ids import IdIndex, distinct, to_bytes
from dagster_divorder.store.sample import document_ids
from dagster_divorder.store.stages import StageFiles
from dagster_divorder.store.state import Receipt, load_receipt
from dagster_divorder.store.view import Fragment, View, offsets

STAGE = "external_embeddings"
TENTATIVE = "a known document has another vector in embedding.path"


@dataclass(frozen=True, kw_only=True, eq=False)
class _ExternalEmbeddings(PerDocument):
    """What is stored says which vectors a file holds, so the key is found by reading the file."""

    def key(self, run: Run) -> str:
        if "reading" not in run.memo:
            run.memo["reading"] = _reading(self, run)
        return str(run.memo["reading"].key)

    def compute_missing(self, run: Run, key: str, missing: Sequence[Fragment]) -> Iterator[StoredFragment]:
        """A Parquet file is read from its beginning to its end, and fragments want rows in any order: a copy has those
        that are new."""
        reading: _Reading = run.memo["reading"]
        file, found = reading.file, reading.found
        if isinstance(file, NpyVectors):
            yield from super().compute_missing(run, key, missing)
            return
        assert isinstance(file, ParquetVectors) and found
        first, row = _first_rows(run.view), found.row
        of = [row[first[fragment.name] :][: fragment.rows] for fragment in missing]
        rows = distinct_values(np.concatenate(of))
        rows = rows[rows >= 0]
        size = len(rows) * file.dims * file.dtype.itemsize
        with run.store.scratch(size, "a copy of new vectors") as folder:
            copy = file.copy(rows, folder / "vectors")
            yield from self.compute_with(_units(run, copy, rows), run, key, missing)

    def decide(self, run: Run) -> Decision:
        decision = super().decide(run)
        return replace(decision, unless=TENTATIVE) if run.planning and not run.has_view else decision


@dataclass(frozen=True, slots=True)
class _Reading:
    """What is known of the user's file: `read_as` names its state and how it is read, `facts` say what it holds, `key`
    is that of its vectors. `file` and `found` are there where it was read in this run."""

    read_as: str
    facts: Mapping[str, Any]
    key: str
    file: VectorFile | None = None
    found: _Found | None = None


def _reading(stage: PerDocument, run: Run) -> _Reading:
    """What the last run knew of the file, where it has not changed and all is stored; else the file is read."""
    file, last = _open(run), load_receipt(run.store, stage.name)
    ids = [run.settings.input.id_field] if file.keyed_by == "id" else []
    read_as = content_hash(
        _state(file.path), run.receipt("raw_docs").version, stage.fingerprint(run.settings), *ids
    )
    known = last is not None and last.facts["read_as"] == read_as
    if (
        last
        and (known or (run.planning and not run.has_view))
        and (run.planning or not stage.missing(run, last.key))
    ):
        run.observed["read"] = "no: it has not changed"
        return _Reading(read_as, last.facts, last.key)
    # Before the file is read: while planning there may be none.
    view = run.view
    found, key = _read(run, view, file, last)
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
    return _Reading(read_as, facts, key, file, found)


def _open(run: Run) -> VectorFile:
    """
    Raises:
        InputError: the vectors cannot be read, or there is another number of rows than of records.
    """
    file, raw_docs = _open_file(run.settings), run.receipt("raw_docs")
    records, refused = raw_docs.facts["records"], raw_docs.facts["rejected_records"]
    if not isinstance(file, NpyVectors) or file.rows == records:
        return file
    if file.rows == records + refused:
        rejects = run.store.where(raw_docs.files.get("rejects", "rejects"))
        remedy = f"leave out the rows of the {refused:,} refused records, whose lines {rejects} names"
    elif file.rows > records:
        remedy = "embed the input as it is now, in its order"
    else:
        remedy = "embed the records that have come, and save all rows in input order"
    raise InputError(
        f"{file.path} has {file.rows:,} rows; the input has {records:,} records "
        f"({raw_docs.facts['documents']:,} distinct documents; {refused:,} more records were refused); expected a row "
        f"for each accepted record, in input order: {remedy}, or write a Parquet file with a column doc_id and a vector"
    )


def _open_file(settings: Settings) -> VectorFile:
    """
    Raises:
        InputError: the vectors cannot be read.
    """
    path = settings.embedding.path
    assert path is not None
    return open_vectors(path, nan_as_zero=settings.embedding.nan_as_zero, id_field=settings.input.id_field)


@dataclass(frozen=True, slots=True)
class _Units:
    """Takes the vectors of a fragment's documents out of the file at `path`, or out of a copy of some `rows` of it,
    int64 rising. `first` is the document row that each fragment begins with."""

    path: Path
    found: _Found
    first: Mapping[str, int]
    vectors: NpyVectors
    rows: np.ndarray | None = None

    def __call__(self, fragment: Fragment) -> dict[str, np.ndarray]:
        first = self.first[fragment.name]
        row, source = (of[first : first + fragment.rows] for of in (self.found.row, self.found.source))
        wanted = row[row >= 0]
        taken = self.vectors.take(wanted if self.rows is None else np.searchsorted(self.rows, wanted))
        if not np.array_equal(row_hashes(taken), source[row >= 0]):
            raise InputError(f"{self.path} changed while it was read; run again")
        units = np.zeros((len(row), self.vectors.dims), np.float32)
        units[row >= 0] = unit_rows(taken)
        return {"vectors": units, "source": source}


def _units(run: Run, vectors: NpyVectors, rows: np.ndarray | None = None) -> _Units:
    reading = run.memo["reading"]
    return _Units(reading.file.path, reading.found, _first_rows(run.view), vectors, rows)


def _first_rows(view: View) -> dict[str, int]:
    return dict(zip([part.name for part in view.documents], offsets(view.documents).tolist(), strict=False))


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


def _stored(run: Run, view: View, key: str) -> tuple[np.ndarray, np.ndarray]:
    """What is stored under a key, by document row: bool, whether its fragment is, and its `source` uint64, 0 where it
    is not."""
    there, source = np.zeros(view.document_rows, bool), np.zeros(view.document_rows, np.uint64)
    files, start = StageFiles(run.store, STAGE, key), offsets(view.documents)
    present = files.present()
    for at, fragment in enumerate(view.documents):
        if fragment.name in present:
            there[start[at] : start[at + 1]] = True
            source[start[at] : start[at + 1]] = files.column([fragment], "source")
    return there, source


def _read(run: Run, view: View, file: VectorFile, last: Receipt | None) -> tuple[_Found, str]:
    """What the file holds, and its key: one under which no document is stored that has another vector now, that of the
    last run before others, else a new one."""
    found, used = _scan(run, view, file), view.used_documents()
    folders = [folder.rsplit("/", 1)[1] for folder in run.store.folders(f"stages/{STAGE}")]
    why = "first run with these vectors"
    for key in dict.fromkeys([*([last.key] if last else []), *folders]):
        if key not in folders or not key.startswith(_CODE):
            continue
        there, source = _stored(run, view, key)
        known = there & used
        other = int((known & (source != found.source)).sum())
        if known.any() and not other:
            return replace(found, reason="no: they are stored"), key
        if last and key == last.key and known.any():
            why = f"{other:,} of {int(known.sum()):,} known documents have another vector now"
            if last.facts["dim"] != file.dims:
                why = f"the vectors have {file.dims} dims now, not {last.facts['dim']}"
    content = xxhash.xxh3_128_hexdigest(found.source[view.document_row])
    return replace(found, reason=why), f"{_CODE}{content_hash(file.dims, content)}"


def _scan(run: Run, view: View, file: VectorFile) -> _Found:
    """Read the file once.

    Raises:
        InputError: NaN or infinity, an id that comes again with another vector, documents without one.
    """
    first_record = _first_of(view.document_row, view.document_rows)
    record_of = _records(run, view, file, first_record)
    row = np.full(view.document_rows, -1, np.int64)
    source = np.zeros(view.document_rows, np.uint64)
    copies: list[tuple[np.ndarray, np.ndarray]] = []
    unmatched = 0
    with run.progress("reading vectors", file.rows, "rows") as advance:
        for block in file.blocks():
            hashes = row_hashes(block.vectors)
            record = record_of(block)
            document = np.where(record < 0, -1, view.document_row[record].astype(np.int64))
            unmatched += int((document < 0).sum())
            _check_finite(file, block, document >= 0)
            leads = (document >= 0) & (first_record[document] == record)
            at = np.flatnonzero(leads)
            of = document[at]
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
        ids = document_ids(run.store, view)
        own = own_ids(run, first_record[:-1][lacking][:1])[0] if file.keyed_by == "id" else None
        shown = f"doc_id {to_bytes(ids[lacking][:1]).hex()}" if own is None else f"id {own!r}"
        raise InputError(
            f"{file.path} has no vector for {int(lacking.sum()):,} of {int(view.used_documents().sum()):,} documents, "
            f"the first of them {shown}; expected one for each: embed them and add their rows"
        )
    disagreeing = sum(int((source[of] != hashes).sum()) for of, hashes in copies)
    return _Found(row, source, unmatched, disagreeing)


def _check_finite(file: VectorFile, block: Block, of_documents: np.ndarray) -> None:
    """Raise for the first of these rows, bool (n,), that holds NaN or infinity."""
    for row in np.flatnonzero(of_documents & ~np.isfinite(block.vectors).all(axis=1))[:1]:
        column = int(np.isfinite(block.vectors[row]).argmin())
        raise InputError(
            f"{file.path}: row {block.first + row} (counted from 0) holds {block.vectors[row, column]} in column "
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
        index.add(document_ids(run.store, view))
        position = first_record
    else:
        index.add(record_index(run, "id"))
        position = _first_of(view.record_row, index.size)
    return lambda block: position[index.find(block.keys)]


EXTERNAL_EMBEDDINGS = _ExternalEmbeddings(
    name=STAGE,
    version=2,
    group="embedding",
    kinds={"numpy"},
    description="One vector per document, from a file of your own (`embedding.path`), checked and L2-normalised.",
    reads=lambda settings: ("raw_docs", *(["ids"] if settings.input.id_field else [])),
    settings=lambda settings: {
        "path": str(settings.embedding.path),
        "nan_as_zero": settings.embedding.nan_as_zero,
    },
    when=lambda settings: "external" in (*kinds_of(settings), *settings.embedding.compared),
    doing="storing vectors",
    # A file that is missing, cut short or of another kind is found before the corpus is read.
    check_settings=lambda run: _open_file(run.settings),
    compute=lambda run: _units(run, run.memo["reading"].file),
    needs=lambda run, fragments: {"workers": 1},  # which sees the file
    facts=lambda run: {**run.memo["reading"].facts, "read_as": run.memo["reading"].read_as},
    figures=lambda run, files: {
        name: value for name, value in run.memo["reading"].facts.items() if name != "read_as"
    },
)

_CODE = f"{EXTERNAL_EMBEDDINGS.version}-"
"""How keys of this code begin."""
