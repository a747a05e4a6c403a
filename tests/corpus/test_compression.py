"""Every codec: whole, of several members, cut at every place, altered, under the name of another one."""

from __future__ import annotations

import gzip
import random
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest

from dagster_divorder.corpus.inputs import CODECS, read_lines
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
    others = [COMPRESS[other](DATA) for other in CODECS if other != suffix]
    for data in (
        *(one + other for other in (DATA, b"\xff" * 30, b"x" + one)),
        DATA,
        bytes(512) + one,
        *others,
    ):
        with pytest.raises(InputError, match="compress a damaged or truncated"):
            read(path, data)


LONG_WINDOW = b"\x28\xb5\x2f\xfd\x00\xa8" + (len(DATA) << 3 | 1).to_bytes(3, "little") + DATA
"""A zstd frame of one block that is stored as it is, with a window of 2 GiB, as `zstd --long=31` asks for."""


def test_a_zstd_window_beyond_the_default_is_read(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl.zst"
    assert read(path, LONG_WINDOW) == LINES
    assert read(path, LONG_WINDOW + COMPRESS[".zst"](DATA)) == LINES * 2
    with pytest.raises(InputError, match="compress a damaged or truncated"):
        read(path, LONG_WINDOW[:-1])
