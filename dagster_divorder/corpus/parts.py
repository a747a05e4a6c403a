"""Parts of the input, read in other processes: first surveyed, then written as fragments.

A part is a range of a plain file's lines or of a Parquet file's row groups, or a whole compressed file. Its blocks are
the same as in a reading of the whole file.

A *survey* gives ids and sizes of every record and its document, 40 bytes a record: enough to decide which records are
new and which fragments they fill (corpus/ingest.py). A second reading of each part *writes* the fragments that begin in
it; a block that changed since the survey is an InputError.
"""

from __future__ import annotations

import pickle
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import IO, TYPE_CHECKING, NamedTuple

import numpy as np

from dagster_divorder.corpus.blocks import (
    BlockRecords,
    Digest,
    Parsed,
    Refusal,
    digest,
    lengths,
)
from dagster_divorder.corpus.file_states import Stretch, StretchHashes
from dagster_divorder.corpus.inputs import (
    BLOCK_BYTES,
    Block,
    Kind,
    LineBlock,
    LongRecord,
    RowBlock,
    read_lines,
    read_rows,
    readable,
    row_stretches,
)
from dagster_divorder.corpus.multiset import Multiset
from dagster_divorder.corpus.pairs import PairContent, joined, put_pair, record_index, utf8
from dagster_divorder.corpus.shapes import Shape
from dagster_divorder.errors import InputError
from dagster_divorder.store.base import Store
from dagster_divorder.store.fragments import FRAGMENT_BYTES
from dagster_divorder.store.sources import Source, open_source

if TYPE_CHECKING:
    import pyarrow as pa

PART_BYTES = 8 * BLOCK_BYTES
_SCAN_BYTES = 1 << 16


@dataclass(frozen=True, slots=True)
class LinePart:
    """Lines of a plain file whose newlines fall in its bytes [first, last). A line begins at byte `begin`; nothing
    before it is read. If `last` is `end`, the last line may lack its newline."""

    path: Source
    begin: int
    first: int
    last: int
    end: int
    limit: int

    def blocks(self, hashes: StretchHashes | None = None) -> Iterator[LineBlock | LongRecord]:
        """The blocks. hashes: updated with the lines; they begin at `line_start`."""
        hashes = hashes or StretchHashes(self.line_start())
        until = (self.first, self.last)
        for block in read_lines(self.path, prefix=hashes, limit=self.limit, until=until):
            if not block.unterminated or self.last == self.end:
                yield block

    def line_start(self) -> int:
        """The byte at which the first line begins; `last` if there is no line."""
        with readable(self.path, StretchHashes(self.first)), open_source(self.path) as file:
            # A part without a newline has no line and does not search bytes before itself; otherwise a line through
            # many parts would be read once for each.
            scanned = range(self.first, self.last, _SCAN_BYTES)
            if self.last < self.end and not any(b"\n" in _read(file, at, self.last) for at in scanned):
                return self.last
            for last in range(self.first, self.begin, -_SCAN_BYTES):
                first = max(self.begin, last - _SCAN_BYTES)
                if (at := _read(file, first, last).rfind(b"\n")) >= 0:
                    return first + at + 1
            return self.begin


def _read(file: IO[bytes], first: int, last: int) -> bytes:
    """Bytes [first, last) of a file, at most _SCAN_BYTES."""
    file.seek(first)
    return file.read(min(_SCAN_BYTES, last - first))


@dataclass(frozen=True, slots=True)
class FilePart:
    """All lines of a compressed file, or rows [first, end) `within` a Parquet file of this schema."""

    path: Source
    kind: Kind
    schema: pa.Schema | None
    limit: int
    within: tuple[int, int | None] = (0, None)

    def blocks(self) -> Iterator[Block]:
        if self.kind == "parquet":
            return read_rows(self.path, self.schema, self.limit, self.within)
        return read_lines(self.path, limit=self.limit)


Part = LinePart | FilePart


def line_parts(path: Source, begin: int, end: int, limit: int) -> list[Part]:
    """Parts of bytes [begin, end) of a plain file; a line begins at `begin`."""
    firsts = range(begin, end, PART_BYTES)
    return [LinePart(path, begin, first, min(first + PART_BYTES, end), end, limit) for first in firsts]


def file_parts(path: Source, kind: Kind, schema: pa.Schema | None, limit: int) -> list[Part]:
    """Parts of a compressed file, or of a Parquet file of this schema."""
    stretches = row_stretches(path, PART_BYTES) if kind == "parquet" else [(0, None)]
    return [FilePart(path, kind, schema, limit, within) for within in stretches]


class Rereading:
    """Reads blocks of parts again, in order."""

    def __init__(self, parts: Iterable[Part]) -> None:
        self._blocks = ((part, number, block) for part in parts for number, block in enumerate(part.blocks()))

    def block(self, part: Part, number: int) -> LineBlock | RowBlock:
        """The block with this number of a part. Numbers must rise from call to call.

        Raises:
            InputError: the block is missing, because the file has changed.
        """
        block = next((block for *at, block in self._blocks if at == [part, number]), None)
        if block is None or isinstance(block, LongRecord):
            raise changed(part.path)
        return block


# Survey --------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Surveyed:
    """The blocks of a part. In a `LinePart`, lines are numbered from its first line, and `stretch` covers its lines."""

    blocks: list[Digest | LongRecord]
    stretch: Stretch | None

    def records(self, part: Part, shape: Shape, lines: int) -> Iterator[SurveyedRecords | LongRecord]:
        """The blocks of this part of an input of a shape. lines: number of lines of the file before the part."""
        again = Rereading([part])
        for number, block in enumerate(self.blocks):
            if isinstance(block, LongRecord):
                yield replace(block, number=block.number + lines)
            else:
                yield SurveyedRecords(block, part, number, lines, again, shape)


def survey_part(part_and_shape: tuple[Part, Shape]) -> Surveyed:
    """Survey a part of an input with this shape."""
    part, shape = part_and_shape
    hashes = StretchHashes(part.line_start()) if isinstance(part, LinePart) else None
    blocks = [
        block if isinstance(block, LongRecord) else digest(block, shape)
        for block in (part.blocks(hashes) if isinstance(part, LinePart) else part.blocks())
    ]
    return Surveyed(blocks, hashes.stretch if hashes else None)


class Pick(NamedTuple):
    """n records of a block for one fragment. block: its number in the part; check: `BlockRecords.check`.

    at: positions of the records in the block, int32 (n,). ids, document_ids: uint64 (n, 2). fresh: positions of records
    with a new document, int32.
    """

    part: Part
    block: int
    check: int
    shape: Shape
    at: np.ndarray
    ids: np.ndarray
    document_ids: np.ndarray
    fresh: np.ndarray


class SurveyedRecords:
    """Records of a block that another process read. number: of the block in its part; lines: of the file before the
    block."""

    def __init__(
        self, digest: Digest, part: Part, number: int, lines: int, again: Rereading, shape: Shape
    ) -> None:
        self.path, self.ids, self.unterminated = str(part.path), digest.ids, digest.unterminated
        self._digest, self._part, self._number, self._lines, self._again = digest, part, number, lines, again
        self._shape = shape

    def parse(self, at: np.ndarray) -> Parsed:
        text_sizes = self._digest.text_sizes[at].astype(np.int64)
        sound = np.flatnonzero(text_sizes)
        at = at[sound]
        record_sizes = self._digest.record_sizes[at].astype(np.int64)
        if self._digest.mean_of not in (0, len(at)) and len(at):
            # The size of several rows is not the sum of their sizes.
            block = self._again.block(self._part, self._number)
            record_sizes = BlockRecords(block, self._shape).content(at)[1]
        ids, document_ids = self.ids[at], self._digest.document_ids[at]
        pick = Pick(
            part=self._part,
            block=self._number,
            check=self._digest.check,
            shape=self._shape,
            at=at.astype(np.int32),
            ids=ids,
            document_ids=document_ids,
            fresh=np.empty(0, np.int32),
        )
        return Parsed(sound, ids, document_ids, text_sizes[sound], record_sizes, pick, [])

    def refusals(self, at: np.ndarray) -> Iterator[Refusal]:
        for refusal in self._digest.refusals:
            yield refusal._replace(number=refusal.number + self._lines)

    def multiset(self, accepted: np.ndarray) -> Multiset:
        return self._digest.multiset


# Write ---------------------------------------------------------------------------------------------------------------


Pair = list[Pick]
"""Picks of the records for a pair of fragments."""


@dataclass(frozen=True, slots=True)
class WriteFragments:
    """Writes pairs of fragments that begin in one part; returns the number of records."""

    store: Store
    folder: str

    def __call__(self, pairs: Sequence[Pair]) -> int:
        again = Rereading(part for part, _ in groupby(pick.part for pair in pairs for pick in pair))
        return sum(self._write(pair, again) for pair in pairs)

    def _write(self, pair: Pair, again: Rereading) -> int:
        contents: list[PairContent] = []
        records: list[dict[str, np.ndarray]] = []
        documents: list[dict[str, np.ndarray]] = []
        for pick in pair:
            block = BlockRecords(again.block(pick.part, pick.block), pick.shape)
            if block.check != pick.check:
                raise changed(pick.part.path)
            content, sizes = block.content(pick.at)
            texts = [text for text in block.texts(pick.at[pick.fresh])[0] if text is not None]
            contents.append(PairContent(content, utf8(texts)))
            records.append(record_index(pick.ids, pick.document_ids, sizes, pick.shape))
            documents.append({"id": pick.document_ids[pick.fresh], "size": lengths(texts)})
        put_pair(self.store, self.folder, contents, joined(documents), joined(records))
        return sum(len(pick.at) for pick in pair)


def changed(path: object) -> InputError:
    """The error for a file that changed during reading."""
    return InputError(f"{path} changed during reading; run again once nothing writes to it")


class Jobs(Sequence[list[Pair]]):
    """Pairs to write, grouped by the part in which they begin; in memory, or in a temporary file if large."""

    def __init__(self) -> None:
        self.file: IO[bytes] = tempfile.SpooledTemporaryFile(max_size=FRAGMENT_BYTES)  # noqa: SIM115
        self._begins: list[int] = []
        self._open: list[Pair] = []

    def add(self, pair: Pair) -> None:
        """Adds a pair that begins in the previous pair's part or in a later one."""
        if self._open and self._open[0][0].part != pair[0].part:
            self.close()
        self._open.append(pair)

    def close(self) -> None:
        """Ends the last group."""
        if self._open:
            self._begins.append(self.file.tell())
            pickle.dump(self._open, self.file, protocol=5)
            self._open = []

    def __len__(self) -> int:
        return len(self._begins) + bool(self._open)

    def __getitem__(self, at: int) -> list[Pair]:  # type: ignore[override]
        self.file.seek(self._begins[at])
        pairs: list[Pair] = pickle.load(self.file)
        return pairs
