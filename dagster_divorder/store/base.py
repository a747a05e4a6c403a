"""What a store is, wherever it lies: immutable files by name, one state that is replaced, and a lease.

Guarantee: a name is either absent or complete, so that neither a killed process nor a full disk leaves a half-written
file under its name.

A *hashed* name carries the xxh3-128 of its folder, key, extension and bytes, `<key>.<32 hex digits>.<ext>`: a damaged
file, or one that lies under another's name, is found when it is read, and whether a result is present is one listing of
its folder. A damaged or missing file raises DamagedFileError, which `pipeline.repair` answers where the file can be
made again. Since such a name says what is in it, any number of processes may put it: they put the same.

A store is built on a *folder*: what lies at a place. Input is found in folders too, and outputs are written into them.
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
"""What the stages have made (`store.state`)."""
LEASE_FILE = "lease"
TEMPORARY = ".divorder-tmp-"
"""How names of half-written files begin; no other program's do."""

Bytes = bytes | bytearray | memoryview
Data = Bytes | Iterable[Bytes] | Callable[[IO[bytes]], Any]
"""What a file is written of: bytes, chunks of them, or a function that writes to the open file."""

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
"""Names that this package writes into a store. What has none of them is somebody else's, and never touched."""


def temporary_name() -> str:
    """A new name for what is half-written or temporary."""
    return f"{TEMPORARY}{secrets.token_hex(8)}"


Check = Callable[[], object]
"""Raises where what comes next must not be done."""


Entry = RemoteFile | Literal["file", "folder", "neither"]
"""What a name in a folder stands for: a file at a URL is what is known of it, one of this machine just "file". A link
to nothing, for example, is neither file nor folder."""


class Stat(NamedTuple):
    """Bytes of a file, and when it was written, in seconds since 1970."""

    size: int
    modified: float


def is_file(entry: Entry) -> bool:
    return entry not in ("folder", "neither")


def source_of(path: str, entry: Entry) -> Source | None:
    """The file that an entry at a path stands for, None if it is none."""
    if entry == "file":
        return Path(path)
    return entry if isinstance(entry, RemoteFile) else None


class Folder(ABC):
    """A folder at a place. Some verbs take names of its files, which may lie in its neighbour too; what only looks
    takes the path or URL of anything in it. Another process may write a file that this one publishes, but not into a
    dataset of the Hub."""

    atomic = False
    """Whether `publish` changes all files at once."""

    def __init__(self, place: Place) -> None:
        self.place = place

    def where(self, name: str) -> str:
        return str(file_at(self.place, name))

    @abstractmethod
    def entry(self, path: str) -> Entry:
        """What is at a path or URL in this folder; of folders of an object store only `entries` knows.

        Raises:
            InputError: what is at the URL cannot be reached.
            OSError: what is at the path cannot be looked at.
        """

    @abstractmethod
    def entries(self, path: str) -> dict[str, Entry]:
        """What the folder at a path or URL in this folder, or beside it, directly holds, by name; empty where there is
        no such folder.

        Raises:
            InputError, OSError: as `entry` does.
        """

    def stats(self, path: str) -> dict[str, Stat]:
        """Size and date of each file that the folder at a path or URL directly holds, by name."""
        stats = {}
        for name, entry in self.entries(path).items():
            if isinstance(entry, RemoteFile):
                stats[name] = Stat(entry.size, entry.modified)
            elif is_file(entry):
                with contextlib.suppress(FileNotFoundError):  # removed meanwhile
                    known = os.stat(os.path.join(path, name))
                    stats[name] = Stat(known.st_size, known.st_mtime)
        return stats

    def sizes(self) -> dict[str, int]:
        """Bytes of each file that is directly in it or in its neighbour, by name; empty where there is no folder."""
        return {name: stat.size for name, stat in self._in_both(self.stats).items()}

    def names(self) -> Collection[str]:
        """Names of whatever is directly in it or in its neighbour."""
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

    def temporary(self) -> list[str]:
        """Names of what is half-written in it, by this process or by any other."""
        return [name for name in self.names() if name.removeprefix(NEIGHBOUR).startswith(TEMPORARY)]

    @abstractmethod
    def prepare(self) -> None:
        """Make the folder."""

    @abstractmethod
    def create(
        self, name: str, temporary: str, *, lasting: bool = True
    ) -> contextlib.AbstractContextManager[IO[bytes]]:
        """A file to write from its beginning to its end, under a temporary name; one that is to last is safe at the
        end."""

    @abstractmethod
    def publish(self, staged: Mapping[str, str], last: str, stale: Collection[str], check: Check) -> None:
        """Give files, by their temporary names, the names that they are `staged` for, `last` at the end; then remove
        the stale ones. `check` is called before each step, and stops it by raising."""

    def write(self, files: Mapping[str, Data], check: Check = lambda: None) -> None:
        """Write files, all or none, and publish them, the last one last.

        Raises:
            StoreError: the disk is full (DiskFullError) or the folder is not writable; what was there is still whole.
        """
        staged, last = {name: temporary_name() for name in files}, [*files][-1]
        size = sum(memoryview(data).nbytes for data in files.values() if isinstance(data, Bytes))
        with self.explaining(last, size):
            try:
                self.prepare()
                for name, data in files.items():
                    with self.create(name, staged[name]) as file:
                        if callable(data):
                            data(file)
                        else:
                            file.writelines([data] if isinstance(data, Bytes) else data)
                self.publish(staged, last, (), check)
            except BaseException:
                # First, so that the message counts its space as free.
                with contextlib.suppress(OSError):
                    self.delete(staged.values())
                raise
            finally:
                self.release()

    @abstractmethod
    def delete(self, names: Collection[str]) -> None:
        """Remove files, those that are there; from a dataset that is prepared, when it is published."""

    def release(self) -> None:  # noqa: B027
        """Give back what this process holds for it, once nothing more is written."""

    @abstractmethod
    def explaining(
        self, name: str = "", size: int = 0, what: str = "it"
    ) -> contextlib.AbstractContextManager[None]:
        """Turns what goes wrong with a file into a StoreError; `what` takes about `size` bytes."""


class Store(ABC):
    """A store: one that is new, empty, or a store already, never a place with files of others in it.

    `place` is where it lies, as it was given, for people; `real_place` the same whatever way leads there; `folder` what
    lies there. A backend is its verbs: `open`, `put`, `delete`, `files`, `local`, `lease`, `check` and `scratch`.
    """

    place: str
    real_place: str
    folder: Folder
    about_file: str = FORMAT_FILE
    """Name of the file that says what the store is: of which format and version, and its id."""

    @abstractmethod
    def open(self, *, create: bool = True) -> Store:
        """Check that the place is a store of this version and return self; make it where it is none yet and `create`.

        Without `create` a place where nothing is, is an empty store.

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
        """What is known of each complete file directly in a folder, by name, sorted."""
        stats = sorted(self.folder.stats(self.where(folder)).items())
        return {f"{folder}/{name}": stat for name, stat in stats if not name.startswith(TEMPORARY)}

    def exists(self, name: str) -> bool:
        try:
            return is_file(self.folder.entry(self.where(name)))
        except OSError:  # what cannot be looked at cannot be read
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
        """A file to read parts of.

        Raises:
            OSError or DamagedFileError: there is no such file.
        """
        return open(self.local(name), "rb")

    @abstractmethod
    def put(self, name: str, data: Data, *, replace: bool = False) -> str:
        """Write a file whole or not at all. A name that exists already is left as it is unless `replace`."""

    @abstractmethod
    def delete(self, *names: str) -> None:
        """Remove files, those that are there. For who holds the lease."""

    @abstractmethod
    def files(self) -> dict[str, int]:
        """Name -> bytes of every file that this package has written, half-written ones too.

        A place may have come to hold other files, wherever they are from; they are nobody's business here.
        """

    @abstractmethod
    def local(self, name: str) -> Path:
        """A file, or a folder (whose name has no dot) of files, on this machine's disk, for memory maps and for
        libraries that read folders. Where it is missing a backend may say so, or leave it to who opens the file.

        Raises:
            DamagedFileError: there is no such file.
        """

    @abstractmethod
    def lease(
        self, *, wait: bool = True, on_wait: Callable[[str], Any] | None = None
    ) -> contextlib.AbstractContextManager[None]:
        """Hold the store alone.

        Raises:
            StoreBusyError: another run holds it and `wait` is False.
            StoreError: as `open` does.
        """

    def check(self) -> None:  # noqa: B027
        """See that the lease is still held, before a step that cannot be taken back: that of a folder always is.

        Raises:
            LeaseLostError: another run has taken it over.
        """

    @abstractmethod
    def scratch(self, size: int = 0, what: str = "it") -> contextlib.AbstractContextManager[Path]:
        """An empty folder on this machine's disk for temporary files, removed at the end. `size` is about how many
        bytes `what` takes, for the message where the disk is full.

        Raises:
            StoreError: the folder cannot be made; DiskFullError also where the disk is full meanwhile.
        """

    @abstractmethod
    def clear_scratch(self) -> None:
        """Remove what killed processes left in `scratch`. For who holds the lease: nobody else uses it then."""

    def where(self, name: str) -> str:
        """Where a name lies, for people.

        Raises:
            StoreError: the name, which may come from a file that was tampered with, leads out of the store.
        """
        return f"{self.place}/{checked(name, self.place)}"

    # What the store is ---------------------------------------------------------------------------------------------

    @property
    def id(self) -> str:
        """32 hex digits, drawn when the store was made; empty where there is none yet."""
        return str(self._about()["id"]) if self.exists(self.about_file) else ""

    def _about(self) -> dict[str, Any]:
        """What the format file says.

        Raises:
            StoreError: it is not one of this version.
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
                "install the version that wrote it, or set store.path to a new folder, where everything is computed "
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
        """Put bytes under a name that carries the hash of them and of itself."""
        prefix = f"{folder}/{key}"
        return self.put(f"{prefix}.{_hash_of(prefix, extension, data)}.{extension}", data)

    def hashed(self, folder: str) -> dict[str, str]:
        """Key -> name of the hashed files in a folder (the first by name if a key is there twice).

        Looking up a key that is not there raises DamagedFileError: who asks for a file without asking whether it is
        there was promised one.
        """
        name_of = _Hashed(self, folder)
        for name in self.list(folder):
            name_of.setdefault(name.rsplit("/", 1)[1].split(".", 1)[0], name)
        return name_of

    def read_verified(self, name: str) -> bytes:
        """Read a hashed file.

        Raises:
            DamagedFileError: the bytes are not the ones that were written under this name.
        """
        data = self.read(name)
        prefix, expected, extension = name.rsplit(".", 2)
        actual = _hash_of(prefix, extension, data)
        if actual != expected:
            raise DamagedFileError(
                f"{self.where(name)} is damaged: its name and content hash to {actual}, expected {expected}; "
                "delete the file and run again, it is then made anew",
                name,
            )
        return data


def new_about() -> dict[str, Any]:
    """What a new store says of itself."""
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
    """The name itself.

    Raises:
        StoreError: it leads out of the store.
    """
    parts = name.split("/")
    if not all(parts) or not {".", ".."}.isdisjoint(parts) or "\0" in name:
        raise StoreError(
            f"a file of store {place} names {name!r}, which is no name inside it; restore the store from a "
            "copy, or delete it: a run then computes everything again"
        )
    return name


def json_object(data: bytes) -> dict[str, Any]:
    """The JSON object that bytes hold, an empty one where they hold none."""
    try:
        value = orjson.loads(data)
    except orjson.JSONDecodeError:
        return {}
    return value if isinstance(value, dict) else {}
