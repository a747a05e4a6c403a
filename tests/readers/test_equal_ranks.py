"""Ranks of equal cost read the plan's global batches, and go on exactly."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dagster_divorder.core.ranks import slowest_rank
from dagster_divorder.errors import InputError
from dagster_divorder.torch import (
    SequenceStream,
    open_export,
)
from tests.conftest import examples
from tests.readers.made import write_export

BATCH = 24
LENGTHS = np.random.default_rng(0).lognormal(3, 1.2, 400).astype(int).clip(1, 64).tolist()
RANKS = [(1, 1), (2, 3), (4, 2), (8, 1), (3, 8), (2, 12)]


@pytest.fixture(scope="module")
def exports(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("exports")
    for method in ("best_fit", "none"):
        corpus = {"lengths": LENGTHS, "length": 64, "method": method, "epochs": 2, "end_of_text": False}
        write_export(folder / method, "parquet", corpus, batch=BATCH)
    return {path.name: path for path in folder.iterdir() if not path.name.startswith("_")}


def streams(path: Path, world: int, micro: int, **options: Any) -> list[SequenceStream]:
    return [
        SequenceStream(path, world_size=world, rank=rank, micro_batch=micro, equal_ranks=True, **options)
        for rank in range(world)
    ]


def rows_read(
    path: Path, world: int, micro: int, begin: int = 0, end: int | None = None
) -> list[list[list[int]]]:
    """By micro-step and rank, the rows of the plan's order that samplers give."""
    readers = [iter(stream.sampler) for stream in streams(path, world, micro)]
    steps = list(zip(*([list(rows) for rows in reader] for reader in readers), strict=True))
    return [[list(rank) for rank in step] for step in steps][begin:end]


@pytest.mark.parametrize(("world", "micro"), RANKS)
def test_batches_keep_their_rows_and_ranks_wait_less(
    exports: dict[str, Path], world: int, micro: int
) -> None:
    path = exports["best_fit"]
    export = open_export(path)
    read = np.array(rows_read(path, world, micro)).reshape(-1, BATCH)
    whole = len(export) // BATCH * BATCH
    assert np.array_equal(np.sort(read, axis=1), np.arange(whole).reshape(-1, BATCH))
    lengths, documents = export.block(range(whole)).documents
    costs = np.add.reduceat(lengths.astype(float) ** 2, np.cumsum(documents) - documents)
    assert np.array_equal(export.costs(range(whole), padded=False), costs)
    dealt = slowest_rank(costs[read.ravel()], world, micro)
    assert dealt <= slowest_rank(costs, world, micro) + 1e-9
    if (world, micro) == (2, 3):
        assert dealt < 1.06


@settings(max_examples=examples(20), deadline=None)
@given(before=st.sampled_from(RANKS), after=st.sampled_from(RANKS), part=st.floats(0, 1))
def test_a_training_goes_on_exactly(
    exports: dict[str, Path], before: tuple[int, int], after: tuple[int, int], part: float
) -> None:
    path = exports["best_fit"]
    first, second = streams(path, *before), streams(path, *after)
    step, steps = before[0] * before[1], len(first[0])
    done = int(part * steps)
    readers = [iter(stream) for stream in first]
    for _ in range(done):
        for reader in readers:
            next(reader)
    state = first[0].state_dict()
    assert state["samples"] == done * step
    if state["samples"] % BATCH and before != after:
        with pytest.raises(InputError, match=r"(inside a batch whose rows were dealt|where no step of)"):
            second[0].load_state_dict(state)
        return
    for stream in second:
        stream.load_state_dict(state)
    rest = [list(stream.sampler) for stream in second]
    expected = rows_read(path, *after, begin=state["samples"] // (after[0] * after[1]))
    assert [[list(rows) for rows in rank] for rank in zip(*rest, strict=True)] == expected


def test_a_state_inside_a_batch_is_for_rows_that_are_dealt_alike(exports: dict[str, Path]) -> None:
    path = exports["best_fit"]
    plain = SequenceStream(path, world_size=2, rank=0, micro_batch=3)
    reader = iter(plain)
    next(reader)
    with pytest.raises(
        InputError, match="dealt to ranks as 'they come', and they are dealt as '2 x 3 at reading'"
    ):
        streams(path, 2, 3)[0].load_state_dict(plain.state_dict())


def test_rows_that_are_not_packed_are_padded_to_their_micro_batch(exports: dict[str, Path]) -> None:
    path = exports["none"]
    blocks = [next(iter(stream)) for stream in streams(path, 2, 3)]
    for block in blocks:
        lengths = block["attention_mask"].sum(1)
        assert block["input_ids"].shape == block["labels"].shape == (3, int(lengths.max()))
    export = open_export(path)
    read = np.array(rows_read(path, 4, 2)).reshape(-1, 2)
    lengths = export.costs(read.ravel(), padded=True).reshape(-1, 2)
    padded = lengths.max(1).sum() * 2 / lengths.sum() - 1
    as_they_come = export.costs(range(read.size), padded=True).reshape(-1, 2)
    assert padded < 0.06 < as_they_come.max(1).sum() * 2 / as_they_come.sum() - 1
    flat = next(iter(SequenceStream(path, world_size=1, rank=0, form="flattened", equal_ranks=True)))
    assert flat["input_ids"].shape[1] == export.costs(range(BATCH), padded=True).sum()


def test_what_has_no_costs_is_refused(tmp_path: Path) -> None:
    write_export(tmp_path / "old", "parquet", {"lengths": [8] * 9}, batch=2, files_without=("rows.arrow",))
    with pytest.raises(InputError, match=r"has no table of its rows; .* export again"):
        SequenceStream(tmp_path / "old", world_size=1, rank=0, equal_ranks=True)
