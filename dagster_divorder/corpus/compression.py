"""Compressed files, recognised by the end of their names and by their first bytes.

Guarantee: consecutive members or frames are read as one, and zero padding is skipped; a truncated or damaged stream is
an OSError. Arrow's codecs read zstd and lz4: zstandard's own reader mistakes a truncated frame for the end of the data.
The standard library reads gzip, bz2 and xz, stream by stream: Arrow's gzip stops at padding, its bz2 at an empty
stream, and it has no xz. Arrow reads zstd windows of up to 128 MiB; Python 3.14's zstd, or backports.zstd, reads larger
ones. Known weakness: lz4 and zstd streams written without checksums do not show every changed byte.
"""

from __future__ import annotations

import bz2
import functools
import importlib
import io
import lzma
import sys
import zlib
from collections.abc import Callable
from typing import IO, Any, NamedTuple

CHUNK_BYTES = 1 << 20
READ_BYTES = 1 << 16
"""Bytes read from a compressed file at a time: each member copies the bytes after it."""
PADDING_BYTES = 1 << 20
"""Most zero bytes after a member: tapes and disks pad to blocks; an unfinished copy leaves more."""
_ZSTD_WINDOW = 1 << 27


class _Codec(NamedTuple):
    name: str
    first_bytes: bytes


CODECS = {
    ".gz": _Codec("gzip", b"\x1f\x8b"),
    ".zst": _Codec("zstd", b"\x28\xb5\x2f\xfd"),
    ".bz2": _Codec("bz2", b"BZh"),
    ".xz": _Codec("xz", b"\xfd7zXZ\0"),
    ".lz4": _Codec("lz4", b"\x04\x22\x4d\x18"),
}
"""Codecs by the end of a file's name."""


def suffix_for(file: IO[bytes]) -> str | None:
    """The suffix that fits the first bytes of an open file; None if no codec fits."""
    file.seek(0)
    head = file.read(max(len(codec.first_bytes) for codec in CODECS.values()))
    return next((suffix for suffix, codec in CODECS.items() if head.startswith(codec.first_bytes)), None)


def decompressed(file: IO[bytes], suffix: str) -> IO[bytes]:
    """The content of an open compressed file; its name tells the codec.

    Raises:
        OSError: the file is empty, or, during reading, truncated or damaged.
    """
    import pyarrow as pa

    if not file.seek(0, io.SEEK_END):
        raise OSError("it is empty, and compressed data has at least a header")
    file.seek(0)
    codec = CODECS[suffix.lower()].name
    if codec == "zstd" and _zstd_window(file.read(18)) > _ZSTD_WINDOW:
        streams = _Streams(file, *_long_zstd())
    elif codec in _DECOMPRESSORS:
        streams = _Streams(file, *_DECOMPRESSORS[codec])
    else:
        file.seek(0)
        return pa.CompressedInputStream(pa.PythonFile(file, "r"), codec)
    file.seek(0)
    return io.BufferedReader(streams, CHUNK_BYTES)


def _zstd_window(head: bytes) -> int:
    """Bytes of the window of a zstd frame, from its first 18 bytes; 0 if they do not begin a frame."""
    if len(head) < 18 or not head.startswith(CODECS[".zst"].first_bytes):
        return 0
    if not head[4] & 0x20:
        base = 1 << (10 + (head[5] >> 3))
        return base + base // 8 * (head[5] & 7)
    # A frame of one segment has a window as large as its content.
    start, size = 5 + (0, 1, 2, 4)[head[4] & 3], 1 << (head[4] >> 6)
    return int.from_bytes(head[start : start + size], "little") + (256 if size == 2 else 0)


def _long_zstd() -> tuple[Callable[[], Any], type[Exception]]:
    """An entry of `_DECOMPRESSORS` for windows that Arrow does not read."""
    zstd = importlib.import_module("compression.zstd" if sys.version_info >= (3, 14) else "backports.zstd")
    options = {zstd.DecompressionParameter.window_log_max: 31}
    return functools.partial(zstd.ZstdDecompressor, options=options), zstd.ZstdError


class _Gzip:
    """zlib's decompressor of a gzip member, with the interface of bz2's and lzma's decompressors."""

    def __init__(self) -> None:
        self._stream = zlib.decompressobj(16 + zlib.MAX_WBITS)

    @property
    def eof(self) -> bool:
        return self._stream.eof

    @property
    def unused_data(self) -> bytes:
        return self._stream.unused_data

    @property
    def needs_input(self) -> bool:
        return not self._stream.unconsumed_tail

    def decompress(self, data: bytes, size: int) -> bytes:
        return self._stream.decompress(self._stream.unconsumed_tail + data, size)


_DECOMPRESSORS: dict[str, tuple[Callable[[], Any], type[Exception]]] = {
    "gzip": (_Gzip, zlib.error),
    "bz2": (bz2.BZ2Decompressor, OSError),
    "xz": (lzma.LZMADecompressor, lzma.LZMAError),
}
"""Codec -> (factory of a decompressor of one stream, its error for damage)."""


class _Streams(io.RawIOBase):
    """Consecutive streams read as one file. `gzip`, `bz2.BZ2File` and `lzma.LZMAFile` mistake a damaged second stream
    for padding and end without an error."""

    def __init__(self, file: IO[bytes], decompressor: Callable[[], Any], damaged: type[Exception]) -> None:
        self._file = file
        self._decompressor = decompressor
        self._damaged = damaged
        self._stream = decompressor()

    def readable(self) -> bool:
        return True

    def readinto(self, into: Any) -> int:
        data = b""
        while not data:
            more = b""
            if self._stream.eof:
                more = self._next_stream()
                if not more:
                    return 0
                self._stream = self._decompressor()
            elif self._stream.needs_input:
                more = self._file.read(READ_BYTES)
                if not more:
                    raise OSError("the compressed data ends before its end mark")
            try:
                data = self._stream.decompress(more, min(len(into), CHUNK_BYTES))
            except self._damaged as error:
                raise OSError(str(error)) from error
        into[: len(data)] = data
        return len(data)

    def _next_stream(self) -> bytes:
        """The bytes after a stream and its padding; empty at the end of the file."""
        data, zeros = self._stream.unused_data or self._file.read(READ_BYTES), 0
        while data and not (rest := data.lstrip(b"\0")):
            zeros += len(data)
            data = self._file.read(READ_BYTES)
        if zeros > PADDING_BYTES:
            raise OSError(f"{zeros:,} zero bytes follow its compressed data: it was not written to its end")
        return rest if data else b""

    def close(self) -> None:
        self._file.close()
        super().close()
