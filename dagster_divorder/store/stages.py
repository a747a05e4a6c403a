"""Results of stages. Of fragments: one file per (stage, key, fragment). Present: reuse. Absent: compute. Of fits, which
are learnt from the corpus: a folder, named by the hash of all its files.

Files of fits keep their own names, because libraries read a model's folder. Appended data uses a fit unchanged. A lost
or altered fit is made again only on request, because a new fit would change the results of all data.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import IO, Any, TypeAlias

import numpy as np
import pyarrow as pa
import xxhash

from dagster_divorder.core.arrow import plain_array
from dagster_divorder.errors import MissingStageError, StoreError
from dagster_divorder.store.arrays import pack, unpack, unpack_parquet, unpack_some
from dagster_divorder.store.base import Store
from dagster_divorder.store.state import Receipt, load_receipt
from dagster_divorder.store.view import Fragment, View, by_fragment, spans


@dataclass(frozen=True, slots=True)
class StageFiles:
    """Results of one stage under one key. Methods that read fragments raise MissingStageError if one has no result.

    known: files from an earlier listing, so that workers need not list them.
    """

    store: Store
    stage: str
    key: str
    known: dict[str, str] | None = field(default=None, compare=False, repr=False)

    @property
    def folder(self) -> str:
        return f"stages/{self.stage}/{self.key}"

    def present(self) -> dict[str, str]:
        """Fragment name -> file."""
        return self.store.hashed(self.folder) if self.known is None else self.known

    def listed(self) -> StageFiles:
        """The same results, with a listing of the current files."""
        return replace(self, known=dict(self.present()))

    def put(self, fragment: str, result: Result) -> str:
        """Store a fragment's result."""
        if isinstance(result, pa.Table):
            sink = pa.BufferOutputStream()
            with pa.ipc.new_file(sink, result.schema) as writer:
                writer.write_table(result)
            return self.store.put_hashed(self.folder, fragment, sink.getvalue().to_pybytes(), "arrow")
        data = pack(result, f"{self.folder}/{fragment}")
        return self.store.put_hashed(self.folder, fragment, data, "safetensors")

    def get(self, file: str) -> Result:
        """The result in a file."""
        data = self.store.read_verified(file)
        return pa.ipc.open_file(data).read_all() if file.endswith(".arrow") else unpack(data)

    def read(self, fragment: Fragment) -> dict[str, np.ndarray]:
        """The result of a fragment."""
        ((_, arrays),) = self.each([fragment])
        return arrays

    def each(self, fragments: Sequence[Fragment]) -> Iterator[tuple[slice, dict[str, np.ndarray]]]:
        """Yields (a fragment's records among all, its result), in the order given."""
        for rows, (fragment, file) in zip(spans(fragments), self._files(fragments), strict=True):
            arrays = unpack(self.store.read_verified(file))
            yield rows, arrays if fragment.picks is None else take_rows(arrays, fragment.picks)

    def at(
        self, fragments: Sequence[Fragment], records: np.ndarray
    ) -> Iterator[tuple[np.ndarray, np.ndarray, dict[str, np.ndarray]]]:
        """Yields (places in `records`, their rows in the fragment, its result) for each fragment that holds such
        records, see `by_fragment`."""
        files = self.listed()
        for number, places, inside in by_fragment(fragments, records):
            yield places, inside, files.read(fragments[number])

    def tables(self, fragments: Sequence[Fragment]) -> Iterator[pa.Table]:
        """Yields each fragment's result as a table, in the order given."""
        return (self.get(file) for _, file in self._files(fragments))

    def _files(self, fragments: Sequence[Fragment]) -> Iterator[tuple[Fragment, str]]:
        present = self.present()
        for fragment in fragments:
            if fragment.name not in present:
                raise MissingStageError(
                    f"{self.stage} has no result for fragment {fragment.name}; materialise {self.stage} first"
                )
            yield fragment, present[fragment.name]

    def column(self, fragments: Sequence[Fragment], name: str) -> np.ndarray:
        """One array over the records of all fragments."""
        return self.columns(fragments, name)[0]

    def columns(self, fragments: Sequence[Fragment], *names: str) -> list[np.ndarray]:
        """Several arrays over all fragments. One pass reads only these arrays."""
        parts = [self._read(file, names) for _, file in self._files(fragments)]
        return [np.concatenate(column) for column in zip(*parts, strict=True)]

    def mapped(self, fragments: Sequence[Fragment], name: str) -> Iterator[np.ndarray]:
        """Yields one array of each fragment, in the order given. Arrays are memory-mapped, so that the system can free
        the memory."""
        return (self._read(file, [name], mapped=True)[0] for _, file in self._files(fragments))

    def _read(self, name: str, columns: Sequence[str], *, mapped: bool = False) -> list[np.ndarray]:
        with self.store.reading(name, mapped=mapped) as file:
            return unpack_some(file, columns, name.rsplit(".", 2)[0])


Result: TypeAlias = Mapping[str, np.ndarray] | pa.Table
"""The result of one fragment: arrays with a row for each record of the fragment, or a table."""
RAGGED = {"ids": "lengths"} | dict.fromkeys(("span_first", "span_last", "span_kind"), "spans")
"""For arrays of results with several items a row: the array with the number of items."""


def take(result: Result, rows: np.ndarray) -> Result:
    """The given rows of a result, int64 (n,)."""
    return result.take(plain_array(rows)) if isinstance(result, pa.Table) else take_rows(result, rows)


def take_rows(arrays: Mapping[str, np.ndarray], rows: np.ndarray) -> dict[str, np.ndarray]:
    """The given rows of a stage's result; arrays in RAGGED have several items a row."""
    taken = {}
    for name, array in arrays.items():
        if name not in RAGGED:
            taken[name] = array[rows]
            continue
        counts = arrays[RAGGED[name]].astype(np.int64)
        begins, count = np.cumsum(counts) - counts, counts[rows]
        shift = begins[rows] - (np.cumsum(count) - count)
        taken[name] = array[np.repeat(shift, count) + np.arange(count.sum())]
    return taken


def joined(results: Sequence[Result]) -> Result:
    """Results of one stage, end to end."""
    if isinstance(results[0], pa.Table):
        return pa.concat_tables(results, promote_options="permissive")
    return {name: np.concatenate([result[name] for result in results]) for name in results[0]}


RESULTS = "results"
SAMPLE_BYTES = 1 << 30
"""Most bytes of vectors that a fit reads."""


@dataclass(frozen=True, slots=True)
class Space:
    """Vectors for clustering: a vector stage's results, D dims.

    files: the stored vectors. centre: subtract the mean before clustering.
    """

    files: StageFiles
    centre: bool

    def read(self, fragment: Fragment) -> np.ndarray:
        """Vectors float32 (rows, D) of a fragment."""
        return self.files.read(fragment)["vectors"]

    def dims(self, view: View) -> int:
        return int(self.read(view.fragments[0]).shape[1])

    def most_rows(self, view: View, size: int = SAMPLE_BYTES) -> int:
        """Number of vectors that fit in `size` bytes, at least 1."""
        return max(1, size // (4 * self.dims(view)))

    def rows(self, view: View, rows: np.ndarray) -> np.ndarray:
        """Vectors of records, float32 (n, D), in the order of `rows`."""
        if not len(rows):
            return np.empty((0, self.dims(view)), np.float32)
        vectors = np.empty((0, 0), np.float32)
        for places, inside, arrays in self.files.at(view.fragments, rows):
            part = arrays["vectors"][inside]
            if not vectors.size:
                vectors = np.empty((len(rows), part.shape[1]), np.float32)
            vectors[places] = part
        return vectors


def embeddings_file(receipt: Receipt) -> str:
    """Store name of the file with all vectors."""
    kind = "gradients" if receipt.stage == "gradient_embeddings" else "embeddings"
    return f"{RESULTS}/{kind}-{receipt.version}.npy"


def map_vectors(store: Store, view: View, receipt: Receipt) -> np.ndarray:
    """Stored vectors of the accepted records in input order, (N, D), memory-mapped read-only.

    receipt: a vector stage's receipt. The first call writes one file to the store, fragment by fragment; later calls
    map that file. A complete run on a folder, or `divorder prune`, removes it once it is not current.
    """
    name, files = embeddings_file(receipt), StageFiles(store, receipt.stage, receipt.key)

    def write(file: IO[bytes]) -> None:
        for rows, arrays in files.each(view.fragments):
            vectors = arrays["vectors"]
            if not rows.start:
                shape = (len(view), vectors.shape[1])
                header = {"descr": vectors.dtype.str, "fortran_order": False, "shape": shape}
                np.lib.format.write_array_header_1_0(file, header)
            file.write(vectors.tobytes())

    if not store.exists(name):
        store.put(name, write)
    return np.load(store.local(name), mmap_mode="r", allow_pickle=False)


FITS = "fits"


def put_fit(store: Store, stage: str, files: Mapping[str, bytes]) -> str:
    """Store the files of a fit; returns its folder. The same files have the same folder."""
    folder = f"{FITS}/{stage}/{_hash(files)}"
    # Fitting again mends a damaged fit.
    damaged = [file for file in store.list(folder) if store.read(file) != files.get(file.rpartition("/")[2])]
    store.delete(*damaged)
    for name, data in files.items():
        store.put(f"{folder}/{name}", data)
    return folder


def read_fit(store: Store, folder: str, name: str | None = None) -> dict[str, bytes]:
    """The files of a fit. name: the fit's name for `--refit`, for the message. Raises StoreError: a file is missing
    or altered."""
    files = {file.rpartition("/")[2]: store.read(file) for file in store.list(folder)}
    stages, _, expected = folder.rpartition("/")
    actual = _hash(files)
    if actual != expected:
        again = f"divorder run --refit {name}" if name else f"delete {store.where(stages)}"
        raise StoreError(
            f"fit {store.where(folder)} is {f'damaged: its files hash to {actual}' if files else 'missing'}; restore "
            f"it from a copy, or {again} to fit again (later stages are then computed again)"
        )
    return files


def model_path(store: Store, model: str | Path) -> Path:
    """Folder of a model's files on this machine, for libraries that read folders. model: the folder of a fit in the
    store, or the user's own path."""
    return store.local(model) if isinstance(model, str) else model


def _hash(files: Mapping[str, bytes]) -> str:
    digest = xxhash.xxh3_128()
    for name in sorted(files):
        digest.update(f"{name}\0{len(files[name])}\0".encode())
        digest.update(files[name])
    return digest.hexdigest()


class Reader:
    """Reads the last result of each stage, under any settings. Subclasses choose other results.

    Every method raises MissingStageError if the stage has no result, and DamagedFileError if a file of the result is
    missing or altered.
    """

    __slots__ = ("store",)

    def __init__(self, store: Store) -> None:
        self.store = store

    def receipt(self, stage: str) -> Receipt:
        receipt = load_receipt(self.store, stage)
        if receipt is None:
            raise MissingStageError(
                f"{stage} has no result in {self.store.place}; run the pipeline on this store first"
            )
        return receipt

    @property
    def view(self) -> View:
        """The accepted records, in the fragments that hold them."""
        return View.load(self.store, self.receipt("raw_docs").files["view"])

    def files(self, stage: str) -> StageFiles:
        """The results of a per-document stage."""
        return StageFiles(self.store, stage, self.receipt(stage).key)

    def column(self, stage: str, name: str) -> np.ndarray:
        """An array of a per-document stage, over all rows of the document fragments."""
        return self.files(stage).column(self.view.fragments, name)

    def read(self, stage: str, file: str) -> bytes:
        """A file of a whole-corpus result."""
        return self.store.read_verified(self.receipt(stage).files[file])

    def arrays(self, stage: str, file: str) -> dict[str, np.ndarray]:
        """The arrays of a file of a whole-corpus result."""
        return unpack(self.read(stage, file))

    def rows(self, stage: str, file: str) -> list[dict[str, Any]]:
        """The rows of a file of a whole-corpus result."""
        return unpack_parquet(self.read(stage, file)).to_pylist()

    def fit(self, stage: str) -> dict[str, bytes]:
        """The files of a fit."""
        return read_fit(self.store, self.receipt(stage).files["fit"])
