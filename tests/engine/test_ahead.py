"""One step ahead: the same items in order, computed while the last one is used; errors and early ends pass through."""

from __future__ import annotations

import threading
from collections.abc import Generator

import pytest

from dagster_divorder.engine.ahead import ahead


def test_the_next_item_is_computed_while_the_last_is_used() -> None:
    started = [threading.Event() for _ in range(4)]

    def items() -> Generator[int, None, None]:
        for number in range(4):
            started[number].set()
            yield number

    taken = []
    for number in ahead(items()):
        taken.append(number)
        if number < 3:
            assert started[number + 1].wait(10)
        assert not any(event.is_set() for event in started[number + 2 :])
    assert taken == [0, 1, 2, 3]


def test_an_error_comes_where_its_item_would() -> None:
    def items() -> Generator[int, None, None]:
        yield 1
        raise OSError("disk")

    ahead_of_items = ahead(items())
    assert next(ahead_of_items) == 1
    with pytest.raises(OSError, match="disk"):
        next(ahead_of_items)


def test_an_early_end_closes_the_source_before_it_returns() -> None:
    closed = []

    def items() -> Generator[int, None, None]:
        try:
            yield from range(100)
        finally:
            closed.append(True)

    ahead_of_items = ahead(items())
    assert next(ahead_of_items) == 0
    ahead_of_items.close()
    assert closed == [True]
    assert list(ahead(items())) == list(range(100))
    assert closed == [True, True]
