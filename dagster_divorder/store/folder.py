"""A folder of files at a place: input is found in folders, outputs and stores are written into them.

Names that begin with `_/` are files in the folder's neighbour (store/manifests.py). `store.folders` has the folders at
URLs.
"""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import stat
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path
from typing import IO, Literal

from dagster_divorder.settings.places import Place
from dagster_divorder.store.disk import explain_os_error
from dagster_divorder.store.manifests import NEIGHBOUR, file_at, neighbour
from dagster_divorder.store.sources import Source, open_source

TEMPORARY = ".divorder-tmp-"
"""Prefix of the names of half-written files; no other program uses it."""

Bytes = bytes | bytearray | memoryview
Data = Bytes | Callable[[IO[bytes]], object]
"""The content of a file: bytes, or a function that writes to the open file."""
Entry = Source | Literal["folder", "neither"]
"""An entry in a folder: a file, or its kind. A broken link, for example, is neither file nor folder."""


def temporary_name() -> str:
    """A new name for a half-written or temporary file."""
    return f"{TEMPORARY}{secrets.token_hex(8)}"


class Folder(ABC):
    """A folder at a place, to be read. Methods take names of its files, which may lie in its neighbour too; `entry`
    and `entries` take a path or URL in it, and raise InputError or OSError if it cannot be reached."""

    def __init__(self, place: Place) -> None:
        self.place = place

    def where(self, name: str) -> str:
        return str(file_at(self.place, name))

    @abstractmethod
    def entry(self, path: str) -> Entry:
        """What is at a path or URL in this folder. Of an object store it sees files only; `entries` sees folders."""

    @abstractmethod
    def entries(self, path: str) -> dict[str, Entry]:
        """The entries directly in the folder at a path or URL, by name; empty if there is no such folder."""

    def contents(self) -> dict[str, Entry]:
        """The entries directly in the folder or in its neighbour, by name; empty if there is no folder."""
        beside = self.entries(str(neighbour(self.place)))
        return self.entries(str(self.place)) | {NEIGHBOUR + name: entry for name, entry in beside.items()}

    def sizes(self) -> dict[str, int]:
        """Bytes of each file directly in the folder or in its neighbour, by name."""
        sizes = {}
        for name, entry in self.contents().items():
            with contextlib.suppress(FileNotFoundError):  # removed meanwhile
                if isinstance(entry, Source):
                    sizes[name] = entry.stat().st_size if isinstance(entry, Path) else entry.size
        return sizes

    def source(self, name: str) -> Source:
        """Raises FileNotFoundError: there is no such file at a URL."""
        entry = self.entry(self.where(name))
        if not isinstance(entry, Source):
            raise FileNotFoundError(f"there is no {self.where(name)}")
        return entry

    def open(self, name: str) -> IO[bytes]:
        """Raises OSError: the file cannot be opened."""
        return open_source(self.source(name))

    def read(self, name: str) -> bytes:
        with self.open(name) as file:
            return file.read()


class LocalFolder(Folder):
    """A folder on this machine. A file is written under a temporary name, flushed to disk and renamed."""

    place: Path

    def entry(self, path: str) -> Entry:
        try:
            mode = os.stat(path).st_mode
        except OSError as error:
            if error.errno not in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ENAMETOOLONG):
                raise
            return "neither"
        return Path(path) if stat.S_ISREG(mode) else "folder" if stat.S_ISDIR(mode) else "neither"

    def entries(self, path: str) -> dict[str, Entry]:
        try:
            with os.scandir(path or os.curdir) as entries:
                return {
                    # Asking the system about every file takes as long as all else.
                    each.name: Path(each.path)
                    if each.is_file(follow_symlinks=False)
                    else self.entry(each.path)
                    for each in entries
                }
        except (FileNotFoundError, NotADirectoryError):
            return {}

    def source(self, name: str) -> Path:
        return file_at(self.place, name)

    def prepare(self) -> None:
        """Make the folder."""
        self.place.mkdir(parents=True, exist_ok=True)

    @contextlib.contextmanager
    def create(self, name: str, temporary: str, *, lasting: bool = True) -> Iterator[IO[bytes]]:
        """A file to write from beginning to end, under a temporary name. lasting: it is on disk at the end."""
        path = self.source(temporary)
        if name.startswith(NEIGHBOUR):
            path.parent.mkdir(exist_ok=True)
        with open(path, "wb") as file:
            yield file
            file.flush()
            if lasting:
                os.fsync(file.fileno())

    def link(self, name: str, temporary: str) -> bool:
        """Give a published file a temporary name too, without writing it again; False where this is not possible."""
        try:
            os.link(self.source(name), self.source(temporary))
        except OSError:  # for example, a file system without links
            return False
        return True

    def publish(self, staged: Mapping[str, Path], last: str, stale: Collection[str]) -> None:
        """Rename files to their names, `last` at the end; then remove the stale files. staged: paths by name."""
        folders = {self.source(name).parent for name in staged}
        for name in sorted(staged, key=lambda name: name == last):
            if name == last and len(staged) > 1:
                # The other files are on disk before the last file names them.
                for folder in folders:
                    _sync_folder(folder)
            os.replace(staged[name], self.source(name))
        _sync_folder(self.source(last).parent)
        self.delete(stale)

    def delete(self, names: Collection[str]) -> None:
        """Removes files; missing files are ignored."""
        for name in names:
            self.source(name).unlink(missing_ok=True)

    def write(self, files: Mapping[str, Data]) -> None:
        """Write files, all or none, and publish them, the last one last. Raises StoreError: the disk is full
        (DiskFullError) or the folder is not writable; old files are still whole."""
        staged, last = {name: temporary_name() for name in files}, [*files][-1]
        with self.explaining(last):
            try:
                self.prepare()
                for name, data in files.items():
                    with self.create(name, staged[name]) as file:
                        file.write(data) if isinstance(data, Bytes) else data(file)
                self.publish(self.sources(staged), last, ())
            except BaseException:
                # Before `explaining`, so that the message counts their space as free.
                with contextlib.suppress(OSError):
                    self.delete(staged.values())
                raise

    def sources(self, temporary: Mapping[str, str]) -> dict[str, Path]:
        """The paths of temporary names, by name."""
        return {name: self.source(each) for name, each in temporary.items()}

    @contextlib.contextmanager
    def explaining(self, name: str = "") -> Iterator[None]:
        """Turns errors of the file system into a StoreError."""
        try:
            yield
        except OSError as error:
            raise explain_os_error(error, self.source(name)) from error


def _sync_folder(folder: Path) -> None:
    """Flush a folder's renames to disk, so that they survive a power cut."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
