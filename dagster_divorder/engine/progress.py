"""How far a command or a stage is: on a terminal one line that is rewritten, elsewhere a line every ten seconds.

What is going on is a stack of counters, and the innermost one is told with its share, rate and time left, or with the
seconds that have passed where there is nothing to count. A thread speaks while libraries compute; it does nothing else,
and lives as long as a counter is open.
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
"""Between two lines where nothing can be rewritten. What takes half as long is told at least once."""
DRAW_SECONDS = 0.2
"""Between two drawings of a bar."""
ALONE = 0.05
"""Share of the total from which on the first items alone tell a rate, though they also pay for what is loaded."""
SHORTEST, LONGEST = 8, 30
"""Characters of a bar."""
CLEAR = "\r\x1b[K"


class Advance(Protocol):
    """Called with the number of items just finished."""

    def __call__(self, items: int, /) -> object: ...


class Progress(Protocol):
    """Opens a counter for one loop: `with progress("tokenising", 1000, "documents") as advance: advance(10)`. Without a
    total and a unit the seconds that have passed are told."""

    @contextlib.contextmanager
    def __call__(self, what: str, total: int | None = None, unit: str = "", /) -> Iterator[Advance]: ...

    def note(self, message: str, /) -> object:
        """Say something once."""
        ...


class Silent:
    """Says nothing."""

    @contextlib.contextmanager
    def __call__(self, what: str, total: int | None = None, unit: str = "") -> Iterator[Advance]:
        yield lambda items: None

    def note(self, message: str) -> None: ...


def counted(
    progress: Progress, what: str, items: Iterable[Item], total: int | None, unit: str
) -> Iterator[Item]:
    """The items, each counted when the next one is asked for."""
    with progress(what, total, unit) as advance:
        for item in items:
            yield item
            advance(1)


@dataclass(eq=False, slots=True)
class Counter:
    """One loop since `opened`, in seconds of a clock. `first` and `last`: items that were done, and when, at the first
    advance and at the last."""

    what: str
    total: int | None
    unit: str
    opened: float
    done: int = 0
    first: tuple[int, float] | None = None
    last: float = 0.0
    told: bool = False

    def advance(self, items: int, now: float) -> None:
        self.done += items
        self.last = now
        # The first items also pay for what is loaded and compiled, so the rate leaves them out.
        self.first = self.first or (self.done, now)

    @property
    def share(self) -> float | None:
        """Part of the total that is done, None without a total."""
        return self.done / self.total if self.total else None

    def count(self) -> str:
        """Such as `40,000 of 64,384 documents (62%)`; "" where nothing is counted."""
        if not self.unit:
            return ""
        if self.share is None:
            return f"{self.done:,} {self.unit}"
        return f"{self.done:,} of {self.total:,} {self.unit} ({self.share:.0%})"

    def pace(self, now: float) -> tuple[str, str]:
        """(such as `9,120 documents/s`, "" where no item is done; such as `3 s left`, or how long it has gone on)."""
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
        left = (self.total - self.done) / rate - (now - self.last)
        # Late: the pace no longer holds, so no end can be told.
        return speed, f"{duration(left)} left" if left >= 0 else so_far


def describe(counters: list[Counter], now: float) -> str:
    """A progress line on the innermost of some counters, such as `token_counts: tokenising: 40,000 of 64,384 documents
    (62%), 9,120 documents/s, 3 s left`."""
    inner = counters[-1]
    told = ", ".join(filter(None, [inner.count(), *inner.pace(now)]))
    return f"{_names(counters)}: {told}"


def draw(counters: list[Counter], now: float, columns: int) -> str:
    """The same on one line of a terminal: as much of it as there is room for, the time left to the last."""
    inner = counters[-1]
    speed, left = inner.pace(now)
    count = inner.count() if inner.share is None else f"{inner.share:.0%}"
    for name in (_names(counters), inner.what):
        for parts in ([count, speed, left], [count, left]):
            told = ", ".join(filter(None, parts))
            width = min(columns - len(name) - len(told) - 4, LONGEST)
            if inner.share is not None and width >= SHORTEST:
                full = round(min(inner.share, 1.0) * width)
                return f"{name} [{'#' * full}{' ' * (width - full)}] {told}"
            if len(name) + 2 + len(told) <= columns:
                return f"{name}: {told}"
    return f"{inner.what}: {left}"[:columns]


def _names(counters: list[Counter]) -> str:
    """Of a counter and the one that it is a part of."""
    return printable(": ".join(counter.what for counter in counters[-2:]))


class Log:
    """Lines through any function that takes a string, `seconds` of silence between them."""

    def __init__(
        self,
        log: Callable[[str], object],
        seconds: float = LINE_SECONDS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._log, self._seconds, self._clock = log, seconds, clock
        self._open: list[Counter] = []
        self._said = 0.0
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
                    # With those inside it: a generator that failed may be closed much later.
                    del self._open[self._open.index(counter) :]
                    speaker = None if self._open else self._end()
            if speaker:
                speaker.join()

    def _begin(self, now: float) -> None:
        self._said, self._ended = now, threading.Event()
        self._speaker = threading.Thread(
            target=self._speak, args=(self._ended,), name="divorder-progress", daemon=True
        )
        self._speaker.start()

    def _end(self) -> threading.Thread:
        self._ended.set()
        return self._speaker

    def _speak(self, ended: threading.Event) -> None:
        while not ended.wait(self._every):
            self.tell()

    @property
    def _every(self) -> float:
        """Seconds after which the speaker looks whether there is something to say."""
        return min(1.0, max(DRAW_SECONDS, self._seconds / 10))

    def _advance(self, counter: Counter, items: int) -> None:
        with self._lock:
            counter.advance(items, self._clock())
            self.tell()

    def tell(self) -> None:
        """Say how far it is, where it is time to."""
        with self._lock:
            now = self._clock()
            if not self._open or not self._is_due(now):
                return
            self._said = now
            for counter in self._open:
                counter.told = True
            # No work fails because nobody hears how it goes.
            with contextlib.suppress(Exception):
                self._say(now)

    def _is_due(self, now: float) -> bool:
        return now - self._said >= self._seconds or any(
            now - counter.opened >= self._seconds / 2 for counter in self._open if not counter.told
        )

    def _say(self, now: float) -> None:
        self._log(describe(self._open, now))

    def note(self, message: str) -> None:
        with self._lock:
            self._said = self._clock()
            self._log(printable(message))


class Bar(Log):
    """On standard error: a line that is rewritten where that is a terminal, else lines."""

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
            raise  # whoever read it has closed it, and wants no more
        except (OSError, ValueError):
            pass  # a full disk of a log, or a stream that is closed, is none of the work's

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

    def _say(self, now: float) -> None:
        if not self._stream:
            super()._say(now)
            return
        try:
            columns = os.get_terminal_size(self._stream.fileno()).columns or 80
        except (OSError, ValueError):
            columns = 80
        # What others write without asking begins at the left, and the last column is left free: no line breaks there.
        self._stream.write(f"{CLEAR}{draw(self._open, now, columns - 1)}\r")
        self._stream.flush()
        self._drawn = True

    def clear(self) -> None:
        """Take the bar away."""
        with self._lock:
            if self._drawn:
                self._drawn = False
                with contextlib.suppress(OSError, ValueError):
                    self._stream.write(CLEAR)
                    self._stream.flush()


def _rewrites(stream: Any) -> bool:
    """Whether a stream is a terminal that moves its cursor."""
    try:
        return bool(stream and stream.isatty() and os.environ.get("TERM", "dumb") not in ("dumb", "unknown"))
    except ValueError:  # closed
        return False


class _Above:
    """A terminal's stream on which a bar is drawn: what is written to it takes the bar's place, which is drawn again
    below."""

    def __init__(self, bar: Bar, stream: Any) -> None:
        self._bar, self._of = bar, stream

    def write(self, text: str) -> int:
        self._bar.clear()
        written: int = self._of.write(text)
        return written

    def __getattr__(self, name: str) -> Any:
        return getattr(self._of, name)


STANDARD_ERROR = Bar()
"""That of this process: two bars would write over each other."""
