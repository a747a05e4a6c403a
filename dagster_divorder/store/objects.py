"""A store below a URL of an object store: s3://, gs:// or az://.

`put` creates an object only if it is absent, so a name never changes its bytes. The state and the lease lie in one
object, which changes by compare-and-swap (`store.head`). Large files are uploaded in parts, where servers take no
conditions; but all processes send the same bytes under a name, and an object is absent or complete.

Reading a file copies it into a local folder, by name. Later reads and memory maps of all processes use the copy without
a request, since a name keeps its bytes. A copy is written under a temporary name and renamed. The least recently used
copies are evicted when copies take too many bytes; processes keep existing mappings of evicted files. Only the object
store tells whether a result is present.

Cost: a request for each method call, 10 to 100 ms on the providers' own stores. `list`, `stats` and `folders` send a
request for every thousand names. Repeated reads send none. Writing the state costs a request; reading the state costs
none while the lease is held, else at most one a second.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import orjson
from pydantic import TypeAdapter, ValidationError

from dagster_divorder.errors import DamagedFileError, StoreError
from dagster_divorder.extras import load_extra
from dagster_divorder.settings.places import Url
from dagster_divorder.store.base import OURS, STATE, TEMPORARY, Bytes, Data, Store, checked
from dagster_divorder.store.folders import ObjectFolder
from dagster_divorder.store.head import HEAD, Head, HeadState, Lease, State, head_of
from dagster_divorder.store.local import SCRATCH, LocalStore
from dagster_divorder.store.remote import explained
from dagster_divorder.store.sources import bucket

PARTS_FROM = 64 << 20
"""Files of this many bytes or more are uploaded in parts."""
_PART_BYTES = 16 << 20
_IN_USE_SECONDS = 60.0
"""A copy that was requested this recently may not have been opened yet."""

_cached: dict[Path, int] = {}
"""Folder of copies -> bytes of copies that this process knows: the copies at its first look, and its own."""


class ObjectStore(Store):
    """A store below a URL. cache: the folder of local copies of all stores, about `cache_bytes` in all."""

    about_file = HEAD

    def __init__(self, place: str, cache: Path, cache_bytes: int, head: Head | None = None) -> None:
        self.place = self.real_place = str(place)
        self.folder = ObjectFolder(Url(place), StoreError)
        self.cache, self.cache_bytes = cache, cache_bytes
        self._head = head or head_of(self.place)
        self._lease: Lease | None = None
        self._id = ""

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickles place and cache alone: connection and lease belong to this process."""
        return ObjectStore, (self.place, self.cache, self.cache_bytes)

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
        # Other machines may have removed files; their copies are deleted here, since deleted text must be gone.
        self._copies.delete(*self._copies.files().keys() - sizes.keys())
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

    def read_verified(self, name: str) -> bytes:
        try:
            return super().read_verified(name)
        except DamagedFileError:
            # The copy may be damaged, not the object.
            self._copies.delete(name)
            return super().read_verified(name)

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
                self._keep(name, view)
        elif replace or not self.exists(name):
            # `data` may be a function that seeks, so it writes a local file first.
            copy = self._keep(name, data)
            self._send(name, copy, copy.stat().st_size, replace)
        return name

    def _send(self, name: str, data: memoryview | Path, size: int, replace: bool) -> bool:
        """Upload a file; False if the name exists and `replace` is False."""
        obstore = load_extra("obstore")

        in_parts = size >= PARTS_FROM
        if in_parts and not replace and self.exists(name):
            return False
        # Uploads in parts accept only the default mode, which replaces.
        mode: Any = None if replace or in_parts else "create"
        try:
            objects, key = bucket(self.where(name))
            with explained(self.place):
                obstore.put(
                    objects,
                    key,
                    data,
                    mode=mode,
                    use_multipart=in_parts,
                    chunk_size=_PART_BYTES,
                    max_concurrency=4,
                )
        except obstore.exceptions.AlreadyExistsError:
            return False
        return True

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

    @property
    def _copies(self) -> LocalStore:
        """Copies of this store's files, under the same names."""
        self._id = self._id or (self._head.state() or {}).get("id", "")
        return LocalStore(self.cache / checked(self._id or "new", self.place))

    def local(self, name: str) -> Path:
        is_folder = "." not in name.rpartition("/")[2]
        files = self.list(name) if is_folder else [name]
        if not files:
            raise self._missing(name)
        for file in files:
            self._copy(file)
        return self._copies.local(name)

    def _copy(self, name: str) -> None:
        """Copy a file unless a copy exists, and update the copy's time of use."""
        obstore = load_extra("obstore")

        with contextlib.suppress(FileNotFoundError):
            return os.utime(self._copies.local(name))
        try:
            with explained(self.place):
                self._keep(name, obstore.get(*bucket(self.where(name))).stream(min_chunk_size=_PART_BYTES))
        except FileNotFoundError:
            raise self._missing(name) from None

    def _keep(self, name: str, data: Any) -> Path:
        """Write a local copy. data: as for `put`."""
        path = self._copies.local(self._copies.put(name, data, replace=True))
        self._make_room(path.stat().st_size)
        return path

    def _make_room(self, added: int) -> None:
        """Evict the least recently used copies while copies take more than `cache_bytes`, or more than half of their
        own and the free bytes."""
        free = shutil.disk_usage(self.cache).free
        if self.cache in _cached:
            _cached[self.cache] += added
            if _cached[self.cache] <= min(self.cache_bytes, free):
                return
        copies = []
        for folder, _, names in os.walk(self.cache):
            if SCRATCH not in Path(folder).relative_to(self.cache).parts[1:2]:
                for name in names:
                    with contextlib.suppress(FileNotFoundError):
                        stat = os.stat(path := os.path.join(folder, name))
                        copies.append((stat.st_mtime, stat.st_size, path))
        total = sum(size for _, size, _ in copies)
        # Eviction stops below the limit, so that the next copies find room without a walk of the folder.
        allowed = min(self.cache_bytes, (total + free) // 2) * 9 // 10
        for used, size, path in sorted(copies):
            if total <= allowed or used > time.time() - _IN_USE_SECONDS:
                break
            with contextlib.suppress(FileNotFoundError):
                os.unlink(path)
            total -= size
        _cached[self.cache] = total

    def scratch(self, size: int = 0, what: str = "it") -> contextlib.AbstractContextManager[Path]:
        return self._copies.scratch(size, what)

    def clear_scratch(self) -> None:
        self._copies.clear_scratch()
