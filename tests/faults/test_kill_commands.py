"""kill -9 beside the plain run of JSONL: in prune, on Parquet, with workers.

Each is killed at some of the calls that reach the disk, spread over the whole of it, then done again. The output is
that of a command that was never killed, the store holds the same files, and no fragment is computed twice.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dagster_divorder.store.base import TEMPORARY
from tests.conftest import topic_records, write_jsonl
from tests.faults.conftest import differing, make_corpus, output_of
from tests.faults.runner import EVENTS, Runner
from tests.faults.test_kill import finished_fragments


def shrink(folder: Path) -> None:
    """Take records away and change settings, so that there is much to prune."""
    write_jsonl(folder / "in/0.jsonl", topic_records(4))
    (folder / "in/1.jsonl").unlink()
    config = folder / "divorder.toml"
    config.write_text(config.read_text().replace("k = 4", "k = 3"))


def as_parquet(folder: Path) -> None:
    for number in range(3):
        path = folder / f"in/{number}.jsonl"
        pq.write_table(
            pa.Table.from_pylist(topic_records(10, start=10 * number)), path.with_suffix(".parquet")
        )
        path.unlink()


def nothing(folder: Path) -> None: ...


@dataclass(frozen=True)
class Scenario:
    """What is done to the corpus before its first run and after it (None: there is none), and the command to kill."""

    before: Callable[[Path], None] = nothing
    after: Callable[[Path], None] | None = None
    command: str = "run"
    points: int = 5
    workers: int = 1


SCENARIOS = {
    "prune": Scenario(after=shrink, command="prune", points=4),
    "Parquet": Scenario(before=as_parquet, points=4),
    "two workers": Scenario(workers=2, points=2),
}


WHEN = {"fsync": ("half", "half"), "replace": ("before", "after"), "unlink": ("after", "after")}


def stored(folder: Path) -> list[str]:
    names = (path.relative_to(folder).as_posix() for path in (folder / "store").rglob("*") if path.is_file())
    return sorted(name for name in names if TEMPORARY not in name)


@pytest.mark.parametrize("name", SCENARIOS)
def test_a_command_that_is_killed_and_done_again_leaves_what_an_undisturbed_one_does(
    name: str, tmp_path: Path, runner: Runner
) -> None:
    scenario = SCENARIOS[name]
    place = tmp_path / "corpus"

    def divorder(command: str, **job: Any) -> int:
        constants = {"WORKER_BYTES": 1} if scenario.workers > 1 else {}
        return runner.run(
            place / "divorder.toml",
            tmp_path / "log",
            command=command,
            constants=constants,
            **job,
        )

    def said() -> str:
        return (tmp_path / "log.out").read_text()

    config = make_corpus(place, files=3)
    config.write_text(config.read_text().replace("workers = 1", f"workers = {scenario.workers}"))
    scenario.before(place)
    if scenario.after:
        assert divorder("run") == 0, said()
        scenario.after(place)
        assert divorder("run") == 0, said()
    # Always at the same path, which is part of some keys.
    start = shutil.copytree(place, tmp_path / "start")

    def restore() -> None:
        shutil.rmtree(place)
        shutil.copytree(start, place)

    assert divorder(scenario.command) == 0, said()
    lines = (tmp_path / "log").read_text().splitlines()
    events = [line for line in lines if line.startswith(EVENTS)]
    if scenario.command != "run":
        assert divorder("run") == 0, said()
    expected, names = output_of(config), stored(place)
    assert len(events) >= scenario.points

    numbers = [(2 * at + 1) * len(events) // (2 * scenario.points) for at in range(scenario.points)]
    # A run that is killed makes some of the rest, so the next one can be killed further on; other commands begin anew.
    for chain in [numbers] if scenario.command == "run" else [[number] for number in numbers]:
        restore()
        finished: set[str] = set()
        for number in (*chain, None):
            stop = None if number is None else (events[number], WHEN[events[number].split()[0]][number % 2])
            assert divorder(scenario.command, stop=stop) == (-9 if stop else 0), (stop, said())
            lines = (tmp_path / "log").read_text().splitlines()
            assert finished.isdisjoint(line.removeprefix("put ") for line in lines), (chain, stop)
            finished = finished_fragments(place / "store")
        if scenario.command != "run":
            assert divorder("run") == 0, (chain, said())
        assert differing(config, expected) == []
        assert stored(place) == names, chain
