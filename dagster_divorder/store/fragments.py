"""Fragments: immutable runs of consecutive records, named by the hashes of all their lines.

A fragment is two files. The *content* holds the records once, in frames: compressed parts of some FRAME_BYTES that can
be read one by one. The *index* holds what is known of each record, the frames, the refused records and the columns of
Parquet rows. The index is written last: a fragment exists once its index does.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np
import pyarrow as pa
import xxhash

from dagster_divorder.core.arrow import plain_array
from dagster_divorder.errors import DamagedFileError
from dagster_divorder.store.arrays import pack, unpack_some
from dagster_divorder.store.base import Store
from dagster_divorder.store.view import Fragment, spans

FRAME_BYTES = 256 << 10
"""Bytes of a frame before compression; a longer record has a frame of its own."""
RECORDS, RECORD = "records", "record"
ENTRY = "entry"
"""Array of an index: the fields of the `Fragment` that its content decides, as JSON."""
REFUSED = "refused"
"""Array of an index: its refused records as JSON lines, with line numbers that count from 0 in the fragment."""
_LEVEL = 1


def records_folder(key: str) -> str:
    """Folder of the fragments of a key."""
    return f"{RECORDS}/{key}"


@dataclass(frozen=True, slots=True)
class Fragments:
    """The fragments of one key. Reading raises DamagedFileError if a file is missing or altered.

    planned: indexes of fragments that a plan has read and not stored.
    """

    store: Store
    key: str
    planned: Mapping[str, Mapping[str, np.ndarray]] = field(default_factory=dict, compare=False)
    _files: dict[str, dict[str, str]] = field(default_factory=dict, compare=False, repr=False)

    @property
    def folder(self) -> str:
        return records_folder(self.key)

    def put(self, name: str, content: pa.Array, index: Mapping[str, np.ndarray]) -> None:
        """Write a fragment. content: records, large_binary or struct (n,). index: arrays of n rows, and the entry."""
        frames, data = [], []
        for low, high in _frames(content):
            # Records as an Arrow stream, because a message alone has no dictionaries.
            sink, rows = pa.BufferOutputStream(), content[low:high]
            batch = pa.RecordBatch.from_arrays([rows], [RECORD])
            with pa.ipc.new_stream(sink, batch.schema) as writer:
                writer.write_batch(batch)
            raw = sink.getvalue()
            compressed = pa.Codec("zstd", _LEVEL).compress(raw, asbytes=True)
            data.append(compressed)
            frames.append((high, len(compressed), len(raw), xxhash.xxh3_64_intdigest(compressed)))
        self.store.put_hashed(self.folder, name, b"".join(data), "frames")
        index = {**index, "frames": np.array(frames, np.uint64).reshape(-1, 4)}
        self.store.put_hashed(f"{self.folder}/index", name, pack(index, name), "safetensors")

    def present(self) -> dict[str, str]:
        """Name -> index file of every fragment. One whose content is gone, such as a damaged one, is none."""
        content = self._listing(self.folder)
        return {name: file for name, file in self._listing(f"{self.folder}/index").items() if name in content}

    def _listing(self, folder: str) -> dict[str, str]:
        # Fragments that this process stores are found by a new listing.
        if folder not in self._files:
            self._files[folder] = self.store.hashed(folder)
        return self._files[folder]

    def _file(self, folder: str, name: str) -> str:
        if name not in self._listing(folder):
            del self._files[folder]
        if name not in self._listing(folder):
            raise DamagedFileError(
                f"fragment {name} of {self.store.where(folder)} is missing", f"{folder}/{name}"
            )
        return self._listing(folder)[name]

    def index(self, fragment: Fragment, *columns: str) -> list[np.ndarray]:
        """Arrays of the index of a fragment; arrays of records have its rows."""
        if fragment.name in self.planned:
            arrays = [self.planned[fragment.name][column] for column in columns]
        else:
            with self.store.reading(self._file(f"{self.folder}/index", fragment.name)) as file:
                arrays = unpack_some(file, columns, fragment.name)
        return arrays if fragment.picks is None else [array[fragment.picks] for array in arrays]

    def column(self, fragments: Sequence[Fragment], name: str) -> np.ndarray:
        """An array of the indexes over all records of fragments: `id` or `text`, the 128-bit hashes of record and text,
        uint64 (N, 2); `size` or `text_size`, their bytes, int64 (N,)."""
        records = sum(fragment.rows for fragment in fragments)
        whole = np.empty((records, 2), np.uint64) if name in ("id", "text") else np.empty(records, np.int64)
        # Filled part by part: `np.concatenate` would need all parts in memory beside it.
        for rows, part in zip(spans(fragments), self.parts(fragments, name), strict=True):
            whole[rows] = part
        return whole

    def parts(self, fragments: Sequence[Fragment], name: str) -> Iterator[np.ndarray]:
        """An array of the index of each fragment (see `column`)."""
        return (self.index(fragment, name)[0] for fragment in fragments)

    def text_halves(self, fragments: Sequence[Fragment]) -> np.ndarray:
        """First half of the hash of each record's text, uint64 (N,)."""
        halves = (text[:, 0] for text in self.parts(fragments, "text"))
        return np.concatenate([np.empty(0, np.uint64), *halves])

    def content(self, fragment: Fragment) -> pa.Array:
        """Records of a fragment, large_binary or struct (rows,), in the order of its rows. Reads only their frames."""
        (table,) = self.index(Fragment(fragment.name, 0), "frames")
        ends, lengths = table[:, 0].astype(np.int64), table[:, 1].astype(np.int64)
        rows = np.arange(ends[-1]) if fragment.picks is None else fragment.picks
        frames, frame_of = np.unique(np.searchsorted(ends, rows, side="right"), return_inverse=True)
        begins = np.concatenate([[0], np.cumsum(lengths)])
        parts, at, first = [], 0, np.empty(len(frames), np.int64)
        with self.store.reading(self._file(self.folder, fragment.name)) as file:
            for number, frame in enumerate(frames.tolist()):
                file.seek(int(begins[frame]))
                data = file.read(int(lengths[frame]))
                if xxhash.xxh3_64_intdigest(data) != int(table[frame, 3]):
                    raise ValueError("a frame has another hash than the index says")
                raw = pa.Codec("zstd").decompress(data, int(table[frame, 2]))
                with pa.ipc.open_stream(raw) as reader:
                    records = reader.read_all().column(RECORD)
                parts += records.chunks
                first[number] = at - (int(ends[frame - 1]) if frame else 0)
                at += len(records)
        content = pa.concat_arrays(parts)
        return content if fragment.picks is None else content.take(plain_array(rows + first[frame_of]))


def _frames(content: pa.Array) -> Iterator[tuple[int, int]]:
    """First and last row of each frame of about FRAME_BYTES."""
    if pa.types.is_struct(content.type):
        ends = np.arange(1, len(content) + 1) * (content.nbytes / max(1, len(content)))
    else:
        ends = np.frombuffer(content.buffers()[1], np.int64)[content.offset + 1 :][: len(content)]
        ends = ends - (ends[0] - len(content[0].as_buffer()) if len(content) else 0)
    cuts = np.flatnonzero(np.diff(ends // FRAME_BYTES)) + 1
    return pairwise([0, *cuts.tolist(), len(content)])
