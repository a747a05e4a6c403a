"""Ingest: fragments depend on the input alone; every record comes out as it went in; unchanged files are not read."""

from __future__ import annotations

import gzip
import os
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from unittest.mock import patch

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dagster_divorder.corpus import cut as cut_module
from dagster_divorder.corpus import ingest as ingest_module
from dagster_divorder.corpus.cut import Place, cut
from dagster_divorder.corpus.find import Found, find_files
from dagster_divorder.corpus.ingest import Ingested, Range, Reading, ingest, line_before, read_range
from dagster_divorder.corpus.inputs import read_lines, read_schema
from dagster_divorder.corpus.shapes import DEFAULT_SHAPE
from dagster_divorder.store.fragments import Fragments
from dagster_divorder.store.ids import hash_all, words
from dagster_divorder.store.local import LocalStore
from dagster_divorder.store.view import Fragment, View
from tests.conftest import examples

KEY = "0" * 32
LIMIT = 1 << 20
BAD = b'{"text": 1}'


@pytest.fixture(autouse=True)
def small_fragments() -> Iterator[None]:
    """Fragments of some five lines."""
    sizes = {"MEAN_LINES": 5, "HARD_LINES": 12, "MEAN_BYTES": 1 << 10, "HARD_BYTES": 1 << 12}
    with patch.multiple(cut_module, **sizes):
        yield


def line(text: object) -> bytes:
    return orjson.dumps({"text": str(text)})


def read(
    store: LocalStore,
    *paths: Path,
    before: View | None = None,
    dry: bool = False,
    ranges: int = 1 << 30,
) -> Ingested:
    found = find_files(map(str, paths))
    inputs: list[tuple[Found, pa.Schema | None]] = [
        (found, read_schema(found.files[0], None) if found.kind == "parquet" else None)
    ]
    with patch.object(ingest_module, "RANGE_BYTES", ranges):
        return ingest(Fragments(store, KEY), found.kind, inputs, before, LIMIT, map, dry=dry)


def write(folder: Path, files: Sequence[Sequence[bytes]]) -> list[Path]:
    """Files of lines. Only changed files are written."""
    folder.mkdir(exist_ok=True)
    paths = [folder / f"{number:03d}.jsonl" for number in range(len(files))]
    for path, lines in zip(paths, files, strict=True):
        put(path, lines)
    return paths


def put(path: Path, lines: Sequence[bytes]) -> None:
    content = b"".join(each + b"\n" for each in lines)
    if not path.exists() or path.read_bytes() != content:
        path.write_bytes(content)


def stored(store: LocalStore, read: Ingested) -> list[bytes]:
    fragments = Fragments(store, KEY)
    return [record for each in read.view.fragments for record in fragments.content(each).to_pylist()]


def described(pieces: Sequence[Fragment]) -> list[object]:
    return [(*(getattr(piece, name) for name in Fragment.__slots__ if name != "picks"),) for piece in pieces]


lines = st.lists(
    st.builds(line, st.integers(0, 25)) | st.sampled_from([b"", b"  ", BAD, line("long " * 60)]), max_size=40
)
corpora = st.lists(lines, min_size=1, max_size=5)


@settings(deadline=None, max_examples=examples(60))
@given(files=corpora, data=st.data())
def test_ranges_cut_as_one_pass_does(
    tmp_path_factory: pytest.TempPathFactory, files: list[list[bytes]], data: st.DataObject
) -> None:
    folder = tmp_path_factory.mktemp("corpus")
    paths = write(folder, files)
    store = LocalStore(tmp_path_factory.mktemp("store")).open()
    borders = frozenset(data.draw(st.sets(st.integers(1, len(paths)))))
    reading = Reading(Fragments(store, KEY), DEFAULT_SHAPE, paths, None, LIMIT, borders, dry=True)
    begin, end = Place(0, 0), Place(len(paths), 0)
    whole = read_range(reading, Range(begin, end, end))
    places = st.builds(
        lambda file, share: Place(file, int(share * paths[file].stat().st_size)),
        st.integers(0, len(paths) - 1),
        st.floats(0, 1),
    )
    cuts = sorted({begin, *data.draw(st.lists(places, max_size=6)), end})
    parts = [
        read_range(
            reading, Range(low, high, end, owned=low in {begin, *(Place(file, 0) for file in borders)})
        )
        for low, high in pairwise(cuts)
    ]
    assert described([piece for part in parts for piece in part.pieces]) == described(whole.pieces)
    assert sum((part.lines for part in parts), start=parts[0].lines.__class__()) == whole.lines


@pytest.mark.parametrize("number", [30, 31, 33])
def test_blank_lines_at_the_end_make_no_fragment_again(number: int, tmp_path: Path) -> None:
    store, content = LocalStore(tmp_path / "store").open(), [*map(line, range(number)), BAD]
    (path,) = write(tmp_path / "in", [content])
    before = read(store, path)
    put(path, [*content, b"", b" "])
    after = read(store, path, before=before.view)
    assert [each.name for each in after.view.fragments] == [each.name for each in before.view.fragments]
    assert (after.view.files[0].lines, after.new_records) == (number + 3, 0)


edits = st.lists(
    st.tuples(
        st.sampled_from(["append", "edit", "delete", "insert", "move", "split", "drop", "touch"]),
        st.integers(0, 1 << 16),
        st.integers(0, 60),
    ),
    max_size=5,
)


def edited(files: dict[Path, list[bytes]], what: str, at: int, value: int) -> dict[Path, list[bytes]]:
    """The files, in the order in which they are named."""
    paths, files = list(files), {path: list(lines) for path, lines in files.items()}
    path = paths[at % len(files)]
    own = files[path]
    place = at % (len(own) + 1)
    if what == "append":
        own += [line(value), line(value + 1)]
    elif what == "edit" and own:
        own[place % len(own)] = line(value)
    elif what == "delete" and own:
        del own[place % len(own)]
    elif what == "insert":
        own.insert(place, line(value))
    elif what == "move":
        paths.remove(path)
        paths.insert(value % (len(paths) + 1), path)
    elif what == "split":
        other = path.with_name(f"{len(list(path.parent.iterdir()))}x.jsonl")
        files[path], files[other] = own[:place], own[place:]
        paths.insert(paths.index(path) + 1, other)
    elif what == "drop" and len(files) > 1:
        paths.remove(path)
    return {path: files[path] for path in paths}


@settings(deadline=None, max_examples=examples(80))
@given(
    corpus=corpora,
    history=edits,
    ranges=st.integers(40, 4000),
    large=st.sampled_from([150, 500, 1 << 24]),
    trusted=st.booleans(),
)
def test_after_any_history_the_view_is_that_of_a_fresh_store(
    tmp_path_factory: pytest.TempPathFactory,
    corpus: list[list[bytes]],
    history: list[tuple[str, int, int]],
    ranges: int,
    large: int,
    trusted: bool,
) -> None:
    folder = tmp_path_factory.mktemp("corpus")
    store = LocalStore(tmp_path_factory.mktemp("store")).open()
    before: View | None = None
    files = dict(zip(write(folder, corpus), corpus, strict=True))
    # Files of tests are young, so their bytes decide. Their times can be trusted too: every write changes them.
    settled = -(1 << 62) if trusted else 1 << 62
    with patch.multiple(ingest_module, SETTLED_NS=settled, FILE_BYTES=large):
        for what, at, value in [("touch", 0, 0), *history]:
            files = edited(files, what, at, value)
            for path, lines in files.items():
                put(path, lines)
            result = read(store, *files, before=before, ranges=ranges)
            fresh = read(LocalStore(tmp_path_factory.mktemp("fresh")).open(), *files)
            assert described(result.view.pieces) == described(fresh.view.pieces)
            assert [(f.lines, f.blank) for f in result.view.files] == [
                (len(lines), sum(not each.strip() for each in lines)) for lines in files.values()
            ]
            held = [each for lines in files.values() for each in lines if b'"text":"' in each]
            assert stored(store, result) == held
            before = View.load(store, result.view.save(store, "view"))
            known = [replace(file, identity=()) for file in result.view.files]
            assert before == replace(result.view, files=tuple(known))
            before = result.view


def test_an_edit_makes_few_fragments_again(tmp_path: Path) -> None:
    store, draw = LocalStore(tmp_path / "store").open(), np.random.default_rng(0)
    corpus = [line(number) for number in range(3000)]
    (path,) = write(tmp_path / "in", [corpus])
    names = {piece.name for piece in read(store, path).view.pieces}
    most = 0
    for _ in range(40):
        other, at = list(corpus), int(draw.integers(len(corpus)))
        match draw.integers(3):
            case 0:
                other[at] = line("edited")
            case 1:
                del other[at]
            case _:
                other.insert(at, line("inserted"))
        put(path, other)
        pieces = read(store, path, dry=True).view.pieces
        most = max(most, sum(piece.name not in names for piece in pieces))
    assert 1 <= most <= 7


@pytest.mark.parametrize("name", ["a.jsonl.gz", "a.parquet"])
def test_other_kinds_are_cut_alike_and_read_again_only_if_they_changed(tmp_path: Path, name: str) -> None:
    folder, store = tmp_path / "in", LocalStore(tmp_path / "store").open()
    folder.mkdir()

    def put_texts(path: Path, texts: Sequence[str]) -> None:
        if path.suffix == ".parquet":
            pq.write_table(pa.table({"text": list(texts)}), path, row_group_size=7)
        else:
            path.write_bytes(gzip.compress(b"".join(line(text) + b"\n" for text in texts)))

    texts = [f"document {number}" for number in range(60)]
    put_texts(folder / name, texts)
    put_texts(folder / f"b{name}", texts[:20])
    with patch.object(ingest_module, "SETTLED_NS", -(1 << 62)):
        first = read(store, folder)
        assert len(first.view) == first.new_records == 80
        assert read(store, folder, before=first.view).trusted_bytes == sum(
            path.stat().st_size for path in folder.iterdir()
        )
        put_texts(folder / f"b{name}", [*texts[:20], "more"])
        second = read(store, folder, before=first.view)
    fresh = read(LocalStore(tmp_path / "fresh").open(), folder)
    assert described(second.view.pieces) == described(fresh.view.pieces)
    assert (second.new_records, second.trusted_bytes) == (1, (folder / name).stat().st_size)


def test_an_edit_whose_times_were_restored_is_seen(tmp_path: Path) -> None:
    folder, store = tmp_path / "in", LocalStore(tmp_path / "store").open()
    write(folder, [[line(number) for number in range(30)]])
    young = read(store, folder).view
    assert young.files[0].identity == () and read(store, folder, before=young).trusted_bytes == 0
    with patch.object(ingest_module, "SETTLED_NS", -(1 << 62)):
        before = read(store, folder)
        path, status = folder / "000.jsonl", (folder / "000.jsonl").stat()
        path.write_bytes(path.read_bytes().replace(b'"7"', b'"8"'))
        os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
        assert stored(store, read(store, folder, before=before.view)).count(line(8)) == 2


@pytest.mark.parametrize("end", [b"\n", b""])
def test_a_file_that_has_grown_is_parsed_from_its_last_cut_on(tmp_path: Path, end: bytes) -> None:
    store, path = LocalStore(tmp_path / "store").open(), tmp_path / "a.jsonl"
    before: View | None = None
    for number in range(40):
        with path.open("ab") as file:
            # The last line of the run before may go on.
            file.write((b" \n" if number else b"") + line(number) + b"\n" + line(-number) + end)
        with patch.object(ingest_module, "read_lines", wraps=read_lines) as opened:
            result = read(store, path, before=before)
        fresh = read(LocalStore(tmp_path / f"fresh{number}").open(), path)
        assert described(result.view.pieces) == described(fresh.view.pieces)
        cuts = [0, *(b.offset for a, b in pairwise(before.pieces if before else ()) if a.primary)]
        assert opened.call_args.kwargs["first"] == (line_before(path, cuts[-1]) if cuts[-1] else 0)
        before = result.view
    assert len(cuts) > 5


def test_what_was_deleted_of_an_unchanged_file_is_read_again(tmp_path: Path) -> None:
    folder, store = tmp_path / "in", LocalStore(tmp_path / "store").open()
    write(folder, [[line(number) for number in range(60)]])
    with patch.object(ingest_module, "SETTLED_NS", -(1 << 62)):
        before = read(store, folder)
        names = sorted(store.files())
        removed = [name for name in names if name.startswith("records/")][::2]
        store.delete(*removed)
        again = read(store, folder, before=before.view)
    assert described(again.view.pieces) == described(before.view.pieces)
    assert sorted(store.files()) == names and len(stored(store, again)) == 60


def test_lines_that_repeat_leave_few_fragments(tmp_path: Path) -> None:
    sizes = {"MEAN_LINES": 64, "HARD_LINES": 256, "MEAN_BYTES": 1 << 20, "HARD_BYTES": 1 << 22}
    draw = np.random.default_rng(1)

    def pieces(lines: Sequence[bytes]) -> int:
        path = tmp_path / "repeats.jsonl"
        put(path, lines)
        found = list(cut([(0, block) for block in read_lines(path)], Place(0, 0)))
        assert sum(len(block) for piece in found for _, block in piece.parts) == len(lines)
        return len(found)

    with patch.multiple(cut_module, **sizes):
        # A line whose hash with its own would cut.
        hashes = words(hash_all([line(n) for n in range(10_000)]))[:, 0]
        at = np.flatnonzero(hashes * (cut_module._MULTIPLIER + np.uint64(1)) < (1 << 64) // 64)[0]
        same = line(int(at))
        assert pieces([same] * 5000) <= 5000 / 256 + 1
        assert pieces([same if draw.random() < 0.01 else line(n) for n in range(5000)]) <= 2 * 5000 / 64


@pytest.mark.parametrize("changed", [0, 1, 2])
def test_a_large_file_is_not_read_again_when_its_neighbour_changes(tmp_path: Path, changed: int) -> None:
    store, lines = LocalStore(tmp_path / "store").open(), [line(number) for number in range(30)]
    paths = write(tmp_path / "in", [lines[:10], lines[10:20], lines[20:]])
    with patch.multiple(ingest_module, SETTLED_NS=-(1 << 62), FILE_BYTES=100):
        before = read(store, *paths)
        put(paths[changed], [*lines[10 * changed : 10 * changed + 10], line("more")])
        with patch.object(ingest_module, "read_lines", wraps=read_lines) as opened:
            again = read(store, *paths, before=before.view)
    assert [call.args[0] for call in opened.mock_calls] == [paths[changed]]
    assert again.new_records == 1
