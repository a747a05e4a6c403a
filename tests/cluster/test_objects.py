"""Runs on a store of an S3 server: the bytes of a folder, whatever the server, the network and other runs do."""

from __future__ import annotations

import itertools
import re
import signal
import subprocess
import sys
import threading
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import orjson
import pytest

from dagster_divorder import load_results, run_all
from dagster_divorder.engine.progress import Silent
from dagster_divorder.errors import DiskFullError, MissingStageError, StoreError
from dagster_divorder.pipeline import prune as prune_module
from dagster_divorder.pipeline.prune import prune
from dagster_divorder.settings import Settings
from dagster_divorder.stages import GRAPH
from dagster_divorder.store import objects, sources
from dagster_divorder.store.base import Store
from dagster_divorder.store.objects import store_at
from dagster_divorder.store.remote import connect
from dagster_divorder.store.state import load_state
from tests.cluster.weed import Fault, Proxy, Request
from tests.conftest import topic_records, write_jsonl

pytestmark = [pytest.mark.cluster, pytest.mark.slow, pytest.mark.usefixtures("small_fragments")]

Make = Callable[..., Settings]


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    return write_jsonl(tmp_path / "docs.jsonl", topic_records(20))


@pytest.fixture
def settings(corpus: Path, make_settings: Make, tmp_path: Path) -> Make:
    """Settings of a run on a store, with an output of its own."""

    def make(store: str | Path, **sections: Any) -> Settings:
        name = str(store).replace("/", "-")
        return make_settings(
            store={"path": store},
            output={"path": tmp_path / f"out{name}"},
            **sections,
        )

    return make


def run(settings: Settings) -> None:
    run_all(settings, Silent())


def output(settings: Settings) -> dict[str, bytes]:
    """What was written, but for what names the store."""
    return {
        path.name: path.read_bytes()
        for path in settings.output.path.iterdir()
        if path.name != "curated_meta.json"
    }


def kept(store: Store) -> dict[str, bytes]:
    """What a store holds but its state, which tells times, and what names the store; each read and verified."""
    names = [name for name in store.files() if "." in name.partition("/")[2]]
    return {name: store.read(name) for name in names}


@pytest.fixture
def expected(settings: Make, tmp_path: Path) -> Callable[[], tuple[dict[str, bytes], dict[str, bytes]]]:
    """What a run on a folder comes to, by now: output and store."""

    def on_a_folder() -> tuple[dict[str, bytes], dict[str, bytes]]:
        here = settings(tmp_path / "folder")
        run(here)
        return output(here), kept(store_at(here.store.path))

    return on_a_folder


def check(settings: Settings, expected: Callable[[], tuple[dict[str, bytes], dict[str, bytes]]]) -> None:
    """A run on objects, as another machine sees it, comes to the same, and removes nothing from its store."""
    written, stored = expected()
    assert output(settings) == written
    assert stored.items() <= kept(store_at(settings.store.path)).items()


class Driver:
    """A run in another process, as a person starts it."""

    def __init__(self, settings: Settings) -> None:
        given = settings.model_dump(mode="json", exclude_defaults=True)
        command = [sys.executable, "-m", "tests.cluster.driver", orjson.dumps(given).decode()]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)

    def end(self) -> str:
        """What it prints in the end; empty where it was killed."""
        return self.process.communicate(timeout=120)[0]


def at_put(number: int, do: Callable[[], Any]) -> Callable[[Request], None]:
    """Do something as a PUT arrives, once: the one of this number from 1."""
    left, lock = [number], threading.Lock()

    def fault(request: Request) -> None:
        with lock:
            left[0] -= request.method == "PUT"
            now = request.method == "PUT" and left[0] == 0
        if now:
            do()

    return fault


def test_a_bucket_comes_to_the_bytes_of_a_folder_and_takes_few_requests(
    settings: Make,
    expected: Any,
    corpus: Path,
    new_place: Callable[[], str],
    proxy: Proxy,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    here = settings(new_place())
    with pytest.raises(MissingStageError, match="there is no store at 's3://"):
        load_results(here.store.path)
    run(here)
    check(here, expected)
    frame = load_results(here.store.path).documents
    assert len(frame) == 80
    proxy.requests.clear()
    run(here)
    counts = proxy.counts()
    # A run keeps what it has read, but no longer than it lasts.
    assert counts["LIST"] <= 60 and counts["PUT"] <= 25 and counts["GET"] <= 30, counts
    write_jsonl(corpus, topic_records(20) + topic_records(2, start=100))
    run(here)
    check(here, expected)
    # Deleted input: what was only its goes from the bucket.
    write_jsonl(corpus, topic_records(15))
    run(here)
    store = store_at(here.store.path)
    # Another run may be at work, so what is younger than a day stays.
    there = kept(store)
    prune(GRAPH, store.open())
    assert kept(store) == there
    monkeypatch.setattr(prune_module, "SPARED_SECONDS", -60.0)
    prune(GRAPH, store)
    folder = settings(Path(here.output.path).parent / "folder")
    run(folder)
    prune(GRAPH, store_at(folder.store.path))
    assert kept(store) == kept(store_at(folder.store.path))
    assert output(here) == output(folder)


def made_twice(proxy: Proxy) -> set[str]:
    """Results of fragments that were sent more than once."""
    names = [
        request.path for request in proxy.requests if request.method == "PUT" and "/stages/" in request.path
    ]
    per_fragment = [
        name for name in names if re.search(r"/(token_counts|shallow_embeddings|clusters)/", name)
    ]
    assert per_fragment
    return {name for name in per_fragment if per_fragment.count(name) > 1}


def test_a_run_that_found_the_bucket_full_or_was_killed_is_resumed_and_nothing_finished_is_made_again(
    settings: Make, expected: Any, new_place: Callable[[], str], proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    here, puts = settings(new_place()), itertools.count()
    full = Fault(507, "InsufficientStorage")
    proxy.fault = lambda request: full if request.method == "PUT" and next(puts) > 14 else None
    with monkeypatch.context() as patch:
        patch.setattr(sources, "connect", lambda place, retry_seconds: connect(place, 0.1))
        with pytest.raises(DiskFullError, match=r"s3://.*no space left.*run again"):
            run(here)
    for number in (4, 9, 30, 30):
        driver = Driver(here)
        proxy.fault = at_put(number, driver.process.kill)
        assert driver.end() == "" and driver.process.returncode == -signal.SIGKILL
    proxy.fault = lambda request: None
    run(here)
    assert not made_twice(proxy)
    check(here, expected)


def test_two_runs_at_once_with_other_fits_both_end_well_and_leave_the_state_of_one(
    settings: Make, new_place: Callable[[], str], proxy: Proxy, tmp_path: Path
) -> None:
    place, begun = new_place(), threading.Event()

    def with_output(here: Settings, name: str, **more: Any) -> Settings:
        own = here.output.model_copy(update={"path": tmp_path / name})
        return here.model_copy(update={"output": own, **more})

    both = [
        with_output(settings(place), "one"),
        with_output(settings(place, clusters={"k": 3}), "other"),
    ]
    proxy.fault = at_put(6, begun.set)
    drivers = [Driver(both[0])]
    assert begun.wait(120)
    drivers.append(Driver(both[1]))
    assert [driver.end() for driver in drivers] == ["done\n", "done\n"]
    receipts = load_state(store_at(place)).receipts
    assert len({orjson.dumps(receipt.settings) for receipt in receipts.values()}) == 1
    assert receipts.keys() == set(GRAPH.needed(both[0]))
    for here in both:
        written = output(here)
        name = f"{here.output.path.name} alone"
        alone = with_output(
            here, name, store=here.store.model_copy(update={"path": tmp_path / "store" / name})
        )
        for again in (here, alone):
            run(again)
            assert output(again) == written


def test_what_is_wrong_with_a_bucket_is_said_at_once_and_without_secrets(
    settings: Make, new_place: Callable[[], str], proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(place: str, message: str, **environment: str) -> None:
        with monkeypatch.context() as patch:
            for name, value in environment.items():
                patch.setenv(name, value)
            with pytest.raises(StoreError, match=message) as caught:
                run(settings(place))
        assert "Sesame99" not in "".join(traceback.format_exception(caught.value))

    refused(new_place(), "SignatureDoesNotMatch: check AWS_ACCESS_KEY_ID", AWS_SECRET_ACCESS_KEY="Sesame99")
    refused(new_place(), "InvalidAccessKeyId: check AWS_ACCESS_KEY_ID", AWS_ACCESS_KEY_ID="Sesame99")
    refused("s3://no-such-bucket/store", "no bucket 'no-such-bucket'")
    monkeypatch.setattr(objects, "LOOK_SECONDS", 0.2)
    refused(new_place(), r"cannot be reached.*AWS_ENDPOINT_URL", AWS_ENDPOINT_URL="http://127.0.0.1:1")
