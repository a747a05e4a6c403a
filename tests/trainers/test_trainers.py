"""Laws over all trainers: the best way reads the plan, a shuffled plan is noticed, what cannot be is refused."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import numpy as np
import pytest
import yaml
from numpy.typing import NDArray

from dagster_divorder.errors import InputError
from dagster_divorder.trainers import TRAINERS, Reading, Trainer, compare, rows_for_contiguous_ranks
from tests.trainers.replay import RANKS_AND_MICRO_BATCHES

EVERY = pytest.mark.parametrize("trainer", TRAINERS.values(), ids=TRAINERS)


def rows_read(trainer: Trainer, reading: Reading) -> NDArray[np.int64]:
    """The plan's rows in each batch of the best way, from an export laid out for it."""
    read = trainer.best(reading)
    if trainer.parts:
        return rows_for_contiguous_ranks(
            reading.length,
            world_size=reading.world_size,
            micro_batch=reading.micro_batch,
            workers=reading.workers,
        )[read]
    return read


@EVERY
@pytest.mark.parametrize(("world_size", "micro_batch"), RANKS_AND_MICRO_BATCHES)
@pytest.mark.parametrize("epochs", [1, 2])
def test_the_best_way_reads_the_plan_and_a_shuffled_plan_is_noticed(
    trainer: Trainer, world_size: int, micro_batch: int, epochs: int
) -> None:
    reading = Reading(
        rows=96,
        batch=16,
        world_size=world_size,
        micro_batch=micro_batch,
        epochs=epochs,
    )
    read = rows_read(trainer, reading)
    plan = np.arange(96 * epochs).reshape(-1, 16)
    kept = compare(read, plan)
    assert kept.in_order, kept
    assert kept.kept == 6 * epochs

    shuffled = np.random.default_rng(0).permutation(plan.ravel()).reshape(-1, 16)
    noticed = compare(read, shuffled)
    assert not noticed.in_order
    assert noticed.kept == 0
    assert noticed.first is not None
    assert noticed.first[0] == 0


KEPT_BY_DEFAULT = {"trl-kto"}


@EVERY
def test_two_ranks_on_two_nodes_lose_the_order_by_default(trainer: Trainer) -> None:
    reading = Reading(rows=96, batch=16, world_size=2, nodes=2)
    kept = compare(trainer.default(reading), np.arange(96).reshape(-1, 16))
    assert kept.in_order == (trainer.name in KEPT_BY_DEFAULT)


@EVERY
def test_batches_are_of_the_right_shape_and_hold_rows_of_the_export(trainer: Trainer) -> None:
    """Where rows fill neither a batch nor a step."""
    reading = Reading(rows=101, batch=16, world_size=2, micro_batch=2, epochs=2)
    for way in (trainer.default, trainer.best):
        read = way(reading)
        assert read.dtype == np.int64
        assert read.shape[1] == 16
        assert 6 <= len(read) <= 14
        assert ((read >= -1) & (read < 202)).all()
        assert (read[0] >= 0).all()


@pytest.mark.parametrize("name", ["axolotl", "llama-factory", "ms-swift"])
def test_steps_are_in_the_lines_of_trainers_that_no_test_runs(name: str) -> None:
    reading = Reading(rows=96, batch=16, world_size=2, micro_batch=4)
    lines = TRAINERS[name].configuration(reading, path="PLACE", prefix="train", sequence_length=33)
    if name == "ms-swift":
        assert "--per_device_train_batch_size 4\n--gradient_accumulation_steps 2\n--max_steps 6\n" in lines
        return
    keys = yaml.safe_load(lines)
    assert keys["gradient_accumulation_steps"] == 2
    assert keys["max_steps"] == 6


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"rows": 0}, "rows is 0, expected 1 or more"),
        ({"workers": -1}, "workers is -1, expected 0 or more"),
        ({"workers": 10**9}, "workers is 1,000,000,000, expected at most 1,024"),
        ({"world_size": 3}, "batch of 16 sequences .* 3 ranks x 1 .* divides the batch"),
        ({"world_size": 4, "nodes": 3}, "4 ranks .* 3 nodes: choose a divisor"),
    ],
)
def test_a_reading_that_cannot_be_is_refused(changed: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        Reading(**{"rows": 96, "batch": 16, **changed})


@pytest.mark.slow
def test_the_models_load_no_trainer() -> None:
    code = "import dagster_divorder.trainers, sys; print(*{name.split('.')[0] for name in sys.modules})"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert {"numpy", "dagster_divorder"} <= set(loaded.stdout.split())
    assert {"torch", "datasets", "scipy", "pydantic", "dagster"}.isdisjoint(loaded.stdout.split())
