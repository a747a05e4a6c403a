"""Input files: local, or at a URL of an object store.

A source is a `Path` or a `RemoteFile`. Both have `name`, `suffix` and `str()`, and `open_source` opens a raw, seekable
file. A RemoteFile is one version of a file. Its tag names the version: the ETag.

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

from dagster_divorder.errors import InputError
from dagster_divorder.extras import load_extra
from dagster_divorder.store.disk import explaining_full_disk, temporary_folder
from dagster_divorder.store.remote import RETRY_SECONDS, connect, explained
from dagster_divorder.units import SETTLED_NS

if TYPE_CHECKING:
    from obstore import ObjectMeta
    from obstore.store import ObjectStore

PIECE_BYTES = 8 << 20


@dataclass(frozen=True, slots=True)
class RemoteFile:
    """A version of a file at a URL. size: bytes. tag: names the version."""

    url: str
    size: int
    tag: str

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
        what = f"a copy of {self.url}"
        with explaining_full_disk(folder, self.size, what), explained(self.url, InputError):
            try:
                answer = obstore.get(store, key, options={"if_match": f'"{self.tag}"'})
            except obstore.exceptions.PreconditionError:
                raise changed from None
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
    # Azure's lists have no quotes, but Azure's other answers do. Every provider gives tags.
    return RemoteFile(url, meta["size"], (meta["e_tag"] or str(meta["last_modified"])).strip('"'))


def bucket(url: str, retry_seconds: float = RETRY_SECONDS) -> tuple[ObjectStore, str]:
    """The bucket of a URL, and the key in it. Connections are reused, since opening one takes about 20 ms.
    retry_seconds, and errors: as in `connect`."""
    scheme, _, path = url.partition("://")
    name, _, key = path.partition("/")
    pairs = tuple(item for item in os.environ.items() if item[0].startswith(("AWS_", "AZURE_", "GOOGLE_")))
    return _connected(f"{scheme}://{name}", os.getpid(), pairs, retry_seconds), key.strip("/")


@functools.lru_cache(maxsize=16)
def _connected(
    origin: str, process: int, environment: tuple[tuple[str, str], ...], retry_seconds: float
) -> ObjectStore:
    return connect(origin, retry_seconds)
