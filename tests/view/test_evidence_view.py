"""Training evidence as people see it: tables and picture, whatever the trainings showed."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import orjson
import pytest

from dagster_divorder.core.evidence.training_evidence import (
    HELD_OUT,
    JUMP,
    Trained,
    by_source,
    summarise,
)
from dagster_divorder.stages.evidence.training_evidence import evidence_tables
from dagster_divorder.view import charts
from dagster_divorder.view.drawing import sheet_picture

HOSTILE = "<script>alert(1)</script>"
STEPS = 40


def summary(
    orders: tuple[str, ...] = ("original", "random_sequences", "curated", "stratified/original"),
    seeds: int = 3,
    failed: str = "",
) -> dict[str, Any]:
    """As the stage stores it, of trainings that were drawn."""
    draw = np.random.default_rng(0)

    def training(order: str) -> Trained:
        nothing = np.nan if order == failed else 1.0
        return Trained(
            losses=(nothing * draw.normal(4, 0.1, 2 * STEPS)).astype(np.float32),
            norms=(nothing * draw.uniform(0.5, 1.5, 2 * STEPS)).astype(np.float32),
            heldout=nothing * draw.normal(4, 0.1, (2, 2)),
            ranks=nothing * draw.uniform(1, 2, (2, 2)),
        )

    trained = {
        (order, rate): [training(order) for _ in range(seeds)] for order in orders for rate in (1e-3, 3e-3)
    }
    parts = {"attention": np.array([True, False])}
    summary = {
        **summarise(trained, "random_sequences", STEPS, ["wiki", HOSTILE], parts, 1000),
        **{"weights": 1000, "seeds": seeds, "epochs": 2, "steps": STEPS, "batch": 4, "length": 32},
        "notes": [f"no document of {HOSTILE}"],
    }
    stored: dict[str, Any] = orjson.loads(orjson.dumps(summary, option=orjson.OPT_SERIALIZE_NUMPY))
    return stored


@pytest.mark.slow
@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(
    "given",
    [{}, {"seeds": 1}, {"failed": "curated"}, {"orders": ("random_sequences", "curated")}],
)
def test_the_tables_and_the_chart_say_what_there_is(given: dict[str, Any]) -> None:
    from PIL import Image

    of = summary(**given)
    tables = evidence_tables(of)
    assert len(tables["rates"]) == 2 * len(of["orders"])
    figures = {row["figure"] for row in tables["figures"]}
    assert {HELD_OUT, JUMP, by_source(HOSTILE)} < figures
    assert len(tables["figures"]) == len(of["orders"]) * len(figures)
    for row in tables["figures"]:
        if row["order"] != given.get("failed"):
            assert (" to " in row["less shuffled"]) == (of["seeds"] > 1) == ("±" in row["mean"])
    chart = charts.trainings(of)
    assert len(chart.panels) == 4
    assert Image.open(io.BytesIO(sheet_picture([chart]))).width == 1600


def test_stars_are_of_differences_beyond_noise() -> None:
    of = summary()
    for order in of["orders"]:
        low, high = (-2.2, 0.2) if order["order"] == "original" else (-1.2, -0.8)
        for pair in order["figures"].values():
            pair["less shuffled"] = {"mean": -1.0, "error": 0.1, "low": low, "high": high}
    for row in evidence_tables(of)["figures"]:
        assert row["less shuffled"].endswith(" *") == (row["order"] != "original")
