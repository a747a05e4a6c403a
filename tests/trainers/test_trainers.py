"""Laws over all trainers and shapes of exports: the best way reads the plan, no best is
worse than what is had for less, and what cannot be is refused."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest
import yaml
from hypothesis import assume, given
from hypothesis import strategies as st
from numpy.typing import NDArray

from dagster_divorder.errors import InputError
from dagster_divorder.trainers import (
    TRAINERS,
    Reading,
    Trainer,
    compare,
    rows_for_contiguous_ranks,
    trainer_named,
)
from dagster_divorder.trainers.replay import Replay, Shape, Way, replay
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
def test_the_best_way_reads_the_plan(
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


@EVERY
def test_two_ranks_lose_the_order_by_default(trainer: Trainer) -> None:
    reading = Reading(rows=96, batch=16, world_size=2)
    kept = compare(trainer.default(reading), np.arange(96).reshape(-1, 16))
    assert kept.in_order == (trainer.name in ("mds", "trl-kto"))


@EVERY
def test_batches_are_of_the_right_shape_and_hold_rows_of_the_export(trainer: Trainer) -> None:
    """Where rows fill neither a batch nor a step."""
    reading = Reading(rows=101, batch=16, world_size=2, micro_batch=2, epochs=2)
    for way in {trainer.default, trainer.best}:
        read = way(reading)
        assert read.dtype == np.int64
        assert read.shape[1] == 16
        assert 6 <= len(read) <= 14
        assert ((read >= -1) & (read < 202)).all()
    assert (read[0] >= 0).all() or way is not trainer.best


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
    ],
)
def test_a_reading_that_cannot_be_is_refused(changed: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        Reading(**{"rows": 96, "batch": 16, **changed})


def test_a_misspelt_trainer_is_refused_with_what_to_use() -> None:
    with pytest.raises(InputError, match=r"trainer is 'titan'; .*did you mean 'torchtitan'"):
        trainer_named("titan")


FEW = st.sampled_from([1, 2, 4])


LAYOUTS = st.fixed_dictionaries({"world_size": FEW, "micro_batch": FEW, "workers": st.integers(1, 3)})
SHAPES = st.builds(
    partial(Shape, sequence_length=8, batch=16),
    sequences=st.integers(1, 80),
    epochs=st.integers(1, 2),
    layout=st.just({}) | LAYOUTS,
)
"""Of exports as settings can lay them."""
ASKED = st.fixed_dictionaries({"world_size": FEW, "micro_batch": FEW, "workers": st.integers(0, 3)})


def keeps(way: Way) -> tuple[bool, int]:
    return way.kept.in_order, way.kept.kept


@EVERY
@given(shape=SHAPES, asked=ASKED)
def test_no_best_is_worse_than_what_is_had_for_less_and_each_can_be_had(
    trainer: Trainer, shape: Shape, asked: dict[str, Any]
) -> None:
    assume(len(shape.positions()))
    result: Replay = replay(shape, trainer, **asked)
    assert keeps(result.default) <= keeps(result.here) <= keeps(result.best)
    assert result.default.layout is result.here.layout is None and not result.default.lines
    # Less is asked for where it gives as much.
    assert (result.here is result.default) == (
        keeps(result.here) == keeps(result.default)
    ) or result.here.lines
    assert (result.best is result.here) or keeps(result.best) > keeps(result.here)
    # What it says of another layout it says of an export that has it.
    if result.best.layout is not None:
        again = replay(replace(shape, layout=result.best.layout), trainer, **asked)
        assert keeps(again.here) >= keeps(result.best)
    # The lines shown are those of the best, or do no harm.
    if result.lines is None:
        assert not result.best.lines


@EVERY
@pytest.mark.parametrize(
    "layout", [{}, {"world_size": 2, "micro_batch": 2, "workers": 1}], ids=["plan", "ranks"]
)
def test_every_order_can_be_kept_by_what_is_named(trainer: Trainer, layout: dict[str, int]) -> None:
    """Of an export in the order of training as of one that lies for ranks; exactly as `needs` says."""
    shape = Shape(sequences=99, epochs=2, sequence_length=8, batch=4, layout=layout)
    best = replay(shape, trainer, world_size=2, micro_batch=2).best
    assert best.kept.in_order
    if trainer.parts:
        ranks = "exports.world_size = 2, exports.micro_batch = 2, exports.workers = 1"
        keys = f'exports.trainer = "{trainer.name}", {ranks}, and its lines'
        assert best.needs in ((keys,) if not layout else ("its lines", "nothing set"))


@given(count=st.integers(1, 12), size=st.integers(1, 6), seed=st.integers(0, 2**32 - 1), data=st.data())
def test_it_counts_as_a_loop_over_sets_does(count: int, size: int, seed: int, data: st.DataObject) -> None:
    """Rows that come several times among them, as they do where epochs are read from an index; of plans whose last
    batch may be incomplete, with batches left out or read behind the plan."""
    random = np.random.default_rng(seed)
    plan = random.integers(0, 2 * count, (count, size))
    read = np.concatenate([plan, random.integers(0, 2 * count, (1, size))])
    for batch in data.draw(st.lists(st.integers(0, count - 1), max_size=3)):
        read[batch] = random.integers(0, 2 * count, size)
    read = random.permuted(read, axis=1)[: data.draw(st.integers(0, count + 1))]
    whole = count - data.draw(st.integers(0, 1))
    plan[whole:, -1] = -1

    kept = compare(read, plan)
    pairs = zip(read.tolist()[:whole], plan.tolist()[:whole], strict=False)
    same = sum(sorted(one) == sorted(other) for one, other in pairs)
    assert (kept.batches, kept.kept, kept.in_order) == (whole, same, same == whole)
