"""kill -9 at any moment: one more run gives the bytes of a run that was never killed, and computes nothing twice."""

from __future__ import annotations

import itertools
import random
import shutil
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from dagster_divorder.settings import Settings
from dagster_divorder.settings.sections import KINDS, Exports
from dagster_divorder.stages import GRAPH
from dagster_divorder.store.base import TEMPORARY
from dagster_divorder.store.manifests import EXPORT_MANIFEST
from dagster_divorder.store.output_manifests import MANIFEST, read_manifest
from dagster_divorder.verify import damaged_file
from tests.conftest import examples, is_long, topic_records, write_jsonl
from tests.faults.conftest import differing, make_corpus, output_of
from tests.faults.runner import EVENTS, Runner

STAGES = GRAPH.needed(Settings(exports=Exports(formats=("parquet", "megatron"))))

OF_EACH_KIND = ("raw_docs", "token_counts", "centroids", "greedy_order", "exports", "curated_output")
"""Stages whose writes are, together, of every kind."""
TRIED = {"first": STAGES, "append": STAGES if is_long() else OF_EACH_KIND}
AT_RANDOM = examples(2)
PER_FRAGMENT = ("records", *(f"stages/{name}" for name in (
    "token_counts", *(f"{kind}_embeddings" for kind in (*KINDS, "gradient")), "clusters", "fields"
)))  # fmt: skip


@dataclass(frozen=True)
class Point:
    """Where a run is killed: at an event of its log ("half" a file written, "before" or "after" a rename)."""

    event: str
    when: str


@dataclass
class Scenario:
    """A corpus folder before the run that is killed, and what that run does when it is not."""

    start: Path
    runner: Runner
    output: dict[str, Any] = field(default_factory=dict)
    points: dict[str, list[Point]] = field(default_factory=dict)
    """By stage, in the order in which a run reaches them."""
    seconds: float = 0.0
    per_stage: int = examples(1)
    """How many points of each stage to try, beside those where much hangs on one."""
    constants: dict[str, int] = field(default_factory=dict)
    """Of the runs, besides those of the runner."""

    def copy(self, to: Path) -> Path:
        shutil.copytree(self.start, to)
        return to / "divorder.toml"

    def run(self, config: Path, **job: Any) -> tuple[int, list[str]]:
        """Exit status, and lines of the log."""
        status = self.runner.run(config, config.parent / "log", constants=self.constants, **job)
        return status, (config.parent / "log").read_text().splitlines()

    def observe(self, folder: Path) -> None:
        """Run once to the end: the output to expect, and the points where a run can be killed."""
        config = self.copy(folder)
        start = time.monotonic()
        status, lines = self.run(config)
        self.seconds = time.monotonic() - start
        assert status == 0, (folder / "log.out").read_text()
        self.output = output_of(config)
        for stage, events in by_stage(lines).items():
            # And always where one rename decides what all later runs see, and at commits of output and exports,
            # the first and the last of them among these.
            wanted = set(spread(len(events), self.per_stage))
            decisive = (
                "/views/",
                *(f"/curated/{name}" for name in ("curated.jsonl", "curated-00000", "order", "curated_meta")),
                "/exports/_parquet/manifest",
                "/exports/megatron/train-",
            )
            for part in decisive:
                wanted |= {
                    at for at, event in enumerate(events) if part in event and not event.startswith("fsync")
                }
            for part in ("/fits/", "/records/", "/stages/"):
                wanted |= {*[at for at, event in enumerate(events) if part in event][:1]}
            # In `make test-long` more points are asked for than a small stage has writes.
            assert len(wanted) >= min(self.per_stage, len(events)) > 0, stage
            self.points[stage] = []
            for nth, at in enumerate(sorted(wanted)):
                kind = events[at].split()[0]
                when = {"fsync": "half", "replace": ("before", "after")[nth % 2], "unlink": "after"}[kind]
                self.points[stage].append(Point(events[at], when))


def by_stage(lines: list[str]) -> dict[str, list[str]]:
    """The events of each of the STAGES, and of others that follow it, by the lines of a log."""
    found: dict[str, list[str]] = {stage: [] for stage in STAGES}
    stage = STAGES[0]
    for line in lines:
        if line.startswith("stage "):
            name = line.removeprefix("stage ")
            stage = name if name in found else stage
        elif line.startswith(EVENTS):
            found[stage].append(line)
    return found


def spread(length: int, count: int) -> list[int]:
    """Positions in a list: the last one, and as many before it at equal distances."""
    return [(at + 1) * length // count - 1 for at in range(count)]


def finished_fragments(store: Path) -> set[str]:
    """Names of the per-fragment files in a store, of fragments only those that are complete."""
    names = {path.relative_to(store).as_posix() for path in store.rglob("*") if path.is_file()}
    fragments = {name for name in names if name.startswith(PER_FRAGMENT) and TEMPORARY not in name}
    indexed = {Path(name).name.split(".")[0] for name in fragments if "/index/" in name}
    return {
        name for name in fragments if name.startswith("stages/") or Path(name).name.split(".")[0] in indexed
    }


@pytest.fixture(scope="module")
def scenarios(tmp_path_factory: pytest.TempPathFactory, runner: Runner) -> dict[str, Scenario]:
    """`first` starts from nothing. `append` starts from a whole first run: it finds edited, deleted and new records
    beside known ones (a few of them far from every cluster), and writes other files than the ones that are there."""
    folder = tmp_path_factory.mktemp("kill")
    first, append = (Scenario(folder / name / "start", runner) for name in TRIED)
    make_corpus(first.start)
    first.observe(folder / "first/whole")

    shutil.copytree(folder / "first/whole", append.start)
    config = append.start / "divorder.toml"
    for number in range(4):
        if number:
            assert append.run(config)[0] == 0
        write_jsonl(append.start / f"in/small-{number}.jsonl", topic_records(2, start=100 + 2 * number))
    edited = topic_records(10)
    edited[7]["text"] += " edited"
    write_jsonl(append.start / "in/0.jsonl", edited)
    write_jsonl(append.start / "in/1.jsonl", topic_records(10, start=10)[:20])
    for number in (6, 7):
        write_jsonl(append.start / f"in/{number}.jsonl", topic_records(10, start=10 * number))
    far = [{"text": f"{number}! " * 40, "source": "far"} for number in range(900_000, 900_012)]
    write_jsonl(append.start / "in/8.jsonl", far)
    append.constants["OUTPUT_SHARD_BYTES"] = 60_000
    append.observe(folder / "append/whole")
    return {"first": first, "append": append}


@pytest.fixture(scope="module")
def extending(tmp_path_factory: pytest.TempPathFactory, runner: Runner) -> Scenario:
    """Starts from a whole first run and appends a file behind its output (`order.append = "extend"`)."""
    folder = tmp_path_factory.mktemp("extend")
    config = make_corpus(folder / "start")
    config.write_text(config.read_text().replace("[order]", '[order]\nappend = "extend"'))
    scenario = Scenario(folder / "start", runner, constants={"OUTPUT_SHARD_BYTES": 30_000})
    assert scenario.run(config)[0] == 0
    write_jsonl(folder / "start/in/6.jsonl", topic_records(10, start=60))
    scenario.observe(folder / "whole")
    return scenario


def mixtures(config: Path) -> list[str]:
    """What is wrong with files that a manifest of the output, or of an export, names."""
    folders = [(config.parent / "curated", MANIFEST)]
    folders += [(folder, EXPORT_MANIFEST) for folder in sorted((config.parent / "exports").glob("[!_]*"))]
    named = [(folder, read_manifest(folder, name)) for folder, name in folders]
    wrong = [damaged_file(folder, manifest["files"]) for folder, manifest in named if manifest]
    return [damage for damage in wrong if damage]


def kill_and_resume(scenario: Scenario, folder: Path, *jobs: dict[str, Any]) -> str:
    """What is wrong after runs that are killed one after the other, and one that is not."""
    config = scenario.copy(folder)
    finished: set[str] = set()
    for job in (*jobs, {}):
        status, lines = scenario.run(config, **job)
        ended = f"the run of {job} ended with {status}\n{(folder / 'log.out').read_text()}"
        if status != (-9 if job else 0) and not ("after" in job and status == 0):
            return ended
        again = finished & {line.removeprefix("put ") for line in lines if line.startswith("put")}
        if again:
            return f"computed again by the run of {job}: {sorted(again)}"
        if mixed := mixtures(config):
            return f"a manifest stands beside files that it does not name after the run of {job}: {mixed}"
        finished = finished_fragments(folder / "store")
    wrong = differing(config, scenario.output)
    if wrong:
        return f"differs from the output of a run that was never killed: {wrong}"
    shutil.rmtree(folder)
    return ""


def chains(points: Iterable[list[Point]]) -> list[list[Point]]:
    """Points at which one run after the other is killed, by points of stages: each chain has one of a stage, which the
    stage begins undisturbed. In `make test-long` every kill is followed by a run to the end."""
    if is_long():
        return [[point] for of_stage in points for point in of_stage]
    return [[*filter(None, nth)] for nth in itertools.zip_longest(*points)]


def wrong_after_kills(scenario: Scenario, folder: Path, stages: Iterable[str]) -> list[str]:
    found = [
        kill_and_resume(
            scenario, folder / str(number), *({"stop": (point.event, point.when)} for point in chain)
        )
        for number, chain in enumerate(chains(scenario.points[stage] for stage in stages))
    ]
    return [wrong for wrong in found if wrong]


@pytest.mark.parametrize("scenario", TRIED)
def test_a_kill_in_any_stage_changes_nothing(
    scenario: str, scenarios: dict[str, Scenario], tmp_path: Path
) -> None:
    assert wrong_after_kills(scenarios[scenario], tmp_path, TRIED[scenario]) == []


def test_a_kill_while_an_output_is_extended_leaves_the_old_or_the_new_one(
    extending: Scenario, tmp_path: Path
) -> None:
    stages = ("greedy_order", "packed_sequences", "sequence_order", "exports", "curated_output")
    assert wrong_after_kills(extending, tmp_path, stages) == []


@pytest.mark.parametrize("at", range(AT_RANDOM))
@pytest.mark.parametrize("scenario", TRIED)
def test_a_kill_at_a_random_moment_changes_nothing(
    scenario: str, at: int, scenarios: dict[str, Scenario], tmp_path: Path
) -> None:
    of = scenarios[scenario]
    moment = of.seconds * random.Random(f"{scenario} {at}").uniform(0.02, 0.9)
    assert kill_and_resume(of, tmp_path / "killed", {"after": moment}) == ""


def test_the_points_are_many_and_in_every_kind_of_write(scenarios: dict[str, Scenario]) -> None:
    points = [
        point for name, stages in TRIED.items() for of in stages for point in scenarios[name].points[of]
    ]
    assert len(points) + len(TRIED) * AT_RANDOM >= 40
    assert {point.when for point in points} == {"half", "before", "after"}
    touched = "\n".join(point.event.split()[-1] for point in points)
    for part in ("records/", "views/", "stages/", "state.json", "fits/"):
        assert f"/store/{part}" in touched, part
    for part in ("/curated/curated_meta.json", "/curated/curated-00000.jsonl", "/exports/megatron/train-"):
        assert part in touched, part
