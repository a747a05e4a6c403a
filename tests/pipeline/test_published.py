"""The published plan: what is frozen, extended, cut and looked up is what trainers hold, whatever ran since."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import orjson
import pyarrow.parquet as pq
import pytest

from dagster_divorder import run_all, where
from dagster_divorder.engine.progress import Silent
from dagster_divorder.errors import InputError
from dagster_divorder.forensics import plan_freeze
from dagster_divorder.pipeline.prune import prune
from dagster_divorder.pipeline.published import published_plan
from dagster_divorder.settings import Settings
from dagster_divorder.stages import GRAPH, open_run
from dagster_divorder.stages.output import exports
from dagster_divorder.store.manifests import EXPORT_MANIFEST, file_at
from dagster_divorder.store.output_manifests import read_manifest
from tests.conftest import topic_records, write_jsonl

Make = Callable[..., Settings]
LENGTH, BATCH, STEPS = 64, 4, 2
RECORDS = topic_records(30)


@pytest.fixture
def make(tmp_path: Path, make_settings: Make) -> Make:
    """Settings with two exports, and a corpus for them."""
    write(tmp_path, 80)

    def exporting(**sections: Any) -> Settings:
        base: dict[str, Any] = {
            "sequence": {"length": LENGTH, "batch": BATCH},
            "exports": {"formats": ("parquet", "megatron"), "path": tmp_path / "exports"},
            "engine": {"workers": 1},
            "output": {"path": tmp_path / "out", "sidecars": ()},
        }
        for name, section in sections.items():
            base[name] = {**base.get(name, {}), **section} if isinstance(section, dict) else section
        return make_settings(**base)

    return exporting


def write(folder: Path, records: int) -> None:
    write_jsonl(folder / "docs.jsonl", RECORDS[:records])


def run(settings: Settings) -> list[list[int]]:
    run_all(settings, Silent())
    return rows(settings)


def compute(settings: Settings) -> None:
    """Make measures, and the orders before them, but no output."""
    run_all(settings, Silent(), GRAPH.needed(settings, "diversity_metrics"))


def rows(settings: Settings) -> list[list[int]]:
    files = sorted((settings.exports.path / "parquet").glob("*.parquet"))  # type: ignore[union-attr]
    return [row for file in files for row in pq.read_table(file)["input_ids"].to_pylist()]


def killed_at(settings: Settings, monkeypatch: pytest.MonkeyPatch, format: str) -> None:
    """A run that ends while it writes an export; earlier formats are written."""
    written = exports._write

    def write_until(run: Any, of: Any, *given: Any) -> None:
        if of.name == format:
            raise KeyboardInterrupt
        written(run, of, *given)

    with monkeypatch.context() as patch:
        patch.setattr(exports, "_write", write_until)
        with pytest.raises(KeyboardInterrupt):
            run_all(settings, Silent())


TRIALS: dict[str, dict[str, Any]] = {
    "appended data": {},
    "another base model": {"advanced": {"vocab_size": 600, "token_dims": 16}},
}


@pytest.mark.parametrize(("first", "trial"), [*zip(("freeze", "trial"), TRIALS, strict=True)])
def test_what_ran_since_without_an_output_changes_no_frozen_row(
    make: Make, tmp_path: Path, first: str, trial: str
) -> None:
    settings = make()
    before = run(settings)
    planned = plan_freeze(settings, step=STEPS) if first == "freeze" else None
    write(tmp_path, 90)
    compute(make(**TRIALS[trial]))
    if planned is None:
        compute(settings)
        planned = plan_freeze(settings, step=STEPS)
    assert planned.sequences == STEPS * BATCH
    after = run(planned.settings)
    assert after[: STEPS * BATCH] == before[: STEPS * BATCH] and after != before
    assert not [name for name, made in run_all(planned.settings, Silent()).items() if made.facts["computed"]]


def test_steps_are_of_the_published_plan(make: Make, tmp_path: Path) -> None:
    settings = make()
    run(settings)
    steps = range(STEPS)
    before = where(settings, steps=steps)
    write(tmp_path, 90)
    compute(settings)
    assert where(settings, steps=steps).equals(before)
    assert where(settings, steps=steps).attrs == {"plan": plan_of(settings, "parquet"), "batch": BATCH}
    read = set(where(settings, steps=range(len(rows(settings)) // BATCH)).id)
    assert len(read) == 80 and not len(where(settings, ids=[newest(settings, read)]))
    write_jsonl(tmp_path / "docs.jsonl", [*RECORDS[1:80]])
    compute(settings)
    with pytest.raises(InputError, match=r"1 records of plan .* are no longer in the input"):
        where(settings, steps=range(20))


def plan_of(settings: Settings, format: str) -> str:
    return str((read_manifest(settings.exports.path / format, EXPORT_MANIFEST) or {})["plan"])


def newest(settings: Settings, read: set[str]) -> str:
    from dagster_divorder import load_results

    return next(id for id in load_results(settings.store.path).documents.record_id if id not in read)


@pytest.mark.parametrize("killed", ["parquet", "megatron"])
def test_a_run_that_was_killed_while_it_wrote_exports(
    make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, killed: str
) -> None:
    settings = make()
    before = run(settings)
    held = plan_of(settings, "megatron")
    write(tmp_path, 90)
    killed_at(settings, monkeypatch, killed)
    if killed == "parquet":
        assert plan_freeze(settings, step=STEPS).plan == held
        planned = plan_freeze(settings, step=STEPS)
        assert run(planned.settings)[: STEPS * BATCH] == before[: STEPS * BATCH]
        return
    other = plan_of(settings, "parquet")
    assert other != held
    for ask in (lambda: plan_freeze(settings, step=STEPS), lambda: where(settings, steps=[0])):
        with pytest.raises(
            InputError, match=f"parquet holds plan {other}, but plan {held} was published last"
        ):
            ask()
    by_path = plan_freeze(settings, step=STEPS, plan=str(tmp_path / "exports/megatron"))
    assert by_path == plan_freeze(settings, step=STEPS, plan=held)
    with pytest.raises(InputError, match=f"parquet holds plan {other}, which does not begin with what stays"):
        run(by_path.settings)
    assert plan_of(settings, "parquet") == other
    file_at(tmp_path / "exports/parquet", EXPORT_MANIFEST).unlink()
    assert run(by_path.settings)[: STEPS * BATCH] == before[: STEPS * BATCH]


def test_what_a_killed_run_has_extended_is_extended(
    make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = make(order={"append": "extend"})
    full = run(settings)[:-1]
    write(tmp_path, 90)
    killed_at(settings, monkeypatch, "megatron")
    extended = rows(settings)[:-1]
    assert len(extended) > len(full)
    write(tmp_path, 100)
    after = run(settings)
    assert after[: len(full)] == full and after[: len(extended)] == extended


def test_the_published_plan_outlives_trials_and_prune(make: Make) -> None:
    settings = make()
    before = run(settings)
    planned = plan_freeze(settings, step=STEPS)
    for seed in range(1, 7):
        compute(make(seed=seed))
    compute(settings)
    store = open_run(settings).store
    with store.lock():
        prune(GRAPH, store)
    assert replace(plan_freeze(settings, step=STEPS)) == planned
    assert run(planned.settings)[: STEPS * BATCH] == before[: STEPS * BATCH]


def test_a_plan_is_published_when_output_and_exports_hold_it(make: Make) -> None:
    settings = make()
    compute(settings)
    store = open_run(settings).store
    assert published_plan(store) is None
    with pytest.raises(InputError, match=r"no plan was published in .*; expected a finished run"):
        plan_freeze(settings, step=1)
    run_all(settings, Silent(), GRAPH.needed(settings, "exports"))
    assert published_plan(store) is None
    run(settings)
    plan = published_plan(store)
    assert plan is not None and plan.fingerprint == plan_of(settings, "parquet")
    assert set(plan.keys) == {
        str(settings.output.path),
        *(f"{settings.exports.path}/{name}" for name in ("parquet", "megatron")),
    }
    state = orjson.loads((Path(str(settings.store.path)) / "state.json").read_bytes())
    assert [known["published"] for known in state["plans"]] == [True]
