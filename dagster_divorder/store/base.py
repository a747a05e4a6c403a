"""The interface of stores at any place: immutable files by name, one replaceable state, and a lease.

Guarantee: a name is either absent or complete: neither a killed process nor a full disk leaves a half-written file
under its name.

A *hashed* name carries the xxh3-128 of its folder, key, extension and bytes, `<key>.<32 hex digits>.<ext>`. So reading
detects damaged or misplaced files, and one listing of a folder shows the present results. A damaged or missing file
raises DamagedFileError; `pipeline.repair` makes it again if possible. Any number of processes may put the same name:
they all put the same bytes.

A store is built on a *folder*: the files at a place. Input is found in folders too, and outputs are written into them.
"""

from __future__ import annotations

import builtins
import contextlib
import os
import re
import secrets
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Mapping
from pathlib import Path
from typing import IO, Any, Literal, NamedTuple, TypeVar

import orjson
import xxhash

from dagster_divorder.errors import DamagedFileError, StoreError
from dagster_divorder.settings.places import Place
from dagster_divorder.store.manifests import NEIGHBOUR, file_at, neighbour
from dagster_divorder.store.sources import RemoteFile, Source, open_source

FORMAT_VERSION = 4
FORMAT = "divorder store"
FORMAT_FILE = "format.json"
STATE = "state.json"
"""File of the state (`store.state`)."""
LEASE_FILE = "lease"
TEMPORARY = ".divorder-tmp-"
"""Prefix of the names of half-written files; no other program uses it."""

Bytes = bytes | bytearray | memoryview
Data = Bytes | Iterable[Bytes] | Callable[[IO[bytes]], Any]
"""The content of a file: bytes, chunks of bytes, or a function that writes to the open file."""

Listed = TypeVar("Listed")

_HASH = "[0-9a-f]{32}"
_FOLDERS = "|".join(
    [
        "(views|readings|rejects|schemas|states)",
        rf"(documents|records/{_HASH})(/index)?",
        r"stages/[a-z_]+(/[\w-]+)?",
    ]
)
OURS = re.compile(
    "|".join(
        [
            FORMAT_FILE.replace(".", r"\."),
            LEASE_FILE,
            rf"({_FOLDERS})/[\w-]+\.{_HASH}\.[a-z0-9]+",
            STATE.replace(".", r"\."),
            rf"fits/[a-z_]+/{_HASH}/[\w.-]+",
            rf"results/embeddings-{_HASH}\.npy",
            rf"([\w/-]+/)?{re.escape(TEMPORARY)}[0-9a-f]{{16}}",
        ]
    )
)
"""Names that this package writes into a store. Files with other names are never touched."""


def temporary_name() -> str:
    """A new name for a half-written or temporary file."""
    return f"{TEMPORARY}{secrets.token_hex(8)}"


Guard = Callable[[], object]
"""Raises if the next step must not be taken."""


Entry = RemoteFile | Literal["file", "folder", "neither"]
"""The kind of an entry in a folder: "file" on this machine, a RemoteFile at a URL. A broken link, for example, is
neither file nor folder."""


class Stat(NamedTuple):
    """Size of a file in bytes, and when it was written, in seconds since 1970."""

    size: int
    modified: float


def is_file(entry: Entry) -> bool:
    return entry not in ("folder", "neither")


def source_of(path: str, entry: Entry) -> Source | None:
    """The file at a path with this entry; None if the entry is not a file."""
    if entry == "file":
        return Path(path)
    return entry if isinstance(entry, RemoteFile) else None


class Folder(ABC):
    """A folder at a place, to be read. Methods take names of its files, which may lie in its neighbour too; `entry`,
    `entries` and `stats` take a path or URL in it."""

    def __init__(self, place: Place) -> None:
        self.place = place

    def where(self, name: str) -> str:
        return str(file_at(self.place, name))

    @abstractmethod
    def entry(self, path: str) -> Entry:
        """What is at a path or URL in this folder. Of an object store it sees files only; `entries` sees folders.

        Raises:
            InputError: the URL cannot be reached.
            OSError: the path cannot be inspected.
        """

    @abstractmethod
    def entries(self, path: str) -> dict[str, Entry]:
        """The entries directly in the folder at a path or URL in or beside this folder, by name; empty if there is no
        such folder.

        Raises:
            InputError, OSError: see `entry`.
        """

    def stats(self, path: str) -> dict[str, Stat]:
        """Size and date of each file directly in the folder at a path or URL, by name."""
        stats = {}
        for name, entry in self.entries(path).items():
            if isinstance(entry, RemoteFile):
                stats[name] = Stat(entry.size, entry.modified)
            elif is_file(entry):
                with contextlib.suppress(FileNotFoundError):  # removed meanwhile
                    status = os.stat(os.path.join(path, name))
                    stats[name] = Stat(status.st_size, status.st_mtime)
        return stats

    def sizes(self) -> dict[str, int]:
        """Bytes of each file directly in the folder or its neighbour, by name; empty if there is no folder."""
        return {name: stat.size for name, stat in self._in_both(self.stats).items()}

    def names(self) -> Collection[str]:
        """Names of files and folders directly in the folder or in its neighbour."""
        return self._in_both(self.entries).keys()

    def _in_both(self, look: Callable[[str], Mapping[str, Listed]]) -> dict[str, Listed]:
        beside = look(str(neighbour(self.place)))
        return {**look(str(self.place)), **{NEIGHBOUR + name: each for name, each in beside.items()}}

    def source(self, name: str) -> Source:
        """
        Raises:
            FileNotFoundError: there is no such file at a URL.
        """
        source = source_of(self.where(name), self.entry(self.where(name)))
        if source is None:
            raise FileNotFoundError(f"there is no {self.where(name)}")
        return source

    def open(self, name: str) -> IO[bytes]:
        """
        Raises:
            OSError: the file cannot be opened.
        """
        return open_source(self.source(name))

    def read(self, name: str) -> bytes:
        with self.open(name) as file:
            return file.read()


class WritableFolder(Folder):
    """A folder that can be written too."""

    def temporary(self) -> list[str]:
        """Names of half-written files in the folder, of any process."""
        return [name for name in self.names() if name.removeprefix(NEIGHBOUR).startswith(TEMPORARY)]

    @abstractmethod
    def publish(self, staged: Mapping[str, Path], last: str, stale: Collection[str], check: Guard) -> None:
        """Put files of this machine under their names, `last` at the end; then remove the stale files. staged: by name;
        a folder of this machine renames them. check: called before each step; it stops the rest by raising."""

    @abstractmethod
    def write(self, files: Mapping[str, Bytes], check: Guard = lambda: None) -> None:
        """Write files one after another, each whole or not at all.

        Raises:
            StoreError: the disk is full (DiskFullError) or the folder is not writable; old files are still whole.
        """

    @abstractmethod
    def delete(self, names: Collection[str]) -> None:
        """Removes files; missing files are ignored."""

    @abstractmethod
    def explaining(
        self, name: str = "", size: int = 0, what: str = "it"
    ) -> contextlib.AbstractContextManager[None]:
        """Turns errors of the file system into a StoreError. size: about how many bytes `what` takes, for messages."""


class Store(ABC):
    """A store at a place that is new, empty, or a store already, never one with other files in it.

    place: as given, for messages. real_place: the same for every path to it. folder: at the place. A backend implements
    `open`, `put`, `delete`, `files`, `local`, `lease`, `check` and `scratch`.
    """

    place: str
    real_place: str
    folder: WritableFolder
    about_file: str = FORMAT_FILE
    """Name of the file that holds the store's format, version and id."""

    @abstractmethod
    def open(self, *, create: bool = True) -> Store:
        """Check that the place is a store of this version and return self. create: make a store at an empty place;
        without it an empty place counts as an empty store.

        Raises:
            StoreError: the place holds other files, cannot be made or written, or is a store of another version.
        """

    def list(self, folder: str) -> builtins.list[str]:
        """Names of the complete files directly in a folder, sorted; none if the folder is missing."""
        entries = self.folder.entries(self.where(folder)).items()
        files = [name for name, entry in entries if is_file(entry) and not name.startswith(TEMPORARY)]
        return [f"{folder}/{name}" for name in sorted(files)]

    def folders(self, folder: str) -> builtins.list[str]:
        """Names of the folders directly in a folder, sorted; none if it is missing."""
        entries = self.folder.entries(self.where(folder)).items()
        return sorted(f"{folder}/{name}" for name, entry in entries if entry == "folder")

    def stats(self, folder: str) -> dict[str, Stat]:
        """Size and date of each complete file directly in a folder, by name, sorted."""
        stats = sorted(self.folder.stats(self.where(folder)).items())
        return {f"{folder}/{name}": stat for name, stat in stats if not name.startswith(TEMPORARY)}

    def exists(self, name: str) -> bool:
        try:
            return is_file(self.folder.entry(self.where(name)))
        except OSError:  # a file that cannot be inspected cannot be read
            return False

    def read(self, name: str) -> bytes:
        """
        Raises:
            DamagedFileError: there is no such file.
        """
        try:
            with self.open_file(name) as file:
                return file.read()
        except FileNotFoundError:
            raise self._missing(name) from None
        except OSError as error:
            raise StoreError(f"{self.where(name)} cannot be read: {error.strerror}") from error

    def _missing(self, name: str) -> DamagedFileError:
        return DamagedFileError(f"{self.where(name)} is missing; run the pipeline again to make it", name)

    def open_file(self, name: str) -> IO[bytes]:
        """A file open for reading, for parts of it.

        Raises:
            OSError or DamagedFileError: there is no such file.
        """
        return open(self.local(name), "rb")

    @abstractmethod
    def put(self, name: str, data: Data, *, replace: bool = False) -> str:
        """Write a file whole or not at all; returns its name. An existing file stays as it is unless `replace`."""

    @abstractmethod
    def delete(self, *names: str) -> None:
        """Removes files; missing files are ignored. The caller holds the lease."""

    @abstractmethod
    def files(self) -> dict[str, int]:
        """Name -> bytes of every file that this package has written, half-written ones too; other files are ignored."""

    @abstractmethod
    def local(self, name: str) -> Path:
        """A file, or a folder (its name has no dot), on this machine's disk, for memory maps and for libraries that
        read folders.

        Raises:
            DamagedFileError: there is no such file; some backends leave this to the code that opens it.
        """

    @abstractmethod
    def lease(
        self, *, wait: bool = True, on_wait: Callable[[str], Any] | None = None
    ) -> contextlib.AbstractContextManager[None]:
        """Holds the store exclusively.

        Raises:
            StoreBusyError: another run holds it and `wait` is False.
            StoreError: see `open`.
        """

    def check(self) -> None:  # noqa: B027
        """Checks that the lease is still held, before an irreversible step. On a folder it always is.

        Raises:
            LeaseLostError: another run has taken it over.
        """

    @abstractmethod
    def scratch(self, size: int = 0, what: str = "it") -> contextlib.AbstractContextManager[Path]:
        """An empty folder on this machine's disk for temporary files, removed at the end. size: about how many bytes
        `what` takes, for the message where the disk is full.

        Raises:
            StoreError: the folder cannot be made, or the disk fills up while it is used (DiskFullError).
        """

    @abstractmethod
    def clear_scratch(self) -> None:
        """Remove files of killed processes from `scratch`. The caller holds the lease, so no other process uses it."""

    def where(self, name: str) -> str:
        """The path or URL of a name.

        Raises:
            StoreError: the name leads out of the store; it may come from a manipulated file.
        """
        return f"{self.place}/{checked(name, self.place)}"

    # Identity of the store -----------------------------------------------------------------------------------------

    @property
    def id(self) -> str:
        """32 hex digits, drawn when the store is made; empty before."""
        return str(self._about()["id"]) if self.exists(self.about_file) else ""

    def _about(self) -> dict[str, Any]:
        """The content of the format file.

        Raises:
            StoreError: it is damaged or of another version.
        """
        data = self.read(self.about_file)
        about = json_object(data)
        version = about.get("version")
        if about.get("format", FORMAT) != FORMAT or not isinstance(version, int):
            raise StoreError(
                f"{self.where(self.about_file)} is damaged or belongs to another program: it holds {data[:40]!r}, "
                f'expected {{"format":"{FORMAT}","version":{FORMAT_VERSION},...}}; restore it from a copy, or set '
                "store.path to a new folder"
            )
        if version != FORMAT_VERSION:
            raise StoreError(
                f"store {self.place} has format version {version}, this package reads version {FORMAT_VERSION}; "
                "install the version that wrote it, or set store.path to a new folder: a run then computes everything "
                "again"
            )
        if not re.fullmatch("[0-9a-f]{32}", str(about.get("id"))):
            raise StoreError(
                f"{self.where(self.about_file)} is damaged: its id is {about.get('id')!r}, expected 32 hex digits; "
                "restore it from a copy, or set store.path to a new folder"
            )
        return about

    # Hashed files -------------------------------------------------------------------------------------------------

    def put_hashed(self, folder: str, key: str, data: Bytes, extension: str) -> str:
        """Put bytes under a hashed name; returns the name."""
        prefix = f"{folder}/{key}"
        return self.put(f"{prefix}.{_hash_of(prefix, extension, data)}.{extension}", data)

    def hashed(self, folder: str) -> dict[str, str]:
        """Key -> name of the hashed files in a folder; the first by name where a key has several.

        The lookup of a missing key raises DamagedFileError: callers look up files that must exist.
        """
        names = _Hashed(self, folder)
        for name in self.list(folder):
            names.setdefault(name.rsplit("/", 1)[1].split(".", 1)[0], name)
        return names

    def read_verified(self, name: str) -> bytes:
        """Read a hashed file.

        Raises:
            DamagedFileError: the file is missing, or its bytes do not match its name.
        """
        data = self.read(name)
        prefix, expected, extension = name.rsplit(".", 2)
        actual = _hash_of(prefix, extension, data)
        if actual != expected:
            raise DamagedFileError(
                f"{self.where(name)} is damaged: its name and content hash to {actual}, expected {expected}; "
                "delete it and run again to make it again",
                name,
            )
        return data


def new_about() -> dict[str, Any]:
    """The content of the format file of a new store."""
    return {"format": FORMAT, "version": FORMAT_VERSION, "id": secrets.token_hex(16)}


def _hash_of(prefix: str, extension: str, data: Bytes) -> str:
    name = xxhash.xxh3_64_intdigest(f"{prefix}.{extension}".encode())
    return xxhash.xxh3_128_hexdigest(data, seed=name)


class _Hashed(dict[str, str]):
    """Key -> name of the hashed files in a folder."""

    def __init__(self, store: Store, folder: str) -> None:
        super().__init__()
        self._store, self._folder = store, folder

    def __missing__(self, key: str) -> str:
        name = f"{self._folder}/{key}"
        raise DamagedFileError(
            f"{self._store.where(name)}.* is missing; run the pipeline again to make it", name
        )


def checked(name: str, place: str) -> str:
    """The name, if it lies in the store.

    Raises:
        StoreError: it leads out of the store.
    """
    parts = name.split("/")
    if not all(parts) or not {".", ".."}.isdisjoint(parts) or "\0" in name:
        raise StoreError(
            f"a file of store {place} names {name!r}, which is outside the store; restore the store from a copy, or "
            f"delete it: a run then computes everything again"
        )
    return name


def json_object(data: bytes) -> dict[str, Any]:
    """Bytes parsed as a JSON object; empty if they are not one."""
    try:
        value = orjson.loads(data)
    except orjson.JSONDecodeError:
        return {}
    return value if isinstance(value, dict) else {}
