"""What a run read of each input file, so that the next run reads only additions.

A file's state is its *prefix* and the result of it, a range of the view's positions and of the rejects. The prefix is
the bytes up to the end of the last whole line (all bytes of a compressed or Parquet file), hashed in chunks of
`CHUNK_BYTES`. A file with an unchanged prefix is read from the prefix's end on, even under another name. The state of a
file at a URL holds its tag instead, and its columns if it is Parquet: a file with the same name, size and tag is not
fetched again, any other is read whole.

Guarantee: in a corpus of up to `WHOLE_BYTES` every chunk is hashed again, so any changed byte is noticed. In a larger
corpus some `SAMPLES` chunks are hashed: a file's first, its last two, and evenly spaced ones. This notices truncation,
replacement, and every edit that moves later bytes. Another size proves a change; the same size proves nothing; times do
not count. Cost: hashing (BLAKE3) at the speed of the disk; 16 bytes a chunk in the store. Known weakness: above
WHOLE_BYTES an edit between the samples that keeps the length is not noticed.
"""

from __future__ import annotations

import copy
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import IO, Any, Literal, Self

import numpy as np
import orjson
from blake3 import blake3

from dagster_divorder.corpus.multiset import Multiset
from dagster_divorder.store.arrays import pack, unpack
from dagster_divorder.store.base import Store
from dagster_divorder.store.ids import ID_BYTES
from dagster_divorder.store.sources import RemoteFile, Source, identity

Recognition = Literal["whole", "tail and samples", "tags", "rescan"]
"""How earlier bytes were recognised: by hashes, or only by the tags of files at URLs; "rescan": not at all."""

FOLDER = "readings"
CHUNK_BYTES = 1 << 20
WHOLE_BYTES = 10 << 30
SAMPLES = 1024
_HEAD_BYTES = 64 << 10
_COLUMNS = ("size", "lines", "first", "last", "first_reject", "last_reject", "refused")


@dataclass(frozen=True, slots=True)
class FileState:
    """The prefix of one file: `size` bytes, `lines` lines, and their result.

    `chunks` holds the 16-byte hash of each chunk, `head` that of the first line. Accepted records are input positions
    [first, last), with `multiset` over all; the `refused` records are bytes [first_reject, last_reject) of the rejects.
    """

    path: str
    size: int
    lines: int
    head: bytes
    chunks: bytes
    first: int = 0
    last: int = 0
    first_reject: int = 0
    last_reject: int = 0
    refused: int = 0
    multiset: Multiset = field(default_factory=Multiset)
    tag: str = ""
    shape: int = 0
    """`Shape.key` of its input."""
    columns: bytes = b""
    """Schema of a Parquet file at a URL, as Arrow serialises it."""

    @classmethod
    def of_tag(cls, file: RemoteFile) -> FileState:
        """The state of a whole file at a URL, by its tag; its hashes are zeros."""
        chunks = bytes(ID_BYTES * -(-file.size // CHUNK_BYTES))
        return cls(file.url, file.size, 0, bytes(ID_BYTES), chunks, tag=file.tag)


class PrefixHashes:
    """The hashes of a file's first `size` bytes, chunk by chunk, and the number of `lines` in them; it grows."""

    def __init__(self) -> None:
        self.size = self.lines = 0
        self._closed = bytearray()
        self._open = blake3()

    def update(self, data: bytes | memoryview) -> None:
        """Take in the bytes that follow."""
        view = memoryview(data)
        while len(view):
            part = view[: CHUNK_BYTES - self.size % CHUNK_BYTES]
            view = view[len(part) :]
            self._open.update(part)
            self.size += len(part)
            if self.size % CHUNK_BYTES == 0:
                self._closed += self._open.digest(ID_BYTES)
                self._open.reset()

    def end_lines(self, data: bytes, lines: int) -> None:
        """Take in the data of the next `lines` lines, the last one without its line feed."""
        self.update(data)
        self.update(b"\n")
        self.lines += lines

    def copy(self) -> Self:
        """A copy that grows by itself."""
        other = copy.copy(self)
        other._closed, other._open = bytearray(self._closed), self._open.copy()
        return other

    def become(self, other: Self) -> None:
        """Take the state of another prefix."""
        vars(self).update(vars(other.copy()))

    @property
    def chunks(self) -> bytes:
        """The 16-byte hash of each chunk; the last chunk may be a part."""
        return bytes(self._closed) + (self._open.digest(ID_BYTES) if self.size % CHUNK_BYTES else b"")

    @classmethod
    def unchanged(cls, file: IO[bytes], state: FileState, numbers: Iterable[int]) -> PrefixHashes | None:
        """The prefix of an open file, None unless the last chunk and those of these numbers are as in the state."""
        if file.seek(0, os.SEEK_END) < state.size:
            return None
        last = -(-state.size // CHUNK_BYTES) - 1
        buffer = bytearray(CHUNK_BYTES)
        tail = b""
        for number in (last, *(number for number in numbers if number != last)):
            at = number * CHUNK_BYTES
            chunk = memoryview(buffer)[: min(CHUNK_BYTES, state.size - at)]
            if not _fill(file, chunk, at):
                return None
            expected = state.chunks[ID_BYTES * number : ID_BYTES * (number + 1)]
            if blake3(chunk).digest(ID_BYTES) != expected:
                return None
            if number == last:
                tail = bytes(chunk)
        prefix = cls()
        prefix.size, prefix.lines = last * CHUNK_BYTES, state.lines
        prefix._closed = bytearray(state.chunks[: ID_BYTES * last])
        prefix.update(tail)
        return prefix

    @classmethod
    def of_all(cls, file: IO[bytes]) -> PrefixHashes:
        """The prefix that covers all of an open file."""
        prefix = cls()
        file.seek(0)
        while data := file.read(CHUNK_BYTES):
            prefix.update(data)
        return prefix


def _fill(file: IO[bytes], into: memoryview, at: int) -> bool:
    """Reads bytes at an offset; False if the file ends before."""
    file.seek(at)
    while len(into):
        taken: int = file.readinto(into)  # type: ignore[attr-defined]
        if not taken:
            return False
        into = into[taken:]
    return True


class KnownFiles:
    """File states of the last run, by a file's name or, if the name has changed, by its first line."""

    def __init__(self, states: Sequence[FileState], corpus_bytes: int) -> None:
        self.way: Recognition = "whole" if corpus_bytes <= WHOLE_BYTES else "tail and samples"
        chunks = sum(len(state.chunks) // ID_BYTES for state in states)
        self._step = 1 if self.way == "whole" else max(1, -(-chunks // SAMPLES))
        self._by_path = {state.path: state for state in states}
        self._by_head: dict[bytes, list[FileState]] = {}
        for state in sorted(states, key=lambda state: -state.size):
            self._by_head.setdefault(state.head, []).append(state)

    def tagged(self, file: Source) -> FileState | None:
        """The state of a file at a URL with the same tag and size."""
        state = self._by_path.get(str(file)) if isinstance(file, RemoteFile) else None
        return state if state and (state.size, state.tag) == identity(file) else None

    def unchanged(self, file: IO[bytes], path: str) -> tuple[FileState, PrefixHashes] | None:
        """The state with the prefix that this open file begins with, and the prefix's hashes, to continue from. Among
        states with an equal first line, tries the longest first."""
        for state in self._candidates(file, path):
            if prefix := PrefixHashes.unchanged(file, state, self._numbers(state)):
                return state, prefix
        return None

    def same(self, file: IO[bytes], path: str, prefix: PrefixHashes) -> FileState | None:
        """The state that covers this whole open file, by its hashes."""
        chunks = prefix.chunks
        for state in self._candidates(file, path):
            if (state.size, state.chunks) == (prefix.size, chunks):
                return state
        return None

    def _candidates(self, file: IO[bytes], path: str) -> Iterator[FileState]:
        named = self._by_path.get(path)
        if named:
            yield named
        if self._by_head:
            yield from (state for state in self._by_head.get(head_of(file), ()) if state is not named)

    def _numbers(self, state: FileState) -> list[int]:
        chunks = len(state.chunks) // ID_BYTES
        return sorted({*range(0, chunks, self._step), *range(max(0, chunks - 2), chunks)})


def head_of(file: IO[bytes]) -> bytes:
    """Hash of an open file's first line, or of the line's first _HEAD_BYTES."""
    file.seek(0)
    return blake3(file.read(_HEAD_BYTES).partition(b"\n")[0]).digest(ID_BYTES)


def save_file_states(store: Store, states: Sequence[FileState]) -> str:
    """Puts file states in the store; returns their file."""
    number_of = {columns: number for number, columns in enumerate({state.columns: None for state in states})}
    meta = {
        "chunk_bytes": CHUNK_BYTES,
        "paths": [state.path for state in states],
        "tags": [state.tag for state in states],
        "shapes": [state.shape for state in states],
        "columns": [columns.hex() for columns in number_of],
        "columns_of": [number_of[state.columns] for state in states],
    }
    arrays = {
        "meta": np.frombuffer(orjson.dumps(meta), np.uint8),
        "heads": _bytes(state.head for state in states),
        "chunks": _bytes(state.chunks for state in states),
        **{column: np.array([getattr(state, column) for state in states], np.int64) for column in _COLUMNS},
        "record_bytes": np.array([state.multiset.bytes for state in states], np.int64),
        "record_hashes": _bytes(state.multiset.hashes.to_bytes(ID_BYTES) for state in states),
    }
    return store.put_hashed(FOLDER, "readings", pack(arrays), "safetensors")


def _bytes(values: Iterable[bytes]) -> np.ndarray:
    return np.frombuffer(b"".join(values), np.uint8)


def load_file_states(store: Store, file: str) -> list[FileState]:
    """File states from the store; none if their chunks have another size.

    Raises:
        DamagedFileError: the file is missing or altered.
    """
    arrays = unpack(store.read_verified(file))
    meta = orjson.loads(arrays["meta"].tobytes())
    if meta["chunk_bytes"] != CHUNK_BYTES:
        return []
    chunks = arrays["chunks"].tobytes()
    heads, hashes = arrays["heads"].tobytes(), arrays["record_hashes"].tobytes()
    ends = [0, *np.cumsum(ID_BYTES * -(-arrays["size"] // CHUNK_BYTES)).tolist()]
    values: dict[str, Any] = {column: arrays[column].tolist() for column in _COLUMNS}
    columns = [bytes.fromhex(text) for text in meta.get("columns", [""])]
    return [
        FileState(
            path=path,
            tag=tag,
            shape=shape,
            columns=columns[number],
            head=heads[ID_BYTES * at : ID_BYTES * (at + 1)],
            chunks=chunks[low:high],
            multiset=Multiset(
                records=values["last"][at] - values["first"][at],
                hashes=int.from_bytes(hashes[ID_BYTES * at : ID_BYTES * (at + 1)]),
                bytes=int(arrays["record_bytes"][at]),
            ),
            **{column: values[column][at] for column in _COLUMNS},
        )
        for at, (path, tag, shape, number, (low, high)) in enumerate(
            zip(
                meta["paths"],
                meta.get("tags") or [""] * len(meta["paths"]),
                meta.get("shapes") or [0] * len(meta["paths"]),
                meta.get("columns_of") or [0] * len(meta["paths"]),
                pairwise(ends),
                strict=True,
            )
        )
    ]
