"""The head of an object store: the only object that is replaced. It holds the state and the lease.

`head.json` holds the store's format, version and id, its state (`store.state`), and the lease. It changes only by
compare-and-swap, so a writer with an outdated view changes nothing. Each version carries a random number, `swap`, by
which a writer recognises its own version after a lost answer.

A holder keeps the lease as long as the head changes at least once within TTL seconds, by the waiting process's clock; a
thread of the holder renews it. A process that takes over the lease changes the head. So a holder that was silent for
longer, such as a suspended process, fails at its next write with LeaseLostError.

Known weakness: deleting objects is not part of a swap. It happens within TTL / 2 of the last renewal. A process
suspended between this check and the request may later delete an object that another process has made under the same
name. The next run finds the file missing and makes it again.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import orjson
from typing_extensions import TypedDict

from dagster_divorder.errors import DiskFullError, DivOrderError, LeaseLostError, StoreBusyError, StoreError
from dagster_divorder.extras import load_extra
from dagster_divorder.store.base import STATE, TEMPORARY, json_object, new_about
from dagster_divorder.store.remote import connect, explained

if TYPE_CHECKING:
    from obstore.store import ObjectStore

HEAD = "head.json"

TTL = 60.0
"""Seconds without a sign of life after which a holder of the lease counts as dead."""
READ_AGAIN = 1.0
"""Seconds after which a process that does not hold the lease reads the head again."""
LOOK_SECONDS = 10.0
"""Seconds of repeating the first request. If a server does not answer it, its address is usually wrong."""
_TRIES = 6

State = dict[str, Any]


class _Holder(TypedDict):
    holder: str
    host: str
    process: int
    since: str


HeadState = TypedDict("HeadState", {"swap": str, "lease": _Holder | None, "state.json": str | None})
"""The head without the entries of `base.new_about`."""


@dataclass(slots=True)
class Lease:
    """A lease: its holder's random number, and when the swap began that renewed it last, by this process's clock."""

    holder: str = field(default_factory=lambda: secrets.token_hex(16))
    renewed: float = 0.0
    ended: threading.Event = field(default_factory=threading.Event)


class Head:
    """The head of one store. A process keeps one for each store (`head_of`), so that it always sees its own writes."""

    def __init__(self, place: str, objects: ObjectStore | None = None) -> None:
        """objects: those below the place; None connects to them when they are needed."""
        self.place = place
        self._objects = objects
        self._lock = threading.RLock()
        self._state: State | None = None
        self._tag: dict[str, str] = {}
        self._read_at = self._changed_at = -TTL
        self._lease: Lease | None = None

    @property
    def objects(self) -> ObjectStore:
        """The objects below the place; waits for the server's first answer."""
        with self._lock:
            if self._objects is None:
                self._read()
            assert self._objects is not None
            return self._objects

    def state(self, *, fresh: bool = False, patient: bool = True) -> State | None:
        """The content of the head, None if missing: as this process wrote it while it holds the lease, else as read
        less than READ_AGAIN seconds ago. fresh: read it now. patient: repeat requests for as long as `connect` does,
        not for LOOK_SECONDS."""
        with self._lock:
            if fresh or (self._lease is None and time.monotonic() - self._read_at > READ_AGAIN):
                self._read(patient)
            return self._state

    def _read(self, patient: bool = True) -> None:
        obstore = load_extra("obstore")

        condition = {"if_none_match": self._tag["e_tag"]} if self._state and "e_tag" in self._tag else {}
        objects = self._objects or connect(self.place, **({} if patient else {"retry_seconds": LOOK_SECONDS}))
        start = time.monotonic()
        try:
            with explained(self.place):
                answer = obstore.get(objects, HEAD, options=condition)
                self._keep(json_object(answer.bytes().to_bytes()), answer.meta)
        except obstore.exceptions.NotModifiedError:
            pass
        except FileNotFoundError:
            self._state, self._tag = None, {}
        self._read_at = time.monotonic()
        if self._read_at - start > TTL / 4:
            # While the server does not answer, a holder cannot renew the lease.
            self._changed_at = self._read_at
        self._objects = self._objects or connect(self.place)

    def _keep(self, state: State, tag: Any) -> None:
        if self._state is None or self._state.get("swap") != state.get("swap"):
            self._changed_at = time.monotonic()
        self._state, self._tag = state, _version_of(tag)

    def create(self) -> None:
        """Make the head of a new store, unless another process has just made it.

        Raises:
            StoreError: the server ignores conditions of writes.
        """
        obstore = load_extra("obstore")

        self._probe()
        state = {**new_about(), "swap": secrets.token_hex(16), "lease": None, STATE: None}
        try:
            with explained(self.place):
                obstore.put(self.objects, HEAD, orjson.dumps(state), mode="create")
        except obstore.exceptions.AlreadyExistsError:
            pass  # made by another process, or by this one whose answer was lost
        self.state(fresh=True)

    def _probe(self) -> None:
        """Check that the server refuses to create an existing object, and to replace one that has changed."""
        obstore = load_extra("obstore")

        name, refused = f"{TEMPORARY}{secrets.token_hex(8)}", 0
        with explained(self.place):
            stale: Any = _version_of(obstore.put(self.objects, name, b"1"))
            for data, mode in ((b"2", "create"), (b"3", stale), (b"4", stale)):
                try:
                    obstore.put(self.objects, name, data, mode=mode)
                except (obstore.exceptions.AlreadyExistsError, obstore.exceptions.PreconditionError):
                    refused += data != b"3"
            obstore.delete(self.objects, name)
        if refused < 2:
            raise StoreError(
                f"{self.place}: the server ignores the conditions of writes (If-None-Match, If-Match) that keep two "
                f"runs on one store from overwriting each other's results; expected a server that supports them, "
                f"such as Amazon S3 since 2024: set store.path to such a server or to a folder"
            )

    # The lease ----------------------------------------------------------------------------------------------------

    def acquire(self, wait: bool, on_wait: Callable[[str], Any] | None) -> Lease:
        """Take the lease, once it is free or its holder has been silent for TTL seconds.

        Raises:
            StoreBusyError: another process holds it, and `wait` is False.
        """
        announced = False
        while True:
            with self._lock:
                state = self.state(fresh=True)
                assert state is not None
                holder = state["lease"]
                if not holder or time.monotonic() - self._changed_at > TTL:
                    lease = Lease(renewed=time.monotonic())
                    new_lease = {
                        "holder": lease.holder,
                        "host": socket.gethostname(),
                        "process": os.getpid(),
                        "since": datetime.now(UTC).isoformat(timespec="seconds"),
                    }
                    if self._put({**state, "lease": new_lease}):
                        self._lease = lease
                        threading.Thread(target=self._beat, args=[lease], daemon=True).start()
                        return lease
                    continue
            message = (
                f"store {self.place} is in use by another run (process {holder['process']} on {holder['host']}, since "
                f"{holder['since']})"
            )
            if not wait:
                raise StoreBusyError(
                    f"{message}; wait for it to end, or stop it: a killed run counts as dead after {TTL:g} s"
                )
            if on_wait and not announced:
                on_wait(f"{message}; waiting for it to end, or to give no sign of life for {TTL:g} s")
            announced = True
            time.sleep(min(1.0, TTL / 8))

    def release(self, lease: Lease) -> None:
        """Give the lease back, so that the next run starts at once. Errors, such as of a lost lease, are ignored."""
        lease.ended.set()
        with contextlib.suppress(DivOrderError):
            self.update(lease, lambda state: state.update(lease=None))
        with self._lock:
            if self._lease is lease:
                self._lease = None

    def update(self, lease: Lease, change: Callable[[State], Any]) -> None:
        """Change the head as the holder of a lease. change: modifies a copy of its content.

        Raises:
            LeaseLostError: another process holds the lease.
        """
        with self._lock:
            for _ in range(_TRIES):
                state = self._state
                if state is None or (state["lease"] or {}).get("holder") != lease.holder:
                    break
                state = {**state}
                change(state)
                start = time.monotonic()
                if self._put(state):
                    lease.renewed = start
                    return
            if self._lease is lease:
                self._lease = None
        raise LeaseLostError(
            f"store {self.place} was taken over by another run, because this one gave no sign of life for {TTL:g} s or "
            "more (it was stopped or cut off, or its machine slept); finished results are kept: run again"
        )

    def check(self, lease: Lease) -> None:
        """Check that no other process has taken the lease, nor can take it within TTL / 2 seconds.

        Raises:
            LeaseLostError: another process holds the lease.
        """
        if time.monotonic() - lease.renewed > TTL / 2:
            self.update(lease, lambda state: None)

    def _put(self, state: State) -> bool:
        """Replaces the head if it is the version that this process knows; else reads the current head and returns
        False."""
        obstore = load_extra("obstore")

        state["swap"] = secrets.token_hex(16)
        for attempt in range(_TRIES):
            try:
                with explained(self.place):
                    mode: Any = dict(self._tag)
                    tag = obstore.put(self.objects, HEAD, orjson.dumps(state), mode=mode, use_multipart=False)
                self._keep(state, tag)
                return True
            except (
                obstore.exceptions.AlreadyExistsError,
                obstore.exceptions.PreconditionError,
                StoreError,
            ) as error:
                # A repeated request may fail so although the first one, whose answer was lost, succeeded.
                before = self._tag
                self._read()
                if self._state and self._state.get("swap") == state["swap"]:
                    return True
                if self._tag != before:
                    return False
                if isinstance(error, DiskFullError) or (
                    isinstance(error, StoreError) and attempt == _TRIES - 1
                ):
                    raise
            time.sleep(0.1 * 2**attempt)
        raise StoreError(f"{self.place}: the server repeatedly refuses to replace {HEAD}; check the server")

    def _beat(self, lease: Lease) -> None:
        while not lease.ended.wait(TTL / 4):
            try:
                self.update(lease, lambda state: None)
            except LeaseLostError:
                return
            except DivOrderError:
                pass  # out of reach; the next beat and the run's own writes try again


def _version_of(answer: Any) -> dict[str, str]:
    """The object's version in an answer: the tag of S3 and Azure, Google's number of the generation."""
    return {key: answer[key] for key in ("e_tag", "version") if answer.get(key)}


_heads: dict[str, Head] = {}
_heads_lock = threading.Lock()


def head_of(place: str) -> Head:
    """The head of the store at a place; one for each process."""
    with _heads_lock:
        return _heads.setdefault(place, Head(place))
