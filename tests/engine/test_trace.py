"""The trace of a run, as a viewer of Chrome's format reads it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import orjson
import pytest

from dagster_divorder.engine.local import LocalEngine
from dagster_divorder.engine.trace import span, tracing


@pytest.fixture
def written() -> list[bytes]:
    return []


def events(written: list[bytes]) -> Iterator[dict[str, Any]]:
    (trace,) = written
    yield from orjson.loads(trace)["traceEvents"]


def test_spans_lie_within_the_spans_around_them(written: list[bytes]) -> None:
    with tracing(written.append), span("stage", "stage"):
        assert list(LocalEngine(1).each(abs, [-1, -2])) == [1, 2]
    by_name: dict[str, list[dict[str, Any]]] = {}
    for event in events(written):
        assert event["ph"] == "X"
        by_name.setdefault(event["name"], []).append(event)
    assert {name: len(events) for name, events in by_name.items()} == {"run": 1, "stage": 1, "abs": 2}
    (outer,) = by_name["stage"]
    for inner in by_name["abs"]:
        assert outer["ts"] <= inner["ts"]
        assert inner["ts"] + inner["dur"] <= outer["ts"] + outer["dur"]
        assert (inner["pid"], inner["tid"]) == (outer["pid"], outer["tid"])


def test_a_run_that_fails_leaves_its_trace(written: list[bytes]) -> None:
    with pytest.raises(KeyError), tracing(written.append), span("stage", "stage"):
        raise KeyError
    assert {event["name"] for event in events(written)} == {"run", "stage"}


def test_without_a_trace_nothing_is_kept(written: list[bytes]) -> None:
    with span("before", "stage"):
        pass
    with tracing(written.append):
        pass
    with span("after", "stage"):
        pass
    assert [event["name"] for event in events(written)] == ["run"]
