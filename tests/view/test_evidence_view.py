"""Training evidence as people see it: tables and picture, whatever the trainings showed."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import orjson
import pytest

from dagster_divorder.core.evidence.training_evidence import (
    Trained,
    mean,
    order_figures,
    source_figures,
    verdict,
)
from dagster_divorder.view.evidence import order_rows, rate_rows, source_rows
from dagster_divorder.view.pictures import training_evidence

HOSTILE = "<script>alert(1)</script>"
MATRICES = ("layers.0.self_attn.q.weight", "layers.0.mlp.up.weight")
STEPS = 40


def summary(
    orders: tuple[str, ...] = ("original", "random_sequences", "curated", "stratified/original"),
    seeds: int = 3,
    epochs: int = 2,
    failed: str = "",
) -> dict[str, Any]:
    """As the stage stores it, of trainings that were drawn."""
    draw = np.random.default_rng(0)

    def training(order: str) -> Trained:
        nothing = np.nan if order == failed else 1.0
        return Trained(
            losses=(nothing * draw.normal(4, 0.1, epochs * STEPS)).astype(np.float32),
            norms=(nothing * draw.uniform(0.5, 1.5, epochs * STEPS)).astype(np.float32),
            heldout=nothing * draw.normal(4, 0.1, (epochs, 2)),
            ranks=nothing * draw.uniform(1, 2, (2, 2)),
        )

    made = {order: [training(order) for _ in range(seeds)] for order in orders}
    shuffled, attention = made["random_sequences"], np.array([True, False])
    rows = [{"order": name, **order_figures(of, shuffled, STEPS, attention)} for name, of in made.items()]
    found = {
        "verdict": verdict({row["order"]: row for row in rows}, orders[-1], "random_sequences"),
        "orders": rows,
        "sources": [
            {"order": name, **row}
            for name, of in made.items()
            for row in source_figures(of, shuffled, ["wiki", HOSTILE])
        ],
        "rates": [
            {"order": row["order"], "learning rate": rate, **row["held-out"]}
            for row in rows
            for rate in (1e-3, 3e-3)
        ],
        "layers": [
            {"order": name, "matrix": matrix, "ranks": mean([each.ranks[:, at] for each in of])}
            for name, of in made.items()
            for at, matrix in enumerate(MATRICES)
        ],
        **{"learning rate": 1e-3, "weights": 1000, "seeds": seeds, "epochs": epochs},
        **{"steps": STEPS, "batch": 4, "length": 32, "notes": [f"no document of {HOSTILE}"]},
    }
    stored: dict[str, Any] = orjson.loads(orjson.dumps(found, option=orjson.OPT_SERIALIZE_NUMPY))
    return stored


@pytest.mark.slow
@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(
    "given",
    [{}, {"seeds": 1}, {"epochs": 1}, {"failed": "curated"}, {"orders": ("random_sequences", "curated")}],
)
def test_the_tables_and_the_picture_say_what_there_is(given: dict[str, Any]) -> None:
    from PIL import Image

    of = summary(**given)
    assert len(order_rows(of)) == len(of["orders"]) and len(rate_rows(of)) == 2 * len(of["orders"])
    for row in order_rows(of):
        failed = row["order"] == given.get("failed")
        for name, cell in row.items():
            if name not in ("order", "held-out loss") and not failed:
                assert (" to " in cell) == (of["seeds"] > 1), name
    assert {row["source"] for row in source_rows(of)} == {"wiki", HOSTILE}
    assert Image.open(io.BytesIO(training_evidence(of))).width == 1600


def test_stars_are_of_differences_beyond_noise() -> None:
    of = summary()
    for row in of["sources"]:
        row["less shuffled"] = {"mean": -1.0, "error": 0.1, "low": -1.2, "high": -0.8}
        if row["order"] == "original":
            row["less shuffled"] |= {"low": -2.2, "high": 0.2}
    for row in source_rows(of):
        assert row["curated"].endswith(" *") and not row["original"].endswith("*")
