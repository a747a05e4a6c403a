"""Workers: the same results as a loop, in order; errors and deaths come through; nobody outlives the parent."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dagster_divorder.engine.local import count_workers, each, worker_number
from dagster_divorder.engine.progress import Silent
from dagster_divorder.errors import InputError, WorkerError
from dagster_divorder.pipeline import run_stage
from dagster_divorder.settings import Settings
from dagster_divorder.stages import token_counts
from dagster_divorder.store import ingest, inputs
from tests.conftest import topic_records, write_jsonl
from tests.engine.work import (
    chatter,
    die_at_three,
    number_and_threads,
    process_and_threads,
    refuse_three,
    square,
)


@pytest.mark.parametrize("workers", [1, 2, 3])
def test_results_are_those_of_a_loop_in_order(workers: int) -> None:
    assert list(each(square, range(20), workers)) == [number * number for number in range(20)]


def test_no_items_start_no_worker() -> None:
    assert list(each(square, [], 3)) == []


def test_workers_are_other_processes_with_one_thread_a_library() -> None:
    found = list(each(process_and_threads, range(4), 2))
    assert os.getpid() not in {process for process, _ in found}
    assert {threads for _, threads in found} == {"1"}


def test_workers_are_numbered_and_may_have_more_threads() -> None:
    found = set(each(number_and_threads, range(60), 3, threads=2))
    assert found == {(0, "2"), (1, "2"), (2, "2")}
    assert worker_number() == 0


def test_an_error_of_the_function_is_raised_as_it_is() -> None:
    with pytest.raises(InputError, match="three is refused") as caught:
        list(each(refuse_three, range(10), 2))
    assert "in a worker process" in caught.value.__notes__[0]


def test_a_worker_that_dies_is_a_clear_error() -> None:
    with pytest.raises(WorkerError, match="was killed by signal 9"):
        list(each(die_at_three, range(10), 2))


def test_what_a_function_prints_does_not_mix_with_its_result() -> None:
    assert list(each(chatter, range(4), 2)) == [0, 1, 2, 3]


def test_results_that_nobody_takes_end_the_workers() -> None:
    results = each(process_and_threads, range(50), 2)
    process = next(results)[0]
    results.close()
    assert not Path(f"/proc/{process}").exists()


@pytest.mark.parametrize("items", [[0.0] * 50, [0.0, *[60.0] * 9]], ids=["idle", "in a computation"])
def test_workers_end_when_their_parent_is_killed(items: list[float]) -> None:
    code = (
        "from dagster_divorder.engine.local import each\n"
        "from tests.engine.work import process_after\n"
        f"results = each(process_after, {items}, 2)\n"
        "print(next(results), flush=True)\n"
        "input()\n"
    )
    root = Path(__file__).parents[2]
    with subprocess.Popen(
        [sys.executable, "-c", code], cwd=root, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as parent:
        assert parent.stdout is not None
        worker = Path(f"/proc/{int(parent.stdout.readline())}")
        assert worker.exists()
        parent.kill()
        parent.wait()
        deadline = time.monotonic() + 20
        while _runs(worker):
            assert time.monotonic() < deadline, "the worker outlives its parent"
            os.sched_yield()


def _runs(process: Path) -> bool:
    try:
        return process.joinpath("stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_zero_workers_means_one_a_core() -> None:
    assert count_workers(0) == len(os.sched_getaffinity(0))
    assert count_workers(3) == 3


def test_tokens_do_not_depend_on_the_number_of_workers(
    tmp_path: Path, make_settings: Callable[..., Settings], monkeypatch: pytest.MonkeyPatch
) -> None:
    write_jsonl(tmp_path / "docs.jsonl", topic_records())
    monkeypatch.setattr(inputs, "BLOCK_BYTES", 4096)
    monkeypatch.setattr(ingest, "FRAGMENT_ROWS", 50)
    monkeypatch.setattr(token_counts, "WORKER_BYTES", 1)
    asked: list[int] = []

    def watched(function: Any, items: Any, workers: int, **options: Any) -> Any:
        asked.append(workers)
        return each(function, items, workers, **options)

    monkeypatch.setattr(token_counts, "each", watched)
    found = []
    for workers in (1, 2, 3):
        settings = make_settings(engine={"workers": workers}, store={"path": tmp_path / f"store{workers}"})
        for stage in ("raw_docs", "base_model", "token_counts"):
            run_stage(stage, settings, Silent())
        folder = settings.store.path / "stages" / "token_counts"
        found.append(
            {str(file.relative_to(folder)): file.read_bytes() for file in folder.rglob("*.safetensors")}
        )
    assert len(found[0]) > 3
    assert found[0] == found[1] == found[2]
    assert asked == [1, 2, 3]
