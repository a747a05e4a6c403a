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
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from fcntl import ioctl

import pytest

from dagster_divorder.engine.progress import (
    CLEAR,
    Bar,
    Counter,
    Log,
    counted,
    describe,
    draw,
)


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
    return Clock()


@pytest.fixture
def lines() -> list[str]:
    return []


@pytest.fixture
def log(clock: Clock, lines: list[str]) -> Log:
    return Log(lines.append, clock=clock)


def test_a_line_has_share_rate_and_time_left(clock: Clock, log: Log, lines: list[str]) -> None:
    with log("token_counts"), log("tokenising", 64_000, "documents") as advance:
        for _ in range(4):
            clock.pass_(3.0)
            advance(8_000)
    assert lines == [
        # What takes half as long as the silence between two lines is told once.
        "token_counts: tokenising: 16,000 of 64,000 documents (25%), 2,667 documents/s, 18 s left"
    ]


def test_a_loop_that_does_not_advance_is_told_by_its_seconds(
    clock: Clock, log: Log, lines: list[str]
) -> None:
    with log("base_model"), log("training the tokenizer"):
        for _ in range(300):
            clock.pass_(0.1)
            log.tell()
    assert lines == [f"base_model: training the tokenizer: {seconds} s so far" for seconds in (5.1, 15, 25)]


def test_each_stage_above_five_seconds_is_told_and_none_below(
    clock: Clock, log: Log, lines: list[str]
) -> None:
    for name, seconds in (("a", 4), ("b", 7), ("c", 4), ("d", 6)):
        with log(name):
            for _ in range(seconds):
                clock.pass_(1.0)
                log.tell()
    assert lines == ["b: 5 s so far", "d: 5 s so far"]


def test_a_note_is_said_at_once_and_begins_the_silence_anew(clock: Clock, log: Log, lines: list[str]) -> None:
    with log("run"):
        clock.pass_(6)
        log.tell()
        clock.pass_(9)
        log.note("a\x1bb")
        clock.pass_(9)
        log.tell()
    assert lines == ["run: 6 s so far", "a\\u001bb"]


@pytest.mark.parametrize(
    ("advances", "waited", "told"),
    [
        ([], 12, "0 of 8 fits (0%), 12 s so far"),
        # After the first alone its own time is all that is known; then it is left out: it also loads and compiles.
        ([(60, 1)], 0, "1 of 8 fits (12%), 1 min 0 s each, 7 min 0 s left"),
        ([(60, 1), (2, 1), (2, 1)], 0, "3 of 8 fits (38%), 2 s each, 10 s left"),
        ([(60, 1), (2, 1), (2, 1)], 4, "3 of 8 fits (38%), 2 s each, 6 s left"),
        ([(60, 1), (2, 1), (2, 1)], 11, "3 of 8 fits (38%), 2 s each, 1 min 15 s so far"),
        ([(0, 8)], 0, "8 of 8 fits (100%), 8,000,000,000 fits/s, 0 s left"),
    ],
)
def test_time_left_is_by_the_pace_of_what_is_done(
    advances: list[tuple[float, int]], waited: float, told: str
) -> None:
    now, counter = 0.0, Counter("fitting", 8, "fits", 0.0)
    for seconds, items in advances:
        now += seconds
        counter.advance(items, now)
    assert describe([counter], now + waited) == f"fitting: {told}"


def test_without_a_total_there_is_no_time_left_and_more_than_the_total_is_no_error() -> None:
    counter = Counter("reading", None, "records", 0.0)
    counter.advance(500, 1.0)
    counter.advance(500, 2.0)
    assert describe([counter], 2.0) == "reading: 1,000 records, 500 records/s, 2 s so far"
    # A hundredth is too little to go by.
    first = Counter("training", 100, "tokens", 0.0)
    first.advance(1, 60.0)
    assert describe([first], 60.0) == "training: 1 of 100 tokens (1%), 1 min 0 s so far"
    nothing = Counter("drawing", 0, "frames", 0.0)
    assert describe([nothing], 3.0) == "drawing: 0 frames, 3 s so far"
    over = Counter("reading", 10, "records", 0.0)
    over.advance(9, 1.0)
    over.advance(9, 2.0)
    assert "180%" in describe([over], 2.0) and len(draw([over], 2.0, 60)) <= 60


def test_a_bar_leaves_out_what_a_terminal_has_no_room_for() -> None:
    stage, counter = (
        Counter("training_evidence", None, "", 0.0),
        Counter("training 6 models", 6_000_000, "tokens", 0.0),
    )
    counter.advance(1_000_000, 10.0)
    counter.advance(2_000_000, 20.0)
    shown = {columns: draw([stage, counter], 20.0, columns) for columns in range(1, 201)}
    name, end = "training_evidence: training 6 models", "200,000 tokens/s, 15 s left"
    half = {columns: f"[{'#' * (columns // 2)}{' ' * (columns // 2)}] 50%, " for columns in (8, 30)}
    assert shown[200] == f"{name} {half[30]}{end}"
    assert shown[80] == f"{name} {half[8]}{end}"
    assert shown[79] == f"{name}: 50%, {end}"
    assert shown[62] == f"{name} {half[8]}15 s left"
    assert shown[61] == f"{name}: 50%, 15 s left"
    assert shown[40] == "training 6 models: 50%, 15 s left"
    assert shown[30] == "training 6 models: 15 s left"
    assert all(len(line) <= columns for columns, line in shown.items())


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True

    def screen(self) -> list[str]:
        """The lines that are left, as a terminal shows them."""
        shown = [""]
        at = 0
        for part in re.findall(r"\r|\n|\x1b\[K|[^\r\n\x1b]+", self.getvalue()):
            if part == "\r":
                at = 0
            elif part == "\n":
                shown.append("")
                at = 0
            elif part == "\x1b[K":
                shown[-1] = shown[-1][:at]
            else:
                shown[-1] = shown[-1][:at] + part + shown[-1][at + len(part) :]
                at += len(part)
        return shown


@contextmanager
def shown_on(terminal: Terminal, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> Iterator[Bar]:
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setenv("TERM", "xterm")
    yield Bar(clock)


def test_what_others_write_stands_above_the_bar_and_nothing_of_it_stays(
    clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    terminal = Terminal()
    with shown_on(terminal, clock, monkeypatch) as bar:
        with bar("run"), bar("tokenising", 10, "documents") as advance:
            clock.pass_(1.0)
            advance(5)
            assert terminal.screen()[-1].startswith("run: tokenising [")
            print("a library warns", file=sys.stderr)
            clock.pass_(1.0)
            advance(1)
            bar.note("a note")
            clock.pass_(1.0)
            advance(1)
            assert terminal.screen()[-1].startswith("run: tokenising [")
        assert terminal.screen() == ["a library warns", "a note", ""]
        assert sys.stderr is terminal


def test_a_bar_goes_when_a_loop_fails(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    with shown_on(terminal, clock, monkeypatch) as bar:
        with pytest.raises(KeyboardInterrupt), bar("run"):
            clock.pass_(1.0)
            bar.tell()
            raise KeyboardInterrupt
        assert terminal.screen() == [""] and sys.stderr is terminal


@pytest.mark.parametrize("term", ["dumb", "unknown", None, "xterm"])
def test_a_terminal_that_moves_no_cursor_gets_lines(
    term: str | None, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    terminal = Terminal()
    with shown_on(terminal, clock, monkeypatch) as bar:
        monkeypatch.setenv("TERM", term) if term else monkeypatch.delenv("TERM")
        with bar("run"):
            for _ in range(60):
                clock.pass_(0.1)
                bar.tell()
    assert (CLEAR in terminal.getvalue()) == (term == "xterm")
    assert (terminal.screen() == ["run: 5.1 s so far", ""]) == (term != "xterm")


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
    bar = Bar(clock)
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
    assert not [thread for thread in threading.enumerate() if thread.name == "divorder-progress"]


def test_a_loop_that_is_left_halfway_ends_with_the_one_around_it(log: Log, lines: list[str]) -> None:
    with log("run"):
        items = counted(log, "reading", [1, 2], 2, "items")
        assert next(items) == 1
    with log("another"):
        log.tell()
        assert [counter.what for counter in log._open] == ["another"]
        items.close()
        assert [counter.what for counter in log._open] == ["another"]
    assert not log._open


# A loop of a library that gives no hook; NumPy stands for it, which holds no lock meanwhile.
WORK = """
import sys, time
from dagster_divorder.engine import progress
progress.LINE_SECONDS = 0.4
with progress.STANDARD_ERROR("run"), progress.STANDARD_ERROR("fitting"):
    progress.STANDARD_ERROR.note("a note")
    until = time.monotonic() + 1.5
    while time.monotonic() < until:
        pass
print("the answer")
"""


def test_a_pipe_gets_lines_and_standard_output_the_answer_alone() -> None:
    done = subprocess.run([sys.executable, "-c", WORK], capture_output=True, text=True, check=True)
    assert done.stdout == "the answer\n"
    said = done.stderr.splitlines()
    assert said[0] == "a note" and len(said) > 2
    assert all(re.fullmatch(r"run: fitting: \d(\.\d+)? s so far", line) for line in said[1:])


@pytest.mark.parametrize("columns", [0, 20, 80])
def test_a_terminal_gets_one_line_that_is_rewritten(columns: int) -> None:
    leader, follower = pty.openpty()
    ioctl(follower, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    environment = {**os.environ, "TERM": "xterm", "NO_COLOR": "1"}
    with subprocess.Popen([sys.executable, "-c", WORK], stdout=follower, stderr=follower, env=environment):
        os.close(follower)
        written = b"".join(iter(_reader(leader), b"")).decode()
    os.close(leader)
    terminal = Terminal(written)
    assert terminal.screen() == ["a note", "the answer", ""]
    assert written.count("fitting: ") > 2
    drawn = re.findall(r"\x1b\[K([^\r\n]+)\r", written)
    assert max(map(len, drawn)) < (columns or 80)


def _reader(descriptor: int) -> Callable[[], bytes]:
    def read() -> bytes:
        try:
            return os.read(descriptor, 1 << 16)
        except OSError:  # closed by the last that held the other end
            return b""

    return read
