"""A store below a URL of an object store: s3://, gs:// or az://.

`put` creates an object only if it is absent, so a name never changes its bytes. The state and the lease lie in one
object, which changes by compare-and-swap (`store.head`). Large files are uploaded in parts, where servers take no
conditions; but all processes send the same bytes under a name, and an object is absent or complete.

Files that are read or written are kept in a temporary folder, by name, for as long as the store is used. Later reads
and memory maps take the copy without a request, since a name keeps its bytes; so do worker processes on this machine.
Only the object store tells whether a result is present.

Cost: a request for each method call, 10 to 100 ms on the providers' own stores. `list`, `stats` and `folders` send a
request for every thousand names. Repeated reads send none. Writing the state costs a request; reading the state costs
none while the lease is held, else at most one a second. Disk: all that is read and written.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import orjson
from pydantic import TypeAdapter, ValidationError

from dagster_divorder.errors import StoreError
from dagster_divorder.extras import load_extra
from dagster_divorder.settings.places import Url
from dagster_divorder.store.base import OURS, STATE, TEMPORARY, Bytes, Data, Store, checked
from dagster_divorder.store.disk import temporary_folder
from dagster_divorder.store.folders import PARTS_FROM, ObjectFolder, send
from dagster_divorder.store.head import HEAD, Head, HeadState, Lease, State, head_of
from dagster_divorder.store.local import LocalStore
from dagster_divorder.store.remote import explained
from dagster_divorder.store.sources import bucket

PIECE_BYTES = 16 << 20
"""Bytes of a file in memory while it is copied."""


class ObjectStore(Store):
    """A store below a URL. copies: the folder of copies of the process that sent this store; another one is made on
    another machine, or without it."""

    about_file = HEAD

    def __init__(self, place: str, head: Head | None = None, copies: Path | None = None) -> None:
        self.place = self.real_place = str(place)
        self.folder = ObjectFolder(Url(place), StoreError)
        self._head = head or head_of(self.place)
        self._lease: Lease | None = None
        self._copies = LocalStore(copies if copies and os.access(copies, os.W_OK) else temporary_folder(self))

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickles place and copies alone: connection and lease belong to this process."""
        return ObjectStore, (self.place, None, self._copies.root)

    def open(self, *, create: bool = True) -> ObjectStore:
        if self._head.state(fresh=self._lease is None, patient=False) is None:
            names = self.folder.entries(self.place)
            # A killed probe may have left a temporary object.
            if others := sorted(name for name in names if not name.startswith((TEMPORARY, HEAD))):
                raise StoreError(
                    f"store.path {self.place} has other objects below it ({others[0]}) and is not a store; expected a "
                    "new or empty prefix, or a store: set store.path to one"
                )
            if not create:
                return self
            self._head.create()
        self._about()
        return self

    def _about(self) -> dict[str, Any]:
        about = super()._about()
        try:
            TypeAdapter(HeadState).validate_python(about)
        except ValidationError as error:
            raise StoreError(
                f"{self.where(HEAD)} is damaged: its {error.errors()[0]['loc'][0]} is not as a store writes it; "
                "restore it from a copy, or set store.path to a new prefix"
            ) from None
        return about

    # Names ----------------------------------------------------------------------------------------------------------

    def files(self) -> dict[str, int]:
        obstore = load_extra("obstore")

        objects, prefix = bucket(self.place)
        with explained(self.place):
            metas = [meta for batch in obstore.list(objects, prefix or None) for meta in batch]
        sizes = {meta["path"].removeprefix(f"{prefix}/"): meta["size"] for meta in metas}
        sizes = {name: size for name, size in sizes.items() if OURS.fullmatch(name)}
        if text := self._state():
            sizes[STATE] = len(text)
        return dict(sorted(sizes.items()))

    def _state(self) -> str | None:
        """The state document in the head."""
        text: str | None = (self._head.state() or {}).get(STATE)
        return text

    def exists(self, name: str) -> bool:
        if name == HEAD:
            return self._head.state() is not None
        return self._state() is not None if name == STATE else super().exists(name)

    # Reading ----------------------------------------------------------------------------------------------------------

    def read(self, name: str) -> bytes:
        if name == HEAD:
            return orjson.dumps(self._head.state())
        if name != STATE:
            return super().read(name)
        text = self._state()
        if text is None:
            raise self._missing(name)
        return text.encode()

    # Writing ----------------------------------------------------------------------------------------------------------

    def put(self, name: str, data: Data, *, replace: bool = False) -> str:
        if name == STATE:
            assert isinstance(data, bytes)
            text = data.decode()
            if replace or not self.exists(name):
                self._update(lambda head: head.update({STATE: text}))
        elif isinstance(data, Bytes):
            view = memoryview(data).cast("B")
            if self._send(name, view, view.nbytes, replace):
                # The file is read again soon, often by another local process.
                self._copies.put(name, view, replace=True)
        elif replace or not self.exists(name):
            # `data` may be a function that seeks, so it writes a local file first.
            copy = self._copies.local(self._copies.put(name, data, replace=True))
            self._send(name, copy, copy.stat().st_size, replace)
        return name

    def _send(self, name: str, data: memoryview | Path, size: int, replace: bool) -> bool:
        """Upload a file; False if the name exists and `replace` is False."""
        if size >= PARTS_FROM and not replace and self.exists(name):
            return False
        with explained(self.place):
            return send(self.where(name), data, create=not replace)

    def delete(self, *names: str) -> None:
        objects = [checked(name, self.place) for name in names if name != STATE]
        if STATE in names and self.exists(STATE):
            self._update(lambda head: head.update({STATE: None}))
        if not objects:
            return
        self._update(None)
        self._copies.delete(*objects)
        with explained(self.place):
            self.folder.delete(objects)

    def _update(self, change: Callable[[State], Any] | None) -> None:
        """Change the head; None only checks that the lease is held."""
        if self._lease is None:
            raise StoreError(
                f"store {self.place} is written to without its lease; write inside `with store.lease():`"
            )
        if change:
            self._head.update(self._lease, change)
        else:
            self._head.check(self._lease)

    # The lease ----------------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def lease(self, *, wait: bool = True, on_wait: Callable[[str], Any] | None = None) -> Iterator[None]:
        """Hold the store alone. The lease of a killed process is free after `head.TTL` seconds."""
        self.open()
        lease = self._head.acquire(wait, on_wait)
        self._lease = lease
        try:
            yield
        finally:
            self._lease = None
            self._head.release(lease)

    def check(self) -> None:
        self._update(None)

    # Copies on this machine's disk ----------------------------------------------------------------------------------

    def local(self, name: str) -> Path:
        is_folder = "." not in name.rpartition("/")[2]
        files = self.list(name) if is_folder else [name]
        if not files:
            raise self._missing(name)
        for file in files:
            self._copy(file)
        return self._copies.local(name)

    def _copy(self, name: str) -> None:
        obstore = load_extra("obstore")

        if self._copies.exists(name):
            return
        try:
            with explained(self.place):
                answer = obstore.get(*bucket(self.where(name)))
                self._copies.put(name, answer.stream(min_chunk_size=PIECE_BYTES))
        except FileNotFoundError:
            raise self._missing(name) from None

    def scratch(self, size: int = 0, what: str = "it") -> contextlib.AbstractContextManager[Path]:
        return self._copies.scratch(size, what)

    def clear_scratch(self) -> None:
        """Nothing to clear: temporary folders belong to one process."""
