"""Laws over all trainers and shapes of exports: no best is worse than what is had for less, and each can be had."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from dagster_divorder.trainers import TRAINERS, Trainer, compare
from dagster_divorder.trainers.replay import Replay, Shape, Way, replay

EVERY = pytest.mark.parametrize("trainer", TRAINERS.values(), ids=TRAINERS)
FEW = st.sampled_from([1, 2, 4])


@st.composite
def shapes(draw: st.DrawFn) -> Shape:
    """Of exports as settings can lay them."""
    layout = draw(
        st.just({})
        | st.fixed_dictionaries({"world_size": FEW, "micro_batch": FEW, "workers": st.integers(1, 3)})
    )
    return Shape(
        sequences=draw(st.integers(1, 80)),
        epochs=draw(st.integers(1, 2)),
        sequence_length=8,
        batch=16,
        layout=layout,
    )


ASKED = st.fixed_dictionaries(
    {"world_size": FEW, "micro_batch": FEW, "workers": st.integers(0, 3), "nodes": st.just(1)}
)


def keeps(way: Way) -> tuple[bool, int]:
    return way.kept.in_order, way.kept.kept


@EVERY
@given(shape=shapes(), asked=ASKED)
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
    plan = np.append(np.arange(198), [-1, -1]).reshape(-1, 4)
    assert compare(best.read, plan) == best.kept
    if trainer.parts:
        ranks = "exports.world_size = 2, exports.micro_batch = 2, exports.workers = 1"
        keys = f'exports.trainer = "{trainer.name}", {ranks}, and its lines'
        assert best.needs in ((keys,) if not layout else ("its lines", "nothing set"))
