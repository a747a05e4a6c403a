"""A trace of a run in Chrome's trace event format, which chrome://tracing and ui.perfetto.dev draw.

Spans are stages and workers' calls. Each span has its wall seconds and its thread's processor seconds; a stage also has
the processor seconds of the process with its workers. Workers' calls are timed in the process that waits for them.
Source: Trace Event Format, complete events ("ph": "X"), in microseconds.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import orjson

_events: list[dict[str, Any]] | None = None
"""The events of the trace under way; None without one."""


@contextlib.contextmanager
def span(name: str, kind: str) -> Iterator[None]:
    """Record how long a block takes, if a trace is under way. kind: "stage" or "call"."""
    events = _events
    if events is None:
        yield
        return
    start, thread, process = time.perf_counter(), time.thread_time(), sum(os.times()[:4])
    try:
        yield
    finally:
        used = {"thread_seconds": round(time.thread_time() - thread, 4)}
        if kind == "stage":
            used["process_seconds"] = round(sum(os.times()[:4]) - process, 2)
        events.append(
            {
                "name": name,
                "cat": kind,
                "ph": "X",
                "ts": round(start * 1e6),
                "dur": round((time.perf_counter() - start) * 1e6),
                "pid": os.getpid(),
                "tid": threading.get_native_id(),
                "args": used,
            }
        )


@contextlib.contextmanager
def tracing(write: Callable[[bytes], object]) -> Iterator[None]:
    """Trace the block and write the trace at its end, even if it fails. A process has one trace at a time."""
    global _events
    _events = []
    try:
        with span("run", "stage"):
            yield
    finally:
        events, _events = _events, None
        write(orjson.dumps({"traceEvents": events, "displayTimeUnit": "ms"}))
