"""Progress of a command or a stage: a line every few seconds.

Loops in progress are a stack of counters. The innermost is reported with its share and time left; without a count, with
the seconds passed. A separate thread reports while libraries compute; it lives as long as a counter is open.
"""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TypeAlias, TypeVar

from dagster_divorder.errors import printable
from dagster_divorder.units import duration

Item = TypeVar("Item")

LINE_SECONDS, TERMINAL_SECONDS = 10.0, 3.0
"""Seconds between two lines, in a log and on a terminal."""

Advance: TypeAlias = Callable[[int], object]
"""Called with the number of items just finished."""


class Silent:
    """Reports nothing.

    Progress opens a counter for one loop: `with progress("tokenising", 1000, "documents") as advance: advance(10)`.
    Without a total and a unit, the counter reports the seconds passed. `note` reports a message once.
    """

    @contextlib.contextmanager
    def __call__(self, what: str, total: int | None = None, unit: str = "") -> Iterator[Advance]:
        yield lambda items: None

    def note(self, message: str) -> None: ...


@dataclass(eq=False, slots=True)
class Counter:
    """One loop. opened: clock in seconds."""

    what: str
    total: int | None
    unit: str
    opened: float
    done: int = 0

    def figures(self, now: float) -> str:
        """Such as `40,000 of 64,384 documents (62%), 3 s left`, or `12 s so far`."""
        passed = now - self.opened
        count = f"{self.done:,} {self.unit}, " if self.unit else ""
        if self.total:
            count = f"{self.done:,} of {self.total:,} {self.unit} ({self.done / self.total:.0%}), "
            if 0 < self.done <= self.total:
                return f"{count}{duration((self.total - self.done) * passed / self.done)} left"
        return f"{count}{duration(passed)} so far"


class Log:
    """Lines to any function that takes a string, at least `seconds` apart."""

    def __init__(self, log: Callable[[str], object], seconds: float = LINE_SECONDS) -> None:
        self._log, self._seconds, self._reported_at = log, seconds, 0.0
        self._open: list[Counter] = []
        self._lock, self._ended = threading.RLock(), threading.Event()

    @contextlib.contextmanager
    def __call__(self, what: str, total: int | None = None, unit: str = "") -> Iterator[Advance]:
        counter = Counter(what, total, unit, time.monotonic())

        def advance(items: int) -> None:
            with self._lock:
                counter.done += items
                self.tell()

        with self._lock:
            self._open.append(counter)
            if len(self._open) == 1:
                self._reported_at, self._ended = time.monotonic(), threading.Event()
                threading.Thread(target=self._speak, args=(self._ended,), daemon=True).start()
        try:
            yield advance
        finally:
            with self._lock:
                if counter in self._open:
                    # Removes counters inside it too: a failed generator may be closed much later.
                    del self._open[self._open.index(counter) :]
                    if not self._open:
                        self._ended.set()

    def _speak(self, ended: threading.Event) -> None:
        while not ended.wait(1.0):
            self.tell()

    def tell(self) -> None:
        """Reports the innermost counter, if it is time to: `token_counts: tokenising: 40,000 of 64,384 documents (62%),
        3 s left`."""
        with self._lock:
            now = time.monotonic()
            if self._open and now - self._reported_at >= self._seconds:
                names = ": ".join(counter.what for counter in self._open[-2:])
                # A failed report must not fail the work.
                with contextlib.suppress(Exception):
                    self.note(f"{names}: {self._open[-1].figures(now)}")

    def note(self, message: str) -> None:
        with self._lock:
            self._reported_at = time.monotonic()
            self._log(printable(message))


def _is_terminal() -> bool:
    with contextlib.suppress(AttributeError, ValueError):  # there is none, or it is closed
        return sys.stderr.isatty()
    return False


def _print(line: str) -> None:
    # A full disk of a log, or a closed stream, must not fail the work.
    with contextlib.suppress(OSError, ValueError):
        if sys.stderr:
            print(line, file=sys.stderr, flush=True)


Progress: TypeAlias = Silent | Log

STANDARD_ERROR = Log(_print, TERMINAL_SECONDS if _is_terminal() else LINE_SECONDS)


def counted(
    progress: Progress, what: str, items: Iterable[Item], total: int | None, unit: str
) -> Iterator[Item]:
    """The items, each counted when the next one is requested."""
    with progress(what, total, unit) as advance:
        for item in items:
            yield item
            advance(1)
