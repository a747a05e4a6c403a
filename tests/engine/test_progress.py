"""What is told of progress: in which words, when, and what a pipe is left with."""

from __future__ import annotations

import errno
import io
import os
import re
import subprocess
import sys
import time

import pytest

from dagster_divorder.engine.progress import STANDARD_ERROR, Counter, Log, counted


class Clock:
    """Seconds that pass when they are told to."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now

    def pass_(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """And no speaker: the test calls `tell` where it would."""
    monkeypatch.setattr(Log, "_speak", lambda log, ended: None)
    clock = Clock()
    monkeypatch.setattr(time, "monotonic", clock)
    return clock


@pytest.fixture
def lines() -> list[str]:
    return []


@pytest.fixture
def log(clock: Clock, lines: list[str]) -> Log:
    return Log(lines.append)


@pytest.mark.parametrize(
    ("total", "advances", "waited", "told"),
    [
        (8, [], 12, "0 of 8 fits (0%), 12 s so far"),
        (8, [(2, 1), (2, 1)], 0, "2 of 8 fits (25%), 12 s left"),
        (8, [(2, 1), (2, 1)], 4, "2 of 8 fits (25%), 24 s left"),
        (8, [(1, 9), (1, 9)], 0, "18 of 8 fits (225%), 2 s so far"),
        (None, [(1, 500), (1, 500)], 0, "1,000 fits, 2 s so far"),
        (0, [], 3, "0 fits, 3 s so far"),
    ],
)
def test_time_left_is_by_the_pace_of_what_is_done(
    total: int | None,
    advances: list[tuple[float, int]],
    waited: float,
    told: str,
    clock: Clock,
    log: Log,
) -> None:
    with log("fitting", total, "fits") as advance:
        for seconds, items in advances:
            clock.pass_(seconds)
            advance(items)
        (counter,) = log._open
        assert isinstance(counter, Counter)
        assert counter.figures(clock.now + waited) == told


class Full(io.StringIO):
    def write(self, text: str) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def closed() -> io.StringIO:
    stream = io.StringIO()
    stream.close()
    return stream


@pytest.mark.parametrize("stream", [None, closed(), Full()], ids=["none", "closed", "full"])
def test_a_standard_error_that_takes_nothing_stops_no_work(
    stream: io.StringIO | None,
    clock: Clock,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(sys, "stderr", stream)
    with STANDARD_ERROR("run"):
        STANDARD_ERROR.note("a note")
        clock.pass_(30)
        STANDARD_ERROR.tell()
    assert capsys.readouterr().out == ""


def test_a_loop_that_is_left_halfway_ends_with_the_one_around_it(log: Log) -> None:
    with log("run"):
        items = counted(log, "reading", [1, 2], 2, "items")
        assert next(items) == 1
    with log("another"):
        items.close()
        assert [counter.what for counter in log._open] == ["another"]
    assert not log._open


# A loop of a library that gives no hook.
WORK = """
import sys, time
from dagster_divorder.engine import progress
progress.STANDARD_ERROR._seconds = 0.4
with progress.STANDARD_ERROR("run"), progress.STANDARD_ERROR("fitting"):
    progress.STANDARD_ERROR.note("a note")
    print("a library warns", file=sys.stderr)
    until = time.monotonic() + 2.3
    while time.monotonic() < until:
        pass
print("the answer")
"""


def test_a_pipe_gets_lines_and_standard_output_the_answer_alone() -> None:
    done = subprocess.run([sys.executable, "-c", WORK], capture_output=True, text=True, check=True)
    assert done.stdout == "the answer\n"
    said = done.stderr.splitlines()
    assert said[:2] == ["a note", "a library warns"] and len(said) > 2
    assert all(re.fullmatch(r"run: fitting: \d(\.\d+)? s so far", line) for line in said[2:])
