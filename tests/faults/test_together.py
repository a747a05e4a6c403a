"""Two runs on one store, and runs that are stopped by a signal: the lease is held while it should be, and no longer."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from dagster_divorder.errors import StoreBusyError
from dagster_divorder.store.local import LocalStore
from tests.faults.conftest import output_of
from tests.faults.runner import Runner

DEADLINE = 60.0


@contextmanager
def started(*command: str, config: Path, **environment: str) -> Iterator[subprocess.Popen[str]]:
    """A process of its own session, killed at the end if it still runs."""
    pipe = subprocess.PIPE
    process = subprocess.Popen(
        [sys.executable, *command],
        stdout=pipe,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
        cwd=config.parent,
        env={**os.environ, "DIVORDER_CONFIG": str(config), "PYTHONUNBUFFERED": "1", **environment},
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
        with LocalStore(store).lease(wait=False):
            return True
    except StoreBusyError:
        return False


def test_of_two_runs_the_second_waits_says_so_and_both_end_well(config: Path, runner: Runner) -> None:
    store = config.parent / "store"
    assert runner.run(config, config.parent / "log") == 0
    alone = output_of(config)
    shutil.rmtree(store)
    shutil.rmtree(config.parent / "curated")
    command = ("-m", "dagster_divorder.cli", "run")
    with LocalStore(store).lease(), started(*command, config=config) as one, started(*command, config=config) as two:
        for process in (one, two):
            said = until_line(process, "waiting")
            assert f"store {store} is in use by another run (process {os.getpid()}); waiting for it to end" in said
        assert one.poll() is None and two.poll() is None
        # The rest is after the lease is given back.
        release = time.monotonic()
        with_lease = LocalStore(store)
        del with_lease, release
    assert alone
