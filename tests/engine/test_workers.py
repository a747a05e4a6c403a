"""Workers: the same results as a loop, in order; errors and deaths come through; nobody outlives the parent."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

import pytest

from dagster_divorder.corpus import cut, inputs
from dagster_divorder.engine.base import Needs, ahead
from dagster_divorder.engine.local import LocalEngine, Worker
from dagster_divorder.engine.progress import Silent
from dagster_divorder.errors import DivOrderError, InputError, WorkerError
from dagster_divorder.pipeline import per_fragment
from dagster_divorder.settings import Settings
from dagster_divorder.stages import run_stage
from dagster_divorder.stages.corpus.raw_docs import RAW_DOCS
from tests.conftest import topic_records, write_jsonl
from tests.engine.work import (
    about_worker,
    chatter,
    die_at_three,
    refuse_three,
    tell_and_refuse,
    tell_each,
)


@pytest.mark.parametrize("workers", [1, 2])
def test_calls_tell_how_far_they_are_in_the_process_that_asked(workers: int) -> None:
    told: list[int] = []
    results = LocalEngine(workers).each(tell_each, [2, 3, 1], advance=told.append)
    assert list(results) == [2, 3, 1]
    assert sorted(told) == [1, 1, 1, 2, 2, 3]
    with pytest.raises(InputError, match="three is refused"):
        list(LocalEngine(workers).each(tell_and_refuse, [3, 3], advance=told.append))
    assert told[-1] == 30


def test_an_error_of_the_function_is_raised_as_it_is() -> None:
    with pytest.raises(InputError, match="three is refused") as caught:
        list(LocalEngine(2).each(refuse_three, range(10)))
    assert "in a worker process" in caught.value.__notes__[0]


def test_a_worker_that_is_killed_is_named() -> None:
    with pytest.raises(WorkerError, match="was killed by signal 9"):
        list(LocalEngine(2).each(die_at_three, range(10)))


def test_there_are_no_more_workers_than_asked_for_or_than_threads_leave_room_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv(
        "ARROW_DEFAULT_MEMORY_POOL", raising=False
    )  # the command sets it, which other tests run
    engine = LocalEngine(4)
    for needs in (Needs(workers=1), Needs(threads=3), Needs(threads=0)):
        assert {process for *_, process in engine.each(about_worker, range(4), **needs)} == {os.getpid()}
    found = set(engine.each(about_worker, range(60), threads=2))
    assert {worker[:-1] for worker in found} == {(number, "2", 2, "system") for number in (0, 1)}
    assert os.getpid() not in {process for *_, process in found}
    assert {pool for *_, pool, _ in engine.each(about_worker, range(4), environment={})} == {None}


def test_results_are_those_of_a_loop_whatever_lies_in_the_working_directory_or_is_printed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tmp_path.joinpath("pickle.py").write_text("raise ImportError('a file of the user')")
    monkeypatch.chdir(tmp_path)
    assert list(LocalEngine(2).each(chatter, range(20))) == [*range(20)]
    assert list(LocalEngine(3).each(chatter, [])) == []


def test_results_that_nobody_takes_end_the_workers() -> None:
    results = LocalEngine(2).each(about_worker, range(50))
    *_, process = next(results)
    results.close()
    assert not Path(f"/proc/{process}").exists()


@pytest.mark.parametrize("stop", [signal.SIGKILL, signal.SIGINT], ids=["kill -9", "ctrl-c"])
@pytest.mark.parametrize("items", [[0.0] * 50, [0.0, *[60.0] * 9]], ids=["idle", "in a computation"])
def test_workers_end_at_once_with_their_parent(items: list[float], stop: signal.Signals) -> None:
    code = (
        "from dagster_divorder.engine.local import LocalEngine\n"
        "from tests.engine.work import process_after\n"
        f"for process in LocalEngine(2).each(process_after, {items}):\n"
        "    print(process, flush=True)\n"
        "input()\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code],
        cwd=Path(__file__).parents[2],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    ) as parent:
        assert parent.stdout is not None
        worker = Path(f"/proc/{int(parent.stdout.readline())}")
        if stop == signal.SIGKILL:
            parent.kill()
        else:
            os.killpg(parent.pid, stop)  # as a terminal does it: to all processes of the group
        assert parent.wait(20) == -stop
        deadline = time.monotonic() + 20
        while _runs(worker):
            assert time.monotonic() < deadline, "the worker outlives its parent"
            os.sched_yield()


def _runs(process: Path) -> bool:
    try:
        return process.joinpath("stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_one_item_ahead_is_computed_and_an_early_end_closes_the_source() -> None:
    started = [threading.Event() for _ in range(4)]
    closed = []

    def items() -> Generator[int, None, None]:
        try:
            for number in range(4):
                started[number].set()
                yield number
            raise OSError("disk")
        finally:
            closed.append(True)

    taken = []
    with pytest.raises(OSError, match="disk"):
        for number in ahead(items()):
            taken.append(number)
            if number < 3:
                assert started[number + 1].wait(10)
            assert not any(event.is_set() for event in started[number + 2 :])
    assert taken == [0, 1, 2, 3]
    coming = ahead(items())
    assert next(coming) == 0
    coming.close()
    assert closed == [True, True]


def test_tokens_do_not_depend_on_the_number_of_workers(
    tmp_path: Path, make_settings: Callable[..., Settings], monkeypatch: pytest.MonkeyPatch
) -> None:
    write_jsonl(tmp_path / "docs.jsonl", topic_records())
    monkeypatch.setattr(inputs, "BLOCK_BYTES", 4096)
    monkeypatch.setattr(cut, "MEAN_LINES", 20)
    monkeypatch.setattr(cut, "HARD_LINES", 50)
    monkeypatch.setattr(per_fragment, "WORKER_BYTES", 1)
    started: list[Worker] = []

    def watched(worker: Worker, variables: Any) -> None:
        started.append(worker)
        start(worker, variables)

    start = Worker.__init__
    monkeypatch.setattr(Worker, "__init__", watched)
    results = []
    for workers in (1, 2, 3):
        settings = make_settings(engine={"workers": workers}, store={"path": tmp_path / f"store{workers}"})
        for stage in ("raw_docs", "base_model", "token_counts"):
            run_stage(stage, settings, Silent())
        folder = settings.store.path / "stages" / "token_counts"
        results.append(
            {str(file.relative_to(folder)): file.read_bytes() for file in folder.rglob("*.safetensors")}
        )
    assert len(results[0]) > 3
    assert results[0] == results[1] == results[2]
    assert len(started) == 2 + 3  # of one worker there is no process


@pytest.mark.parametrize(
    "error", [MemoryError("Unable to allocate 9 GiB"), OSError(12, "Cannot allocate memory")]
)
def test_memory_that_runs_out_in_a_stage_says_in_which(
    tmp_path: Path, make_settings: Callable[..., Settings], monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def make(*_: object) -> None:
        raise error

    write_jsonl(tmp_path / "docs.jsonl", topic_records(2))
    monkeypatch.setattr(type(RAW_DOCS), "make", make)
    with pytest.raises(DivOrderError, match=r"memory ran out in raw_docs \(.*llocate.*: allow more"):
        run_stage("raw_docs", make_settings(), Silent())
