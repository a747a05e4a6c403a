"""Every codec: whole, of several members, cut at every place, altered, under the name of another one."""

from __future__ import annotations

import bz2
import gzip
import lzma
import random
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest

from dagster_divorder.errors import InputError
from dagster_divorder.store.compression import CODECS
from dagster_divorder.store.inputs import LineBlock, read_lines

LINES = [b'{"text":"%x"}' % random.Random(number).getrandbits(200) for number in range(8)]
DATA = b"".join(line + b"\n" for line in LINES)


def by_arrow(codec: str) -> Callable[[bytes], bytes]:
    def compress(data: bytes) -> bytes:
        sink = pa.BufferOutputStream()
        stream = pa.CompressedOutputStream(sink, codec)
        stream.write(data)
        stream.close()
        compressed: bytes = sink.getvalue().to_pybytes()
        return compressed

    return compress


COMPRESS: dict[str, Callable[[bytes], bytes]] = {
    ".gz": gzip.compress,
    ".zst": by_arrow("zstd"),
    ".bz2": bz2.compress,
    ".xz": lzma.compress,
    ".lz4": by_arrow("lz4"),
}
suffixes = pytest.mark.parametrize("suffix", CODECS)


def read(path: Path, data: bytes) -> list[bytes]:
    path.write_bytes(data)
    return [line for block in read_lines(path) if isinstance(block, LineBlock) for line in block.lines]


@suffixes
def test_one_member_several_and_empty_ones(tmp_path: Path, suffix: str) -> None:
    path, one, none = tmp_path / f"x.jsonl{suffix}", COMPRESS[suffix](DATA), COMPRESS[suffix](b"")
    assert read(path, one) == LINES
    assert read(path, one + none + one) == LINES * 2
    assert read(path, COMPRESS[suffix](DATA[:100]) + COMPRESS[suffix](DATA[100:])) == LINES
    assert read(path, none) == []


@suffixes
def test_a_file_cut_at_any_place_is_an_error(tmp_path: Path, suffix: str) -> None:
    path, one = tmp_path / f"x.jsonl{suffix}", COMPRESS[suffix](DATA)
    two = one + one
    for size in range(len(two)):
        if size == len(one):
            continue
        with pytest.raises(
            InputError, match=r"x\.jsonl\.\w+ cannot be read after line .* copied or compressed"
        ):
            read(path, two[:size])


@suffixes
@pytest.mark.parametrize("member", [0, 1])
def test_what_is_no_member_is_an_error(tmp_path: Path, suffix: str, member: int) -> None:
    path, one = tmp_path / f"x.jsonl{suffix}", COMPRESS[suffix](DATA)
    for other in (DATA, b"\xff" * 30, b"x" + one):
        with pytest.raises(InputError, match="copied or compressed again"):
            read(path, one * member + other)


@pytest.mark.parametrize("suffix", [".gz", ".bz2", ".xz"])
def test_an_altered_byte_is_an_error_or_of_no_matter(tmp_path: Path, suffix: str) -> None:
    """Of the codecs that always carry a checksum."""
    path, one = tmp_path / f"x.jsonl{suffix}", COMPRESS[suffix](DATA)
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
