"""An iterator that is one item ahead, in a thread: for work that leaves the interpreter's lock free."""

from __future__ import annotations

from collections.abc import Generator
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

Item = TypeVar("Item")


def ahead(items: Generator[Item, None, None]) -> Generator[Item, None, None]:
    """The same items in the same order; the next one is computed while the last one is used.

    `items` runs in another thread, one step at a time, and is closed at the end, also at an early one. Its errors are
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
