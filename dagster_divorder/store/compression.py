"""Compressed files, by the end of their names and by their first bytes.

Guarantee: members or frames that follow each other are read as one; a stream that is cut short or damaged is an
OSError, in whichever of them. Arrow's codecs do that, where zstandard's own reader takes a frame cut short for the end
of the data. bz2 and xz are the standard library's: Arrow's bz2 stops at an empty stream, and it has no xz.
Known weakness: lz4 and zstd streams written without checksums do not show every changed byte.
"""

from __future__ import annotations

import bz2
import io
import lzma
from collections.abc import Callable
from typing import IO, Any, NamedTuple

CHUNK_BYTES = 1 << 20


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
"""By the end of a file's name."""


def suffix_for(file: IO[bytes]) -> str | None:
    """The end of the name that the first bytes of an open file call for, None where they tell of no codec."""
    file.seek(0)
    head = file.read(max(len(codec.first_bytes) for codec in CODECS.values()))
    return next((suffix for suffix, codec in CODECS.items() if head.startswith(codec.first_bytes)), None)


def decompressed(file: IO[bytes], suffix: str) -> IO[bytes]:
    """What an open compressed file holds, by the end of its name.

    Raises:
        OSError: the file is empty; on reading, that it is cut short or damaged.
    """
    import pyarrow as pa

    if not file.seek(0, io.SEEK_END):
        raise OSError("it has no bytes, and compressed data has at least a header")
    file.seek(0)
    codec = CODECS[suffix.lower()].name
    if codec in _DECOMPRESSORS:
        return io.BufferedReader(_Streams(file, _DECOMPRESSORS[codec]), CHUNK_BYTES)
    return pa.CompressedInputStream(pa.PythonFile(file, "r"), codec)


_DECOMPRESSORS: dict[str, Callable[[], Any]] = {"bz2": bz2.BZ2Decompressor, "xz": lzma.LZMADecompressor}


class _Streams(io.RawIOBase):
    """A bz2 or xz file read. `bz2.BZ2File` and `lzma.LZMAFile` take a damaged second stream for padding, and end
    without a word."""

    def __init__(self, file: IO[bytes], decompressor: Callable[[], Any]) -> None:
        self._file = file
        self._decompressor = decompressor
        self._stream = decompressor()

    def readable(self) -> bool:
        return True

    def readinto(self, into: Any) -> int:
        data = b""
        while not data:
            more = b""
            if self._stream.eof:
                more = self._stream.unused_data or self._file.read(CHUNK_BYTES)
                if not more:
                    return 0
                self._stream = self._decompressor()
            elif self._stream.needs_input:
                more = self._file.read(CHUNK_BYTES)
                if not more:
                    raise OSError("the compressed data ends before its end mark")
            try:
                data = self._stream.decompress(more, len(into))
            except lzma.LZMAError as error:
                raise OSError(str(error)) from error
        into[: len(data)] = data
        return len(data)

    def close(self) -> None:
        self._file.close()
        super().close()
