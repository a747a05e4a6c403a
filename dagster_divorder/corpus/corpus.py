"""The input from its first file to its last: of each file what is known already, then the blocks that are not.

A file comes as `Begin`, its blocks, `End`. A plain JSONL file that begins with what an earlier run read of it is read
from there on; a compressed or Parquet file is read whole, unless all of it is what was read. Of a file at a URL that
has the tag it had nothing is read, but the columns of a Parquet file.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import IO, TYPE_CHECKING

from dagster_divorder.corpus.file_states import FileState, KnownFiles, PrefixHashes, Recognition, head_of
from dagster_divorder.corpus.find import Found
from dagster_divorder.corpus.inputs import (
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
from dagster_divorder.corpus.parts import Part, changed, file_parts, line_parts
from dagster_divorder.corpus.shapes import Shape
from dagster_divorder.store.sources import RemoteFile, Source, identity, open_source, tag_of

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True, slots=True)
class Begin:
    """A file of an input of this kind and shape begins, with what an earlier run came to for its prefix, and its
    columns if it is Parquet."""

    path: str
    kind: Kind
    shape: Shape
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

    path: Source
    begin: Begin
    parts: list[Part]
    prefix: PrefixHashes
    head: bytes
    whole: FileState | None
    identity: tuple[int | str, ...]

    def end(self) -> End:
        """
        Raises:
            InputError: another file was put into this one's place.
        """
        now = _identity(self.path)
        if self.head:
            # It may have grown.
            if self.parts and now[1:3] != self.identity[1:3]:
                raise changed(self.path)
            return End(_reading(self.path, self.head, self.prefix))
        return End(self.whole if now == self.identity else None)


class Corpus:
    """The files of the inputs, to be gone through once; a record has at most `limit` bytes.

    `bytes` is their size. `way` says how what was read before was recognised and `kept_bytes` how much of it, once the
    input has been gone through.
    """

    def __init__(self, inputs: Sequence[Found], limit: int, states: Sequence[FileState] = ()) -> None:
        self.inputs = inputs
        self.files = [path for found in inputs for path in found.files]
        self.limit = limit
        self.bytes = sum(int(_identity(path)[0]) for path in self.files)
        self.kept_bytes = self._tagged_bytes = 0
        # What is known of a file that was read as another input is of no use.
        self._known_of = [
            KnownFiles([state for state in states if state.shape == found.shape.key], self.bytes)
            for found in inputs
        ]
        self._known = self._known_of[0]

    @property
    def unknown_bytes(self) -> int:
        """About how many bytes no earlier run has read, by the names and sizes of the files."""
        known = zip(self.inputs, self._known_of, strict=True)
        return self.bytes - sum(files.bytes_of(found.files) for found, files in known)

    @property
    def way(self) -> Recognition:
        if not self.kept_bytes:
            return "rescan"
        return "tags" if self._tagged_bytes == self.kept_bytes else self._known.way

    def __iter__(self) -> Iterator[Begin | Block | End]:
        """
        Raises:
            InputError: a file cannot be read, or its columns differ from those of the first file of its input.
        """
        for number, found in enumerate(self.inputs):
            self._known = self._known_of[number]
            with found.shape.naming():
                yield from self._read(found)

    def _read(self, found: Found) -> Iterator[Begin | Block | End]:
        schema, begin = None, partial(Begin, kind=found.kind, shape=found.shape)
        for path in found.files:
            if found.kind == "parquet":
                schema = read_schema(path, schema)
            if known := self._tagged(path):
                yield begin(str(path), kept=known, schema=schema)
                yield End(known)
                continue
            if found.kind == "jsonl" and is_plain(path):
                yield from self._plain(path, begin)
                continue
            kept, read, before = self._whole(path)
            yield begin(str(path), kept=kept, schema=schema)
            if not kept:
                if found.kind == "parquet":
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
        for number, found in enumerate(self.inputs):
            self._known = self._known_of[number]
            with found.shape.naming():
                yield from self._cut(found)

    def _cut(self, found: Found) -> Iterator[Cut]:
        schema = None
        for path in found.files:
            if found.kind == "parquet":
                schema = read_schema(path, schema)
            before, prefix, head, parts = _identity(path), PrefixHashes(), b"", list[Part]()
            kept = read = self._tagged(path)
            if not kept and found.kind == "jsonl" and is_plain(path):
                with readable(path, prefix), open_source(path) as file:
                    kept, prefix, head = self._prefix(path, file)
                parts = line_parts(path, prefix.size, int(before[0]), self.limit)
            elif not kept:
                kept, read, before = self._whole(path)
                parts = [] if kept else file_parts(path, found.kind, schema, self.limit)
            begin = Begin(str(path), found.kind, found.shape, kept, schema)
            yield Cut(path, begin, parts, prefix, head, read, before)

    def _tagged(self, path: Source) -> FileState | None:
        """What is known of all of a file at a URL that has the tag it had."""
        known = self._known.tagged(path)
        self.kept_bytes += known.size if known else 0
        self._tagged_bytes += known.size if known else 0
        return known

    def _prefix(self, path: Source, file: IO[bytes]) -> tuple[FileState | None, PrefixHashes, bytes]:
        """What is known of the prefix of a plain file, its hashes, and the file's head."""
        head = head_of(file)
        kept, prefix = self._known.unchanged(file, str(path), tag_of(path)) or (None, PrefixHashes())
        self.kept_bytes += kept.size if kept else 0
        return kept, prefix, head

    def _plain(
        self, path: Source, begin: Callable[..., Begin]
    ) -> Iterator[Begin | LineBlock | LongRecord | End]:
        with readable(path, PrefixHashes()):
            file = open_source(path)
        with file:
            with readable(path, PrefixHashes()):
                kept, prefix, head = self._prefix(path, file)
            yield begin(str(path), kept=kept)
            yield from read_lines(path, file, prefix, self.limit)
        yield End(_reading(path, head, prefix))

    def _whole(self, path: Source) -> tuple[FileState | None, FileState | None, tuple[int | str, ...]]:
        """What is known of all of a file, its own state, and what would differ in a file put into its place."""
        before = _identity(path)
        if isinstance(path, RemoteFile):
            return None, FileState.of_tag(path), before
        if self._known.way != "whole":
            return None, None, before
        with readable(path, PrefixHashes()), open_source(path) as file:
            head, prefix = head_of(file), PrefixHashes.of_all(file)
            kept = self._known.same(file, str(path), prefix)
        self.kept_bytes += kept.size if kept else 0
        return kept, _reading(path, head, prefix), before


def _reading(path: Source, head: bytes, prefix: PrefixHashes) -> FileState | None:
    if not prefix.size:
        return None
    return FileState(str(path), prefix.size, prefix.lines, head, prefix.chunks, tag=tag_of(path))


def _identity(path: Source) -> tuple[int | str, ...]:
    with readable(path, PrefixHashes()):
        return identity(path)
