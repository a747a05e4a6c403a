"""The input, file by file: the prefix that an earlier run read, and the rest in blocks.

A plain JSONL file with an unchanged prefix is read from its end on; a compressed or Parquet file, or a file at a URL,
is read whole unless all of it is unchanged.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import IO, TYPE_CHECKING

from dagster_divorder.corpus.blocks import BlockRecords
from dagster_divorder.corpus.file_states import FileState, KnownFiles, PrefixHashes, Recognition, head_of
from dagster_divorder.corpus.find import Found
from dagster_divorder.corpus.inputs import (
    Block,
    Kind,
    LongRecord,
    is_plain,
    read_lines,
    read_rows,
    read_schema,
    readable,
)
from dagster_divorder.corpus.shapes import Shape
from dagster_divorder.settings import MAX_RECORD_BYTES
from dagster_divorder.store.sources import RemoteFile, Source, identity, open_source

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(eq=False, slots=True)
class InputFile:
    """A file of an input of this kind and shape, whose records have at most `limit` bytes.

    schema: columns of a Parquet file. identity: see `store.sources.identity`. kept: state of the prefix that an earlier
    run read. head, prefix: for a plain file, the hash of the first line and the hashes of the bytes read so far.
    opened: the plain file, open until iteration reaches the next file. whole: for other files, the state of all bytes.
    """

    path: Source
    kind: Kind
    shape: Shape
    limit: int = MAX_RECORD_BYTES
    schema: pa.Schema | None = None
    identity: tuple[int | str, ...] = ()
    kept: FileState | None = None
    head: bytes = b""
    prefix: PrefixHashes = field(default_factory=PrefixHashes)
    opened: IO[bytes] | None = None
    whole: FileState | None = None

    def blocks(self) -> Iterator[BlockRecords | LongRecord]:
        """The blocks that no earlier run has read.

        Raises:
            InputError: the file cannot be read, or its text column is missing, or holds no strings.
        """
        blocks: Iterator[Block] = iter(())
        if self.head:
            blocks = read_lines(self.path, self.opened, self.prefix, self.limit)
        elif not self.kept:
            is_rows = self.kind == "parquet"
            blocks = (
                read_rows(self.path, self.schema, self.limit)
                if is_rows
                else read_lines(self.path, limit=self.limit)
            )
        with self.shape.naming():
            for block in blocks:
                yield block if isinstance(block, LongRecord) else BlockRecords(block, self.shape)

    def end(self) -> FileState | None:
        """The state of the bytes read, without their records; None if the next run cannot use it."""
        if not self.head:
            # If the file was replaced during reading, its state is meaningless.
            return self.whole if _identity(self.path) == self.identity else None
        return _state(self.path, self.head, self.prefix)


class Corpus:
    """The files of the inputs, to be iterated once; a record has at most `limit` bytes.

    bytes: size of the files. After the iteration: `way`, how known bytes were recognised; `kept_bytes`, how many were.
    """

    def __init__(self, inputs: Sequence[Found], limit: int, states: Sequence[FileState] = ()) -> None:
        self.inputs = inputs
        self.files = [path for corpus_input in inputs for path in corpus_input.files]
        self.limit = limit
        self.bytes = sum(int(_identity(path)[0]) for path in self.files)
        self.kept_bytes = self._tagged_bytes = 0
        # States of files read in another shape are useless.
        self._known = [
            KnownFiles([state for state in states if state.shape == corpus_input.shape.key], self.bytes)
            for corpus_input in inputs
        ]

    @property
    def way(self) -> Recognition:
        if not self.kept_bytes:
            return "rescan"
        return "tags" if self._tagged_bytes == self.kept_bytes else self._known[0].way

    def __iter__(self) -> Iterator[InputFile]:
        """
        Raises:
            InputError: a file cannot be read, or its columns differ from those of the first file of its input.
        """
        for corpus_input, known in zip(self.inputs, self._known, strict=True):
            kind, shape, schema = corpus_input.kind, corpus_input.shape, None
            with shape.naming():
                for path in corpus_input.files:
                    tagged = known.tagged(path)
                    if kind == "parquet":
                        schema = read_schema(path, schema, tagged.columns if tagged else b"")
                    file = InputFile(path, kind, shape, self.limit, schema, _identity(path))
                    self._recognise(file, known, tagged)
                    with file.opened or contextlib.nullcontext():
                        yield file

    def _recognise(self, file: InputFile, known: KnownFiles, tagged: FileState | None) -> None:
        """Sets `kept` of a file: what an earlier run read, found by the file's tag, its beginning or all of it."""
        path = file.path
        if isinstance(path, RemoteFile):
            columns = file.schema.serialize().to_pybytes() if file.schema is not None else b""
            file.kept, file.whole = tagged, replace(tagged or FileState.of_tag(path), columns=columns)
            self._tagged_bytes += tagged.size if tagged else 0
        elif file.kind == "jsonl" and is_plain(path):
            with readable(path, file.prefix):
                file.opened = open_source(path)
                file.head = head_of(file.opened)
                prefix = known.unchanged(file.opened, str(path))
            file.kept, file.prefix = prefix or (None, file.prefix)
        elif known.way == "whole":
            with readable(path, file.prefix), open_source(path) as opened:
                head, hashes = head_of(opened), PrefixHashes.of_all(opened)
                file.kept = known.same(opened, str(path), hashes)
            file.whole = _state(path, head, hashes)
        self.kept_bytes += file.kept.size if file.kept else 0


def _state(path: Source, head: bytes, prefix: PrefixHashes) -> FileState | None:
    if not prefix.size:
        return None
    return FileState(str(path), prefix.size, prefix.lines, head, prefix.chunks)


def _identity(path: Source) -> tuple[int | str, ...]:
    with readable(path, PrefixHashes()):
        return identity(path)
