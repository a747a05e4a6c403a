"""The input in parts: whatever the parts and whoever reads them, the store comes to hold what one reader stores."""

from __future__ import annotations

import gzip
import pickle
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import orjson
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dagster_divorder import run_stage
from dagster_divorder.corpus import file_states, ingest, inputs, parts
from dagster_divorder.engine.local import LocalEngine
from dagster_divorder.engine.progress import Silent
from dagster_divorder.errors import InputError
from dagster_divorder.settings import Settings
from dagster_divorder.stages.corpus import raw_docs
from dagster_divorder.store.local import LocalStore
from dagster_divorder.store.state import Receipt
from tests import arrow_types
from tests.conftest import examples

Make = Callable[..., Settings]
BLOCK, LIMIT = 64, 100
TIMES = ("seconds", "documents_per_second", "seconds_per_new_document")


def in_this_process(
    self: LocalEngine, function: Callable[[Any], Any], items: Sequence[Any], **needs: Any
) -> Iterator[Any]:
    """As workers compute: function, items and results are pickled."""
    for item in items:
        result = pickle.loads(pickle.dumps(function))(pickle.loads(pickle.dumps(item)))
        yield pickle.loads(pickle.dumps(result))


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """Blocks, parts, chunks and fragments of a few records, and workers that are this process."""
    for module, name, value in (
        (inputs, "BLOCK_BYTES", BLOCK),
        (inputs, "BLOCK_LINES", 5),
        (inputs, "BLOCK_ROWS", 3),
        (parts, "PART_BYTES", BLOCK),
        (parts, "_SCAN_BYTES", 16),
        (file_states, "CHUNK_BYTES", 96),
        (ingest, "FRAGMENT_ROWS", 7),
        (ingest, "FRAGMENT_BYTES", 150),
        (raw_docs, "PARTS_FROM_BYTES", 0),
        (LocalEngine, "each", in_this_process),
    ):
        monkeypatch.setattr(module, name, value)
    return monkeypatch


def read(make: Make, folder: Path, workers: int) -> tuple[Receipt, dict[str, Any], set[str]] | str:
    """One run: its receipt, what it says but for times, and the names of all that is stored, which carry hashes of
    content; or the error."""
    paths = {"paths": [str(folder / "in")], "max_reject_share": 0.6, "max_record_bytes": LIMIT}
    store = folder / f"store{workers}"
    made = make(input=paths, store={"path": store}, engine={"workers": workers})
    try:
        receipt = run_stage("raw_docs", made, Silent())
    except InputError as error:
        return str(error)
    told = {name: of for name, of in {**receipt.facts, **receipt.figures}.items() if name not in TIMES}
    names = {name for name in LocalStore(store).files() if not name.startswith("state")}
    return receipt, told, names - {"format.json", "lease"}


def lines_of(number: int, size: int = 0) -> bytes:
    return orjson.dumps({"text": f"{number} " + "x" * size})


line = st.one_of(
    st.builds(lines_of, st.integers(0, 30), st.integers(0, 40)),
    st.builds(lines_of, st.integers(0, 9)),
    st.sampled_from([b"", b"\r", b" ", b"{", b'{"text": ""}', b"\xef\xbb\xbf" + lines_of(1), b'{"a"\r: 1}']),
    st.builds(lines_of, st.just(1), st.integers(90, 400)),
)
file = st.builds(
    lambda bom, lines, ends, last: (
        bom
        + b"".join(one + (b"\r\n" if end else b"\n") for one, end in zip(lines, ends * 40, strict=False))
        + last
    ),
    st.sampled_from([b"", b"", b"\xef\xbb\xbf"]),
    st.lists(line, max_size=40),
    st.lists(st.booleans(), min_size=1, max_size=3),
    st.sampled_from([b"", b"", b'{"text": "cut', lines_of(77), b"\n", b"x" * 300, b" "]),
)
few = settings(
    deadline=None,
    max_examples=examples(15),
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


def same(make: Make, folder: Path) -> tuple[Receipt, dict[str, Any], set[str]] | str:
    single, in_parts = (read(make, folder, workers) for workers in (1, 2))
    assert isinstance(single, str) == isinstance(in_parts, str)
    if isinstance(single, str) or isinstance(in_parts, str):
        assert single == in_parts
    else:
        assert single[1:] == in_parts[1:]
        assert (single[0].version, single[0].files) == (in_parts[0].version, in_parts[0].files)
    return single


def test_inputs_of_several_shapes_in_parts_are_stored_as_one_reader_stores_them(
    tmp_path: Path, make_settings: Make, small: pytest.MonkeyPatch
) -> None:
    """Rows among them that are stored as lines, with refused and repeated ones."""
    small.setattr(parts, "PART_BYTES", 3 * BLOCK)
    (tmp_path / "a.jsonl").write_bytes(b"\n".join([*map(lines_of, range(40)), b"{", lines_of(3), b""]))
    (tmp_path / "b.jsonl.gz").write_bytes(gzip.compress(b"\n".join(map(lines_of, range(20, 50)))))
    rows = [{"body": None if at == 5 else f"{at % 30}", "text": "x" * (at % 7)} for at in range(60)]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "c.parquet", row_group_size=9)
    shapes = [("a.jsonl", "text", "a"), ("b.jsonl.gz", "text", "b"), ("c.parquet", "body", "c")]
    given = [
        {"paths": [str(tmp_path / name)], "text_field": text, "source": source, "max_reject_share": 0.6}
        for name, text, source in shapes
    ]
    found = []
    for workers in (1, 2):
        store = tmp_path / f"store{workers}"
        made = make_settings(input=given, store={"path": store}, engine={"workers": workers})
        receipt = run_stage("raw_docs", made, Silent())
        found.append(
            (receipt.version, receipt.files, {n for n in LocalStore(store).files() if n.startswith("rec")})
        )
    assert found[0] == found[1]
    assert receipt.figures["records"] == 41 + 30 + 59


@few
@given(
    runs=st.lists(
        st.tuples(st.sampled_from("aab"), st.sampled_from(["add", "edit", "gzip"]), file),
        min_size=1,
        max_size=3,
    ),
    size=st.integers(1, 4),
)
def test_lines_in_parts_are_stored_as_one_reader_stores_them(
    tmp_path_factory: pytest.TempPathFactory,
    make_settings: Make,
    small: pytest.MonkeyPatch,
    runs: list[tuple[str, str, bytes]],
    size: int,
) -> None:
    small.setattr(parts, "PART_BYTES", size * BLOCK)
    folder = tmp_path_factory.mktemp("corpus")
    (folder / "in").mkdir()
    for name, how, data in runs:
        path = folder / "in" / f"{name}.jsonl"
        if how == "gzip":
            path.with_suffix(".jsonl.gz").write_bytes(gzip.compress(data, mtime=0))
        else:
            before = path.read_bytes() if path.exists() and how == "add" else b""
            path.write_bytes(before + data)
        same(make_settings, folder)


@pytest.mark.slow
@few
@given(
    data=st.data(),
    kind=arrow_types.kinds,
    rows=st.integers(1, 40),
    group=st.integers(1, 9),
    size=st.integers(1, 900),
)
def test_rows_in_parts_are_stored_as_one_reader_stores_them(
    tmp_path_factory: pytest.TempPathFactory,
    make_settings: Make,
    small: pytest.MonkeyPatch,
    data: st.DataObject,
    kind: arrow_types.Kind,
    rows: int,
    group: int,
    size: int,
) -> None:
    small.setattr(inputs, "BLOCK_BYTES", 1 << 20)
    small.setattr(parts, "PART_BYTES", size)
    folder = tmp_path_factory.mktemp("corpus")
    (folder / "in").mkdir()
    values = data.draw(st.lists(kind.values, min_size=1, max_size=4))
    texts = data.draw(st.lists(st.sampled_from(["", "a", "bb" * 9, "c" * 120, None]), min_size=1, max_size=5))
    for number in range(2):
        table = pa.table(
            {
                "text": pa.array(
                    [
                        f"{texts[at % len(texts)] or ''}{at % 11}" if texts[at % len(texts)] else None
                        for at in range(rows)
                    ]
                ),
                "of": kind.build([values[at % len(values)] for at in range(rows)]),
            }
        )
        (folder / "in" / f"{number}.parquet").write_bytes(arrow_types.parquet(table, group))
        same(make_settings, folder)


def write_rows(path: Path, texts: list[str], group: int = 100) -> None:
    path.parent.mkdir(exist_ok=True)
    pq.write_table(pa.table({"text": texts}), path, row_group_size=group)


def test_a_block_of_rows_some_of_which_are_known_is_measured_anew(
    tmp_path: Path, make_settings: Make, small: pytest.MonkeyPatch
) -> None:
    small.setattr(inputs, "BLOCK_BYTES", 1 << 20)
    # Full with the long row, and not with what the rows of its block take on average.
    small.setattr(ingest, "FRAGMENT_BYTES", 60)
    write_rows(tmp_path / "in" / "0.parquet", ["a", "b", "c"])
    write_rows(tmp_path / "in" / "1.parquet", ["a", "long " * 9, "b", "c", "longer " * 8, "d"])
    assert not isinstance(same(make_settings, tmp_path), str)


def test_row_groups_are_parts_whose_blocks_are_those_of_the_file(
    tmp_path: Path, small: pytest.MonkeyPatch
) -> None:
    small.setattr(inputs, "BLOCK_BYTES", 1 << 20)
    path = tmp_path / "in" / "a.parquet"
    write_rows(path, [str(number) for number in range(50)], group=7)
    stretches = inputs.row_stretches(path, 1)
    assert stretches == [(0, 9), (9, 15), (15, 21), (21, 30), (30, 36), (36, 42), (42, None)]
    whole = [block.rows.to_pylist() for block in inputs.read_rows(path, None)]
    assert [b.rows.to_pylist() for s in stretches for b in inputs.read_rows(path, None, within=s)] == whole


def test_a_byte_order_mark_behind_the_first_line_is_part_of_its_line(
    tmp_path: Path, make_settings: Make, small: pytest.MonkeyPatch
) -> None:
    (tmp_path / "in").mkdir()
    marked = b"\xef\xbb\xbf" + lines_of(1, BLOCK)
    (tmp_path / "in" / "a.jsonl").write_bytes(b"\n".join([marked, marked, *map(lines_of, range(9))]))
    single = same(make_settings, tmp_path)
    assert not isinstance(single, str)
    assert (single[1]["records"], single[1]["rejected_records"]) == (10, 1)


def test_one_line_of_many_parts_is_read_once(
    tmp_path: Path, make_settings: Make, small: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "in" / "a.jsonl"
    path.parent.mkdir()
    path.write_bytes(lines_of(1) + b"\n" + b"x" * 100 * BLOCK + b"\n" + lines_of(2) + b"\n")
    starts = [part.line_start() for part in parts.line_parts(path, 0, path.stat().st_size, LIMIT)]  # type: ignore[union-attr]
    assert starts[0] == 0
    assert sorted({*starts[1:-1]}) == [BLOCK * number for number in range(2, len(starts))]
    assert not isinstance(same(make_settings, tmp_path), str)


def test_too_many_refusals_leave_nothing_in_the_store(
    tmp_path: Path, make_settings: Make, small: pytest.MonkeyPatch
) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.jsonl").write_bytes(b"\n".join([*map(lines_of, range(30)), *[b"{"] * 50, b""]))
    said = same(make_settings, tmp_path)
    assert isinstance(said, str) and "50 of 80 records were refused" in said
    assert LocalStore(tmp_path / "store2").files().keys() <= {"format.json", "lease"}


@pytest.mark.parametrize("how", ["other bytes", "cut short", "gone", "replaced"])
def test_a_file_that_changes_between_survey_and_write_is_an_error_that_says_so(
    tmp_path: Path, make_settings: Make, small: pytest.MonkeyPatch, how: str
) -> None:
    path = tmp_path / "in" / "a.jsonl"
    path.parent.mkdir()
    path.write_bytes(b"\n".join([*map(lines_of, range(30)), b""]))

    def meddle(
        self: LocalEngine, function: Callable[[Any], Any], items: Sequence[Any], **needs: Any
    ) -> Iterator[Any]:
        if isinstance(function, parts.WriteFragments) or how == "replaced":
            data = path.read_bytes()
            if how == "replaced":
                path.rename(path.with_suffix(".old"))
                path.write_bytes(data)
            elif how == "gone":
                path.unlink()
            else:
                path.write_bytes(data[:-40] if how == "cut short" else data.replace(b"7", b"8"))
        yield from in_this_process(self, function, items)

    small.setattr(LocalEngine, "each", meddle)
    said = read(make_settings, tmp_path, 2)
    assert isinstance(said, str) and str(path) in said and "run again" in said
    assert LocalStore(tmp_path / "store2").list("views") == []


@pytest.mark.slow
def test_worker_processes_store_what_one_reader_stores(
    tmp_path: Path, make_settings: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(raw_docs, "PARTS_FROM_BYTES", 0)
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.jsonl").write_bytes(
        b"\n".join([*(lines_of(n, 2000) for n in range(5000)), b"{", b""])
    )
    (tmp_path / "in" / "b.jsonl.gz").write_bytes(gzip.compress(b"\n".join(map(lines_of, range(9000)))))
    assert not isinstance(same(make_settings, tmp_path), str)
