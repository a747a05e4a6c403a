"""JSONL as it comes: bad lines are refused with place, reason and bytes, odd but sound ones come out whole; damaged
lines by the thousand, none of them lost or altered (a million: benchmarks/fuzz/fuzz.py); and files that are empty, cut
short, of another kind, or not there."""

from __future__ import annotations

import gzip
import json
import os
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.bad_input.conftest import SOUND, Outcome
from tests.conftest import is_long, load_script

Divorder = Callable[..., Outcome]

KEPT = {
    "NUL": b'{"text": "a\\u0000b"}',
    "only NUL": b'{"text": "\\u0000"}',
    "only whitespace": b'{"text": " \\n\\t\\u00a0\\u2028 "}',
    "carriage return inside": b'{"text":\r"a\\rb"}',
    "huge numbers": b'{"text": "huge", "a": 123456789012345678901234567890, "b": 1e-400, "c": -0}',
    "NaN, as Python writes it": b'{"text": "no NaN lost", "a": NaN, "x": -Infinity}',
    "duplicate keys": b'{"text": 1, "text": "the last one counts"}',
    "1,000 brackets elsewhere": b'{"text": "deep", "x": ' + b"[" * 1000 + b"]" * 1000 + b"}",
    "noncharacters and private use": '{"text": "\uffff\ue000\U0010ffff"}'.encode(),
    "combining, right to left, emoji": '{"text": "e\u0301 \u05d0\u05d1 \U0001f469\u200d\U0001f680"}'.encode(),
    "byte order mark in the text": '{"text": "\ufeffa\ufeff"}'.encode(),
    "special tokens as text": b'{"text": "<|endoftext|><|im_start|></s>[CLS]"}',
    "escapes and spaces of its own": b' {  "te\\u0078t" : "\\u0061\\/" }  ',
    "form feed around it": b'{"text": "a form feed is no line end"}\x0b'[:-1],
}


def write(folder: Path, lines: list[bytes]) -> Path:
    path = folder / "in/docs.jsonl"
    path.write_bytes(b"\n".join(lines) + b"\n")
    return path


def test_odd_but_sound_lines_come_out_byte_for_byte(tmp_path: Path, divorder: Divorder) -> None:
    """Also beside a document of many megabytes, 10,000 copies of another one, and empty files."""
    size = 50_000_000 if is_long() else 2_000_000
    words = b" ".join(b"%d tides, %d boats" % (n, n % 97) for n in range(50_000))
    large = b'{"text": "%s"}' % b" ".join([words] * (size // len(words) + 1))
    documents = [*KEPT.values(), *SOUND, large]
    lines = documents + [SOUND[0]] * 9_999
    write(tmp_path, lines)
    for name, data in {"a.jsonl": b"", "c.jsonl.gz": gzip.compress(b""), "d.json": b"\n \n"}.items():
        (tmp_path / "in" / name).write_bytes(data)
    outcome = divorder("order.traits = { cluster = 1.0, length = 1.0, x = 1.0, a = 1.0 }")
    assert (outcome.status, outcome.rejects) == (0, [])
    assert (outcome.counts["records"], outcome.counts["documents"]) == (len(lines), len(documents))
    assert Counter((outcome.output / "curated.jsonl").read_bytes().split(b"\n")) == Counter([*lines, b""])


def test_too_many_refused_fails_before_a_view_is_stored_and_lists_the_first_ten(
    tmp_path: Path, divorder: Divorder
) -> None:
    path = write(tmp_path, [*SOUND, *[b'{"text": %d}' % number for number in range(12)]])
    outcome = divorder(share=0.37)
    assert outcome.status == 1
    assert "12 of 32 records were refused (37.5%), more than input.max_reject_share = 0.37" in outcome.error
    listed = [line for line in outcome.error.splitlines() if "expected a string" in line]
    assert listed == [
        f"  {path}:{line}: field 'text' is a JSON number, expected a string" for line in range(21, 31)
    ]
    assert not outcome.output.exists()
    # Fragments may stay, for the next run to find.
    stored = [path for path in (tmp_path / "store").iterdir() if path.name != "records"]
    assert sorted(path.name for path in stored) == [".divorder-lock", "format.json", "state.json"]
    assert divorder(share=0.38).status == 0
    before = {path.name: path.read_bytes() for path in outcome.output.iterdir()}
    write(tmp_path, [*SOUND, *[b"{"] * 100])
    assert divorder(share=0.38).status == 1
    assert {path.name: path.read_bytes() for path in outcome.output.iterdir()} == before


def test_10_000_damaged_lines_are_each_accepted_whole_or_refused_whole(tmp_path: Path) -> None:
    fuzz = load_script(Path(__file__).parents[2] / "benchmarks/fuzz/fuzz.py")
    counts = fuzz.run(tmp_path, lines=10_000, seed=1)
    assert counts["lines"] > 9_500
    assert counts["rejected"] > 2_000
    for line in (tmp_path / "out/curated.jsonl").read_bytes().split(b"\n")[:-1]:
        # Another parser agrees on every line that was accepted.
        assert json.loads(line)["text"].encode()


def test_files_without_a_record_are_an_error(tmp_path: Path, divorder: Divorder) -> None:
    (tmp_path / "in/a.jsonl").write_bytes(b"")
    (tmp_path / "in/b.jsonl").write_bytes(b'{"text": "unfin')
    outcome = divorder()
    assert outcome.status == 1
    assert "the input holds no records; expected at least one JSONL line" in outcome.error


@pytest.mark.parametrize(
    ("name", "data", "said"),
    [
        ("a.jsonl", gzip.compress(b"\n".join(SOUND)), "The first is gzip data; rename the file"),
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
        file.write(b"\n".join(SOUND))
    outcome = divorder()
    assert outcome.status == 1
    assert "is not valid UTF-8; rename it" in outcome.error
