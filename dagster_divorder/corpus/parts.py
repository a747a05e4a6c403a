"""Parts of the input, read in other processes: surveyed first, and then written as fragments.

A part is lines of a plain file by bytes, rows of a Parquet file by row groups, or a file that has to be read from its
beginning. Its blocks are those that a reader of the whole file meets, whoever reads it.

A *survey* gives of every record its id, that of its document, and their sizes: 40 bytes a record, all that is needed to
tell which records are new and which fragments they make (corpus/ingest.py). Then a part is read again, to *write* the
fragments that begin in it; a block whose records are no longer those of the survey is an InputError.
"""

from __future__ import annotations

import pickle
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING, NamedTuple

import numpy as np

from dagster_divorder.corpus.blocks import (
    BlockRecords,
    Digest,
    PairContent,
    Refusal,
    Texts,
    digest,
    joined,
    put_pair,
    record_index,
    utf8,
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
    """Lines of a plain file whose line feeds lie in bytes [first, last) of it; a line begins at byte `begin`, before
    which nothing is to be read. Where `last` is the `end`, the last line may lack its line feed."""

    path: Source
    begin: int
    first: int
    last: int
    end: int
    limit: int

    def blocks(self, hashes: StretchHashes | None = None) -> Iterator[LineBlock | LongRecord]:
        """The blocks; `hashes`, which begin at `line_start`, take in the lines."""
        hashes = hashes or StretchHashes(self.line_start())
        until = (self.first, self.last)
        for block in read_lines(self.path, prefix=hashes, limit=self.limit, until=until):
            if not block.unterminated or self.last == self.end:
                yield block

    def line_start(self) -> int:
        """Where the first of the lines begins; `last` where there is none."""
        with readable(self.path, StretchHashes(self.first)), open_source(self.path) as file:
            # A part without a line feed has no line, and looks for no start before itself: else a line that runs
            # through many parts would be read again for each of them.
            scanned = range(self.first, self.last, _SCAN_BYTES)
            if self.last < self.end and not any(b"\n" in _read(file, at, self.last) for at in scanned):
                return self.last
            for last in range(self.first, self.begin, -_SCAN_BYTES):
                first = max(self.begin, last - _SCAN_BYTES)
                if (at := _read(file, first, last).rfind(b"\n")) >= 0:
                    return first + at + 1
            return self.begin


def _read(file: IO[bytes], first: int, last: int) -> bytes:
    """Bytes of a file from `first` on, up to `last`, at most _SCAN_BYTES."""
    file.seek(first)
    return file.read(min(_SCAN_BYTES, last - first))


@dataclass(frozen=True, slots=True)
class RowPart:
    """Rows [first, end) of a Parquet file of this schema; an end of None is the file's."""

    path: Source
    schema: pa.Schema
    first: int
    end: int | None
    limit: int

    def blocks(self) -> Iterator[RowBlock | LongRecord]:
        return read_rows(self.path, self.schema, self.limit, (self.first, self.end))


@dataclass(frozen=True, slots=True)
class StreamPart:
    """All lines of a compressed file, which has to be read from its beginning."""

    path: Source
    limit: int

    def blocks(self) -> Iterator[LineBlock | LongRecord]:
        return read_lines(self.path, limit=self.limit)


Part = LinePart | RowPart | StreamPart


def line_parts(path: Source, begin: int, end: int, limit: int) -> list[Part]:
    """Parts of bytes [begin, end) of a plain file, a line beginning at `begin`."""
    firsts = range(begin, end, PART_BYTES)
    return [LinePart(path, begin, first, min(first + PART_BYTES, end), end, limit) for first in firsts]


def file_parts(path: Source, kind: Kind, schema: pa.Schema | None, limit: int) -> list[Part]:
    """Parts of a compressed file, or of a Parquet file of this schema."""
    if kind == "jsonl":
        return [StreamPart(path, limit)]
    return [RowPart(path, schema, *within, limit) for within in row_stretches(path, PART_BYTES)]


class Rereading:
    """Blocks of parts, which have numbers, read once more: forwards only, so that each block that is asked for has to
    lie behind the one before."""

    def __init__(self, parts: Mapping[int, Part]) -> None:
        self._blocks = (
            (part, number, block) for part, of in parts.items() for number, block in enumerate(of.blocks())
        )

    def block(self, part: int, number: int) -> LineBlock | RowBlock | None:
        """The block of this number of a part; None where it is none, since the file has changed."""
        found = next((block for *at, block in self._blocks if at == [part, number]), None)
        return None if isinstance(found, LongRecord) else found


# Survey --------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Surveyed:
    """The blocks of a part. Of a `LinePart` lines are numbered from its own first, and `stretch` says what was read."""

    blocks: list[Digest | LongRecord]
    last_whole: bool
    stretch: Stretch | None


def survey_part(part_and_shape: tuple[Part, Shape]) -> Surveyed:
    """Survey a part of an input of a shape."""
    part, shape = part_and_shape
    hashes = StretchHashes(part.line_start()) if isinstance(part, LinePart) else None
    blocks: list[Digest | LongRecord] = []
    block: Block | None = None
    for block in part.blocks(hashes) if isinstance(part, LinePart) else part.blocks():
        blocks.append(block if isinstance(block, LongRecord) else digest(block, shape))
    whole = isinstance(block, RowBlock) or block is None or not block.unterminated
    return Surveyed(blocks, whole, hashes.stretch if hashes else None)


class Pick(NamedTuple):
    """Records of a block that go into a fragment, which block this is, and the `check` that it is known by.

    at: int32 (n,), which of its records. ids, document_ids: uint64 (n, 2), theirs. fresh: int32, which of the n bring a
    new document.
    """

    part: int
    block: int
    path: str
    check: int
    shape: Shape
    at: np.ndarray
    ids: np.ndarray
    document_ids: np.ndarray
    fresh: np.ndarray


class SurveyedRecords:
    """Records of a block that another process read: the one of this `number` of a part, behind so many `lines`."""

    def __init__(
        self, digest: Digest, part: int, number: int, lines: int, again: Rereading, shape: Shape
    ) -> None:
        self.path, self.ids = digest.path, digest.ids
        self._digest, self._part, self._number, self._lines, self._again = digest, part, number, lines, again
        self._shape = shape

    def texts(self, at: np.ndarray) -> Texts:
        sizes = self._digest.text_sizes[at].astype(np.int64)
        sound = np.flatnonzero(sizes)
        return Texts(sound, self._digest.document_ids[at[sound]], sizes[sound], [])

    def take(self, at: np.ndarray, texts: Texts, fresh: np.ndarray) -> tuple[Pick, np.ndarray]:
        pick = Pick(
            part=self._part,
            block=self._number,
            path=self.path,
            check=self._digest.check,
            shape=self._shape,
            at=at.astype(np.int32),
            ids=self.ids[at],
            document_ids=texts.ids,
            fresh=fresh.astype(np.int32),
        )
        if self._digest.mean_of in (0, len(at)):
            return pick, self._digest.record_sizes[at].astype(np.int64)
        # What rows take together is not the sum of what each takes.
        block = self._again.block(self._part, self._number)
        if block is None:
            raise changed(self.path)
        return pick, BlockRecords(block, self._shape).content(at)[1]

    def refusals(self, at: np.ndarray) -> Iterator[Refusal]:
        for refusal in self._digest.refusals:
            yield refusal._replace(number=refusal.number + self._lines)

    def multiset(self, accepted: np.ndarray) -> Multiset:
        return self._digest.multiset


# Write ---------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Job:
    """Pairs of fragments that begin in one part, each of records of these picks; and the parts that they lie in."""

    parts: dict[int, Part]
    pairs: list[list[Pick]]


@dataclass(frozen=True, slots=True)
class WriteFragments:
    """Writes the fragments of a job, documents first; the number of records."""

    store: Store
    folder: str

    def __call__(self, job: Job) -> int:
        again = Rereading(job.parts)
        return sum(self._write(pair, again) for pair in job.pairs)

    def _write(self, pair: list[Pick], again: Rereading) -> int:
        held: list[PairContent] = []
        records: list[dict[str, np.ndarray]] = []
        documents: list[dict[str, np.ndarray]] = []
        for pick in pair:
            block = _found(again, pick)
            texts = [text for text in block.parse(pick.at[pick.fresh])[0] if text is not None]
            content, sizes = block.content(pick.at)
            held.append(PairContent(content, utf8(texts)))
            records.append(record_index(pick.ids, pick.document_ids, sizes, pick.shape))
            text_sizes = np.fromiter(map(len, texts), np.int64, len(texts))
            documents.append({"id": pick.document_ids[pick.fresh], "size": text_sizes})
        put_pair(self.store, self.folder, held, joined(documents), joined(records))
        return sum(len(pick.at) for pick in pair)


def _found(again: Rereading, pick: Pick) -> BlockRecords:
    """The block of a pick, with the records that it was made for."""
    block = again.block(pick.part, pick.block)
    if block is not None:
        held = BlockRecords(block, pick.shape)
        if held.check == pick.check:
            return held
    raise changed(pick.path)


def changed(path: object) -> InputError:
    """The error of a file that was written to while it was read."""
    return InputError(f"{path} changed while it was read; run again, once nothing writes to it any more")


class Jobs(Sequence[Job]):
    """Jobs, to be written: in memory, or, where they take much, in a temporary file."""

    def __init__(self) -> None:
        self.file: IO[bytes] = tempfile.SpooledTemporaryFile(max_size=FRAGMENT_BYTES)  # noqa: SIM115
        self._begins: list[int] = []
        self._open: Job | None = None

    def add(self, parts: Sequence[Part], pair: list[Pick]) -> None:
        """Take in a pair of fragments, those before it being in these or in earlier parts."""
        of = {pick.part: parts[pick.part] for pick in pair}
        if self._open and next(iter(self._open.parts)) == pair[0].part:
            self._open.parts.update(of)
            self._open.pairs.append(pair)
        else:
            self.close()
            self._open = Job(of, [pair])

    def close(self) -> None:
        """Take in no more for the last part."""
        if self._open:
            self._begins.append(self.file.tell())
            pickle.dump(self._open, self.file, protocol=5)
            self._open = None

    def __len__(self) -> int:
        return len(self._begins)

    def __getitem__(self, at: int) -> Job:  # type: ignore[override]
        self.file.seek(self._begins[at])
        job: Job = pickle.load(self.file)
        return job
