"""A store on objects: the verbs do what a folder's do; one holder writes, whatever is lost, late or stopped."""

from __future__ import annotations

import contextlib
import gc
import os
import pickle
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import obstore
import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test
from obstore.exceptions import GenericError, PreconditionError
from obstore.store import MemoryStore

from dagster_divorder.errors import LeaseLostError, StoreBusyError, StoreError
from dagster_divorder.store import head, sources
from dagster_divorder.store.base import FORMAT_FILE, FORMAT_VERSION, LEASE_FILE, STATE
from dagster_divorder.store.head import HEAD, TTL, Head
from dagster_divorder.store.local import LocalStore
from dagster_divorder.store.objects import ObjectStore
from tests.conftest import examples

PLACE = "s3://bucket"
PUT = obstore.put


class Clock:
    """The time of `store.head`: only sleeping takes some, and then `meanwhile` happens."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.meanwhile: Callable[[], Any] = lambda: None

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        self.meanwhile()


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(head, "time", clock)
    return clock


@pytest.fixture
def memory(monkeypatch: pytest.MonkeyPatch) -> MemoryStore:
    """What lies in the bucket."""
    memory = MemoryStore()
    monkeypatch.setattr(sources, "_connected", lambda *_: memory)
    return memory


@pytest.fixture
def process(memory: MemoryStore) -> Callable[[], ObjectStore]:
    """The store as another process sees it, on a machine of its own."""
    return lambda: ObjectStore(PLACE, Head(PLACE, memory))


@pytest.fixture
def store(process: Callable[[], ObjectStore]) -> Iterator[ObjectStore]:
    """A store whose lease is held."""
    store = process()
    with store.lease():
        yield store


FOLDERS = (
    "documents",
    "documents/index",
    "stages/clusters/key",
    "fits/clusters/" + "0" * 32,
)


class Verbs(RuleBasedStateMachine):
    """Whatever is put and deleted, and by whom: a store on objects says what a folder says."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        memory = MemoryStore()
        self.patch = pytest.MonkeyPatch()
        self.patch.setattr(sources, "_connected", lambda *_: memory)
        self.folder = LocalStore(folder / "store").open()
        self.objects = ObjectStore(PLACE, Head(PLACE, memory))
        # A worker: it puts, and does not know of the lease.
        self.worker = ObjectStore(PLACE, Head(PLACE, memory))
        self.lease = self.objects.lease()
        self.lease.__enter__()

    def teardown(self) -> None:
        self.lease.__exit__(None, None, None)
        self.patch.undo()

    @rule(
        folder=st.sampled_from(FOLDERS[:3]),
        key=st.sampled_from("ab"),
        data=st.binary(max_size=3),
        by_worker=st.booleans(),
    )
    def put_hashed(self, folder: str, key: str, data: bytes, by_worker: bool) -> None:
        name = self.folder.put_hashed(folder, key, data, "bin")
        assert (self.worker if by_worker else self.objects).put_hashed(folder, key, data, "bin") == name

    @rule(data=st.binary(max_size=3), replace=st.booleans())
    def put_state(self, data: bytes, replace: bool) -> None:
        text = orjson.dumps({"data": data.hex()})
        for store in (self.folder, self.objects):
            store.put(STATE, text, replace=replace)

    @rule(
        name=st.sampled_from(["model.bin", "config.json"]), data=st.binary(max_size=3), replace=st.booleans()
    )
    def put_fit(self, name: str, data: bytes, replace: bool) -> None:
        for store in (self.folder, self.objects):
            store.put(f"{FOLDERS[-1]}/{name}", iter([data, b"end"]), replace=replace)

    @rule(data=st.data())
    def delete(self, data: st.DataObject) -> None:
        names_there = [*self.folder.files().keys() - {FORMAT_FILE}, "documents/none.bin"]
        names = data.draw(st.lists(st.sampled_from(sorted(names_there)), max_size=3, unique=True))
        for store in (self.folder, self.objects):
            store.delete(*names)

    @invariant()
    def says_the_same(self) -> None:
        files = {
            name: size for name, size in self.folder.files().items() if name not in (FORMAT_FILE, LEASE_FILE)
        }
        assert self.objects.files() == files
        for store in (self.objects, self.worker):
            for folder in (*FOLDERS, "fits", "stages", "nowhere"):
                if store is self.objects or folder.partition("/")[0] in ("documents", "stages", "fits"):
                    assert store.list(folder) == self.folder.list(folder)
                    assert store.folders(folder) == self.folder.folders(folder)
                    assert {name: stat.size for name, stat in store.stats(folder).items()} == {
                        name: stat.size for name, stat in self.folder.stats(folder).items()
                    }
        assert {name: self.objects.read(name) for name in files} == {
            name: self.folder.read(name) for name in files
        }
        assert [name for name in (STATE, "documents/a.bin") if self.objects.exists(name)] == [
            name for name in (STATE, "documents/a.bin") if self.folder.exists(name)
        ]


@pytest.mark.slow
def test_the_verbs_do_what_those_of_a_folder_do(tmp_path_factory: pytest.TempPathFactory) -> None:
    run_state_machine_as_test(
        lambda: Verbs(tmp_path_factory.mktemp("verbs")),
        settings=settings(max_examples=examples(20), stateful_step_count=15, deadline=None),
    )


def test_copies_go_with_the_store_and_workers_of_this_machine_share_them(
    process: Callable[[], ObjectStore], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    store = process()
    with store.lease():
        name = store.put_hashed("views", "key", np.full(1000, 7, np.uint8), "bin")
        worker = pickle.loads(pickle.dumps(store))
        mapped = np.memmap(worker.local(name), np.uint8, "r")
        assert worker.local(name) == store.local(name)
        (folder,) = tmp_path.iterdir()
        # On another machine the folder does not exist.
        elsewhere = ObjectStore(PLACE, copies=tmp_path / "nowhere")
        assert elsewhere.local(name) != store.local(name)
        store.delete(name)
        assert not store._copies.exists(name)
    del store, elsewhere
    gc.collect()
    assert not list(tmp_path.iterdir()) and (mapped == 7).all(), folder


# The place ------------------------------------------------------------------------------------------------------------


def test_a_head_that_is_not_what_a_store_writes_is_refused(
    process: Callable[[], ObjectStore], memory: MemoryStore
) -> None:
    data = orjson.dumps({"format": "divorder store", "version": FORMAT_VERSION, "id": "0" * 32})
    PUT(memory, HEAD, data)
    with pytest.raises(StoreError, match="its swap is not"), process().lease():
        pass
    assert bytes(obstore.get(memory, HEAD).bytes()) == data


def test_a_server_without_conditional_writes_is_refused_and_nothing_is_left(
    process: Callable[[], ObjectStore], memory: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    def conditional_in_part(to: MemoryStore, name: str, data: bytes, mode: Any = None, **options: Any) -> Any:
        return PUT(to, name, data, mode=None if ignores(mode) else mode, **options)

    monkeypatch.setattr(obstore, "put", conditional_in_part)
    for ignores in (bool, lambda mode: mode == "create", lambda mode: isinstance(mode, dict)):  # noqa: B007
        with pytest.raises(StoreError, match="ignores the conditions of writes"):
            process().open()
        assert obstore.list(memory).collect() == []


def test_another_process_is_told_where_the_store_is_and_no_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "Sesame99")
    store = ObjectStore(PLACE)
    data = pickle.dumps(store)
    assert pickle.loads(data).place == PLACE
    assert b"Sesame99" not in data and "Sesame99" not in repr(store)


# The lease ------------------------------------------------------------------------------------------------------------


def test_the_state_and_removals_need_the_lease(
    store: ObjectStore, process: Callable[[], ObjectStore]
) -> None:
    worker = process()
    name = worker.put_hashed("views", "k", b"x", "bin")
    for write in (
        lambda: worker.put(STATE, b"{}", replace=True),
        lambda: worker.delete(name),
        worker.check,
    ):
        with pytest.raises(StoreError, match="without its lease"):
            write()
    assert process().exists(name)


def test_a_second_run_is_refused_or_waits_and_a_lease_given_back_is_free_at_once(
    process: Callable[[], ObjectStore], clock: Clock
) -> None:
    one, two, said = process(), process(), []
    lease = one.lease()
    lease.__enter__()
    with (
        pytest.raises(StoreBusyError, match=rf"process {os.getpid()} on \S+, since .*\d\)"),
        two.lease(wait=False),
    ):
        pass
    # It works all the while, for much longer than TTL, and then ends.
    clock.meanwhile = lambda: (
        one.put(STATE, str(clock.now).encode(), replace=True)
        if clock.now < 1000 + 5 * TTL
        else lease.__exit__(None, None, None)
    )
    with two.lease(on_wait=said.append):
        assert 1000 + 5 * TTL <= clock.now < 1000 + 5 * TTL + 2
        assert float(two.read(STATE)) > 1000 + 5 * TTL - 2
    assert len(said) == 1 and "waiting for it to end" in said[0]


def test_a_silent_holder_loses_the_lease_and_changes_nothing_any_more(
    process: Callable[[], ObjectStore], clock: Clock
) -> None:
    stale, fresh = process(), process()
    with stale.lease():
        stale.put(STATE, b"1", replace=True)
        name = stale.put_hashed("views", "k", b"x", "bin")
        with fresh.lease():
            assert TTL < clock.now - 1000 < 1.1 * TTL + 1
            for write in (
                stale.check,
                lambda: stale.delete(name),
                lambda: stale.put(STATE, b"2", replace=True),
                lambda: stale.delete(STATE),
            ):
                with pytest.raises(LeaseLostError, match="was taken over by another run"):
                    write()
            # It reads on, and sees what is there.
            fresh.put(STATE, b"3", replace=True)
            clock.now += 2
            assert stale.read(STATE) == b"3"
            assert fresh.exists(name)
        with process().lease(wait=False):
            pass
    # Giving back what was lost takes nothing from who has it.
    with process().lease(wait=False):
        pass


def test_who_asks_again_and_again_without_waiting_takes_over_from_a_dead_holder_too(
    process: Callable[[], ObjectStore], clock: Clock
) -> None:
    lease = process().lease()
    lease.__enter__()
    sensor = process()
    for _ in range(6):
        with pytest.raises(StoreBusyError), sensor.lease(wait=False):
            pass
        clock.now += TTL / 5.5
    with sensor.lease(wait=False):
        pass


def test_silence_does_not_count_while_the_server_does_not_answer(
    process: Callable[[], ObjectStore], clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, two = process(), process()
    get, slow = obstore.get, [True]

    def slow_once(*arguments: Any, **options: Any) -> Any:
        if slow and clock.now > 1000 + TTL / 2:
            clock.now += slow.pop() * 3 * TTL
        return get(*arguments, **options)

    with one.lease():
        monkeypatch.setattr(obstore, "get", slow_once)
        with two.lease():
            assert clock.now > 1000 + 4.5 * TTL


def test_the_thread_of_a_holder_shows_that_it_lives(
    process: Callable[[], ObjectStore], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(head, "TTL", 0.02)
    store, beaten = process(), threading.Event()
    swaps: set[str] = set()

    def watched(to: MemoryStore, name: str, data: bytes, **options: Any) -> Any:
        swaps.add(orjson.loads(data)["swap"])
        if len(swaps) > 3:
            beaten.set()
        return PUT(to, name, data, **options)

    store.open()
    monkeypatch.setattr(obstore, "put", watched)
    with store.lease():
        assert beaten.wait(10)


FAULTS = ("done", "lost", "lost, refused when repeated", "not done", "late")


@settings(max_examples=examples(25), deadline=None)
@given(faults=st.lists(st.sampled_from(FAULTS), max_size=8), writes=st.integers(1, 5))
def test_whatever_becomes_of_answers_the_state_is_what_was_written_last(
    faults: list[str], writes: int
) -> None:
    """A swap that is "late" arrives after it was given up, with the next request."""
    memory, clock, left, late = MemoryStore(), Clock(), list(faults), []

    def faulty(to: MemoryStore, name: str, data: bytes, **options: Any) -> Any:
        for arguments in [late.pop()] if late else []:
            with contextlib.suppress(PreconditionError):
                PUT(to, *arguments[0], **arguments[1])
        fault = left.pop(0) if left else "done"
        if fault == "late":
            late.append(((name, data), options))
        if fault in ("late", "not done"):
            raise GenericError(
                "Generic S3 error: Error performing PUT http://h/b - HTTP error: connection closed"
            )
        done = PUT(to, name, data, **options)
        if fault == "lost":
            raise GenericError(
                "Generic S3 error: Error performing PUT http://h/b - HTTP error: connection closed"
            )
        if fault == "lost, refused when repeated":
            raise PreconditionError("status code: 412 Precondition Failed")
        return done

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(head, "time", clock)
        patch.setattr(sources, "_connected", lambda *_: memory)
        store = ObjectStore(PLACE, Head(PLACE, memory)).open()
        patch.setattr(obstore, "put", faulty)
        try:
            with store.lease(wait=False):
                for at in range(writes):
                    try:
                        store.put(STATE, str(at).encode(), replace=True)
                    except StoreError as error:
                        assert "cannot be reached" in str(error)
                left.clear()
                store.put(STATE, b"last", replace=True)
        except StoreError as error:
            assert "cannot be reached" in str(error) and len(faults) - len(left) >= 6
            return
        fresh = ObjectStore(PLACE, Head(PLACE, memory))
        assert fresh.read(STATE) == b"last"
        with fresh.lease(wait=False):  # given back
            pass
