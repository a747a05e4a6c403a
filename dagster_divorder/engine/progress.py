"""How far a stage is: a bar on a terminal, log lines with rate and time left elsewhere, or nothing."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Protocol

from dagster_divorder.errors import printable

LOG_SECONDS = 5.0


class Advance(Protocol):
    """Called with the number of items just finished."""

    def __call__(self, items: int, /) -> object: ...


class Progress(Protocol):
    """Opens a counter for one loop: `with progress("tokenising", 1000, "documents") as advance: advance(10)`."""

    @contextmanager
    def __call__(self, what: str, total: int | None, unit: str, /) -> Iterator[Advance]: ...

    def note(self, message: str, /) -> object:
        """Say something once."""
        ...


class Silent:
    """Says nothing."""

    @contextmanager
    def __call__(self, what: str, total: int | None, unit: str) -> Iterator[Advance]:
        yield lambda items: None

    def note(self, message: str) -> None: ...


class Bar:
    """A tqdm bar on a terminal; nothing when standard error is not one."""

    @contextmanager
    def __call__(self, what: str, total: int | None, unit: str) -> Iterator[Advance]:
        from tqdm import tqdm

        with tqdm(total=total, desc=what, unit=f" {unit}", unit_scale=True, leave=False, disable=None) as bar:
            yield bar.update

    def note(self, message: str) -> None:
        print(printable(message), file=sys.stderr)


class Log:
    """A line every few seconds, with share, rate and time left, through any function that takes a string."""

    def __init__(self, log: Callable[[str], object], seconds: float = LOG_SECONDS) -> None:
        self._log = log
        self._seconds = seconds

    @contextmanager
    def __call__(self, what: str, total: int | None, unit: str) -> Iterator[Advance]:
        last = time.monotonic()
        done = 0
        first: tuple[int, float] | None = None

        def advance(items: int) -> None:
            nonlocal done, last, first
            done += items
            now = time.monotonic()
            # The first items also pay for what is loaded and compiled, so the rate leaves them out.
            first = first or (done, now)
            if now - last >= self._seconds:
                last = now
                self._log(describe(what, done, total, unit, done - first[0], now - first[1]))

        yield advance

    def note(self, message: str) -> None:
        self._log(printable(message))


def describe(what: str, done: int, total: int | None, unit: str, timed: int, seconds: float) -> str:
    """A progress line, such as `tokenising: 40,000 of 64,384 documents (62%), 9,120 documents/s, 3 s left`; `timed` of
    the items that are done took `seconds`."""
    rate = timed / seconds if seconds > 0 else 0.0
    speed = f", {rate:,.0f} {unit}/s" if rate >= 1 else ""
    if not total:
        return f"{what}: {done:,} {unit}{speed}"
    left = f", {(total - done) / rate:,.0f} s left" if rate else ""
    return f"{what}: {done:,} of {total:,} {unit} ({done / total:.0%}){speed}{left}"
