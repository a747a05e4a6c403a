"""A store on objects: the verbs do what a folder's do; runs at once leave one consistent state, whatever answers are
lost or late."""

from __future__ import annotations

import contextlib
import gc
import pickle
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import obstore
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from obstore.exceptions import GenericError, PreconditionError
from obstore.store import MemoryStore

from dagster_divorder.errors import StoreError
from dagster_divorder.store import sources
from dagster_divorder.store.objects import ObjectStore
from dagster_divorder.store.state import (
    Receipt,
    Result,
    State,
    changing,
    keep_result,
    load_state,
    put_result,
    save_receipt,
)
from tests.conftest import examples

PLACE = "s3://bucket/place"
PUT = obstore.put
Memory = dict[str, MemoryStore]


def test_copies_go_with_the_store_and_workers_of_this_machine_share_them(
    memory: Memory, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    store = ObjectStore(PLACE).open()
    name = store.put_hashed("views", "key", b"\7" * 1000, "bin")
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


def test_a_server_without_conditional_writes_is_refused_and_nothing_is_left(
    memory: Memory, monkeypatch: pytest.MonkeyPatch
) -> None:
    def conditional_in_part(to: MemoryStore, name: str, data: bytes, mode: Any = None, **options: Any) -> Any:
        return PUT(to, name, data, mode=None if ignores(mode) else mode, **options)

    monkeypatch.setattr(obstore, "put", conditional_in_part)
    for ignores in (bool, lambda mode: mode == "create", lambda mode: isinstance(mode, dict)):  # noqa: B007
        with pytest.raises(StoreError, match="ignores the conditions of writes"):
            ObjectStore(PLACE).open()
        assert obstore.list(memory["s3://bucket"]).collect() == []


# The state ------------------------------------------------------------------------------------------------------------


def receipt(stage: str, version: str) -> Receipt:
    return Receipt(stage=stage, fingerprint="1", key="k", version=version, upstream={})


def result(key: str, version: str) -> Result:
    return Result(key=key, version=version, files={"fit": f"fits/s/{version}"})


STEPS = st.lists(
    st.tuples(
        st.integers(0, 1), st.sampled_from(["receipt", "fit", "refit", "result"]), st.sampled_from("ab")
    ),
    max_size=20,
)


@given(steps=STEPS)
def test_runs_at_once_leave_the_receipts_of_one_of_them_and_the_fit_that_was_first(
    steps: list[tuple[int, str, str]],
) -> None:
    with pytest.MonkeyPatch.context() as patch, contextlib.ExitStack() as held:
        memory = MemoryStore()
        patch.setattr(sources, "_connected", lambda *_: memory)
        ObjectStore(PLACE).open()
        runs = [ObjectStore(PLACE), ObjectStore(PLACE)]
        for run in runs:
            held.enter_context(run.lock())
        receipts: list[dict[str, str]] = [{}, {}]
        fits: dict[str, str] = {}
        for number, (run, step, name) in enumerate(steps):
            store, version = runs[run], f"{number:032x}"
            if step == "receipt":
                save_receipt(store, receipt(name, version))
                receipts[run][name] = version
            elif step == "result":
                keep_result(store, "whole", Result(key=version, version=version, files={}))
            else:
                before = load_state(store).results.get("fit", [])
                known = next((each for each in before if each.key == name), None)
                if step == "fit" and known:
                    continue
                kept = put_result(store, "fit", result(name, version), known)
                # The first of two is read by both; another fit replaces the one that its maker knew.
                if fits.get(name) == (known.version if known else None):
                    fits[name] = version
                assert kept.version == fits[name]
        state = load_state(ObjectStore(PLACE))
        assert {name: each.version for name, each in state.receipts.items()} in receipts
        assert {each.key: each.version for each in state.results.get("fit", [])} == fits
        whole = [f"{number:032x}" for number, (_, step, _) in enumerate(steps) if step == "result"]
        assert [each.key for each in state.results.get("whole", [])] == whole


FAULTS = ("done", "lost", "lost, refused when repeated", "not done", "late")


@settings(max_examples=examples(25), deadline=None)
@given(faults=st.lists(st.sampled_from(FAULTS), max_size=8), writes=st.integers(1, 5))
def test_whatever_becomes_of_answers_the_state_is_what_was_written_last(
    faults: list[str], writes: int
) -> None:
    """A swap that is "late" arrives after it was given up, with the next request."""
    memory, left, late = MemoryStore(), list(faults), []
    gone = GenericError("Generic S3 error: Error performing PUT http://h/b - HTTP error: connection closed")

    def faulty(to: MemoryStore, name: str, data: bytes, **options: Any) -> Any:
        for arguments in [late.pop()] if late else []:
            with contextlib.suppress(PreconditionError, obstore.exceptions.AlreadyExistsError):
                PUT(to, *arguments[0], **arguments[1])
        fault = left.pop(0) if left else "done"
        if fault == "late":
            late.append(((name, data), options))
        if fault in ("late", "not done"):
            raise gone
        done = PUT(to, name, data, **options)
        if fault == "lost":
            raise gone
        if fault == "lost, refused when repeated":
            raise PreconditionError("status code: 412 Precondition Failed")
        return done

    def write(store: ObjectStore, text: str) -> None:
        changing(store, lambda state: State(state.receipts, state.results, {text: [], **state.outputs}))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sources, "_connected", lambda *_: memory)
        store = ObjectStore(PLACE).open()
        patch.setattr(obstore, "put", faulty)
        done = set()
        with store.lock():
            for at in range(writes):
                try:
                    write(store, str(at))
                    done.add(str(at))
                except StoreError as error:
                    assert "cannot be reached" in str(error)
            left.clear()
            write(store, "last")
        outputs = load_state(ObjectStore(PLACE)).outputs
        assert done | {"last"} <= outputs.keys() <= {"last", *map(str, range(writes))}
