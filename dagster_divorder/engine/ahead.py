"""An iterator that computes one item ahead, in a thread: for work that releases the interpreter's lock."""

from __future__ import annotations

from collections.abc import Generator
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

Item = TypeVar("Item")


def ahead(items: Generator[Item, None, None]) -> Generator[Item, None, None]:
    """The same items in the same order; the next item is computed while the caller uses the last one.

    `items` runs in another thread, one step at a time, and is closed at the end, even an early one. Its errors are
    raised here.
    """
    with ThreadPoolExecutor(1, thread_name_prefix="divorder-ahead") as thread:
        try:
            coming = thread.submit(next, items, None)
            while (item := coming.result()) is not None:
                coming = thread.submit(next, items, None)
                yield item
        finally:
            thread.submit(items.close)
