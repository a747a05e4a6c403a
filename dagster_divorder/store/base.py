"""What a store is, wherever it lies: immutable files by name, one state that is replaced, and a lease.

Guarantee: a name is either absent or complete, so that neither a killed process nor a full disk leaves a half-written
file under its name.

A *hashed* name carries the xxh3-128 of its folder, key, extension and bytes, `<key>.<32 hex digits>.<ext>`: a damaged
file, or one that lies under another's name, is found when it is read, and whether a result is present is one listing of
its folder. A damaged or missing file raises DamagedFileError, which `pipeline.repair` answers where the file can be
made again. Since such a name says what is in it, any number of processes may put it: they put the same.
"""

from __future__ import annotations

import builtins
import re
import secrets
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import IO, Any, NamedTuple

import orjson
import xxhash

from dagster_divorder.errors import DamagedFileError, StoreError

FORMAT_VERSION = 4
FORMAT = "divorder store"
FORMAT_FILE = "format.json"
STATE = "state.json"
"""What the stages have made (`store.state`)."""
LEASE_FILE = "lease"
TEMPORARY = ".divorder-tmp-"
"""How names of half-written files begin; no other program's do."""

Bytes = bytes | bytearray | memoryview

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


POINTERS = (STATE,)
"""What is replaced in place; all else keeps its bytes as long as it keeps its name."""


def temporary_name() -> str:
    """A new name for what is half-written or temporary."""
    return f"{TEMPORARY}{secrets.token_hex(8)}"


class Stat(NamedTuple):
    """Bytes of a file, and when it was written, in seconds since 1970."""

    size: int
    modified: float


class Store(ABC):
    """A store: one that is new, empty, or a store already, never a place with files of others in it.

    `place` is where it lies, as it was given, for people; `real_place` the same whatever way leads there. A backend is
    its verbs: `list`, `stats`, `folders`, `read`, `open_file`, `put`, `delete`, `files`, `local` and `lease`.
    """

    place: str
    real_place: str
    about_file: str = FORMAT_FILE
    """Name of the file that says what the store is: of which format and version, and its id."""

    @abstractmethod
    def open(self, *, create: bool = True) -> Store:
        """Check that the place is a store of this version and return self; make it where it is none yet and `create`.

        Without `create` a place where nothing is, is an empty store.

        Raises:
            StoreError: the place holds other files, cannot be made or written, or is a store of another version.
        """

    @abstractmethod
    def list(self, folder: str) -> builtins.list[str]:
        """Names of the complete files directly in a folder, sorted; none if the folder is missing."""

    @abstractmethod
    def stats(self, folder: str) -> dict[str, Stat]:
        """The same files by name, with what is known of each."""

    @abstractmethod
    def folders(self, folder: str) -> builtins.list[str]:
        """Names of the folders directly in a folder, sorted; none if it is missing."""

    @abstractmethod
    def exists(self, name: str) -> bool: ...

    @abstractmethod
    def read(self, name: str) -> bytes:
        """
        Raises:
            DamagedFileError: there is no such file.
        """

    @abstractmethod
    def open_file(self, name: str) -> IO[bytes]:
        """A file to read parts of.

        Raises:
            OSError or DamagedFileError: there is no such file.
        """

    @abstractmethod
    def put(
        self, name: str, data: Bytes | Iterable[Bytes] | Callable[[IO[bytes]], Any], *, replace: bool = False
    ) -> str:
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
    ) -> AbstractContextManager[None]:
        """Hold the store alone.

        Raises:
            StoreBusyError: another run holds it and `wait` is False.
            StoreError: as `open` does.
        """

    @abstractmethod
    def check(self) -> None:
        """See that the lease is still held, before a step that cannot be taken back.

        Raises:
            LeaseLostError: another run has taken it over.
        """

    @abstractmethod
    def scratch(self, size: int = 0, what: str = "it") -> AbstractContextManager[Path]:
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
        found: str = self._about()["id"] if self.exists(self.about_file) else ""
        return found

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
        found = _Hashed(self, folder)
        for name in self.list(folder):
            found.setdefault(name.rsplit("/", 1)[1].split(".", 1)[0], name)
        return found

    def read_verified(self, name: str) -> bytes:
        """Read a hashed file.

        Raises:
            DamagedFileError: the bytes are not the ones that were written under this name.
        """
        data = self.read(name)
        prefix, expected, extension = name.rsplit(".", 2)
        found = _hash_of(prefix, extension, data)
        if found != expected:
            raise DamagedFileError(
                f"{self.where(name)} is damaged: its name and content hash to {found}, expected {expected}; "
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
        found = orjson.loads(data)
    except orjson.JSONDecodeError:
        return {}
    return found if isinstance(found, dict) else {}
