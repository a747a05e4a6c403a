"""A table's order reaches a loader, every rank and the next run: every row once an epoch, in another order each."""

from __future__ import annotations

import json
import pickle
from functools import cache
from itertools import islice
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import DataLoader
from torchdata.stateful_dataloader import StatefulDataLoader

import dagster_divorder as divorder
from dagster_divorder.core.order.epochs import BLOCKS
from dagster_divorder.errors import InputError
from dagster_divorder.torch import BalancedSampler, GlobalBatchSampler
from tests.conftest import examples
from tests.tables.kinds import KINDS, random_rows

ROWS = random_rows(50)


@cache
def made(rows: int = 50) -> bytes:
    """Pickled, so that every test has a sampler at its start."""
    table = ROWS[:rows]
    return pickle.dumps(BalancedSampler(table, ["topic", "tags"], tokens="tokens", batch_size=8))


def sampler(**arguments: int) -> BalancedSampler:
    return pickle.loads(made(**arguments))


def orders(iterations: int, **arguments: int) -> list[list[int]]:
    """The first iterations of a sampler."""
    one = sampler(**arguments)
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


shapes = st.tuples(st.integers(1, 4), st.integers(1, 3))


@settings(max_examples=examples(60), deadline=None)
@given(rows=st.integers(1, 50), shape=shapes, accumulated=st.integers(1, 3), epoch=st.integers(0, 1))
def test_ranks_share_the_global_batches_in_equal_numbers(
    rows: int, shape: tuple[int, int], accumulated: int, epoch: int
) -> None:
    world, micro = shape
    batch = world * micro * accumulated
    order = orders(2, rows=rows)[epoch]

    def samplers() -> list[GlobalBatchSampler]:
        return [
            GlobalBatchSampler(sampler(rows=rows), batch, micro_batch=micro, rank=rank, world_size=world)
            for rank in range(world)
        ]

    if batch > rows:
        with pytest.raises(InputError, match=f"the table has {rows} rows, fewer than a batch of {batch}"):
            samplers()
        return
    ranks = samplers()
    for one in ranks:
        assert one.sampler
        one.sampler.set_epoch(epoch)
    micro_batches = [list(one) for one in ranks]
    assert {len(batches) for batches in micro_batches} == {len(ranks[0])}
    steps = [[row for part in step for row in part] for step in zip(*micro_batches, strict=True)]
    assert all(len(step) == world * micro for step in steps)
    assert [row for step in steps for row in step] == order[: rows // batch * batch]


@settings(max_examples=examples(40), deadline=None)
@given(before=shapes, after=shapes, part=st.floats(0, 1))
def test_other_ranks_go_on_where_ranks_stopped(
    before: tuple[int, int], after: tuple[int, int], part: float
) -> None:
    first, second = orders(2)

    def iterations(shape: tuple[int, int], state: dict[str, Any] | None) -> list[Any]:
        world, micro = shape
        ranks = [
            GlobalBatchSampler(sampler(), world * micro, micro_batch=micro, rank=rank, world_size=world)
            for rank in range(world)
        ]
        for one in ranks:
            if state is not None:
                one.load_state_dict(state)
        return [(one, iter(one)) for one in ranks]

    readers = iterations(before, None)
    read: list[int] = []
    for _ in range(int(part * len(readers[0][0]))):
        read += [row for _, reader in readers for row in next(reader)]
    states = [json.loads(json.dumps(reader.state_dict())) for _, reader in readers]
    assert all(state == states[0] for state in states)
    assert read[: states[0]["samples"]] == first[: states[0]["samples"]]
    read = read[: states[0]["samples"]]
    size, stopped = after[0] * after[1], states[0]["samples"]
    end = 50 // size * size
    if stopped < end and stopped % size:
        with pytest.raises(InputError, match=f"counts {stopped} samples.* no step of {size} rows begins"):
            iterations(after, states[0])
        return
    readers = iterations(after, states[0])
    for step in zip(*(reader for _, reader in readers), strict=True):
        read += [row for rows in step for row in rows]
    assert read == first[: max(stopped, end)]
    # The epoch that comes next is whole.
    following = [
        row for step in zip(*(one for one, _ in readers), strict=True) for part in step for row in part
    ]
    assert following[:50] == second[: len(following)]


def loaders(loader: type[Any], way: str, workers: int) -> Any:
    one = sampler()
    if way == "sampler":
        return one, loader(range(50), 8, sampler=one, num_workers=workers)
    return one, loader(range(50), batch_sampler=GlobalBatchSampler(one), num_workers=workers)


@pytest.mark.slow
@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("way", ["sampler", "batch sampler"])
@pytest.mark.parametrize("loader", [DataLoader, StatefulDataLoader])
def test_loaders_read_epoch_after_epoch(loader: type[Any], way: str, workers: int) -> None:
    _, reader = loaders(loader, way, workers)
    for order in orders(3):
        read = [row for batch in reader for row in batch.tolist()]
        whole = 50 if way == "sampler" else 48
        assert read == order[:whole] and len(reader) == -(-whole // 8)


@pytest.mark.slow
@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("way", ["sampler", "batch sampler"])
@pytest.mark.parametrize("stop", [6, 7, 11])
def test_a_stateful_loader_goes_on_exactly_in_any_epoch(way: str, workers: int, stop: int) -> None:
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

    last = 7 if way == "sampler" else 6
    whole = read(loaders(StatefulDataLoader, way, 0)[1], 3 * last)
    first, second = (loaders(StatefulDataLoader, way, workers)[1] for _ in range(2))
    head = read(first, stop)
    second.load_state_dict(first.state_dict())
    if stop == last:  # The last batch was read and the epoch not left.
        assert not list(second)
    assert head + read(second, 3 * last - stop) == whole


def test_a_sampler_counts_what_others_draw_from_it_and_they_begin_where_it_is() -> None:
    first, second = orders(2)
    one = sampler()
    reader = DataLoader(range(50), batch_sampler=GlobalBatchSampler(one))
    read = [row for batch in islice(reader, 3) for row in batch.tolist()]
    state = one.state_dict()
    assert (read, state["epoch"], state["samples"]) == (first[:24], 0, 24)
    again = sampler()
    again.load_state_dict(state)
    batches = GlobalBatchSampler(again)
    assert [row for batch in batches for row in batch] == first[24:48]
    assert (again.state_dict()["epoch"], next(iter(batches))) == (1, second[:8])
    again.load_state_dict({**state, "samples": 9})
    with pytest.raises(
        InputError, match="9 samples, 1 of them in a batch of 8, where no step of 8 rows begins"
    ):
        iter(batches)


def test_an_epoch_set_forgets_a_place_in_another_one() -> None:
    one = sampler()
    first, second = list(one), list(one)
    one.load_state_dict(one.state(one.begin()._replace(epoch=0, samples=9)))
    one.set_epoch(0)
    assert list(one) == first[9:]
    one.load_state_dict(one.state(one.begin()._replace(epoch=0, samples=9)))
    one.set_epoch(1)
    assert list(one) == second
    batches = GlobalBatchSampler(one)
    batches.load_state_dict(one.state(one.begin()._replace(epoch=0, samples=16)))
    one.set_epoch(1)
    assert next(iter(batches)) == second[:8]


def with_other(**arguments: Any) -> dict[str, Any]:
    table = arguments.pop("table", ROWS)
    given = {"by": ["topic", "tags"], "tokens": "tokens", "batch_size": 8, **arguments}
    return BalancedSampler(table, **given).state_dict()


@pytest.mark.parametrize(
    "other",
    [{"table": ROWS[:49]}, {"by": "topic"}, {"seed": 1}, {"batch_size": 9}, {"table": ROWS[::-1]}],
    ids=str,
)
def test_a_state_of_another_order_is_refused(other: dict[str, Any]) -> None:
    state, one = with_other(**other), sampler()
    for load in (one.load_state_dict, GlobalBatchSampler(one).load_state_dict, iter(one).load_state_dict):
        with pytest.raises(InputError, match="another table or other arguments; resume with the table"):
            load(state)


def test_what_is_no_state_is_refused() -> None:
    one = sampler()
    good = one.state_dict()
    states: list[Any] = [
        None,
        {},
        {"samples": 4, "plan": "0123"},
        {**good, "samples": "4"},
        {"sampler": good},
    ]
    for load in (one.load_state_dict, GlobalBatchSampler(one).load_state_dict, iter(one).load_state_dict):
        for state in states:
            with pytest.raises(InputError, match=r"the state to resume from is .*; expected \{'epoch': int"):
                load(state)
        for change in ({"samples": 51}, {"samples": -1}, {"epoch": -1}):
            with pytest.raises(InputError, match=r"samples of epoch .*; expected 0 to 50 samples"):
                load({**good, **change})


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
