"""Input files: local, or at a URL of an object store or a web server.

A source is a `Path` or a `RemoteFile`. Both have `name`, `suffix` and `str()`, and `open_source` opens a raw, seekable
file. A RemoteFile is one version of a file. Its tag names the version: the ETag; size and date if the server gives no
ETag.

Opening a RemoteFile fetches it whole into the temporary folder (TMPDIR), or raises InputError if its tag has changed.
A process keeps the file that it fetched last: columns, first records and then all records of a file take one fetch.
"""

from __future__ import annotations

import contextlib
import functools
import io
import os
import time
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

from dagster_divorder.errors import InputError
from dagster_divorder.extras import load_extra
from dagster_divorder.store.disk import explaining_full_disk, temporary_folder
from dagster_divorder.store.remote import RETRY_SECONDS, connect, explained
from dagster_divorder.units import SETTLED_NS

if TYPE_CHECKING:
    from obstore import ObjectMeta
    from obstore.store import ObjectStore

PIECE_BYTES = 8 << 20
WEB = ("http", "https")
"""Schemes of web servers."""


@dataclass(frozen=True, slots=True)
class RemoteFile:
    """A version of a file at a URL. size: bytes. tag: names the version. modified: the time of writing in seconds since
    1970."""

    url: str
    size: int
    tag: str
    modified: float = 0.0

    def __str__(self) -> str:
        return self.url

    @property
    def name(self) -> str:
        return PurePosixPath(self.url).name

    @property
    def suffix(self) -> str:
        return PurePosixPath(self.url).suffix

    def fetch(self, folder: Path) -> Path:
        """Fetches the file into a folder; returns its path there. Raises InputError: the file has changed, or
        reading from the server fails; FileNotFoundError: the file is gone; DiskFullError: the folder is full."""
        obstore, (store, key) = load_extra("obstore"), bucket(self.url)
        changed = InputError(
            f"{self.url} was changed since it was listed; run again when nothing writes to it"
        )
        # Weak tags, W/"...", and tags of size and date match no condition; the answer's tag is compared too.
        is_strong = not self.tag.startswith("W/") and " bytes of " not in self.tag
        what = f"a copy of {self.url}"
        with explaining_full_disk(folder, self.size, what), explained(self.url, InputError):
            try:
                answer = obstore.get(store, key, options={"if_match": f'"{self.tag}"'} if is_strong else {})
            except obstore.exceptions.PreconditionError:
                raise changed from None
            if _tag(answer.meta) != self.tag:
                raise changed
            with open(folder / "copy", "wb") as file:
                file.writelines(answer.stream(min_chunk_size=PIECE_BYTES))
        return folder / "copy"


class _Copy:
    """A file at a URL on this machine's disk."""

    def __init__(self, file: RemoteFile) -> None:
        self.path = file.fetch(temporary_folder(self))


_copy = functools.lru_cache(maxsize=1)(_Copy)

Source = Path | RemoteFile


def open_source(source: Source) -> io.FileIO:
    """A raw, seekable file. Raises OSError: a local file cannot be opened, or a file at a URL is gone; InputError,
    DiskFullError: see `RemoteFile.fetch`."""
    if isinstance(source, Path):
        return open(source, "rb", buffering=0)
    copy = _copy(source)  # stays while it is opened, whatever another thread fetches
    return open(copy.path, "rb", buffering=0)


def identity(source: Source) -> tuple[int | str, ...]:
    """Values that differ once a file is changed or replaced; the size comes first. Raises OSError: a local file
    cannot be inspected."""
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


def described(url: str, meta: ObjectMeta) -> RemoteFile:
    """The file at a URL, from a server's description."""
    return RemoteFile(url, meta["size"], _tag(meta), modified=meta["last_modified"].timestamp())


def _tag(meta: ObjectMeta) -> str:
    """A tag without quotes: Azure's lists have none, but Azure's other answers do."""
    tag = meta["e_tag"]
    if not tag:
        return f"{meta['size']} bytes of {meta['last_modified']:%Y-%m-%dT%H:%M:%S}"
    return tag if tag.startswith("W/") else tag.strip('"')


def bucket(url: str, retry_seconds: float = RETRY_SECONDS) -> tuple[ObjectStore, str]:
    """The bucket or server of a URL, and the key in it. Connections are reused, since opening one takes about 20 ms.
    retry_seconds, and errors: as in `connect`."""
    parts = urlsplit(url)
    # Object store keys are not quoted.
    key = unquote(parts.path) if parts.scheme in WEB else url.partition("://")[2].partition("/")[2]
    pairs = tuple(item for item in os.environ.items() if item[0].startswith(("AWS_", "AZURE_", "GOOGLE_")))
    return _connected(f"{parts.scheme}://{parts.netloc}", os.getpid(), pairs, retry_seconds), key.strip("/")


@functools.lru_cache(maxsize=16)
def _connected(
    origin: str, process: int, environment: tuple[tuple[str, str], ...], retry_seconds: float
) -> ObjectStore:
    return connect(origin, retry_seconds)
