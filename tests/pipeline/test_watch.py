"""Checks of an input that is new, grows, is edited, touched, replaced or missing: one run a change, and no other."""

from __future__ import annotations

import gzip
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from dagster_divorder.pipeline.watch import Cursor, Outcome, check_input
from dagster_divorder.settings import Settings
from dagster_divorder.stages import GRAPH, run_all, run_stage
from tests.conftest import topic_records, write_jsonl

SETTLE = 10.0


class Watcher:
    """Checks again and again, with a clock of its own and nothing to remember but the cursor's JSON."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.cursor = Cursor().to_json()
        self.now = 1_000_000.0
        self.busy: str | None = None

    def check(self, seconds: float = 0.0) -> Outcome:
        self.now += seconds
        found = check_input(GRAPH, self.settings, Cursor.from_json(self.cursor), self.now, lambda: self.busy)
        self.cursor = found.cursor.to_json()
        return found

    def starts(self) -> list[str]:
        """Why runs start in the next three minutes, whether they succeed or not."""
        found = [self.check(SETTLE) for _ in range(18)]
        return [one.reason for one in found if one.start]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return write_jsonl(tmp_path / "in/docs.jsonl", topic_records(10))


@pytest.fixture
def settings(file: Path) -> Settings:
    return settings_for(file.parent)


def settings_for(folder: Path, pattern: str = "*.jsonl*") -> Settings:
    return Settings(
        input={"paths": [str(folder / pattern)]},
        store={"path": folder.parent / "store"},
        output={"path": folder.parent / "curated", "sidecars": ()},
        advanced={"vocab_size": 512, "token_dims": 8, "settle_seconds": SETTLE},
        clusters={"k": 2},
        order={"length_bins": 3},
        sequence={"length": 64, "batch": 2},
    )


@pytest.fixture(scope="module")
def curated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("curated")
    write_jsonl(folder / "in/docs.jsonl", topic_records(10))
    run_all(settings_for(folder / "in"))
    return folder


@pytest.fixture
def watcher(curated: Path) -> Iterator[Watcher]:
    """Watches an input that the last run has read; what a test changes is put back."""
    shutil.copytree(curated, curated.with_name("copy"))
    yield Watcher(settings_for(curated / "in"))
    shutil.rmtree(curated)
    curated.with_name("copy").rename(curated)


def docs(watcher: Watcher) -> Path:
    return watcher.settings.store.path.parent / "in/docs.jsonl"


def append(file: Path, text: str = "appended") -> None:
    with open(file, "ab") as opened:
        opened.write(b'{"text": "%s"}\n' % text.encode())


def test_an_input_of_which_nothing_was_made_waits_for_the_first_run_by_hand(settings: Settings) -> None:
    watcher = Watcher(settings)
    assert "materialise it once" in watcher.check().reason
    assert watcher.starts() == []


def test_a_change_starts_a_run_even_before_the_first_one(settings: Settings, file: Path) -> None:
    watcher = Watcher(settings)
    watcher.check()
    append(file)
    assert watcher.starts() == ["docs.jsonl is new (11.3 kB)"]


def test_a_missing_input_is_waited_for(tmp_path: Path) -> None:
    watcher = Watcher(settings_for(tmp_path / "in"))
    found = watcher.check()
    assert not found.start
    assert "no file matches" in found.reason
    assert found.reason.endswith("A run starts once there is input.")
    write_jsonl(tmp_path / "in/docs.jsonl", topic_records(1))
    assert len(watcher.starts()) == 1


def test_what_the_last_run_has_read_starts_none(watcher: Watcher) -> None:
    assert watcher.check().reason == "no change in 1 input file since the last run"
    assert watcher.check().reason == "no change in 1 input file"
    assert watcher.starts() == []


def test_a_first_look_at_a_touched_file_sees_no_change(watcher: Watcher) -> None:
    """It knows no times: every byte is as the last run read it."""
    os.utime(docs(watcher))
    assert watcher.check().reason == "no change in 1 input file since the last run"


def test_a_first_look_at_several_inputs_sees_what_has_changed_in_one(watcher: Watcher) -> None:
    write_jsonl(docs(watcher).parent / "more.jsonl", topic_records(2, start=50))
    run_all(watcher.settings)
    fresh = Cursor().to_json()
    assert watcher.check().reason == "no change in 2 input files since the last run"
    append(docs(watcher).parent / "more.jsonl")
    watcher.cursor = fresh
    assert watcher.starts() == ["more.jsonl has 21 bytes more"]
    watcher.cursor = fresh
    docs(watcher).unlink()
    (reason,) = watcher.starts()
    assert "docs.jsonl is gone" in reason


def test_appended_lines_start_one_run(watcher: Watcher) -> None:
    watcher.starts()
    append(docs(watcher))
    assert watcher.starts() == ["docs.jsonl has 21 bytes more"]


def test_a_run_starts_only_once_the_input_is_still(watcher: Watcher) -> None:
    watcher.starts()
    for number in range(5):
        append(docs(watcher), str(number))
        found = watcher.check(SETTLE)
        assert not found.start
        assert f"not changed for {SETTLE:g} s" in found.reason
    assert not watcher.check(SETTLE - 1).start
    assert watcher.check(1).start


def test_while_a_run_is_under_way_nothing_is_remembered(watcher: Watcher) -> None:
    watcher.starts()
    append(docs(watcher))
    watcher.busy, before = "run abc is queued", watcher.cursor
    assert watcher.starts() == []
    assert watcher.check().reason.startswith("run abc is queued")
    assert watcher.cursor == before
    watcher.busy = None
    assert len(watcher.starts()) == 1


def test_what_a_run_by_hand_has_read_starts_no_second_one(watcher: Watcher) -> None:
    watcher.starts()
    append(docs(watcher))
    watcher.check()
    run_all(watcher.settings)
    assert watcher.starts() == []


def test_a_run_that_did_not_come_to_its_end_is_started_once(watcher: Watcher) -> None:
    watcher.starts()
    append(docs(watcher))
    run_stage("raw_docs", watcher.settings)
    assert watcher.starts() == ["the last run did not finish"]


def test_a_touched_file_starts_none(watcher: Watcher) -> None:
    watcher.starts()
    os.utime(docs(watcher))
    watcher.check(1)
    assert watcher.check(SETTLE).reason == "only times differ: 1 input file, all bytes as in the last run"
    docs(watcher).write_bytes(docs(watcher).read_bytes())
    assert watcher.starts() == []


def test_an_edit_that_keeps_size_and_time_starts_a_run(watcher: Watcher) -> None:
    watcher.starts()
    file, before = docs(watcher), os.stat(docs(watcher))
    file.write_bytes(file.read_bytes().replace(b"wave", b"vale", 1))
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert watcher.starts() == ["docs.jsonl has other content"]


def test_a_file_that_is_too_large_to_look_into_starts_a_run(
    watcher: Watcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dagster_divorder.pipeline.watch.CONTENT_BYTES", 10)
    watcher.check()
    os.utime(docs(watcher))
    assert watcher.starts() == ["times of 1 input file, which are too large to compare"]


def test_new_and_vanished_files_start_a_run_each(watcher: Watcher) -> None:
    watcher.starts()
    folder = docs(watcher).parent
    with gzip.open(folder / "more.jsonl.gz", "wb") as file:
        file.write(b'{"text": "compressed"}\n')
    assert watcher.starts() == ["more.jsonl.gz is new (54 B)"]
    run_all(watcher.settings)
    os.utime(folder / "more.jsonl.gz")
    assert watcher.starts() == []
    with gzip.open(folder / "more.jsonl.gz", "wb") as file:
        file.write(b'{"text": "comprised!"}\n')
    (change,) = watcher.starts()
    assert change.startswith("more.jsonl.gz has ")
    (folder / "more.jsonl.gz").unlink()
    assert watcher.starts() == ["more.jsonl.gz is gone"]
    for number in range(9):
        write_jsonl(folder / f"{number}.jsonl", topic_records(1))
    (change,) = watcher.starts()
    assert change.endswith("and 7 more")


def test_two_files_that_change_places_start_a_run(watcher: Watcher) -> None:
    folder = docs(watcher).parent
    write_jsonl(folder / "other.jsonl", topic_records(2, start=50))
    run_all(watcher.settings)
    assert watcher.starts() == []
    docs(watcher).rename(folder / "x")
    (folder / "other.jsonl").rename(docs(watcher))
    (folder / "x").rename(folder / "other.jsonl")
    assert len(watcher.starts()) == 1


def test_an_empty_file_is_no_change(watcher: Watcher) -> None:
    watcher.starts()
    (docs(watcher).parent / "empty.jsonl").touch()
    assert watcher.starts() == []


def test_a_file_that_vanishes_and_returns_starts_none(watcher: Watcher) -> None:
    watcher.starts()
    file = docs(watcher)
    file.rename(file.with_suffix(".away"))
    assert "no file matches" in watcher.check(SETTLE).reason
    file.with_suffix(".away").rename(file)
    assert watcher.starts() == []


def test_a_clock_that_was_set_back_delays_no_longer_than_a_change_does(watcher: Watcher) -> None:
    watcher.starts()
    append(docs(watcher))
    watcher.check()
    watcher.now -= 86_400
    assert not watcher.check().start
    assert watcher.check(SETTLE).start


def test_damage_in_the_store_starts_a_run_to_mend_it(watcher: Watcher) -> None:
    watcher.starts()
    append(docs(watcher))
    (watcher.settings.store.path / "state.json").write_bytes(b"{")
    assert len(watcher.starts()) == 1


@pytest.mark.parametrize(
    "text", [None, "", "{", "[]", '{"other": 1}', '{"seen": 5}', '{"since": null}', "7", '"2026"']
)
def test_a_cursor_of_another_kind_is_a_new_one(text: str | None) -> None:
    assert Cursor.from_json(text) == Cursor()
