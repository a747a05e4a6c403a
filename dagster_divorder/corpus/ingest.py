"""Reads the input into fragments and a view. What an earlier run has read of unchanged files is not read again.

The path of a line: inputs.py (blocks of a file) -> cut.py (fragments) -> ingest.py (parsed and stored, unless a
fragment of this name is there). Only a view refers to fragments, so a killed run leaves fragments that the next run
finds, or that removal takes away.

Guarantee: the fragments depend on the input alone, not on earlier runs, kills or workers. Memory: one fragment, its
parsed records, and what the view holds: some hundred bytes a fragment and a file.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import orjson
import pyarrow as pa
from blake3 import blake3

from dagster_divorder.core.arrow import binary_array, plain_array
from dagster_divorder.corpus.cut import Place, cut
from dagster_divorder.corpus.find import Found
from dagster_divorder.corpus.inputs import Block, is_plain, joined, may_grow, read_lines, read_rows, readable
from dagster_divorder.corpus.parquet_rows import json_lines
from dagster_divorder.corpus.records import parse_block, reject
from dagster_divorder.corpus.shapes import Shape
from dagster_divorder.engine.progress import Advance
from dagster_divorder.store.fragments import ENTRY, REFUSED, Fragments
from dagster_divorder.store.ids import ID_BYTES, hash_all, hash_sum, places, to_bytes, words
from dagster_divorder.store.sources import RemoteFile, Source, identity, open_source
from dagster_divorder.store.view import Fragment, ReadFile, View
from dagster_divorder.units import SETTLED_NS

RANGE_BYTES = 256 << 20
"""Bytes of the range of one worker."""
FILE_BYTES = 16 << 20
"""A file of at least this size ends its last fragment: neighbours that grow do not make it be read (or fetched) again,
which for a compressed file or Parquet is from its beginning."""

HASHED_BYTES = 1 << 20
"""Bytes that are read at a time to be hashed only."""

Each = Callable[[Callable[[Any], Any], Sequence[Any]], Iterator[Any]]
"""Applies a function to items, perhaps in other processes; yields results in order."""


@dataclass(frozen=True, slots=True)
class Ingested:
    """An input as it was read. planned: indexes of fragments that were not stored. new_records: number of records that
    the view before lacks. trusted_bytes: size of the files that were not read."""

    view: View
    planned: Mapping[str, Mapping[str, np.ndarray]]
    new_records: int
    trusted_bytes: int


@dataclass(frozen=True, slots=True)
class Reading:
    """How the files of an input are read and stored. sources: the files of all inputs. schema: columns of Parquet
    files. borders: see `cut`. dry: nothing is stored. before: pieces of the view before, by name."""

    fragments: Fragments
    shape: Shape
    sources: Sequence[Source]
    schema: pa.Schema | None
    limit: int
    borders: Set[int] = frozenset()
    dry: bool = False
    before: Mapping[str, Fragment] = field(default_factory=dict)


class Range(NamedTuple):
    """Lines that one worker reads. last: where its gap ends. end, owned: see `cut`."""

    begin: Place
    end: Place
    last: Place
    owned: bool = True


@dataclass(slots=True)
class Result:
    """What ranges hold. lines, blank: numbers of lines that fragments hold, by the number of the file. planned: see
    `Ingested`. made: names of new fragments."""

    pieces: list[Fragment] = field(default_factory=list)
    lines: Counter[int] = field(default_factory=Counter)
    blank: Counter[int] = field(default_factory=Counter)
    unfinished: dict[int, tuple[int, str]] = field(default_factory=dict)
    planned: dict[str, Mapping[str, np.ndarray]] = field(default_factory=dict)
    made: set[str] = field(default_factory=set)


def ingest(
    fragments: Fragments,
    kind: str,
    inputs: Sequence[tuple[Found, pa.Schema | None]],
    before: View | None,
    limit: int,
    each: Each,
    *,
    dry: bool = False,
) -> Ingested:
    """Read the inputs, and store fragments that are new.

    Args:
        inputs: files, and the columns of Parquet files.
        before: the view of an earlier run under the same key and limit.
        limit: most bytes of a record.
        dry: store nothing.

    Raises:
        InputError: a file cannot be read, or its text column is missing or holds no strings.
    """
    sources = [path for found, _ in inputs for path in found.files]
    files = _begun(inputs, before)
    bounds = [0, *np.cumsum([len(found.files) for found, _ in inputs]).tolist()]
    borders = frozenset(number for number, file in enumerate(files, 1) if file.size >= FILE_BYTES)
    result, seen = Result(), {piece.name: piece for piece in before.pieces} if before else {}
    kept = _kept(before, files, sources, {*bounds}, borders, fragments.present().keys()) if before else []
    for (first, end), (found, schema) in zip(pairwise(bounds), inputs, strict=True):
        own = [piece for piece in kept if Place(first, 0) <= piece.begin < Place(end, 0)]
        reading = Reading(fragments, found.shape, sources, schema, limit, borders, dry, seen)
        at = Place(first, 0)
        for piece in [*own, _Kept(Place(end, 0), Place(end, 0), [])]:
            ranges = _ranges(reading, files, at, piece.begin) if at < piece.begin else []
            for part in each(partial(read_range, reading), ranges):
                result.pieces += part.pieces
                result.lines.update(part.lines)
                result.blank.update(part.blank)
                result.unfinished |= part.unfinished
                result.planned |= part.planned
                result.made |= part.made
            result.pieces += piece.fragments
            for kept_one in piece.fragments:
                # Of a file that has changed, only fragments that lie in no other file are kept.
                result.lines[kept_one.file] += kept_one.lines
                result.blank[kept_one.file] += kept_one.lines - kept_one.rows - kept_one.refused
            at = piece.end
    trusted = sum(file.size for file in files if file.lines >= 0)
    for number, file in enumerate(files):
        if file.lines < 0:
            with readable(sources[number]):
                same = identity(sources[number]) == file.identity
            files[number] = replace(
                file,
                identity=file.identity if same else (),
                lines=result.lines[number],
                blank=result.blank[number],
                unfinished=result.unfinished.get(number),
            )
    new_records = _new_records(replace(fragments, planned=result.planned), result, before)
    view = View(kind, tuple(result.pieces), tuple(files))
    return Ingested(view, result.planned, new_records, trusted)


def _begun(inputs: Sequence[tuple[Found, pa.Schema | None]], before: View | None) -> list[ReadFile]:
    """The files before they are read: as they were, if they are unchanged; else with -1 lines."""
    known = {(file.path, file.shape): file for file in before.files} if before else {}
    now, files = time.time_ns(), []
    for group, (found, schema) in enumerate(inputs):
        for path in found.files:
            with readable(path):
                size, *rest = identity(path)
            last = known.get((str(path), found.shape.key))
            if last and last.identity == (size, *rest):
                files.append(replace(last, group=group))
                continue
            # A file that was just written may be written again without other times.
            settled = isinstance(path, RemoteFile) or all(int(at) <= now - SETTLED_NS for at in rest[-2:])
            columns = schema.serialize().to_pybytes().hex() if schema and isinstance(path, RemoteFile) else ""
            name = (size, *rest) if settled else ()
            files.append(ReadFile(str(path), int(size), name, -1, 0, found.shape.key, group, columns=columns))
    return files


class _Kept(NamedTuple):
    """Fragments that need not be read again, from a primary cut (or where an input begins) to another one."""

    begin: Place
    end: Place
    fragments: list[Fragment]


def _kept(
    before: View,
    files: Sequence[ReadFile],
    sources: Sequence[Source],
    inputs: Set[int],
    borders: Set[int],
    present: Set[str],
) -> list[_Kept]:
    """What the view before has of files that are unchanged, or have grown, in the order of the files. inputs: the first
    file of each input, and the number of files. borders: see `cut`. present: names of stored fragments; one that was
    deleted is read again."""
    number_of = {(file.path, file.shape): number for number, file in enumerate(files)}
    moved = [number_of.get((file.path, file.shape), -1) for file in before.files]
    trusted = [number >= 0 and files[number].lines >= 0 for number in moved]
    begins = [Place(piece.file, piece.offset) for piece in before.pieces]

    def hashed(begin: Place, end: Place) -> str:
        """`Fragment.raw` of what lies there now."""
        digest = blake3()
        for file in range(begin.file, end.file + (end.offset > 0)):
            at, path = begin.offset if file == begin.file else 0, sources[moved[file]]
            stop = end.offset if file == end.file else before.files[file].size
            with readable(path), open_source(path) as opened:
                opened.seek(at)
                while at < stop and (data := opened.read(min(HASHED_BYTES, stop - at))):
                    digest.update(data)
                    at += len(data)
        return digest.hexdigest(ID_BYTES)

    kept: list[_Kept] = []
    first, same = 0, False
    for at, end in enumerate([*begins[1:], Place(len(moved), 0)], 1):
        piece = before.pieces[at - 1]
        last = end.file == len(moved) or before.files[end.file].group != before.files[piece.file].group
        if not (piece.primary or last):
            continue
        begin, group, bounds, first = begins[first], before.pieces[first:at], [*begins[first:at], end], at
        own = range(begin.file, end.file + (end.offset > 0))
        spanned, shift = [moved[file] for file in own], moved[begin.file] - begin.file
        unchanged = all(trusted[file] for file in own)
        # Behind bytes that have changed, a cut may stand no more.
        same = unchanged or (
            -1 not in spanned
            and (same or not begin.offset or trusted[begin.file])
            and all(
                each.raw and each.raw == hashed(*of) for each, of in zip(group, pairwise(bounds), strict=True)
            )
        )
        # What precedes decides whether a cut stands before a file's first line.
        preceding = before.files[begin.file - 1] if begin.file else None
        follows = (
            preceding
            and preceding.lines
            and preceding.group == before.files[begin.file].group
            and trusted[begin.file - 1]
            and moved[begin.file - 1] == spanned[0] - 1
        )
        if (
            same
            and (unchanged or begin.file == end.file)
            and spanned == list(range(spanned[0], spanned[0] + len(spanned)))
            and all(each.name in present for each in group)
            and (begin.offset or spanned[0] in inputs | borders or follows)
            and (piece.primary or spanned[-1] + 1 in inputs)
            and inputs.isdisjoint(spanned[1:])
        ):
            shifted = [replace(each, file=each.file + shift) for each in group]
            moved_end = Place(end.file + shift, end.offset)
            kept.append(_Kept(Place(begin.file + shift, begin.offset), moved_end, shifted))
    return sorted(kept)


def _ranges(reading: Reading, files: Sequence[ReadFile], begin: Place, end: Place) -> list[Range]:
    """A gap in ranges of about RANGE_BYTES. Only files that may grow are divided."""
    cuts, size = [begin], 0
    for file in range(begin.file, end.file + (end.offset > 0)):
        low = begin.offset if file == begin.file else 0
        high = end.offset if file == end.file else files[file].size
        if size >= RANGE_BYTES:
            cuts, size = [*cuts, Place(file, low)], 0
        while may_grow(reading.sources[file]) and size + high - low > RANGE_BYTES:
            low += RANGE_BYTES - size
            cuts, size = [*cuts, Place(file, low)], 0
        size += max(0, high - low)
    owned = {begin, *(Place(file, 0) for file in reading.borders)}
    return [Range(low, high, end, owned=low in owned) for low, high in pairwise([*cuts, end])]


def _new_records(fragments: Fragments, result: Result, before: View | None) -> int:
    """Number of records of new fragments that no fragment which left the view holds."""
    made = [piece for piece in result.pieces if piece.name in result.made]
    gone = fragments.present().keys() - {piece.name for piece in result.pieces}
    lost = [piece for piece in before.fragments if piece.name in gone] if before else []
    if not lost:
        return sum(piece.rows for piece in made)
    known = fragments.column(lost, "id")
    return sum(int((places(ids, known) < 0).sum()) for ids in fragments.parts(made, "id"))


def read_range(reading: Reading, wanted: Range, advance: Advance = lambda records: None) -> Result:
    """The fragments that a range owns; stores new ones. advance: takes numbers of records."""
    result, stored = Result(), reading.fragments.present()
    known = {name: reading.before[name] for name in stored.keys() & reading.before.keys()}
    blocks = _blocks(reading, wanted, result)
    for lines in cut(blocks, wanted.begin, wanted.end, owned=wanted.owned, borders=reading.borders):
        for file, part in lines.parts:
            result.lines[file] += len(part)
            result.blank[file] += int(part.blank.sum())
        file, block = lines.parts[0][0], joined([part for _, part in lines.parts])
        # Blank lines count, because places of refused lines are relative; those at the end move none.
        ids = block.ids[: np.flatnonzero(~block.blank).max(initial=-1) + 1]
        named = blake3(f"{reading.fragments.key}\0{reading.shape.key}\0".encode() + to_bytes(ids))
        name = named.hexdigest(ID_BYTES)
        if name not in known:
            if name in stored:
                entry = orjson.loads(reading.fragments.index(Fragment(name, 0), ENTRY)[0].tobytes())
            else:
                content, index, entry = _parsed(block, reading.shape, reading.sources[file])
                result.made.add(name)
                if reading.dry:
                    result.planned[name] = index
                else:
                    reading.fragments.put(name, content, index)
            known[name] = Fragment(name, shape=reading.shape.key, **entry)
        first, raw = int(block.starts[0]), ""
        if may_grow(reading.sources[file]):
            raw = lines.raw.hexdigest(ID_BYTES)
        piece = replace(
            known[name], file=file, offset=first, lines=len(block), primary=lines.primary, raw=raw
        )
        result.pieces.append(piece)
        advance(known[name].rows)
    return result


def _blocks(reading: Reading, wanted: Range, result: Result) -> Iterator[tuple[int, Block]]:
    """(Number of a file, block) from the line before a range's beginning to the end of its gap."""
    for file in range(wanted.begin.file, wanted.last.file + 1):
        stop = wanted.last.offset if file == wanted.last.file else None
        if stop == 0:
            return
        path, first = reading.sources[file], wanted.begin.offset if file == wanted.begin.file else 0
        with reading.shape.naming():
            if reading.schema is not None:
                blocks = read_rows(path, reading.schema, reading.limit, first=max(0, first - 1))
            else:
                begin = line_before(path, first) if first and is_plain(path) else 0
                blocks = read_lines(path, reading.limit, first=begin)
            for block in blocks:
                if block.unfinished:
                    at, begins = block.unfinished
                    result.unfinished[file] = (at, begins.decode(errors="backslashreplace"))
                if not len(block):
                    # A file without rows may lack the text column too.
                    parse_block(block, np.arange(0), reading.shape, path)
                inside = len(block) if stop is None else int(np.searchsorted(block.starts, stop))
                if inside:
                    yield file, block.lines(0, inside)
                if inside < len(block):
                    return


def line_before(path: Source, offset: int) -> int:
    """Offset of the last line that begins before an offset and is not blank; 0 if there is none."""
    size = 1 << 16
    with readable(path), open_source(path) as file:
        while True:
            begin = max(0, offset - size)
            file.seek(begin)
            lines = file.read(offset - begin).split(b"\n")
            at = offset
            for line in reversed(lines[bool(begin) :]):
                at -= len(line)
                if line.strip():
                    return at
                at -= 1
            if not begin:
                return 0
            size *= 4


def _parsed(
    block: Block, shape: Shape, path: Source
) -> tuple[pa.Array, dict[str, np.ndarray], dict[str, Any]]:
    """Content and index of a fragment (`store.fragments`), and what its `Fragment` holds of them."""
    at = np.flatnonzero(~block.blank)
    parsed = parse_block(block, at, shape, path)
    refused = [
        reject(block, place, place, reason)
        for place, reason in zip(at.tolist(), parsed, strict=True)
        if isinstance(reason, str)
    ]
    documents = [each for each in parsed if isinstance(each, bytes)]
    sound = at[np.fromiter((isinstance(each, bytes) for each in parsed), bool, len(parsed))]
    ids, text_sizes = block.ids[sound], np.fromiter(map(len, documents), np.int64, len(documents))
    content: pa.Array
    sizes, hashed = block.sizes[sound], ids
    if isinstance(block.content, list):
        content = binary_array([block.content[place] for place in sound.tolist()])
    else:
        rows = block.content.take(plain_array(sound))
        content = pa.StructArray.from_arrays(rows.columns, fields=list(rows.schema))
        # For rows the mean.
        sizes = np.full(len(sound), -(-content.nbytes // max(1, len(sound))), np.int64)
        if shape.as_lines:
            lines = json_lines(content)
            sizes, hashed = np.fromiter(map(len, lines), np.int64, len(lines)), words(hash_all(lines))
    entry = {
        "rows": len(ids),
        "refused": len(refused),
        "size": int(sizes.sum()) + len(ids) * (shape.as_lines or not pa.types.is_struct(content.type)),
        "text_bytes": int(text_sizes.sum()),
        "hashes": f"{hash_sum(hashed):032x}",
        "digest": blake3(to_bytes(ids)).hexdigest(ID_BYTES),
    }
    index = {
        "id": ids,
        "text": words(hash_all(documents)),
        "size": sizes,
        "text_size": text_sizes,
        REFUSED: np.frombuffer(b"".join(refused), np.uint8),
        ENTRY: np.frombuffer(orjson.dumps(entry), np.uint8),
    }
    return content, index, entry
