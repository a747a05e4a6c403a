"""The input from its first file to its last: of each file what is known already, then the blocks that are not.

A file comes as `Begin`, its blocks, `End`. A plain JSONL file that begins with what an earlier run read of it is read
from there on; a compressed or Parquet file is read whole, unless all of it is what was read.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING

from dagster_divorder.store.file_states import FileState, KnownFiles, PrefixHashes, Recognition, head_of
from dagster_divorder.store.inputs import (
    Block,
    Kind,
    LineBlock,
    LongRecord,
    is_plain,
    read_lines,
    read_rows,
    read_schema,
    readable,
)
from dagster_divorder.store.parts import Part, changed, file_parts, line_parts

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True, slots=True)
class Begin:
    """A file begins, with what an earlier run came to for its prefix, and its columns if it is Parquet."""

    path: str
    kept: FileState | None = None
    schema: pa.Schema | None = None


@dataclass(frozen=True, slots=True)
class End:
    """A file ends; `read` is its prefix, without what came of it. None where nothing is to be kept of it."""

    read: FileState | None


@dataclass(frozen=True, slots=True)
class Cut:
    """A file in parts that other processes can read; `prefix`, of a plain file, has to take in what they read before
    the `end` is asked for. head: of a plain file, else empty. whole: the state of all of another file."""

    begin: Begin
    parts: list[Part]
    prefix: PrefixHashes
    head: bytes
    whole: FileState | None
    identity: tuple[int, ...]

    def end(self) -> End:
        """
        Raises:
            InputError: another file was put into this one's place.
        """
        path = Path(self.begin.path)
        now = _identity(path)
        if self.head:
            # It may have grown.
            if self.parts and now[:2] != self.identity[:2]:
                raise changed(self.begin.path)
            return End(_reading(path, self.head, self.prefix))
        return End(self.whole if now == self.identity else None)


class Corpus:
    """The input files, to be gone through once; a record has at most `limit` bytes.

    `bytes` is their size. `way` says how what was read before was recognised and `kept_bytes` how much of it, once the
    input has been gone through.
    """

    def __init__(
        self, kind: Kind, files: Sequence[Path], limit: int, states: Sequence[FileState] = ()
    ) -> None:
        self.kind = kind
        self.files = files
        self.limit = limit
        self.bytes = sum(_stat(path).st_size for path in files)
        self.kept_bytes = 0
        self._known = KnownFiles(states, self.bytes)

    @property
    def unknown_bytes(self) -> int:
        """About how many bytes no earlier run has read, by the names and sizes of the files."""
        return self.bytes - self._known.bytes_of(self.files)

    @property
    def way(self) -> Recognition:
        return self._known.way if self.kept_bytes else "rescan"

    def __iter__(self) -> Iterator[Begin | Block | End]:
        """
        Raises:
            InputError: a file cannot be read, or its columns differ from the first file's.
        """
        schema = None
        for path in self.files:
            if self.kind == "jsonl" and is_plain(path):
                yield from self._plain(path)
                continue
            if self.kind == "parquet":
                schema = read_schema(path, schema)
            kept, read, before = self._whole(path)
            yield Begin(str(path), kept, schema)
            if not kept:
                if self.kind == "parquet":
                    yield from read_rows(path, schema, self.limit)
                else:
                    yield from read_lines(path, limit=self.limit)
            # A file that was replaced while it was read is one that nothing is known of.
            yield End(read if before == _identity(path) else None)

    def cut(self) -> Iterator[Cut]:
        """The same files in parts.

        Raises:
            InputError: as `__iter__`.
        """
        schema = None
        for path in self.files:
            if self.kind == "jsonl" and is_plain(path):
                identity = _identity(path)
                with readable(path, PrefixHashes()), open(path, "rb", buffering=0) as file:
                    kept, prefix, head = self._prefix(path, file)
                    parts = line_parts(path, prefix.size, os.fstat(file.fileno()).st_size, self.limit)
                yield Cut(Begin(str(path), kept), parts, prefix, head, None, identity)
                continue
            if self.kind == "parquet":
                schema = read_schema(path, schema)
            kept, read, before = self._whole(path)
            parts = [] if kept else file_parts(path, self.kind, schema, self.limit)
            yield Cut(Begin(str(path), kept, schema), parts, PrefixHashes(), b"", read, before)

    def _prefix(self, path: Path, file: IO[bytes]) -> tuple[FileState | None, PrefixHashes, bytes]:
        """What is known of the prefix of a plain file, its hashes, and the file's head."""
        head = head_of(file)
        kept, prefix = self._known.unchanged(file, str(path)) or (None, PrefixHashes())
        self.kept_bytes += kept.size if kept else 0
        return kept, prefix, head

    def _plain(self, path: Path) -> Iterator[Begin | LineBlock | LongRecord | End]:
        with readable(path, PrefixHashes()):
            file = open(path, "rb", buffering=0)  # noqa: SIM115
        with file:
            with readable(path, PrefixHashes()):
                kept, prefix, head = self._prefix(path, file)
            yield Begin(str(path), kept)
            yield from read_lines(path, file, prefix, self.limit)
        yield End(_reading(path, head, prefix))

    def _whole(self, path: Path) -> tuple[FileState | None, FileState | None, tuple[int, ...]]:
        """What is known of all of a file, its own state, and what would differ in a file put into its place."""
        before = _identity(path)
        if self._known.way != "whole":
            return None, None, before
        with readable(path, PrefixHashes()), open(path, "rb", buffering=0) as file:
            head, prefix = head_of(file), PrefixHashes.of_all(file)
            kept = self._known.same(file, str(path), prefix)
        self.kept_bytes += kept.size if kept else 0
        return kept, _reading(path, head, prefix), before


def _reading(path: Path, head: bytes, prefix: PrefixHashes) -> FileState | None:
    return FileState(str(path), prefix.size, prefix.lines, head, prefix.chunks) if prefix.size else None


def _identity(path: Path) -> tuple[int, ...]:
    found = _stat(path)
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns


def _stat(path: Path) -> os.stat_result:
    with readable(path, PrefixHashes()):
        return os.stat(path)
