"""Two runs on one store, and runs that are stopped by a signal: the lock is held while it should be, and no longer."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from dagster_divorder.errors import StoreBusyError
from dagster_divorder.store.local import LocalStore
from tests.faults.conftest import differing, make_corpus, output_of, was_written
from tests.faults.runner import Runner

DEADLINE = 60.0
RUN = ("-m", "dagster_divorder.cli", "run")


@contextmanager
def started(*command: str, config: Path) -> Iterator[subprocess.Popen[str]]:
    """A process of its own session, killed at the end if it still runs."""
    pipe = subprocess.PIPE
    process = subprocess.Popen(
        [sys.executable, *command],
        stdout=pipe,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
        cwd=config.parent,
        env={**os.environ, "DIVORDER_CONFIG": str(config), "PYTHONUNBUFFERED": "1"},
    )
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def until_line(process: subprocess.Popen[str], part: str) -> str:
    """Read what a process says up to a line that has `part`."""
    assert process.stdout is not None
    said = ""
    for line in process.stdout:
        said += line
        if part in line:
            return said
    raise AssertionError(f"ended without saying {part!r}:\n{said}")


def is_free(store: Path) -> bool:
    try:
        with LocalStore(store).lock(wait=False):
            return True
    except StoreBusyError:
        return False


def run_to_the_end(config: Path, runner: Runner) -> None:
    named = {"DIVORDER_CONFIG": str(config)}
    assert runner.run(config, config.parent / "log", plain=["run"], environment=named) == 0


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory, runner: Runner) -> dict[str, Any]:
    """The output of an undisturbed run."""
    config = make_corpus(tmp_path_factory.mktemp("alone"))
    run_to_the_end(config, runner)
    return output_of(config)


def test_two_runs_wait_for_each_other_and_both_end_well(config: Path, alone: dict[str, Any]) -> None:
    store = config.parent / "store"
    held = ExitStack()
    held.enter_context(LocalStore(store).lock())
    with held, started(*RUN, config=config) as one, started(*RUN, config=config) as two:
        for process in (one, two):
            said = until_line(process, "waiting")
            assert f"store {store} is in use by another run (process {os.getpid()}); waiting for it" in said
        held.close()
        for process in (one, two):
            process.communicate(timeout=DEADLINE)
    assert (one.returncode, two.returncode) == (0, 0)
    # The first one did the work, and the other one found it done.
    assert not was_written(config)
    assert differing(config, alone) == []


def test_a_run_that_is_terminated_frees_the_store_at_once(
    config: Path, alone: dict[str, Any], runner: Runner
) -> None:
    config.write_text(config.read_text().replace("workers = 1", "workers = 2"))
    store = config.parent / "store"
    with started(*RUN, config=config) as process:
        until_line(process, "training the bootstrap model")
        assert not is_free(store)
        process.terminate()
        assert process.wait(timeout=DEADLINE) == -signal.SIGTERM
        assert is_free(store)
    run_to_the_end(config, runner)
    assert differing(config, alone) == []
