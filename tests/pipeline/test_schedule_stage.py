"""An order along a score, measured by the pipeline: its figures, and the checks that judge it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dagster_divorder import run_all
from dagster_divorder.core.measure.schedule import Lap, measure_along, of_sequences
from dagster_divorder.engine.progress import Silent
from dagster_divorder.pipeline.checks import run_checks
from dagster_divorder.settings import Settings
from dagster_divorder.stages import GRAPH, open_run
from dagster_divorder.stages.measure import schedule
from dagster_divorder.stages.measure.diversity_metrics import load_verdict
from dagster_divorder.stages.measure.schedule import load_schedule, sequence_laps
from dagster_divorder.stages.mix.repeats import load_stream, run_counter
from dagster_divorder.stages.order.packed_sequences import load_packed
from tests.conftest import topic_records, write_jsonl
from tests.pipeline.test_drift import settings_of

CHECKS = ("order_beats_shuffling", "follows_the_schedule", "nothing_drifts")


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Records whose quality goes with their source in part; every twentieth has none."""
    folder, random = tmp_path_factory.mktemp("schedule"), np.random.default_rng(0)
    records = topic_records(150)
    sources = sorted({record["source"] for record in records})
    for number, record in enumerate(records):
        quality = 0.5 * sources.index(record["source"]) + random.normal()
        record["tier"] = sources.index(record["source"]) + 0.1 * float(random.random())
        record["quality"] = None if number % 20 == 0 else round(float(quality), 3)
    write_jsonl(folder / "docs.jsonl", records)
    return folder


def along(corpus: Path, curriculum: dict[str, Any] | None = None, **sections: dict[str, Any]) -> Settings:
    given = {"order": {"traits": {"cluster": 1.0, "length": 1.0}}, "sequence": {"length": 32, "batch": 8}}
    sections = {
        name: {**given.get(name, {}), **sections.get(name, {})} for name in given.keys() | sections.keys()
    }
    return settings_of(corpus, curriculum={"score": "quality", **(curriculum or {})}, **sections)


def measured(settings: Settings) -> dict[str, Any]:
    run_all(settings, Silent())
    return load_schedule(open_run(settings))


@pytest.mark.parametrize(
    "curriculum",
    [
        {"shape": "saw"},
        {"shape": "zigzag", "options": {"folds": 2}, "strength": 0.5},
        {"shape": "segment", "options": {"first": 0.2, "last": 0.2}},
        {"points": [(0, 0.1), (0.4, 0.9), (1, 0.5)]},
    ],
    ids=lambda curriculum: curriculum.get("shape", "points"),
)
def test_a_run_follows_its_schedule_and_every_check_knows_it(
    corpus: Path, curriculum: dict[str, Any]
) -> None:
    settings = along(corpus, curriculum)
    figures = measured(settings)
    assert (figures["score"], figures["shape"]) == ("quality", curriculum.get("shape", "points"))
    assert (figures["records"], figures["missing"], figures["epochs"]) == (600, 30, None)
    assert set(figures["scales"]) == {"sequences", "documents"}
    scale = figures["scales"]["sequences"]
    assert {trait: of["balanced"] for trait, of in scale["traits"].items()} == {
        "cluster": True,
        "length": True,
        "source": False,
    }
    assert {len(curve) for curve in scale["curves"].values()} == {100}
    assert scale["seam"] == []
    findings = run_checks(GRAPH, settings, stage="diversity_metrics")
    assert list(findings) == list(CHECKS)
    assert {name: finding.text for name, finding in findings.items() if not finding.passed} == {}
    assert "% off the mix at their point of the schedule" in findings["order_beats_shuffling"].text
    assert findings["nothing_drifts"].text.startswith(f"The order follows quality ({figures['shape']}); of ")
    assert load_verdict(open_run(settings)).passed
    assert "corpus's own mix" not in findings["order_beats_shuffling"].text


def test_without_a_curriculum_there_is_neither_stage_nor_check(corpus: Path) -> None:
    settings = settings_of(corpus)
    assert "schedule" not in run_all(settings, Silent())
    assert "follows_the_schedule" not in run_checks(GRAPH, settings, stage="diversity_metrics")


@pytest.mark.parametrize("epochs", ["together", "each"])
def test_several_epochs_are_one_lap_or_one_each(corpus: Path, epochs: str) -> None:
    # A random order inside windows keeps them; `balanced` passes their borders.
    settings = along(
        corpus, {"shape": "rise", "epochs": epochs}, sequence={"epochs": 2, "strategy": "random"}
    )
    figures = measured(settings)
    (seam,) = figures["scales"]["sequences"]["seam"]
    assert figures["epochs"] == epochs
    assert seam["achieved"] == pytest.approx(seam["asked"], abs=0.06)
    assert (seam["asked"] > 0) == (epochs == "together")
    run, settings = open_run(settings), settings
    packed = load_packed(run)
    laps = sequence_laps(run, load_stream(run), packed)
    assert [lap.epochs for lap in laps] == ([2] if epochs == "together" else [1, 1])
    for lap in laps:
        for begin, end in zip(lap.bounds[:-1], lap.bounds[1:], strict=True):
            assert sorted(lap.order[begin:end]) == sorted(lap.plain[begin:end])
    findings = run_checks(GRAPH, settings, stage="diversity_metrics")
    assert findings["follows_the_schedule"].passed and findings["nothing_drifts"].passed


def test_documents_and_a_consumed_beginning_keep_their_windows(corpus: Path, tmp_path: Path) -> None:
    """The plain order is that which the orders are made from."""
    places = {"store": {"path": tmp_path / "store"}, "output": {"path": tmp_path / "curated", "sidecars": ()}}
    first = along(corpus, {"shape": "rise"}, **places)
    run_all(first, Silent())
    random = {"strategy": "random"}
    settings = along(
        corpus, {"shape": "rise"}, **places, order={"frozen_tokens": 8000, **random}, sequence=random
    )
    figures = measured(settings)
    assert figures["scales"]["sequences"]["curves"]["progress"][0] > 0.1
    run = open_run(settings)
    stream = load_stream(run)
    laps = [*sequence_laps(run, stream, load_packed(run)), schedule._document_lap(run, stream)]
    for lap in laps:
        assert lap.begin > 0.1
        for begin, end in zip(lap.bounds[:-1], lap.bounds[1:], strict=True):
            assert sorted(lap.order[begin:end]) == sorted(lap.plain[begin:end])


def test_records_that_are_not_packed_are_measured_as_sequences(corpus: Path) -> None:
    figures = measured(along(corpus, {"shape": "fall"}, packing={"method": "none"}))
    assert figures["scales"]["documents"] == figures["scales"]["sequences"]
    assert figures["scales"]["sequences"]["deviation"]["achievable"] < 0.01


def of_order(settings: Settings, order: Callable[[Lap], np.ndarray]) -> dict[str, Any]:
    """The figures of another order of the same sequences, made from the plan's lap."""
    run = open_run(settings)
    stream, packed = load_stream(run), load_packed(run)
    lap = sequence_laps(run, stream, packed)[0]
    other = order(lap)
    assert sorted(other) == sorted(lap.order)
    figures = load_schedule(run)
    runs = schedule.scored_runs(
        run, stream, packed.document, run_counter(run, stream.view)(packed), packed.indptr
    )
    scale = measure_along(
        runs, [replace(lap, order=other)], schedule.asked_schedule(settings), of_sequences(8)
    )
    figures["scales"]["sequences"] = {**figures["scales"]["sequences"], **scale}
    return figures


def test_an_order_that_goes_the_other_way_does_not_follow(
    corpus: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = along(corpus, {"shape": "rise"})
    measured(settings)
    figures = of_order(settings, lambda lap: lap.order[::-1])
    monkeypatch.setattr(schedule, "load_schedule", lambda run: figures)
    finding = run_checks(GRAPH, settings, stage="diversity_metrics")["follows_the_schedule"]
    assert not finding.passed and "The sequences do not follow quality along rise" in finding.text


@pytest.mark.parametrize(
    ("curriculum", "remedy"),
    [
        ({"points": [(0, 0.9), (1, 0.95)]}, "let curriculum.points pass through all ranks"),
        ({"score": "tier", "keep": ["source"]}, "curriculum.keep fixes shares of source"),
    ],
    ids=["points", "keep"],
)
def test_what_cannot_be_had_is_said_with_a_remedy(
    corpus: Path, curriculum: dict[str, Any], remedy: str
) -> None:
    settings = along(corpus, curriculum, order={"traits": {"cluster": 1.0, "source": 1.0}})
    measured(settings)
    finding = run_checks(GRAPH, settings, stage="diversity_metrics")["follows_the_schedule"]
    assert not finding.passed and "The order cannot follow" in finding.text
    assert remedy in finding.remedy
