"""What a run would take on more cores: worker processes that wait as long as the calls of a traced run took.

    divorder run --trace trace.json
    .venv/bin/python benchmarks/scale/replay.py trace.json [--workers 2 16 64]

A call that waits is a model of input and output: it needs no core, so two cores can hold 64 workers. The calls of a
stage are given to the engine in their order. `rest` is the part of a stage outside all calls; it stays as it was.
Stages beside others count where the run waited for them: in `beside`, the end of the run less the sum of the rest.
What it does not show: the start of workers is timed on the cores of this machine, and memory and disks are not shared.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

from dagster_divorder.engine.local import LocalEngine

Event = dict[str, Any]


def main() -> None:
    made = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("trace", type=Path)
    made.add_argument("--workers", type=int, nargs="+", default=[2, 16, 64])
    options = made.parse_args()
    events: list[Event] = json.loads(options.trace.read_bytes())["traceEvents"]
    run = next(event for event in events if event["name"] == "run")
    stages = sorted(
        (
            event
            for event in events
            if event["cat"] == "stage" and event["tid"] == run["tid"] and event is not run
        ),
        key=lambda event: event["ts"],
    )
    print(
        f"{'stage':22}{'seconds':>9}{'calls':>7}{'rest':>8}" + "".join(f"{n:>7} w" for n in options.workers)
    )
    totals = [0.0] * (2 + len(options.workers))
    for stage in stages:
        calls = [event for event in events if event["cat"] == "call" and is_within(event, stage)]
        seconds, rest = stage["dur"] / 1e6, (stage["dur"] - covered(calls)) / 1e6
        waits = [call["dur"] / 1e6 for call in sorted(calls, key=lambda event: event["ts"])]
        shared = len({call["tid"] for call in calls}) > 1
        figures = [rest + replayed(waits, n) if shared else seconds for n in options.workers]
        row = [seconds, rest if shared else seconds, *figures]
        totals = [total + figure for total, figure in zip(totals, row, strict=True)]
        print(line(stage["name"], len(calls) if shared else 0, row))
    beside = run["dur"] / 1e6 - totals[0]
    print(line("beside", 0, [beside] * len(totals)))
    print(line("run", 0, [total + beside for total in totals]))


def is_within(call: Event, stage: Event) -> bool:
    return bool(stage["ts"] <= call["ts"] and call["ts"] + call["dur"] <= stage["ts"] + stage["dur"])


def covered(calls: list[Event]) -> float:
    """Microseconds in which at least one call is under way."""
    total, end = 0.0, 0.0
    for call in sorted(calls, key=lambda event: event["ts"]):
        last = call["ts"] + call["dur"]
        total += max(0.0, last - max(end, call["ts"]))
        end = max(end, last)
    return total


def replayed(waits: list[float], workers: int) -> float:
    """Seconds that the engine takes for calls that wait."""
    start = time.perf_counter()
    for _ in LocalEngine(workers).each(time.sleep, waits):
        pass
    return time.perf_counter() - start


def line(name: str, calls: int, seconds: list[float]) -> str:
    whole, rest, *replays = seconds
    return f"{name:22}{whole:9.1f}{calls or '':>7}{rest:8.1f}" + "".join(f"{each:9.1f}" for each in replays)


if __name__ == "__main__":
    main()
