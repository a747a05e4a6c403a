"""Progress of a command or a stage: one rewritten line on a terminal, elsewhere a line every ten seconds.

Loops in progress are a stack of counters. The innermost is reported with its share, rate and time left; without a
count, with the seconds passed. A separate thread reports while libraries compute; it lives as long as a counter is
open.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import TypeAlias, TypeVar

from dagster_divorder.errors import printable
from dagster_divorder.units import duration

Item = TypeVar("Item")

LINE_SECONDS = 10.0
"""Seconds between two lines if no line can be rewritten."""
DRAW_SECONDS = 0.2
"""Seconds between two drawings of a rewritten line."""


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
    """One loop. opened: clock in seconds. first: items done at the first advance, and its time: the rate leaves them
    out, because loading and compiling take part of their time."""

    what: str
    total: int | None
    unit: str
    opened: float
    done: int = 0
    first: tuple[int, float] | None = None

    def figures(self, now: float) -> Iterator[str]:
        """The count, such as `40,000 of 64,384 documents (62%)`; the rate, such as `9,120 documents/s`; the time left,
        such as `3 s left`, else the time passed, such as `12 s so far`."""
        if self.total:
            yield f"{self.done:,} of {self.total:,} {self.unit} ({self.done / self.total:.0%})"
        elif self.unit:
            yield f"{self.done:,} {self.unit}"
        done, since = self.first or (0, now)
        rate = (self.done - done) / (now - since) if now > since else 0.0
        if rate:
            yield f"{rate:,.0f} {self.unit}/s" if rate >= 1 else f"{duration(1 / rate)} each"
        if rate and self.total and self.total >= self.done:
            yield f"{duration((self.total - self.done) / rate)} left"
        else:
            yield f"{duration(now - self.opened)} so far"


class Log:
    """Lines to any function that takes a string, at least `seconds` apart."""

    def __init__(self, log: Callable[[str], object], seconds: float = LINE_SECONDS) -> None:
        self._log, self._show, self._seconds, self._reported_at = log, log, seconds, 0.0
        self._open: list[Counter] = []
        self._lock = threading.RLock()

    @contextlib.contextmanager
    def __call__(self, what: str, total: int | None = None, unit: str = "") -> Iterator[Advance]:
        counter = Counter(what, total, unit, time.monotonic())
        with self._lock:
            self._open.append(counter)
            if len(self._open) == 1:
                self._begin()
        try:
            yield partial(self._advance, counter)
        finally:
            with self._lock:
                if counter in self._open:
                    # Removes counters inside it too: a failed generator may be closed much later.
                    del self._open[self._open.index(counter) :]
                    if not self._open:
                        self._end()

    def _begin(self) -> None:
        self._reported_at, self._ended = time.monotonic(), threading.Event()
        threading.Thread(
            target=self._speak, args=(self._ended,), name="divorder-progress", daemon=True
        ).start()

    def _end(self) -> None:
        self._ended.set()

    def _speak(self, ended: threading.Event) -> None:
        while not ended.wait(DRAW_SECONDS):
            self.tell()

    def _advance(self, counter: Counter, items: int) -> None:
        with self._lock:
            counter.done += items
            counter.first = counter.first or (counter.done, time.monotonic())
            self.tell()

    def tell(self) -> None:
        """Reports the innermost counter, if it is time to: `token_counts: tokenising: 40,000 of 64,384 documents (62%),
        9,120 documents/s, 3 s left`."""
        with self._lock:
            now = time.monotonic()
            if self._open and now - self._reported_at >= self._seconds:
                self._reported_at = now
                names = ": ".join(counter.what for counter in self._open[-2:])
                # A failed report must not fail the work.
                with contextlib.suppress(Exception):
                    self._show(printable(f"{names}: {', '.join(self._open[-1].figures(now))}"))

    def note(self, message: str) -> None:
        with self._lock:
            self._reported_at = time.monotonic()
            self._log(printable(message))


class Bar(Log):
    """Progress on standard error: a rewritten line on a terminal, below what others write; else lines."""

    def __init__(self) -> None:
        super().__init__(_print)
        self._below = contextlib.ExitStack()

    def _begin(self) -> None:
        self._seconds = LINE_SECONDS
        with contextlib.suppress(ValueError):  # closed
            if (
                sys.stderr
                and sys.stderr.isatty()
                and os.environ.get("TERM", "dumb") not in ("dumb", "unknown")
            ):
                from rich.console import Console
                from rich.text import Text

                line = self._below.enter_context(Console(stderr=True).status("", spinner="line"))
                self._seconds = DRAW_SECONDS
                self._show = lambda text: line.update(Text(text, no_wrap=True, overflow="ellipsis"))
        super()._begin()

    def _end(self) -> None:
        super()._end()
        self._below.close()
        self._show = self._log


def _print(line: str) -> None:
    # A full disk of a log, or a closed stream, must not fail the work.
    with contextlib.suppress(OSError, ValueError):
        if sys.stderr:
            sys.stderr.write(f"{line}\n")
            sys.stderr.flush()


Progress: TypeAlias = Silent | Log

STANDARD_ERROR = Bar()
"""The bar of this process; two would overwrite each other."""


def counted(
    progress: Progress, what: str, items: Iterable[Item], total: int | None, unit: str
) -> Iterator[Item]:
    """The items, each counted when the next one is requested."""
    with progress(what, total, unit) as advance:
        for item in items:
            yield item
            advance(1)
