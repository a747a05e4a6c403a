"""Files as they come: empty, cut short, of another kind, or not there."""

from __future__ import annotations

import gzip
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.bad_input.conftest import SOUND, Outcome
from tests.conftest import is_long

Divorder = Callable[..., Outcome]
DATA = b"".join(line + b"\n" for line in SOUND)


def test_files_without_a_record_are_an_error(tmp_path: Path, divorder: Divorder) -> None:
    (tmp_path / "in/a.jsonl").write_bytes(b"")
    (tmp_path / "in/b.jsonl").write_bytes(b'{"text": "unfin')
    outcome = divorder()
    assert outcome.status == 1
    assert "the input holds no records; expected at least one JSONL line" in outcome.error


@pytest.mark.parametrize(
    ("name", "data", "said"),
    [
        ("a.jsonl", gzip.compress(DATA), "The first is gzip data; rename the file"),
        ("a.parquet", b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n", "a Git LFS pointer"),
        ("a.parquet", b"PAR1" + bytes(90), "cannot be read as Parquet"),
    ],
)
def test_an_error_says_what_content_looks_like(
    tmp_path: Path, divorder: Divorder, name: str, data: bytes, said: str
) -> None:
    (tmp_path / "in" / name).write_bytes(data)
    outcome = divorder()
    assert (outcome.status, said in outcome.error, name in outcome.error) == (1, True, True)


def test_a_dangling_link_or_a_name_that_is_no_text_is_an_error(tmp_path: Path, divorder: Divorder) -> None:
    (tmp_path / "in/docs.jsonl").symlink_to(tmp_path / "gone.jsonl")
    assert "no file matches" in divorder().error
    (tmp_path / "in/docs.jsonl").unlink()
    with open(os.fsencode(tmp_path / "in") + b"/caf\xe9.jsonl", "wb") as file:
        file.write(DATA)
    outcome = divorder()
    assert outcome.status == 1
    assert "is not valid UTF-8; rename it" in outcome.error


def test_one_document_of_many_megabytes(tmp_path: Path, divorder: Divorder) -> None:
    size = 50_000_000 if is_long() else 2_000_000
    words = b" ".join(b"%d tides, %d boats" % (n, n % 97) for n in range(50_000))
    line = b'{"text": "%s"}' % b" ".join([words] * (size // len(words) + 1))
    assert len(line) > size
    (tmp_path / "in/docs.jsonl").write_bytes(DATA + line + b"\n")
    outcome = divorder()
    assert outcome.status == 0
    assert sorted(outcome.records) == sorted([*SOUND, line])


def test_10_000_copies_of_one_document_beside_empty_files(tmp_path: Path, divorder: Divorder) -> None:
    (tmp_path / "in/docs.jsonl").write_bytes((SOUND[0] + b"\n") * 10_000)
    for name, data in {"a.jsonl": b"", "c.jsonl.gz": gzip.compress(b""), "d.json": b"\n \n"}.items():
        (tmp_path / "in" / name).write_bytes(data)
    outcome = divorder()
    assert (outcome.counts["records"], outcome.counts["documents"]) == (10_000, 1)
    assert outcome.records == [SOUND[0]] * 10_000
