"""What changed is told by the name of the setting, and by those settings alone that decide a stage's result."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dagster_divorder.pipeline.changes import changed_settings, given_settings
from dagster_divorder.pipeline.plan import make_plan
from dagster_divorder.settings import Settings
from dagster_divorder.stages import GRAPH
from dagster_divorder.store.state import Receipt
from tests.conftest import topic_records, write_jsonl
from tests.pipeline.test_pipeline import run


def told(stage: str, before: dict[str, Any], now: dict[str, Any]) -> list[str]:
    old = Settings(**before)
    made = Receipt(
        stage=stage,
        fingerprint=GRAPH[stage].fingerprint(old),
        key="",
        version="",
        upstream={},
        settings=given_settings(old),
    )
    return changed_settings(GRAPH[stage], made, Settings(**now))


@pytest.mark.parametrize(
    ("stage", "before", "now", "expected"),
    [
        ("centroids", {"clusters": {"k": 30}}, {"clusters": {"k": 15}}, ["clusters.k 30 -> 15"]),
        ("token_counts", {"clusters": {"k": 30}}, {"clusters": {"k": 15}}, []),
        (
            "traits",
            {"order": {"traits": {"cluster": 1, "length": 1}}},
            {"order": {"traits": {"cluster": 1, "lang": 1}}},
            ["order.traits.lang unset -> 1.0", "order.traits.length 1.0 -> unset"],
        ),
        (
            "greedy_order",
            {"order": {"strategy": "f2", "options": {"f2_lambda": 0.5}}},
            {"order": {"strategy": "f3"}},
            ["order.options.f2_lambda 0.5 -> unset", "order.strategy f2 -> f3"],
        ),
        ("packed_sequences", {}, {"order": {"cut": ["a"], "append": "extend"}}, ['order.cut [] -> ["a"]']),
        ("raw_docs", {"input": {"text_field": "de"}}, {}, ["input.text_field de -> text"]),
        (
            "base_model",
            {},
            {"advanced": {"token_dims": 64}, "store": {"path": "/other"}},
            ["advanced.token_dims 128 -> 64"],
        ),
    ],
)
def test_the_settings_that_decide_a_stage_are_named(
    stage: str, before: dict[str, Any], now: dict[str, Any], expected: list[str]
) -> None:
    assert told(stage, before, now) == expected


def test_long_values_are_cut_and_unknown_settings_name_nothing(tmp_path: Path) -> None:
    now = {"input": {"paths": [f"/data/part-{number}.jsonl" for number in range(100)]}}
    (change,) = told("raw_docs", {}, now)
    assert change.startswith('input.paths ["data/sample/docs.jsonl"] -> ["/data/part-0.jsonl",')
    assert len(change) < 130
    stage = GRAPH["centroids"]
    made = Receipt(
        stage=stage.name, fingerprint="", key="", version="", upstream={}, settings={"gone": {"k": 1}}
    )
    assert changed_settings(stage, made, Settings()) == []


def test_plan_and_fit_say_so(
    tmp_path: Path, make_settings: Callable[..., Settings], monkeypatch: pytest.MonkeyPatch
) -> None:
    write_jsonl(tmp_path / "docs.jsonl", topic_records(20))
    run(make_settings())
    fewer = make_settings(clusters={"k": 3})
    assert run(fewer)["centroids"]["fitted"] == "clusters.k 4 -> 3"
    # Raising the version of a stage is how its code says that it gives other bytes.
    packing = GRAPH["packed_sequences"]
    changed = {**GRAPH, "packed_sequences": replace(packing, version=packing.version + 1)}
    monkeypatch.setattr(GRAPH, "_stages", changed)
    (planned,) = (stage for stage in make_plan(GRAPH, fewer).stages if stage.stage == "packed_sequences")
    assert planned.why == "its code changed"
