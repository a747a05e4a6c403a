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
from typing import Any, Protocol, TypeVar

from dagster_divorder.errors import printable
from dagster_divorder.units import duration

Item = TypeVar("Item")

LINE_SECONDS = 10.0
"""Seconds between two lines if no line can be rewritten. A loop that takes half as long is reported at least once."""
DRAW_SECONDS = 0.2
"""Seconds between two drawings of a bar."""
ALONE = 0.05
"""From this share of the total on, the first items alone give a rate, although loading takes part of their time."""
SHORTEST, LONGEST = 8, 30
"""Characters of a bar."""
CLEAR = "\r\x1b[K"


class Advance(Protocol):
    """Called with the number of items just finished."""

    def __call__(self, items: int, /) -> object: ...


class Progress(Protocol):
    """Opens a counter for one loop: `with progress("tokenising", 1000, "documents") as advance: advance(10)`. Without a
    total and a unit, the counter reports the seconds passed."""

    @contextlib.contextmanager
    def __call__(self, what: str, total: int | None = None, unit: str = "", /) -> Iterator[Advance]: ...

    def note(self, message: str, /) -> object:
        """Reports a message once."""
        ...


class Silent:
    """Reports nothing."""

    @contextlib.contextmanager
    def __call__(self, what: str, total: int | None = None, unit: str = "") -> Iterator[Advance]:
        yield lambda items: None

    def note(self, message: str) -> None: ...


def counted(
    progress: Progress, what: str, items: Iterable[Item], total: int | None, unit: str
) -> Iterator[Item]:
    """The items, each counted when the next one is requested."""
    with progress(what, total, unit) as advance:
        for item in items:
            yield item
            advance(1)


@dataclass(eq=False, slots=True)
class Counter:
    """One loop. opened: clock in seconds. first: items done at the first advance, and its time; last: time of the last
    advance. reported: whether a line or a bar has shown it."""

    what: str
    total: int | None
    unit: str
    opened: float
    done: int = 0
    first: tuple[int, float] | None = None
    last: float = 0.0
    reported: bool = False

    def advance(self, items: int, now: float) -> None:
        self.done += items
        self.last = now
        # The rate leaves out the first items: loading and compiling take part of their time.
        self.first = self.first or (self.done, now)

    @property
    def share(self) -> float | None:
        """Finished share of the total, None without a total."""
        return self.done / self.total if self.total else None

    def count(self) -> str:
        """The count, such as `40,000 of 64,384 documents (62%)`; "" if nothing is counted."""
        if not self.unit:
            return ""
        if self.share is None:
            return f"{self.done:,} {self.unit}"
        return f"{self.done:,} of {self.total:,} {self.unit} ({self.share:.0%})"

    def pace(self, now: float) -> tuple[str, str]:
        """The rate, such as `9,120 documents/s`, "" if unknown; the time left, such as `3 s left`, else the time
        passed, such as `12 s so far`."""
        so_far = f"{duration(now - self.opened)} so far"
        if self.first is None:
            return "", so_far
        done, since = self.first
        rate = (self.done - done) / (self.last - since) if self.last > since else 0.0
        if not rate and (self.share is None or self.share >= ALONE):
            rate = self.done / max(self.last - self.opened, 1e-9)
        speed = f"{rate:,.0f} {self.unit}/s" if rate >= 1 else f"{duration(1 / rate)} each" if rate else ""
        if self.total is None or not rate:
            return speed, so_far
        seconds_left = (self.total - self.done) / rate - (now - self.last)
        # Below 0 the rate is outdated.
        return speed, f"{duration(seconds_left)} left" if seconds_left >= 0 else so_far


def describe(counters: list[Counter], now: float) -> str:
    """A progress line of the innermost counter, such as `token_counts: tokenising: 40,000 of 64,384 documents (62%),
    9,120 documents/s, 3 s left`."""
    inner = counters[-1]
    return f"{_names(counters)}: {', '.join(filter(None, [inner.count(), *inner.pace(now)]))}"


def draw(counters: list[Counter], now: float, columns: int) -> str:
    """A progress line for a terminal, as much as fits into its columns; the time left comes first."""
    inner = counters[-1]
    speed, time_left = inner.pace(now)
    count = inner.count() if inner.share is None else f"{inner.share:.0%}"
    for name in (_names(counters), inner.what):
        for figures in ([count, speed, time_left], [count, time_left]):
            text = ", ".join(filter(None, figures))
            width = min(columns - len(name) - len(text) - 4, LONGEST)
            if inner.share is not None and width >= SHORTEST:
                full = round(min(inner.share, 1.0) * width)
                return f"{name} [{'#' * full}{' ' * (width - full)}] {text}"
            if len(name) + 2 + len(text) <= columns:
                return f"{name}: {text}"
    return f"{inner.what}: {time_left}"[:columns]


def _names(counters: list[Counter]) -> str:
    """The names of the innermost counter and the counter around it."""
    return printable(": ".join(counter.what for counter in counters[-2:]))


class Log:
    """Lines to any function that takes a string, at least `seconds` apart."""

    def __init__(
        self,
        log: Callable[[str], object],
        seconds: float = LINE_SECONDS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._log, self._seconds, self._clock = log, seconds, clock
        self._open: list[Counter] = []
        self._reported_at = 0.0
        self._lock = threading.RLock()
        self._ended = threading.Event()

    @contextlib.contextmanager
    def __call__(self, what: str, total: int | None = None, unit: str = "") -> Iterator[Advance]:
        counter = Counter(what, total, unit, self._clock())
        with self._lock:
            self._open.append(counter)
            if len(self._open) == 1:
                self._begin(counter.opened)
        try:
            yield partial(self._advance, counter)
        finally:
            speaker = None
            with self._lock:
                if counter in self._open:
                    # Removes counters inside it too: a failed generator may be closed much later.
                    del self._open[self._open.index(counter) :]
                    speaker = None if self._open else self._end()
            if speaker:
                speaker.join()

    def _begin(self, now: float) -> None:
        self._reported_at, self._ended = now, threading.Event()
        self._speaker = threading.Thread(
            target=self._speak, args=(self._ended,), name="divorder-progress", daemon=True
        )
        self._speaker.start()

    def _end(self) -> threading.Thread:
        self._ended.set()
        return self._speaker

    def _speak(self, ended: threading.Event) -> None:
        while not ended.wait(min(1.0, max(DRAW_SECONDS, self._seconds / 10))):
            self.tell()

    def _advance(self, counter: Counter, items: int) -> None:
        with self._lock:
            counter.advance(items, self._clock())
            self.tell()

    def tell(self) -> None:
        """Reports progress, if it is time to."""
        with self._lock:
            now = self._clock()
            is_due = now - self._reported_at >= self._seconds or any(
                now - counter.opened >= self._seconds / 2 for counter in self._open if not counter.reported
            )
            if not self._open or not is_due:
                return
            self._reported_at = now
            for counter in self._open:
                counter.reported = True
            # A failed report must not fail the work.
            with contextlib.suppress(Exception):
                self._report(now)

    def _report(self, now: float) -> None:
        self._log(describe(self._open, now))

    def note(self, message: str) -> None:
        with self._lock:
            self._reported_at = self._clock()
            self._log(printable(message))


class Bar(Log):
    """Progress on standard error: a rewritten line on a terminal, else lines."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__(self._print, clock=clock)
        self._drawn = False
        self._stream: Any = None

    def _print(self, line: str) -> None:
        try:
            if sys.stderr:
                sys.stderr.write(f"{line}\n")
                sys.stderr.flush()
        except BrokenPipeError:
            raise  # the reader of a pipe has closed it
        except (OSError, ValueError):
            pass  # a full disk of a log, or a closed stream, must not fail the work

    def _begin(self, now: float) -> None:
        if _rewrites(sys.stderr):
            self._stream, sys.stderr = sys.stderr, _Above(self, sys.stderr)
        self._seconds = DRAW_SECONDS if self._stream else LINE_SECONDS
        super()._begin(now)

    def _end(self) -> threading.Thread:
        if self._stream:
            self.clear()
            sys.stderr, self._stream = self._stream, None
        return super()._end()

    def _report(self, now: float) -> None:
        if not self._stream:
            super()._report(now)
            return
        try:
            columns = os.get_terminal_size(self._stream.fileno()).columns or 80
        except (OSError, ValueError):
            columns = 80
        # Other output begins at the left; the last column stays free so that the line never breaks.
        self._stream.write(f"{CLEAR}{draw(self._open, now, columns - 1)}\r")
        self._stream.flush()
        self._drawn = True

    def clear(self) -> None:
        """Removes the bar."""
        with self._lock:
            if self._drawn:
                self._drawn = False
                with contextlib.suppress(OSError, ValueError):
                    self._stream.write(CLEAR)
                    self._stream.flush()


def _rewrites(stream: Any) -> bool:
    """Whether a stream is a terminal whose lines can be rewritten."""
    try:
        return bool(stream and stream.isatty() and os.environ.get("TERM", "dumb") not in ("dumb", "unknown"))
    except ValueError:  # closed
        return False


class _Above:
    """The stream of a terminal with a bar: text replaces the bar, and the bar is drawn again below."""

    def __init__(self, bar: Bar, stream: Any) -> None:
        self._bar, self._stream = bar, stream

    def write(self, text: str) -> int:
        self._bar.clear()
        written: int = self._stream.write(text)
        return written

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


STANDARD_ERROR = Bar()
"""The bar of this process; two would overwrite each other."""
