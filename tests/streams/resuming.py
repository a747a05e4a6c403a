"""A stream that is stopped goes on exactly where it was."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterable
from typing import Any

Make = Callable[[], Any]
Values = Callable[[Any], list[Any]]


def state_after(stream: Any, stop: int) -> Any:
    """The state of a stream after `stop` examples, or all if it has fewer, as a file gives it back."""
    iterator = iter(stream)
    for _ in range(stop):
        next(iterator, None)
    return pickle.loads(pickle.dumps(stream.state_dict()))


def resumed(make: Make, state: Any) -> Any:
    stream = make()
    stream.load_state_dict(state)
    return stream


def resumes_exactly(make: Make, stops: Iterable[int], values: Values = list) -> list[Any]:
    """At each stop; the values of the whole stream."""
    whole = values(make())
    for stop in stops:
        assert values(resumed(make, state_after(make(), stop))) == whole[stop:]
    return whole


def resumes_twice(make: Make, stop: int, again: int, values: Values = list) -> None:
    """At two stops, the second in the resumed stream."""
    whole = values(make())
    first = state_after(make(), stop)
    second = state_after(resumed(make, first), again)
    assert values(resumed(make, first)) == whole[stop:]
    assert values(resumed(make, second)) == whole[stop + again :]
