"""Input files: local, or at a URL of an object store, a web server or the Hugging Face Hub.

A source is a `Path` or a `RemoteFile`. Both have `name`, `suffix` and `str()`, and `open_source` opens a raw, seekable
file. A RemoteFile is one version of a file. Its tag names the version: the ETag; size and date if the server gives no
ETag; the blob on the Hub. Each request checks the tag, so a read gives the bytes of that version or raises InputError.
Other processes can receive a RemoteFile and read it with the credentials in their own environment.

Cost: files are read in pieces of PIECE_BYTES; a sequential read requests AHEAD pieces in advance. Up to KEPT pieces
stay in memory for a Parquet reader, which jumps. If a web server has no range requests, each opened file is downloaded
whole into the temporary folder.
"""

from __future__ import annotations

import contextlib
import functools
import io
import os
import tempfile
import time
from collections import OrderedDict
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import IO, TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

from dagster_divorder.errors import InputError
from dagster_divorder.extras import load_extra
from dagster_divorder.store import hub
from dagster_divorder.store.remote import connect, explained
from dagster_divorder.units import SETTLED_NS

if TYPE_CHECKING:
    from obstore import ObjectMeta
    from obstore.store import ObjectStore

PIECE_BYTES = 8 << 20
AHEAD = 4
KEPT = 16
WEB = ("http", "https")
"""Schemes of web servers."""


@dataclass(frozen=True, slots=True)
class RemoteFile:
    """A version of a file at a URL. size: bytes. tag: names the version. commit: only on the Hub. modified: elsewhere,
    the time of writing in seconds since 1970."""

    url: str
    size: int
    tag: str
    commit: str = ""
    modified: float = 0.0

    def __str__(self) -> str:
        return self.url

    @property
    def name(self) -> str:
        return PurePosixPath(self.url).name

    @property
    def suffix(self) -> str:
        return PurePosixPath(self.url).suffix

    def fetch(self, start: int, end: int) -> Any:
        """Bytes [start, end), as a buffer.

        Raises:
            InputError: the file has changed, or reading from the server fails.
            FileNotFoundError: the file is gone.
            _NoRangesError: the server supports no range requests.
        """
        if self.commit:
            return hub.fetch(self.url, self.commit, start, end)
        with explained(self.url, InputError):
            return self._get({"range": (start, end)}).bytes()

    def download(self) -> IO[bytes]:
        """The whole file, as an unnamed temporary file.

        Raises:
            InputError, FileNotFoundError: as `fetch` does.
            OSError: the temporary folder is full.
        """
        file = tempfile.TemporaryFile()  # noqa: SIM115
        with explained(self.url, InputError):
            for part in self._get({}).stream(min_chunk_size=PIECE_BYTES):
                file.write(part)
        return file

    def _get(self, options: dict[str, Any]) -> Any:
        obstore = load_extra("obstore")

        # Weak tags, W/"...", and tags of size and date match no condition; the answer's tag is compared too.
        is_strong = not self.tag.startswith("W/") and " bytes of " not in self.tag
        condition = {"if_match": f'"{self.tag}"'} if is_strong else {}
        store, key = bucket(self.url)
        try:
            with explained(self.url, InputError):
                try:
                    answer = obstore.get(store, key, options=options | condition)
                except obstore.exceptions.NotSupportedError as error:
                    raise _NoRangesError from error
        except obstore.exceptions.PreconditionError:
            raise self._changed() from None
        if _tag(answer.meta) != self.tag:
            raise self._changed()
        return answer

    def _changed(self) -> InputError:
        return InputError(
            f"{self.url} was changed while it was read; run again when nothing writes to it. (Growing an object makes "
            "another object. Only the added part is computed)"
        )


class _NoRangesError(Exception):
    """The server supports no range requests."""


Source = Path | RemoteFile


def open_source(source: Source) -> IO[bytes]:
    """A raw, seekable file.

    Raises:
        OSError: a local file cannot be opened.
    """
    return open(source, "rb", buffering=0) if isinstance(source, Path) else _Reader(source)  # type: ignore[return-value]


def tag_of(source: Source) -> str:
    """The tag of a file at a URL; "" for a local file."""
    return source.tag if isinstance(source, RemoteFile) else ""


def identity(source: Source) -> tuple[int | str, ...]:
    """Values that differ once a file is changed or replaced; the size comes first.

    Raises:
        OSError: a local file cannot be inspected.
    """
    if isinstance(source, RemoteFile):
        return source.size, source.tag
    status = os.stat(source)
    # Programs cannot set the change time, so it reveals a replaced file that has the old modification time.
    return status.st_size, status.st_dev, status.st_ino, status.st_mtime_ns, status.st_ctime_ns


def settled_identity(file: Path) -> tuple[int | str, ...] | None:
    """`identity` of a local file; None if it is missing, or so young that a later write may not change its times."""
    with contextlib.suppress(OSError):
        *_, changed = found = identity(file)
        if int(changed) <= time.time_ns() - SETTLED_NS:
            return found
    return None


class _Reader(io.RawIOBase):
    """An open RemoteFile. A read returns all requested bytes, up to the end of the file."""

    def __init__(self, file: RemoteFile) -> None:
        self._file, self._at = file, 0
        self._threads = ThreadPoolExecutor(AHEAD, thread_name_prefix="divorder-read")
        self._pieces: OrderedDict[int, Future[Any]] = OrderedDict()
        self._begun: set[int] = set()
        self._whole: IO[bytes] | None = None

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        self._at = max(
            0, offset + {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self._file.size}[whence]
        )
        return self._at

    def readinto(self, into: Any) -> int:
        view = memoryview(into).cast("B")[: max(0, self._file.size - self._at)]
        taken = 0
        while taken < len(view):
            number, skip = divmod(self._at, PIECE_BYTES)
            data = memoryview(self._piece(number, (self._at + len(view) - taken - 1) // PIECE_BYTES))[skip:]
            part = data[: len(view) - taken]
            view[taken : taken + len(part)] = part
            taken += len(part)
            self._at += len(part)
            if len(part) == len(data):
                # Readers rarely return to a piece after its end.
                self._pieces.pop(number, None)
        return taken

    def _piece(self, number: int, last: int) -> Any:
        """One piece. Also requests up to AHEAD further pieces: up to `last`, or past it if reading is sequential."""
        if self._whole:
            self._whole.seek(number * PIECE_BYTES)
            return self._whole.read(PIECE_BYTES)
        if number - 1 in self._begun:
            last = -(-self._file.size // PIECE_BYTES) - 1
        self._begun.add(number)
        for wanted in range(number, min(last, number + AHEAD) + 1):
            if wanted not in self._pieces:
                self._pieces[wanted] = self._threads.submit(self._fetch, wanted)
        self._pieces.move_to_end(number)
        while len(self._pieces) > KEPT:
            self._pieces.popitem(last=False)[1].cancel()
        try:
            return self._pieces[number].result()
        except _NoRangesError:
            self._whole = self._file.download()
            return self._piece(number, last)

    def _fetch(self, number: int) -> Any:
        start = number * PIECE_BYTES
        end = min(start + PIECE_BYTES, self._file.size)
        data = self._file.fetch(start, end)
        if len(data) != end - start:
            raise OSError(f"the server sent {len(data):,} bytes, expected {end - start:,}")
        return data

    def close(self) -> None:
        if not self.closed:
            self._threads.shutdown(wait=False, cancel_futures=True)
            self._pieces.clear()
            if self._whole:
                self._whole.close()
        super().close()


def described(url: str, meta: ObjectMeta) -> RemoteFile:
    """The file at a URL, from a server's description."""
    return RemoteFile(url, meta["size"], _tag(meta), modified=meta["last_modified"].timestamp())


def _tag(meta: ObjectMeta) -> str:
    """A tag without quotes: Azure's lists have none, but Azure's other answers do."""
    tag = meta["e_tag"]
    if not tag:
        return f"{meta['size']} bytes of {meta['last_modified']:%Y-%m-%dT%H:%M:%S}"
    return tag if tag.startswith("W/") else tag.strip('"')


def bucket(url: str) -> tuple[ObjectStore, str]:
    """The bucket or server of a URL, and the key in it. Connections are reused, since opening one takes about 20 ms.

    Raises:
        InputError: as `connect` does.
    """
    parts = urlsplit(url)
    # Object store keys are not quoted.
    key = unquote(parts.path) if parts.scheme in WEB else url.partition("://")[2].partition("/")[2]
    pairs = tuple(item for item in os.environ.items() if item[0].startswith(("AWS_", "AZURE_", "GOOGLE_")))
    return _connected(f"{parts.scheme}://{parts.netloc}", os.getpid(), pairs), key.strip("/")


@functools.lru_cache(maxsize=16)
def _connected(origin: str, process: int, environment: tuple[tuple[str, str], ...]) -> ObjectStore:
    return connect(origin)
