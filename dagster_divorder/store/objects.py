"""A store below a URL of an object store: s3://, gs:// or az://. Several runs may use it at once.

`put` creates an object only if it is absent, so a name never changes its bytes. The state is one object, replaced only
if it is still the version that the writer knows (If-Match). Large files are uploaded in parts, where servers take no
conditions; but all processes send the same bytes under a name, and an object is absent or complete.

Files that are read or written are kept in a temporary folder, by name, for as long as the store is used. Later reads
and memory maps take the copy without a request, since a name keeps its bytes; so do worker processes on this machine.
Only the object store tells whether a result is present.

Cost: a request for each method call, 10 to 100 ms on the providers' own stores. `list`, `stats` and `folders` send a
request for every thousand names. Repeated reads send none. Disk: all that is read and written.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Self

from dagster_divorder.errors import InputError, StoreError
from dagster_divorder.extras import load_extra
from dagster_divorder.settings.places import Url, checked_url, is_url
from dagster_divorder.store.base import FORMAT_FILE, STATE, Store
from dagster_divorder.store.disk import temporary_folder
from dagster_divorder.store.folder import Data, temporary_name
from dagster_divorder.store.folders import ObjectFolder, send
from dagster_divorder.store.local import LocalStore
from dagster_divorder.store.remote import explained
from dagster_divorder.store.sources import bucket

PIECE_BYTES = 16 << 20
"""Bytes of a file in memory while it is copied."""
READ_AGAIN = 1.0
"""Seconds after which a process outside `lock` reads the state again."""
LOOK_SECONDS = 10.0
"""Seconds of repeating the first request. If a server does not answer it, its address is usually wrong."""
_TRIES = 6


class ObjectStore(Store):
    """A store below a URL. copies: the folder of copies of the process that sent this store; another one is made on
    another machine, or without it."""

    shared = True

    def __init__(self, place: str, copies: Path | None = None) -> None:
        self.place = self.real_place = str(place)
        self.folder = ObjectFolder(Url(place), StoreError)
        self._copies = LocalStore(copies if copies and os.access(copies, os.W_OK) else temporary_folder(self))
        self._document: bytes | None = None
        self._version: dict[str, str] = {}
        self._read_at = -READ_AGAIN
        self._locked = False

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickles place and copies alone; what is known of the state belongs to this process."""
        return ObjectStore, (self.place, self._copies.root)

    def open(self, *, create: bool = True) -> Self:
        # Answers to HEAD and lists hide some errors that an answer to GET names.
        with explained(self.place), contextlib.suppress(FileNotFoundError):
            load_extra("obstore").get(*bucket(self.where(FORMAT_FILE), LOOK_SECONDS))
        return super().open(create=create)

    def _create(self) -> None:
        """Make the store, unless another process does so now; raises StoreError if the server ignores conditions of
        writes."""
        obstore = load_extra("obstore")
        name, refused = temporary_name(), 0
        objects, key = bucket(self.where(name))
        with explained(self.place):
            stale: Any = _version_of(obstore.put(objects, key, b"1"))
            for data, mode in ((b"2", "create"), (b"3", stale), (b"4", stale)):
                try:
                    obstore.put(objects, key, data, mode=mode)
                except (obstore.exceptions.AlreadyExistsError, obstore.exceptions.PreconditionError):
                    refused += data != b"3"
            obstore.delete(objects, key)
        if refused < 2:
            raise StoreError(
                f"{self.place}: the server ignores the conditions of writes (If-None-Match, If-Match) that keep two "
                "runs on one store from overwriting each other's results; set store.path to a server that supports "
                "them, such as Amazon S3 since 2024, or to a folder"
            )
        super()._create()

    def _all_files(self) -> Iterator[tuple[str, int, float]]:
        objects, prefix = bucket(self.place)
        with explained(self.place):
            for batch in load_extra("obstore").list(objects, prefix or None):
                for meta in batch:
                    name = meta["path"].removeprefix(f"{prefix}/")
                    yield name, meta["size"], meta["last_modified"].timestamp()

    def local(self, name: str) -> Path:
        is_folder = "." not in name.rpartition("/")[2]
        files = self.list(name) if is_folder else [name]
        if not files:
            raise self._missing(name)
        for file in files:
            self._copy(file)
        return self._copies.local(name)

    def _copy(self, name: str) -> None:
        if self._copies.exists(name):
            return
        try:
            with explained(self.place):
                answer = load_extra("obstore").get(*bucket(self.where(name)))
                pieces = answer.stream(min_chunk_size=PIECE_BYTES)
                self._copies.put(name, lambda file: file.writelines(pieces))
        except FileNotFoundError:
            raise self._missing(name) from None

    def put(self, name: str, data: Data) -> str:
        # The file is read again soon, often by another local process.
        copy = self._copies.local(self._copies.put(name, data))
        with explained(self.place):
            if not send(self.where(name), copy, create=True):
                self._copies.delete(name)  # the name keeps the bytes that it has
        return name

    def delete(self, *names: str) -> None:
        self._copies.delete(*names)
        with explained(self.place):
            self.folder.delete(names)

    def document(self) -> bytes | None:
        if not self._locked and time.monotonic() - self._read_at > READ_AGAIN:
            self._read_document()
        return self._document

    def _read_document(self) -> None:
        try:
            with explained(self.place):
                answer = load_extra("obstore").get(*bucket(self.where(STATE)))
                self._document, self._version = answer.bytes().to_bytes(), _version_of(answer.meta)
        except FileNotFoundError:
            self._document, self._version = None, {}
        self._read_at = time.monotonic()

    def swap(self, document: bytes) -> bool:
        obstore = load_extra("obstore")
        objects, key = bucket(self.where(STATE))
        for attempt in range(_TRIES):
            before: Any = self._version
            try:
                with explained(self.place):
                    answer = obstore.put(objects, key, document, mode=before or "create", use_multipart=False)
                self._document, self._version = document, _version_of(answer)
                return True
            except (obstore.exceptions.AlreadyExistsError, obstore.exceptions.PreconditionError):
                # A repeated request is refused although the first one, whose answer was lost, succeeded.
                self._read_document()
                if self._document == document:
                    return True
                if self._version != before:
                    return False
            time.sleep(0.1 * 2**attempt)
        raise StoreError(f"{self.place}: the server repeatedly refuses to replace {STATE}; check the server")

    @contextlib.contextmanager
    def lock(self, *, wait: bool = True, on_wait: Callable[[str], Any] | None = None) -> Iterator[None]:
        self.open(create=False)
        self._read_document()
        self._locked = True
        try:
            yield
        finally:
            self._locked = False


def _version_of(answer: Any) -> dict[str, str]:
    """The object's version in an answer: the tag of S3 and Azure, Google's number of the generation."""
    return {key: answer[key] for key in ("e_tag", "version") if answer.get(key)}


def store_at(place: str | os.PathLike[str]) -> Store:
    """The store at a folder or a URL, not yet opened."""
    if not is_url(os.fspath(place)):
        return LocalStore(place)
    try:
        url = checked_url(os.fspath(place))
    except ValueError as error:
        raise InputError(f"this URL cannot hold a store: {error}") from None
    return ObjectStore(url)
