"""Compressed files, recognised by the end of their names and by their first bytes.

Guarantee: consecutive members or frames are read as one, and zero padding is skipped; a truncated or damaged stream is
an OSError. The decompressors are Python's own (zstd: backports.zstd before Python 3.14), one a stream: Python's file
objects take a damaged second stream of bz2 or xz for padding. Known weakness: zstd streams written without checksums do
not show every changed byte.
"""

from __future__ import annotations

import bz2
import importlib
import io
import lzma
import sys
import zlib
from collections.abc import Callable
from functools import partial
from typing import IO, Any, NamedTuple

READ_BYTES, CHUNK_BYTES = 1 << 16, 1 << 20
"""Bytes read from a compressed file, and decompressed, at a time: each member copies the bytes after it."""
PADDING_BYTES = 1 << 20
"""Most zero bytes after a member: tapes and disks pad to blocks; an unfinished copy leaves more."""


class _Codec(NamedTuple):
    name: str
    first_bytes: bytes


CODECS = {
    ".gz": _Codec("gzip", b"\x1f\x8b"),
    ".zst": _Codec("zstd", b"\x28\xb5\x2f\xfd"),
    ".bz2": _Codec("bz2", b"BZh"),
    ".xz": _Codec("xz", b"\xfd7zXZ\0"),
}
"""Codecs by the end of a file's name."""


def suffix_for(file: IO[bytes]) -> str | None:
    """The suffix that fits the first bytes of an open file; None if no codec fits."""
    file.seek(0)
    head = file.read(max(len(codec.first_bytes) for codec in CODECS.values()))
    return next((suffix for suffix, codec in CODECS.items() if head.startswith(codec.first_bytes)), None)


def decompressed(file: IO[bytes], suffix: str) -> IO[bytes]:
    """The content of an open compressed file; its name tells the codec. Reading raises OSError if the file is
    empty, truncated or damaged."""
    return io.BufferedReader(_Streams(file, CODECS[suffix.lower()].name), CHUNK_BYTES)


class _Streams(io.RawIOBase):
    """Consecutive streams read as one file."""

    def __init__(self, file: IO[bytes], codec: str) -> None:
        self._file = file
        self._new: Callable[[], Any]
        self._damage: type[Exception]
        if codec == "gzip":
            self._new, self._damage = partial(zlib.decompressobj, 16 + zlib.MAX_WBITS), zlib.error
        elif codec == "bz2":
            self._new, self._damage = bz2.BZ2Decompressor, OSError
        elif codec == "xz":
            self._new, self._damage = lzma.LZMADecompressor, lzma.LZMAError
        else:
            zstd = importlib.import_module(
                "compression.zstd" if sys.version_info >= (3, 14) else "backports.zstd"
            )
            # The default refuses the windows of `zstd --long`.
            options = {zstd.DecompressionParameter.window_log_max: 31}
            self._new, self._damage = partial(zstd.ZstdDecompressor, options=options), zstd.ZstdError
        self._stream = self._new()

    def readable(self) -> bool:
        return True

    def readinto(self, into: Any) -> int:
        data = b""
        while not data:
            # zlib gives back the input that it has not taken yet; the others keep it.
            more = getattr(self._stream, "unconsumed_tail", b"")
            if self._stream.eof:
                more = self._next_stream()
                if not more:
                    return 0
                self._stream = self._new()
            elif not more and getattr(self._stream, "needs_input", True):
                more = self._file.read(READ_BYTES)
                if not more:
                    raise OSError("the compressed data ends before its end mark")
            try:
                data = self._stream.decompress(more, min(len(into), CHUNK_BYTES))
            except self._damage as error:
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
