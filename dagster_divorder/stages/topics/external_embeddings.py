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

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import xxhash

from dagster_divorder.core.vectors.unit import unit_rows
from dagster_divorder.corpus.vectors import VectorFile, open_vectors, row_hashes
from dagster_divorder.errors import InputError
from dagster_divorder.pipeline.run import Run
from dagster_divorder.pipeline.stage import Decision, PerDocument, content_hash
from dagster_divorder.settings import Settings
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

    def decide(self, run: Run) -> Decision:
        decision = super().decide(run)
        return replace(decision, unless=TENTATIVE) if run.planning and not run.has_view else decision


@dataclass(frozen=True, slots=True)
class _Reading:
    """The user's file as read. read_as: hash of the state of file and input, and of the settings. facts: its content.
    key: names its vectors. source: of each record, the hash of its text's row, uint64; empty unless this run has read
    the file."""

    read_as: str
    facts: Mapping[str, Any]
    key: str
    source: np.ndarray = field(default_factory=lambda: np.empty(0, np.uint64))


def _reading(stage: PerDocument, run: Run) -> _Reading:
    """The last run's reading if the file has not changed and all vectors are stored; else a new one."""
    file, last = _open(run), load_receipt(run.store, stage.name)
    status = file.path.stat()
    # The time of change (ctime) cannot be set back by a program.
    state = [status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns]
    read_as = content_hash(state, run.receipt("raw_docs").version, stage.fingerprint(run.settings))
    # A plan may have no view: then the file is not read.
    blind = run.planning and not run.has_view
    if (
        last
        and (last.facts["read_as"] == read_as or blind)
        and (run.planning or not stage.work(run, last.key))
    ):
        run.observed["read"] = "no: it has not changed"
        return _Reading(read_as, last.facts, last.key)
    source = _scan(run, file)
    key, why = _key(run, file, source, last)
    facts = {
        "path": str(file.path),
        "dim": file.dims,
        "dtype": str(file.dtype),
        "rows": file.rows,
        "read": why,
    }
    return _Reading(read_as, facts, key, source)


def _open(run: Run) -> VectorFile:
    """
    Raises:
        InputError: the vectors cannot be read, or the numbers of rows and records differ.
    """
    file, raw_docs = _open_file(run.settings), run.receipt("raw_docs")
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


def _open_file(settings: Settings) -> VectorFile:
    """
    Raises:
        InputError: the vectors cannot be read.
    """
    assert settings.embedding.path is not None
    return open_vectors(settings.embedding.path)


@dataclass(frozen=True, slots=True)
class _Take:
    """Takes the vectors of a fragment's documents from the user's file. Of each record, `row` int64, the first with its
    text, and `source`, see `_Reading`. spans: the records of each fragment."""

    vectors: VectorFile
    row: np.ndarray
    source: np.ndarray
    spans: Mapping[str, slice]

    def __call__(self, fragment: Fragment) -> dict[str, np.ndarray]:
        whole = self.spans[fragment.name]
        inside = whole if fragment.picks is None else whole.start + fragment.picks
        source, taken = self.source[inside], self.vectors.take(self.row[inside])
        if not np.array_equal(row_hashes(taken), source):
            raise InputError(f"{self.vectors.path} changed while it was read; run again")
        return {"vectors": unit_rows(taken), "source": source}


def _take(run: Run) -> _Take:
    fragments = run.view.fragments
    inside = dict(zip([fragment.name for fragment in fragments], spans(fragments), strict=True))
    return _Take(_open_file(run.settings), run.copies, run.memo["reading"].source, inside)


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


def _scan(run: Run, file: VectorFile) -> np.ndarray:
    """Read the file once: `source` of `_Reading`. Raises InputError: a vector holds NaN or infinity."""
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


EXTERNAL_EMBEDDINGS = _ExternalEmbeddings(
    name=STAGE,
    version=3,
    description="One vector a document, from a file of your own (`embedding.path`), checked and L2-normalised.",
    reads=("raw_docs",),
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
