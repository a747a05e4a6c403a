"""A part of an input stands for all of it: records from everywhere, whole, and the size of the rest."""

from __future__ import annotations

import codecs
import gzip
import lzma
from pathlib import Path

import orjson
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dagster_divorder.corpus import excerpt
from dagster_divorder.corpus.excerpt import Excerpt, draw
from dagster_divorder.corpus.find import find_files
from dagster_divorder.errors import InputError


def lines_of(count: int, long: int = 0) -> list[bytes]:
    """Lines with their number; every tenth is `long` characters longer."""
    return [
        orjson.dumps({"number": number, "text": "x" * (long if number % 10 == 0 else 20)}) + b"\n"
        for number in range(count)
    ]


def drawn(wanted: int, *paths: Path) -> Excerpt:
    return draw(find_files([str(path) for path in paths]), wanted)


def numbers(found: Excerpt) -> list[int]:
    records = found.records
    if isinstance(records, list):
        return [orjson.loads(line)["number"] for line in records]
    return records["number"].to_pylist()


def test_a_small_input_is_taken_whole_in_another_order(tmp_path: Path) -> None:
    lines = lines_of(50)
    (tmp_path / "a.jsonl").write_bytes(codecs.BOM_UTF8 + b"".join(lines[:20]))
    (tmp_path / "b.jsonl").write_bytes(b"".join(lines[20:])[:-1])  # the last line has no newline
    found = drawn(1 << 20, tmp_path)
    assert sorted(numbers(found)) == list(range(50))
    assert numbers(found) != list(range(50))
    assert found.total == found.stored == found.bytes + 2  # the mark, less a newline that was missing
    assert numbers(drawn(1 << 20, tmp_path)) == numbers(found)


def test_lines_come_from_everywhere_and_long_ones_are_no_likelier(tmp_path: Path) -> None:
    lines = lines_of(20_000, long=1_000)
    (tmp_path / "a.jsonl").write_bytes(b"".join(lines[:12_000]))
    (tmp_path / "b.jsonl").write_bytes(b"".join(lines[12_000:]))
    found = drawn(300_000, tmp_path)
    taken = numbers(found)
    assert len(set(taken)) == len(taken)
    assert found.total == sum(map(len, lines))
    assert 200_000 < found.bytes < 600_000
    for first in range(0, 20_000, 2_000):
        assert 0.05 < sum(first <= number < first + 2_000 for number in taken) / len(taken) < 0.15
    assert 0.08 < sum(number % 10 == 0 for number in taken) / len(taken) < 0.12


@pytest.mark.parametrize(("suffix", "module"), [(".gz", gzip), (".xz", lzma)])
def test_a_compressed_file_tells_what_it_holds(tmp_path: Path, suffix: str, module) -> None:
    data = b"".join(lines_of(30_000))
    (tmp_path / f"a.jsonl{suffix}").write_bytes(module.compress(data))
    found = drawn(200_000, tmp_path)
    assert found.total == len(data)
    assert found.stored == (tmp_path / f"a.jsonl{suffix}").stat().st_size
    assert max(numbers(found)) > 27_000


def test_a_compressed_file_read_in_part_tells_by_its_ratio(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = b"".join(lines_of(60_000))
    (tmp_path / "a.jsonl.gz").write_bytes(gzip.compress(data))
    monkeypatch.setattr(excerpt, "COMPRESSED_BYTES", len(data) // 3)
    found = drawn(200_000, tmp_path)
    assert found.total == pytest.approx(len(data), rel=0.4)
    assert max(numbers(found)) < 21_000


def test_rows_come_from_row_groups_all_over(tmp_path: Path) -> None:
    rows = pa.table({"number": range(20_000), "text": [f"{number} " + "x" * 50 for number in range(20_000)]})
    pq.write_table(rows.slice(0, 15_000), tmp_path / "a.parquet", row_group_size=1_000)
    pq.write_table(rows.slice(15_000), tmp_path / "b.parquet", row_group_size=1_000)
    found = drawn(200_000, tmp_path)
    taken = numbers(found)
    assert len(set(taken)) == len(taken)
    assert found.total == pytest.approx(rows.nbytes, rel=0.02)
    assert 100_000 < found.bytes < 400_000
    assert {number // 1_000 for number in taken} == set(range(20))
    assert sorted(numbers(drawn(1 << 30, tmp_path))) == list(range(20_000))


def test_an_empty_input_has_no_records(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").touch()
    assert not drawn(1_000, tmp_path).records
    pq.write_table(pa.table({"text": pa.array([], pa.string())}), tmp_path / "b.parquet")
    assert not drawn(1_000, tmp_path / "b.parquet").records


def test_a_line_without_an_end_is_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(excerpt, "MAX_RECORD_BYTES", 10_000)
    (tmp_path / "a.jsonl").write_bytes(b"".join(lines_of(10)) + b"x" * 50_000)
    assert sorted(numbers(drawn(1_000_000, tmp_path))) == list(range(10))


def test_a_part_of_an_excerpt_begins_as_it_does(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_bytes(b"".join(lines_of(100)))
    found = drawn(1 << 20, tmp_path)
    part = found.first(0.3)
    assert numbers(part) == numbers(found)[: len(part.records)]
    assert part.bytes == pytest.approx(0.3 * found.bytes, rel=0.1)
    assert part.total == found.total
    assert len(found.first(0.0).records) == 1
    assert part.write(tmp_path, "part").read_bytes() == b"".join(part.records)


def test_a_damaged_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl.gz").write_bytes(gzip.compress(b"".join(lines_of(1000)))[:-100])
    with pytest.raises(InputError, match=r"a\.jsonl\.gz cannot be read"):
        drawn(1_000, tmp_path)
