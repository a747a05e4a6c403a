"""Every codec: whole, of several members, cut at every place, altered, under the name of another one."""

from __future__ import annotations

import gzip
import random
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest

from dagster_divorder.corpus.compression import CODECS
from dagster_divorder.corpus.inputs import read_lines
from dagster_divorder.errors import InputError

LINES = [b'{"text":"%x"}' % random.Random(number).getrandbits(200) for number in range(8)]
DATA = b"".join(line + b"\n" for line in LINES)


COMPRESS: dict[str, Callable[[bytes], bytes]] = {
    ".gz": gzip.compress,
    ".zst": lambda data: pa.compress(data, "zstd", asbytes=True),
}
suffixes = pytest.mark.parametrize("suffix", CODECS)


def read(path: Path, data: bytes) -> list[bytes]:
    path.write_bytes(data)
    return [line for block in read_lines(path) for line in block.content]


@suffixes
def test_one_member_several_and_empty_ones(tmp_path: Path, suffix: str) -> None:
    path, one, none = tmp_path / f"x.jsonl{suffix}", COMPRESS[suffix](DATA), COMPRESS[suffix](b"")
    assert read(path, one) == LINES
    assert read(path, (one + none) * 500) == LINES * 500
    assert read(path, COMPRESS[suffix](DATA[:100]) + COMPRESS[suffix](DATA[100:])) == LINES
    assert read(path, none) == []


@suffixes
def test_a_file_cut_at_any_place_is_an_error(tmp_path: Path, suffix: str) -> None:
    path, one = tmp_path / f"x.jsonl{suffix}", COMPRESS[suffix](DATA)
    two = one + one
    for size in range(len(two)):
        if size == len(one):
            continue
        with pytest.raises(InputError, match=r"x\.jsonl\.\w+ cannot be read after line .* copy or compress"):
            read(path, two[:size])
    for other in (DATA, b"\xff" * 30, b"x" + one):
        with pytest.raises(InputError, match="compress a damaged or truncated"):
            read(path, one + other)


@suffixes
def test_what_is_not_compressed_is_said_to_be_what_it_is(tmp_path: Path, suffix: str) -> None:
    path, name = tmp_path / f"x.jsonl{suffix}", CODECS[suffix].name
    for data, said in (
        (DATA, r"plain JSONL; rename it to x\.jsonl$"),
        (b"<!DOCTYPE html><title>Sign in</title>", "an HTML page, such as"),
        (b"version https://git-lfs.github.com/spec/v1\n", "a Git LFS pointer"),
        (bytes(512) + COMPRESS[suffix](DATA), "zero bytes"),
    ):
        with pytest.raises(
            InputError, match=rf"does not hold {name} data, although its name says so: it is {said}"
        ):
            read(path, data)


LONG_WINDOW = b"\x28\xb5\x2f\xfd\x00\xa8" + (len(DATA) << 3 | 1).to_bytes(3, "little") + DATA
"""A zstd frame of one block that is stored as it is, with a window of 2 GiB, as `zstd --long=31` asks for."""


def test_a_zstd_window_beyond_the_default_is_read(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl.zst"
    assert read(path, LONG_WINDOW) == LINES
    assert read(path, LONG_WINDOW + COMPRESS[".zst"](DATA)) == LINES * 2
    with pytest.raises(InputError, match="compress a damaged or truncated"):
        read(path, LONG_WINDOW[:-1])


def test_an_altered_byte_is_an_error_or_of_no_matter(tmp_path: Path) -> None:
    """gzip always carries a checksum."""
    path, one = tmp_path / "x.jsonl.gz", gzip.compress(DATA)
    refused = 0
    for at in range(len(one)):
        try:
            assert read(path, one[:at] + bytes([one[at] ^ 0x10]) + one[at + 1 :]) == LINES
        except InputError:
            refused += 1
    assert refused > 0.9 * len(one)


@suffixes
def test_compressed_data_under_another_name_says_how_to_rename_it(tmp_path: Path, suffix: str) -> None:
    data = COMPRESS[suffix](DATA)
    codec = CODECS[suffix].name
    with pytest.raises(
        InputError, match=rf"x\.jsonl holds {codec} data.*plain JSONL; rename it to x\.jsonl\{suffix}"
    ):
        read(tmp_path / "x.jsonl", data)
    other = next(name for name in CODECS if name != suffix)
    with pytest.raises(
        InputError, match=rf"holds {codec} data, .* {CODECS[other].name} data; .* x\.json\{suffix}$"
    ):
        read(tmp_path / f"x.json{other}", data)
