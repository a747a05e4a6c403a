"""A table's order reaches a loader, every rank and the next run: every row once an epoch, in another order each."""

from __future__ import annotations

import json
import pickle
from itertools import islice
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from torchdata.stateful_dataloader import StatefulDataLoader

import dagster_divorder as divorder
from dagster_divorder.core.order.epochs import BLOCKS
from dagster_divorder.errors import InputError
from dagster_divorder.torch import BalancedSampler
from tests.conftest import examples
from tests.tables.kinds import KINDS, random_rows

ROWS = random_rows(50)


AT_ITS_START = pickle.dumps(BalancedSampler(ROWS, ["topic", "tags"], tokens="tokens", batch_size=8))


def sampler() -> BalancedSampler:
    return pickle.loads(AT_ITS_START)


def orders(iterations: int) -> list[list[int]]:
    """The first iterations of a sampler."""
    one = sampler()
    return [list(one) for _ in range(iterations)]


@pytest.mark.parametrize("kind", KINDS)
def test_the_first_epoch_has_the_order_of_any_table(kind: str) -> None:
    by = {"topic": 1, "score": 0.5, "tags": 2}
    one = BalancedSampler(KINDS[kind](ROWS), by, tokens="tokens", seed=3, batch_size=8)
    assert list(one) == divorder.order(ROWS, by, tokens="tokens", seed=3, batch=8).tolist()


def test_every_epoch_has_another_order_in_which_a_row_comes_again_late() -> None:
    rows = 2_000
    random = np.random.default_rng(0)
    table = {"topic": random.integers(9, size=rows), "tokens": random.integers(1, 90, rows)}
    one = BalancedSampler(table, "topic", tokens="tokens", batch_size=16)
    epochs = np.array([list(one) for _ in range(3)])
    assert (np.sort(epochs, axis=1) == np.arange(rows)).all()
    assert len({tuple(epoch) for epoch in epochs.tolist()}) == 3
    places = np.argsort(epochs, axis=1)
    assert (rows + np.diff(places, axis=0)).min() >= (1 - 1 / BLOCKS) * rows - 2 * 16
    one.set_epoch(1)
    assert list(one) == epochs[1].tolist()
    assert one.epoch == 2


def test_a_loop_left_early_begins_the_same_epoch_again() -> None:
    first, second = orders(2)
    one = sampler()
    assert list(islice(one, 7)) == first[:7]
    assert list(one) == first
    assert list(one) == second


@settings(max_examples=examples(40), deadline=None)
@given(before=st.integers(0, 2), stop=st.integers(0, 50), again=st.integers(0, 50))
def test_a_sampler_goes_on_exactly_where_it_stopped(before: int, stop: int, again: int) -> None:
    whole = orders(before + 2)
    one = sampler()
    one.set_epoch(before)
    read: list[int] = []
    for rows in (stop, again):
        rows = min(rows, len(one) - len(read))
        read += islice(one, rows)
        state = json.loads(json.dumps(one.state_dict()))
        one = sampler()
        one.load_state_dict(state)
        assert one.state_dict() == state
        one.set_epoch(before)  # that which it is in: a trainer's loop says it
    read += one
    assert [read, list(one)] == whole[before:]


@pytest.mark.slow
@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("stop", [7, 12])
def test_a_stateful_loader_goes_on_exactly_in_any_epoch(workers: int, stop: int) -> None:
    def loader(workers: int) -> Any:
        return StatefulDataLoader(range(50), 8, sampler=sampler(), num_workers=workers)  # type: ignore[arg-type]

    def read(reader: Any, batches: int) -> list[int]:
        """The next batches, over the ends of epochs."""
        rows: list[int] = []
        while batches:
            for batch in reader:
                rows += batch.tolist()
                batches -= 1
                if not batches:
                    break
        return rows

    whole = read(loader(0), 21)
    assert whole == [row for order in orders(3) for row in order]
    first, second = loader(workers), loader(workers)
    head = read(first, stop)
    second.load_state_dict(first.state_dict())
    if stop == 7:  # The last batch was read and the epoch not left.
        assert not list(second)
    assert head + read(second, 21 - stop) == whole


def test_an_epoch_set_forgets_a_place_in_another_one() -> None:
    one = sampler()
    first, second = list(one), list(one)
    one.load_state_dict({**one.state_dict(), "epoch": 0, "samples": 9})
    one.set_epoch(0)
    assert list(one) == first[9:]
    one.load_state_dict({**one.state_dict(), "epoch": 0, "samples": 9})
    one.set_epoch(1)
    assert list(one) == second


@pytest.mark.parametrize(
    "other",
    [{"table": ROWS[:49]}, {"by": "topic"}, {"seed": 1}, {"batch_size": 9}, {"table": ROWS[::-1]}],
    ids=str,
)
def test_a_state_of_another_order_is_refused(other: dict[str, Any]) -> None:
    given = {"table": ROWS, "by": ["topic", "tags"], "tokens": "tokens", "batch_size": 8, **other}
    state, one = BalancedSampler(**given).state_dict(), sampler()
    for load in (one.load_state_dict, iter(one).load_state_dict):
        with pytest.raises(InputError, match="another table or other arguments; resume with the table"):
            load(state)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"batch_size": 0}, "batch_size is 0; expected a whole number of 1 or more"),
        ({"batch_size": 2.0}, "batch_size is 2.0"),
        ({"batch_size": True}, "batch_size is True"),
        ({"epochs": 2}, "epochs is given, and an iteration is one epoch"),
        ({"batch": 8}, "batch is called batch_size here"),
        ({"table": []}, "the table has no rows"),
        ({"table": {"topic": [], "tokens": []}}, "the table has no rows"),
    ],
)
def test_arguments_that_cannot_be_used_are_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        BalancedSampler(**{"table": ROWS, "by": "topic", "tokens": "tokens", **arguments})


def test_a_state_past_the_end_is_refused() -> None:
    one = sampler()
    good = one.state_dict()
    for change in ({"samples": 51}, {"samples": -1}, {"epoch": -1}):
        with pytest.raises(InputError, match=r"samples of epoch .*; expected 0 to 50 samples"):
            one.load_state_dict({**good, **change})
    with pytest.raises(InputError, match=r"the state to resume from is .*; expected \{'epoch': int"):
        one.load_state_dict({"sampler": good})
