"""external_embeddings: the vectors of the user's own file (`embedding.path`), L2-normalised, by document.

Per document fragment: `vectors` float32 (rows, D), and `source` uint64 (rows,), a hash of the file's row.

The key names the vectors in the file when it was first read; later runs find it by the stored hashes. A file that has
grown, was renamed or moved keeps its key, so only new documents are computed, and nothing is clustered again. If a
known document has another vector, the key is new. Records of equal text are one document, which takes the vector of the
first record. A vector of zeros has no direction.
Cost: every run and plan hashes the file's rows, block by block; rows of new documents are read again; 70 bytes a
document and BLOCK_BYTES. Rows of the file count from 0.
Known weakness: after embedding the same texts again, vectors that differ in their last bits count as other vectors."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tokenize import TokenError
from typing import Any, NamedTuple

import numpy as np
import xxhash

from dagster_divorder.core.vectors.unit import unit_rows
from dagster_divorder.errors import InputError
from dagster_divorder.pipeline.run import Run
from dagster_divorder.pipeline.stage import PerDocument
from dagster_divorder.stages.topics.components import kinds_of
from dagster_divorder.store.ids import places
from dagster_divorder.store.stages import StageFiles
from dagster_divorder.store.state import load_receipt
from dagster_divorder.store.view import Fragment, spans

BLOCK_BYTES = 32 << 20
FLOATS = (np.float16, np.float32, np.float64)
_SAVE = "numpy.save(path, vectors.astype('float32'))"

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


def _named(run: Run) -> dict[str, Any]:
    read = _read(run)
    return {"dim": read.file.dims, "vectors": read.name}


def _name(run: Run, file: VectorFile, source: np.ndarray) -> tuple[str, str]:
    """(name of the vectors with these hashes, why the file was read): the last run's name if no known document has
    another vector under it; else a hash."""
    why, last = "first run with these vectors", load_receipt(run.store, STAGE)
    if last and "vectors" in last.facts:
        files, fragments = StageFiles(run.store, STAGE, last.key).listed(), run.records.fragments
        kept = [Fragment(name, 0) for name in files.present().keys() & fragments.present().keys()]
        known = np.concatenate([np.empty((0, 2), np.uint64), *fragments.parts(kept, "text")])
        at = places(run.index("text"), known)
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


@dataclass(frozen=True, slots=True, kw_only=True)
class VectorFile:
    """A file of `rows` vectors of `dims` numbers."""

    path: Path
    rows: int
    dims: int
    dtype: np.dtype[Any]

    def blocks(self) -> Iterator[tuple[int, np.ndarray]]:
        """(first row, its vectors and the next ones, (n, D)) for all rows, in order."""
        size = max(1, BLOCK_BYTES // (self.dims * self.dtype.itemsize))
        for first in range(0, self.rows, size):
            yield first, self.take(np.arange(first, min(self.rows, first + size)))

    def take(self, rows: np.ndarray) -> np.ndarray:
        """Vectors (n, D) of some rows, int64 (n,), in any order; may hold NaN and infinity."""
        # Mapped for each call, so that this process does not keep the pages.
        mapped = _map(self.path)
        if (*mapped.shape, mapped.dtype) != (self.rows, self.dims, self.dtype):
            raise InputError(f"{self.path} changed during reading; run again")
        return np.ascontiguousarray(mapped[rows], self.dtype.newbyteorder("="))


def open_vectors(path: Path | None) -> VectorFile:
    """The vectors in a file. Checks rows, dims, dtype and size.

    Raises:
        InputError: the file is missing, of another kind, truncated, or of another shape or dtype.
    """
    if path is None or not path.is_file():
        raise InputError(f"embedding.path: there is no file {str(path)!r}; give the path of a .npy file")
    if path.suffix.lower() != ".npy":
        raise InputError(
            f"embedding.path: {str(path)!r} ends in {path.suffix!r}; expected .npy, a row for each accepted record in "
            f"input order, saved by {_SAVE}"
        )
    vectors = _map(path)
    if vectors.ndim != 2 or vectors.dtype.type not in FLOATS or not vectors.size:
        raise InputError(
            f"{path} holds {vectors.dtype} of shape {vectors.shape}; expected float16, float32 or float64 of two "
            f"dimensions, a row a record: save it with {_SAVE}"
        )
    rows, dims = vectors.shape
    return VectorFile(path=path, rows=rows, dims=dims, dtype=vectors.dtype)


def row_hashes(vectors: np.ndarray) -> np.ndarray:
    """A hash of the bytes of each row of vectors (n, D), uint64 (n,)."""
    rows = np.ascontiguousarray(vectors).view(np.uint8)
    return np.fromiter(map(xxhash.xxh3_64_intdigest, rows), np.uint64, len(rows))


def _map(path: Path) -> np.ndarray:
    try:
        return np.lib.format.open_memmap(path, "r")
    except (ValueError, KeyError, EOFError, OSError, SyntaxError, TokenError) as error:
        raise InputError(
            f"{path} is not a complete .npy file of numbers: {error or 'it is empty'}. It may be truncated, or hold "
            f"Python objects, which are never loaded; copy it again, or save the vectors with {_SAVE}"
        ) from error


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
    decided_by=_named,
    compute=_take_from,
    by_text=True,
    needs=lambda run, fragments: {"workers": 1},  # which sees the file
    facts=_named,
    figures_now=lambda run: {
        "path": str(_read(run).file.path),
        "dim": _read(run).file.dims,
        "dtype": str(_read(run).file.dtype),
        "rows": _read(run).file.rows,
        "read": _read(run).why,
    },
)
