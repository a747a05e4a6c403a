"""What is told of progress: in which words, when, and what a terminal and a pipe are left with."""

from __future__ import annotations

import errno
import io
import os
import pty
import re
import struct
import subprocess
import sys
import termios
import threading
import time
from collections.abc import Callable
from fcntl import ioctl

import pytest

from dagster_divorder.engine.progress import Bar, Counter, Log, counted


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
        # The first is left out: it also loads and compiles.
        (8, [(60, 1)], 0, "1 of 8 fits (12%), 1 min 0 s so far"),
        (8, [(60, 1), (2, 1), (2, 1)], 0, "3 of 8 fits (38%), 2 s each, 10 s left"),
        (8, [(60, 1), (2, 1), (2, 1)], 4, "3 of 8 fits (38%), 4 s each, 20 s left"),
        (8, [(1, 9), (1, 9)], 0, "18 of 8 fits (225%), 9 fits/s, 2 s so far"),
        (None, [(1, 500), (1, 500)], 0, "1,000 fits, 500 fits/s, 2 s so far"),
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
        assert ", ".join(counter.figures(clock.now + waited)) == told


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
    bar = Bar()
    with bar("run"):
        bar.note("a note")
        clock.pass_(30)
        bar.tell()
    assert capsys.readouterr().out == ""


def test_two_threads_count_together_and_none_is_lost(lines: list[str]) -> None:
    log = Log(lines.append, seconds=0.0)
    with log("counting", 8_000, "items") as advance:
        threads = [threading.Thread(target=lambda: [advance(1) for _ in range(2_000)]) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert lines[-1].startswith("counting: 8,000 of 8,000 items (100%)")


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
progress.LINE_SECONDS = 0.4
with progress.STANDARD_ERROR("run"), progress.STANDARD_ERROR("fitting"):
    progress.STANDARD_ERROR.note("a note")
    print("a library warns", file=sys.stderr)
    until = time.monotonic() + 1.5
    while time.monotonic() < until:
        pass
print("the answer")
"""


def test_a_pipe_gets_lines_and_standard_output_the_answer_alone() -> None:
    done = subprocess.run([sys.executable, "-c", WORK], capture_output=True, text=True, check=True)
    assert done.stdout == "the answer\n"
    said = done.stderr.splitlines()
    assert said[:2] == ["a note", "a library warns"] and len(said) > 3
    assert all(re.fullmatch(r"run: fitting: \d(\.\d+)? s so far", line) for line in said[2:])


@pytest.mark.parametrize("term", ["dumb", None, "xterm"])
def test_a_terminal_gets_one_line_that_is_rewritten_below_all_else(term: str | None) -> None:
    leader, follower = pty.openpty()
    ioctl(follower, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 20, 0, 0))
    environment = {name: value for name, value in os.environ.items() if name not in ("TERM", "COLUMNS")}
    environment["NO_COLOR"] = "1"
    environment |= {"TERM": term} if term else {}
    with subprocess.Popen([sys.executable, "-c", WORK], stdout=follower, stderr=follower, env=environment):
        os.close(follower)
        written = b"".join(iter(_reader(leader), b"")).decode()
    os.close(leader)
    assert written.count("fitting: ") > 2
    shown = list(filter(None, _screen(written)))
    if term == "xterm":
        assert shown == ["a note", "a library warns", "the answer"]
        assert max(len(line) for line in re.split(r"\r|\n|\x1b\[\S*?[a-zA-Z]", written)) <= 20
    else:
        assert shown[2].startswith("run: fitting: ") and shown[-1] == "the answer"


def _screen(written: str) -> list[str]:
    """The lines that a terminal shows."""
    shown, row, at = [""], 0, 0
    for part in re.findall(r"\r|\n|\x1b\[\S*?[a-zA-Z]|[^\r\n\x1b]+", written):
        if part == "\r":
            at = 0
        elif part == "\n":
            row, at = row + 1, 0
            shown += [""] * (row == len(shown))
        elif part == "\x1b[1A":
            row -= 1
        elif part == "\x1b[2K":
            shown[row] = ""
        elif not part.startswith("\x1b"):
            shown[row] = shown[row][:at] + part + shown[row][at + len(part) :]
            at += len(part)
    return shown


def _reader(descriptor: int) -> Callable[[], bytes]:
    def read() -> bytes:
        try:
            return os.read(descriptor, 1 << 16)
        except OSError:  # closed by the last that held the other end
            return b""

    return read
