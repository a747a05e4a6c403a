"""external_embeddings: the vectors of the user's own file (`embedding.path`), L2-normalised, by document.

Per document fragment: `vectors` float32 (rows, D), and `source` uint64 (rows,), a hash of the file's row.

The key names the vectors in the file when it was first read; later runs find it by the stored hashes. A file that has
grown, was renamed or moved keeps its key, so only new documents are computed, and nothing is clustered again. Every run
hashes every row, unless the input and the file (inode, size, times) are unchanged. If a known document has another
vector, the key is new. Records of equal text are one document, which takes the vector of the first record. A vector of
zeros has no direction.
Cost: the file is read once, and rows of new documents again; 70 bytes a document.
Known weakness: after embedding the same texts again, vectors that differ in their last bits count as other vectors."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import xxhash

from dagster_divorder.core.distinct import distinct_values
from dagster_divorder.core.vectors.unit import unit_rows
from dagster_divorder.corpus.vectors import VectorFile, open_vectors, row_hashes
from dagster_divorder.errors import InputError
from dagster_divorder.pipeline.per_fragment import StoredFragment, Work
from dagster_divorder.pipeline.run import Run
from dagster_divorder.pipeline.stage import Decision, PerDocument, content_hash
from dagster_divorder.settings import Settings
from dagster_divorder.stages.corpus.ids import find_by_key, record_names
from dagster_divorder.stages.topics.components import kinds_of
from dagster_divorder.store.ids import places
from dagster_divorder.store.stages import StageFiles
from dagster_divorder.store.state import Receipt, load_receipt
from dagster_divorder.store.view import Fragment, spans

STAGE = "external_embeddings"
TENTATIVE = "a known document has another vector in embedding.path"


@dataclass(frozen=True, kw_only=True, eq=False)
class _ExternalEmbeddings(PerDocument):
    """Finds its key by reading the file and comparing it with the stored hashes."""

    def key(self, run: Run) -> str:
        if "reading" not in run.memo:
            run.memo["reading"] = _reading(self, run)
        return str(run.memo["reading"].key)

    def compute_missing(self, run: Run, key: str, works: Sequence[Work]) -> Iterator[StoredFragment]:
        """Copies new rows of a Parquet file first: the file is read from beginning to end, but fragments need rows in
        any order."""
        take = _take(run)
        if not take.vectors.column:
            yield from self.compute_with(take, run, key, works)
            return
        rows = distinct_values(np.concatenate([take.row[take.inside(work.new)] for work in works]))
        size = len(rows) * take.vectors.dims * take.vectors.dtype.itemsize
        with run.store.scratch(size, "a copy of new vectors") as folder:
            copied = replace(take, vectors=take.vectors.copy(rows, folder / "vectors"), rows=rows)
            yield from self.compute_with(copied, run, key, works)

    def decide(self, run: Run) -> Decision:
        decision = super().decide(run)
        return replace(decision, unless=TENTATIVE) if run.planning and not run.has_view else decision


@dataclass(frozen=True, slots=True)
class _Reading:
    """The user's file as read. read_as: hash of the state of file and input, and of the settings. facts: its content.
    key: names its vectors. Of each record: `row` int64, the row of the file with the vector of its text; `source`
    uint64, that row's hash; empty unless this run has read the file."""

    read_as: str
    facts: Mapping[str, Any]
    key: str
    row: np.ndarray = field(default_factory=lambda: np.empty(0, np.int64))
    source: np.ndarray = field(default_factory=lambda: np.empty(0, np.uint64))


def _reading(stage: PerDocument, run: Run) -> _Reading:
    """The last run's reading if the file has not changed and all vectors are stored; else a new one."""
    file, last = _open(run), load_receipt(run.store, stage.name)
    ids = [run.settings.input.id_field] if file.keyed_by == "id" else []
    status = file.path.stat()
    # The time of change (ctime) cannot be set back by a program.
    state = [status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns]
    read_as = content_hash(state, run.receipt("raw_docs").version, stage.fingerprint(run.settings), *ids)
    blind = run.planning and not run.has_view
    if (
        last
        and (last.facts["read_as"] == read_as or blind)
        and (run.planning or not stage.work(run, last.key))
    ):
        run.observed["read"] = "no: it has not changed"
        return _Reading(read_as, last.facts, last.key)
    # A plan may have no view: then the file is not read.
    row, source, unmatched = _scan(run, file)
    key, why = _key(run, file, source, last)
    facts = {
        "path": str(file.path),
        "dim": file.dims,
        "dtype": str(file.dtype),
        "keyed_by": file.keyed_by,
        "rows": file.rows,
        "read": why,
        "rows_of_no_document": unmatched,
    }
    return _Reading(read_as, facts, key, row, source)


def _open(run: Run) -> VectorFile:
    """
    Raises:
        InputError: the vectors cannot be read, or the numbers of rows and records differ.
    """
    file, raw_docs = _open_file(run.settings), run.receipt("raw_docs")
    records, refused = raw_docs.facts["records"], raw_docs.facts["rejected_records"]
    if file.column or file.rows == records:
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
        f"for each accepted record, in input order: {remedy}, or write Parquet with the columns record_id and vector"
    )


def _open_file(settings: Settings) -> VectorFile:
    """
    Raises:
        InputError: the vectors cannot be read.
    """
    assert settings.embedding.path is not None
    return open_vectors(settings.embedding.path, id_field=settings.input.id_field)


@dataclass(frozen=True, slots=True)
class _Take:
    """Takes the vectors of a fragment's documents from the user's file `vectors`, or from a copy of some of its `rows`,
    int64 rising. row, source: see `_Reading`. spans: the records of each fragment."""

    path: Path
    row: np.ndarray
    source: np.ndarray
    spans: Mapping[str, slice]
    vectors: VectorFile
    rows: np.ndarray | None = None

    def __call__(self, fragment: Fragment) -> dict[str, np.ndarray]:
        inside = self.inside(fragment)
        wanted, source = self.row[inside], self.source[inside]
        taken = self.vectors.take(wanted if self.rows is None else np.searchsorted(self.rows, wanted))
        if not np.array_equal(row_hashes(taken), source):
            raise InputError(f"{self.path} changed while it was read; run again")
        return {"vectors": unit_rows(taken), "source": source}

    def inside(self, fragment: Fragment) -> slice | np.ndarray:
        """The records of a fragment, or those that it stands for."""
        whole = self.spans[fragment.name]
        return whole if fragment.picks is None else whole.start + fragment.picks


def _take(run: Run) -> _Take:
    reading, file, fragments = run.memo["reading"], _open_file(run.settings), run.view.fragments
    inside = dict(zip([fragment.name for fragment in fragments], spans(fragments), strict=True))
    return _Take(file.path, reading.row, reading.source, inside, file)


def _key(run: Run, file: VectorFile, source: np.ndarray, last: Receipt | None) -> tuple[str, str]:
    """(the key of the vectors with these hashes, why the file was read): the last run's key if no known document has
    another vector under it; else one that names the vectors."""
    why = "first run with these vectors"
    if last and last.key.startswith(_CODE):
        files, fragments = StageFiles(run.store, STAGE, last.key).listed(), run.records.fragments
        kept = [Fragment(name, 0) for name in files.present().keys() & fragments.present().keys()]
        if kept:
            known = np.concatenate(list(fragments.parts(kept, "text")))
            at = places(run.records.text_ids(run.view.fragments), known)
            stored = at >= 0
            other = int((files.column(kept, "source")[at[stored]] != source[stored]).sum())
            if stored.any() and not other:
                return last.key, "no: they are stored"
            if stored.any():
                why = f"{other:,} of {int(stored.sum()):,} known documents have another vector now"
                if last.facts["dim"] != file.dims:
                    why = f"the vectors have {file.dims} dims now, not {last.facts['dim']}"
    content = xxhash.xxh3_128_hexdigest(source.tobytes())
    return f"{_CODE}{content_hash(file.dims, content)}", why


def _scan(run: Run, file: VectorFile) -> tuple[np.ndarray, np.ndarray, int]:
    """Read the file once: (`row`, `source` of `_Reading`; rows without a document). Records with one text share the
    vector of the first.

    Raises:
        InputError: a vector holds NaN or infinity, an id occurs with two vectors, or documents have no vector.
    """
    first = run.copies
    find = find_by_key(run, file.keyed_by, file.path)
    row = np.full(len(first), -1, np.int64)
    source = np.zeros(len(first), np.uint64)
    unmatched = 0
    with run.progress("reading vectors", file.rows, "rows") as advance:
        for block in file.blocks():
            hashes = row_hashes(block.vectors)
            record = find(block.keys)
            document = np.where(record < 0, -1, first[record])
            unmatched += int((document < 0).sum())
            for bad in np.flatnonzero((document >= 0) & ~np.isfinite(block.vectors).all(axis=1))[:1]:
                column = int(np.isfinite(block.vectors[bad]).argmin())
                raise InputError(
                    f"{file.path}: row {block.first + bad} (counted from 0) holds {block.vectors[bad, column]} in "
                    f"column {column}; expected finite numbers: embed that document again, or write zeros, which have "
                    "no direction"
                )
            at = np.flatnonzero((document >= 0) & (document == record))
            led = document[at]
            # Reversed, because numpy keeps the last of several values for one place, and the first is wanted.
            new = row[led] < 0
            row[led[new][::-1]] = (block.first + at[new])[::-1]
            source[led[new][::-1]] = hashes[at[new]][::-1]
            for again in np.flatnonzero(source[led] != hashes[at])[:1]:
                name = record_names(run, record[at[[again]]])[0]
                raise InputError(
                    f"{file.path}: rows {row[led[again]]} and {block.first + at[again]} have the same {file.keyed_by} "
                    f"({name!r}) and different vectors; expected one vector for each: leave out one of the rows"
                )
            advance(len(hashes))
    if unmatched:
        run.progress.note(f"rows of {file.path} that belong to no record and are not used: {unmatched:,}")
    row, source = row[first], source[first]
    lacking = np.flatnonzero(row < 0)
    if len(lacking):
        name = record_names(run, lacking[:1], "record_id ")[0]
        raise InputError(
            f"{file.path} has no vector for {len(lacking):,} of {len(row):,} records, the first is {name!r}; expected "
            "one for each: embed them and add their rows"
        )
    return row, source, unmatched


EXTERNAL_EMBEDDINGS = _ExternalEmbeddings(
    name=STAGE,
    version=2,
    description="One vector a document, from a file of your own (`embedding.path`), checked and L2-normalised.",
    reads=lambda settings: ("raw_docs", *(["ids"] if settings.input.id_field else [])),
    settings=("embedding.path",),
    when=lambda settings: "external" in (*kinds_of(settings), *settings.embedding.compared),
    doing="storing vectors",
    # A file that is missing, truncated or of another kind is refused before the corpus is read.
    check=lambda run: _open_file(run.settings),
    compute=_take,
    by_text=True,
    needs=lambda run, fragments: {"workers": 1},  # which sees the file
    facts=lambda run: {**run.memo["reading"].facts, "read_as": run.memo["reading"].read_as},
    figures=lambda run, files: {
        name: value for name, value in run.memo["reading"].facts.items() if name != "read_as"
    },
)

_CODE = f"{EXTERNAL_EMBEDDINGS.version}-"
"""The beginning of this version's keys."""
