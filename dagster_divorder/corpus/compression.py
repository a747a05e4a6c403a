"""Files compressed by gzip or zstd, recognised by the end of their names.

Guarantee: consecutive members or frames are read as one; reading a truncated or damaged stream raises one of DAMAGE.
Known weakness: zstd streams written without checksums do not show every changed byte.
"""

from __future__ import annotations

import gzip
import sys
import zlib
from typing import IO, cast

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd


CODECS = {".gz": "gzip", ".zst": "zstd"}
"""Codecs by the end of a file's name."""
OTHERS = {".lz4": "lz4 -d", ".bz2": "bunzip2", ".xz": "unxz"}
"""Codecs that are not read, and the command that decompresses such a file."""
DAMAGE = (OSError, EOFError, zlib.error, zstd.ZstdError)
"""Errors of reading a damaged or truncated file."""


def decompressed(file: IO[bytes], suffix: str) -> IO[bytes]:
    """The content of an open compressed file; its name tells the codec."""
    if suffix.lower() == ".gz":
        return cast(IO[bytes], gzip.GzipFile(fileobj=file))
    # The default refuses the windows of `zstd --long`.
    return cast(IO[bytes], zstd.ZstdFile(file, options={int(zstd.DecompressionParameter.window_log_max): 31}))
