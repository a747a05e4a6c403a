"""The interface of stores at any place: immutable files by name, and one document that is replaced, the state.

Five verbs: `list`, `put` (if absent), `read`, `delete`, and `swap` for the state. `store.local` and `store.objects` are
the two backends.

Guarantee: a name is either absent or complete: neither a killed process nor a full disk leaves a half-written file
under its name.

A *hashed* name carries the xxh3-128 of its folder, key, extension and bytes, `<key>.<32 hex digits>.<ext>`. So reading
detects damaged or misplaced files, and one listing of a folder shows the present results. A damaged or missing file
raises DamagedFileError; after its removal the next run makes it again. Any number of processes may put the same name:
they all put the same bytes.
"""

from __future__ import annotations

import builtins
import contextlib
import math
import re
import secrets
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any, ClassVar, Self

import orjson
import xxhash

from dagster_divorder.errors import DamagedFileError, StoreError
from dagster_divorder.store.folder import TEMPORARY, Bytes, Data
from dagster_divorder.store.folders import WritableFolder
from dagster_divorder.store.manifests import NEIGHBOUR
from dagster_divorder.store.sources import Source

FORMAT_VERSION = 5
FORMAT = "divorder store"
FORMAT_FILE = "format.json"
"""Holds the store's format, version and id."""
STATE = "state.json"
"""File of the state (`store.state`)."""
LOCK_FILE = ".divorder-lock"
HIDDEN = ".divorder-"
"""Prefix of the names of lock and half-written files; no other program uses it."""

_HASH = "[0-9a-f]{32}"
OURS = re.compile(
    rf"format\.json|state\.json|{re.escape(LOCK_FILE)}"
    rf"|((views|rejects|schemas)|records/{_HASH}(/index)?|stages/[a-z_]+(/[\w-]+)?)/[\w-]+\.{_HASH}\.[a-z0-9]+"
    rf"|fits/[a-z_]+/{_HASH}/[\w.-]+|results/[a-z]+-{_HASH}\.npy|([\w/-]+/)?{re.escape(TEMPORARY)}[0-9a-f]{{16}}"
)
"""Names that this package writes into a store. Files with other names are never touched."""


class Store(ABC):
    """A store at a place that is new, empty, or a store already, never one with other files in it.

    place: as given, for messages. real_place: the same for every path to it. folder: at the place. shared: several runs
    may use it at once, so that only `divorder prune` removes files; else `lock` keeps other runs out.
    """

    place: str
    real_place: str
    folder: WritableFolder
    shared: ClassVar[bool]

    def open(self, *, create: bool = True) -> Self:
        """Check that the place is a store of this version and return self. create: make a store at an empty place;
        without it an empty place counts as an empty store. Raises StoreError: the place holds other files, cannot be
        made or written, or is a store of another version."""
        with self.folder.explaining():
            names = self.folder.entries(self.place)
        if FORMAT_FILE in names:
            self._about()
        elif others := sorted(name for name in names if not name.startswith(HIDDEN)):
            raise StoreError(
                f"store.path {self.place} has other files in it ({others[0]}) and is not a store; expected a new or "
                "empty folder, or a store: set store.path to one"
            )
        elif create:
            self._create()
        return self

    def _create(self) -> None:
        about = {"format": FORMAT, "version": FORMAT_VERSION, "id": secrets.token_hex(16)}
        self.put(FORMAT_FILE, orjson.dumps(about))

    @property
    def id(self) -> str:
        """32 hex digits, drawn when the store is made; empty before."""
        return str(self._about()["id"]) if self.exists(FORMAT_FILE) else ""

    def _about(self) -> dict[str, Any]:
        """The content of the format file; raises StoreError if it is damaged or of another version."""
        data = self.read(FORMAT_FILE)
        about = json_object(data)
        version, id = about.get("version"), str(about.get("id"))
        if (about.get("format"), version) != (FORMAT, FORMAT_VERSION) or not re.fullmatch(_HASH, id):
            raise StoreError(
                f"{self.where(FORMAT_FILE)} holds {data[:40]!r}: it is damaged, of another program, or of a version "
                f"that this package ({FORMAT_VERSION}) does not read; install the version that wrote it, restore it "
                "from a copy, or set store.path to a new folder: a run then computes everything again"
            )
        return about

    def where(self, name: str) -> str:
        """The path or URL of a name. Raises StoreError: the name leads out of the store."""
        parts = name.split("/")
        if not all(parts) or not {".", ".."}.isdisjoint(parts) or "\0" in name:
            raise StoreError(
                f"a file of store {self.place} names {name!r}, which is outside the store; restore the store from a "
                "copy, or delete it: a run then computes everything again"
            )
        return f"{self.place}/{name}"

    def list(self, folder: str) -> builtins.list[str]:
        """Names of the complete files directly in a folder, sorted; none if the folder is missing."""
        entries = sorted(self.folder.entries(self.where(folder)).items())
        files = [name for name, entry in entries if isinstance(entry, Source)]
        return [f"{folder}/{name}" for name in files if not name.startswith(TEMPORARY)]

    def folders(self, folder: str) -> builtins.list[str]:
        """Names of the folders directly in a folder, sorted; none if it is missing."""
        entries = self.folder.entries(self.where(folder)).items()
        return sorted(f"{folder}/{name}" for name, entry in entries if entry == "folder")

    def files(self, before: float = math.inf) -> dict[str, int]:
        """Bytes of the files that this package has written `before` a time, half-written ones too, by name, sorted."""
        files = sorted(self._all_files())
        return {name: size for name, size, written in files if written < before and OURS.fullmatch(name)}

    @abstractmethod
    def _all_files(self) -> Iterator[tuple[str, int, float]]:
        """Every file below the place: name, bytes, and when it was written, in seconds since 1970."""

    def exists(self, name: str) -> bool:
        try:
            return isinstance(self.folder.entry(self.where(name)), Source)
        except OSError:  # a file that cannot be inspected cannot be read
            return False

    def read(self, name: str) -> bytes:
        """Raises DamagedFileError: there is no such file; StoreError: it cannot be read."""
        try:
            return self.local(name).read_bytes()
        except FileNotFoundError:
            raise self._missing(name) from None
        except OSError as error:
            raise StoreError(f"{self.where(name)} cannot be read: {error.strerror}") from error

    def _missing(self, name: str) -> DamagedFileError:
        return DamagedFileError(f"{self.where(name)} is missing; run the pipeline again to make it", name)

    @contextlib.contextmanager
    def reading(self, name: str, *, mapped: bool = False) -> Iterator[IO[bytes]]:
        """A file open for reading, for parts of it. mapped: into memory, by Arrow. Raises DamagedFileError: there is
        no such file, or the caller raises OSError or ValueError because it is damaged."""
        import pyarrow as pa

        try:
            with pa.memory_map(str(self.local(name))) if mapped else self.local(name).open("rb") as file:
                yield file
        except (OSError, ValueError) as error:
            raise DamagedFileError(
                f"{self.where(name)} is damaged: {error}; delete it and run again", name
            ) from error

    @abstractmethod
    def local(self, name: str) -> Path:
        """A file, or a folder (its name has no dot), on this machine's disk, for memory maps and for libraries that
        read folders. Raises DamagedFileError: there is no such file; on a folder the code that opens the file finds
        this."""

    @abstractmethod
    def put(self, name: str, data: Data) -> str:
        """Write a file whole or not at all, unless it exists; returns its name."""

    @abstractmethod
    def delete(self, *names: str) -> None:
        """Removes files; missing files are ignored."""

    def sweep(self, folder: WritableFolder) -> None:
        """Removes half-written files of killed runs from an output's folder. On a bucket, other runs may be writing."""
        if not self.shared:
            names = folder.sizes()
            folder.delete([name for name in names if name.removeprefix(NEIGHBOUR).startswith(TEMPORARY)])

    @abstractmethod
    def document(self) -> bytes | None:
        """The state's document; None if there is none. On a bucket it is at most a second old, and while this process
        is inside `lock` it is the one that this process read or wrote last."""

    @abstractmethod
    def swap(self, document: bytes) -> bool:
        """Replace the state's document if it still is what `document` gave last. Otherwise another run has replaced it:
        returns False, and `document` gives the new one."""

    @abstractmethod
    def lock(
        self, *, wait: bool = True, on_wait: Callable[[str], Any] | None = None
    ) -> contextlib.AbstractContextManager[None]:
        """While a run lasts: keeps other runs out of a folder. Runs on a bucket work beside each other. Raises
        StoreBusyError: another run holds the lock and `wait` is False; StoreError: see `open`."""

    def put_hashed(self, folder: str, key: str, data: Bytes, extension: str) -> str:
        """Put bytes under a hashed name; returns the name."""
        prefix = f"{folder}/{key}"
        return self.put(f"{prefix}.{_hash_of(prefix, extension, data)}.{extension}", data)

    def hashed(self, folder: str) -> dict[str, str]:
        """Key -> name of the hashed files in a folder; the first by name where a key has several."""
        return {name.rsplit("/", 1)[1].split(".", 1)[0]: name for name in reversed(self.list(folder))}

    def read_verified(self, name: str) -> bytes:
        """Read a hashed file. Raises DamagedFileError: the file is missing, or its bytes do not match its name."""
        data = self.read(name)
        prefix, expected, extension = name.rsplit(".", 2)
        actual = _hash_of(prefix, extension, data)
        if actual != expected:
            raise DamagedFileError(
                f"{self.where(name)} is damaged: its name and content hash to {actual}, expected {expected}; "
                "delete this file and run again",
                name,
            )
        return data


def _hash_of(prefix: str, extension: str, data: Bytes) -> str:
    name = xxhash.xxh3_64_intdigest(f"{prefix}.{extension}".encode())
    return xxhash.xxh3_128_hexdigest(data, seed=name)


def json_object(data: bytes) -> dict[str, Any]:
    """Bytes parsed as a JSON object; empty if they are not one."""
    try:
        value = orjson.loads(data)
    except orjson.JSONDecodeError:
        return {}
    return value if isinstance(value, dict) else {}
