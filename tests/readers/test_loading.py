"""The stream of rows reaches the ranks in the order of the plan, and goes on exactly with other ranks and workers.
So do ranks of equal cost, and docs/train.py."""

from __future__ import annotations

import hashlib
import os
import re
import runpy
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch.utils.data import DataLoader
from torchdata.stateful_dataloader import StatefulDataLoader

from dagster_divorder.core.ranks import slowest_rank
from dagster_divorder.errors import InputError
from dagster_divorder.readers import loading
from dagster_divorder.torch import (
    GlobalBatchSampler,
    SequenceDataset,
    SequenceStream,
    open_export,
)
from tests.conftest import examples
from tests.readers.made import write_export

ROWS, BATCH = 50, 12
WHOLE = ROWS // BATCH * BATCH


@pytest.fixture(scope="module")
def export(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Any]]:
    """An export of two epochs, and the ids of each row of its stream."""
    path = tmp_path_factory.mktemp("export")
    corpus = {
        "lengths": [2] * (ROWS // 2),
        "length": 2,
        "end_of_text": False,
        "epochs": 2,
        "vocabulary": 60_000,
    }
    stream = write_export(path, "parquet", corpus, batch=BATCH, shard_bytes=40)
    rows = [row[0] for row in stream]
    assert len({tuple(row) for row in rows}) == ROWS // 2
    return path, rows


def consumed(readers: list[Iterator[Any]], micro_batches: int) -> list[list[int]]:
    """What ranks read, a micro-batch of each in turn."""
    ids = []
    for _ in range(micro_batches):
        for reader in readers:
            ids += next(reader)["input_ids"].tolist()
    return ids


@pytest.mark.slow
@pytest.mark.parametrize(("before", "after"), [(0, 0), (2, 2)])
def test_workers_that_read_ahead_change_no_position(
    export: tuple[Path, list[Any]], before: int, after: int
) -> None:
    path, rows = export

    def loader(workers: int, **ranks: int) -> Any:
        stream = SequenceStream(path, **ranks)
        collate = stream.dataset.collate
        return StatefulDataLoader(
            stream.dataset, batch_sampler=stream.sampler, num_workers=workers, collate_fn=collate
        )

    first = loader(before, world_size=1, rank=0, micro_batch=3)
    read = consumed([iter(first)], 6)
    again = loader(after, world_size=1, rank=0, micro_batch=3)
    again.load_state_dict(first.state_dict())
    read += consumed([iter(again)], (WHOLE - 18) // 3)
    assert read == rows[:WHOLE]
    assert consumed([iter(again)], WHOLE // 3) == rows[:WHOLE], "the next epoch begins with the first row"


def test_two_live_iterations_have_a_place_each_and_the_state_is_the_last_ones(
    export: tuple[Path, list[Any]],
) -> None:
    path, rows = export
    stream = SequenceStream(path, world_size=1, rank=0)
    one = iter(stream)
    assert consumed([one], 2) == rows[: 2 * BATCH]
    other = iter(stream)
    assert stream.state_dict()["samples"] == 0
    assert consumed([other], 1) == rows[:BATCH]
    assert consumed([one], 1) == rows[2 * BATCH : 3 * BATCH]
    assert stream.state_dict()["samples"] == BATCH


def test_a_plain_loader_reads_what_its_sampler_says(export: tuple[Path, list[Any]]) -> None:
    path, rows = export
    dataset = SequenceDataset(path)
    sampler = GlobalBatchSampler(dataset, rank=1, world_size=2)
    sampler.load_state_dict({"samples": BATCH, "plan": "0123"})
    loader = DataLoader(dataset, batch_sampler=sampler, collate_fn=dataset.collate)
    assert len(loader) == WHOLE // BATCH
    assert consumed([iter(loader)], 1) == rows[BATCH + BATCH // 2 : 2 * BATCH]
    assert consumed([iter(DataLoader(dataset, 5, collate_fn=dataset.collate))], len(rows) // 5) == rows


def test_a_stream_in_the_worker_of_another_loader_is_refused(
    export: tuple[Path, list[Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loading, "get_worker_info", lambda: SimpleNamespace(id=0, num_workers=2))
    with pytest.raises(InputError, match=r"every worker would read all of it; iterate it without"):
        next(iter(SequenceStream(export[0], rank=0, world_size=1)))


NO_STATE = r"the state to resume from is .*; expected \{'samples': int, 'plan': str"
STATES: list[tuple[Any, str]] = [
    *(
        (state, NO_STATE)
        for state in (None, {}, {"samples": 4}, {"samples": "4", "plan": "0123"}, {"samples": 4, "plan": 123})
    ),
    ({"samples": True, "plan": "0123"}, NO_STATE),
    ({"model": {}, "stream": {"samples": 4, "plan": "0123"}}, NO_STATE),
    ({"samples": 0, "plan": "89ab"}, r"the state belongs to the plan 89ab, and .* holds 0123"),
    *(
        ({"samples": samples, "plan": "0123"}, f"the state counts {samples} samples, and .* has {ROWS}")
        for samples in (ROWS + 1, -1)
    ),
]


@pytest.mark.parametrize(("state", "message"), STATES, ids=str)
def test_what_is_no_state_of_this_export_is_refused_wherever_it_is_loaded(
    export: tuple[Path, list[Any]], state: Any, message: str
) -> None:
    stream = SequenceStream(export[0], rank=0, world_size=1)
    batches = iter(stream.sampler)
    for load in (stream.load_state_dict, stream.sampler.load_state_dict, batches.load_state_dict):
        with pytest.raises(InputError, match=message):
            load(state)


def test_ranks_that_cannot_share_a_batch_are_refused(export: tuple[Path, list[Any]]) -> None:
    path, _ = export
    refused: list[tuple[dict[str, Any], str]] = [
        ({"world_size": 5}, "a global batch of 12 rows cannot be shared by 5 ranks that read 2 at once"),
        ({"world_size": 24}, "12 rows cannot be shared by 24 ranks that read 1"),
        ({"micro_batch": 5}, "12 rows cannot be shared by 1 ranks that read 5"),
        ({"micro_batch": 0}, "1 ranks that read 0"),
        ({"batch": 0}, "a global batch of 0 rows"),
        ({"batch": ROWS + 1}, f"has {ROWS} rows, fewer than a batch of {ROWS + 1}"),
        ({"world_size": 2, "rank": 2}, "rank is 2 in a world of 2"),
        ({"rank": -1}, "rank is -1 in a world of 1"),
    ]
    for arguments, message in refused:
        with pytest.raises(InputError, match=message):
            SequenceStream(path, **{"rank": 0, "world_size": 1, **arguments})
    with pytest.raises(InputError, match="dataset is a list; expected a SequenceDataset of an export"):
        GlobalBatchSampler([1, 2, 3])  # type: ignore[arg-type]


def test_rank_and_world_size_are_what_torchrun_sets(
    export: tuple[Path, list[Any]], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    import torch.distributed as dist

    path, rows = export
    for name in ("RANK", "WORLD_SIZE"):
        for wrong in ("x", "1.0", "0x1"):
            monkeypatch.setenv(name, wrong)
            with pytest.raises(
                InputError, match=f"the environment variable {name} is '{wrong}'; expected a whole"
            ):
                SequenceStream(path)
        monkeypatch.delenv(name)
    assert consumed([iter(SequenceStream(path))], 1) == rows[:BATCH]
    assert consumed([iter(SequenceStream(path, world_size=1))], 1) == rows[:BATCH]
    for name, number, known in (
        ("WORLD_SIZE", "3", "rank is None and world_size is 3"),
        ("RANK", "0", "is 0 and"),
    ):
        monkeypatch.setenv(name, number)
        with pytest.raises(InputError, match=f"{known}.*expected both, .*srun and mpirun"):
            SequenceStream(path)
        monkeypatch.delenv(name)
    monkeypatch.setenv("RANK", "2")
    monkeypatch.setenv("WORLD_SIZE", "3")
    assert consumed([iter(SequenceStream(path))], 1) == rows[8:12]
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/meet", rank=0, world_size=1)
    try:
        assert consumed([iter(SequenceStream(path))], 1) == rows[:BATCH]
    finally:
        dist.destroy_process_group()


DEALT = 24
LENGTHS = np.random.default_rng(0).lognormal(3, 1.2, 400).astype(int).clip(1, 64).tolist()
RANKS = [(1, 1), (2, 3), (4, 2), (8, 1), (3, 8), (2, 12)]


@pytest.fixture(scope="module")
def exports(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("exports")
    for method in ("best_fit", "none"):
        corpus = {"lengths": LENGTHS, "length": 64, "method": method, "epochs": 2, "end_of_text": False}
        write_export(folder / method, "parquet", corpus, batch=DEALT)
    return {path.name: path for path in folder.iterdir() if not path.name.startswith("_")}


def streams(path: Path, world: int, micro: int, equal: bool = True) -> list[SequenceStream]:
    return [
        SequenceStream(path, world_size=world, rank=rank, micro_batch=micro, equal_ranks=equal)
        for rank in range(world)
    ]


def rows_of(streams: list[SequenceStream]) -> list[list[list[int]]]:
    """By micro-step and rank, the rows of the plan's order that samplers give from here on."""
    read = zip(*([list(rows) for rows in stream.sampler] for stream in streams), strict=True)
    return [list(step) for step in read]


@pytest.mark.parametrize(("world", "micro"), RANKS)
def test_batches_keep_their_rows_and_ranks_wait_less(
    exports: dict[str, Path], world: int, micro: int
) -> None:
    path = exports["best_fit"]
    export = open_export(path)
    read = np.array(rows_of(streams(path, world, micro))).reshape(-1, DEALT)
    whole = len(export) // DEALT * DEALT
    assert np.array_equal(np.sort(read, axis=1), np.arange(whole).reshape(-1, DEALT))
    lengths, documents = export.block(range(whole)).documents
    costs = np.add.reduceat(lengths.astype(float) ** 2, np.cumsum(documents) - documents)
    assert np.array_equal(export.costs(range(whole), padded=False), costs)
    dealt = slowest_rank(costs[read.ravel()], world, micro)
    assert dealt <= slowest_rank(costs, world, micro) + 1e-9
    if (world, micro) == (2, 3):
        assert dealt < 1.06


ways = st.tuples(st.sampled_from(RANKS), st.booleans())
"""Ranks and rows that they read at once, and whether they have equal costs."""


@settings(max_examples=examples(40), deadline=None)
@given(before=ways, after=ways, part=st.floats(0, 1))
@example(before=((2, 3), False), after=((2, 3), True), part=0.1)
def test_any_ranks_go_on_where_any_others_stopped(
    exports: dict[str, Path], before: tuple[Any, bool], after: tuple[Any, bool], part: float
) -> None:
    (ranks, equal), (other_ranks, other_equal), path = before, after, exports["best_fit"]
    first, second = streams(path, *ranks, equal), streams(path, *other_ranks, other_equal)
    done, step = int(part * len(first[0])), np.prod(other_ranks)
    readers = [iter(stream) for stream in first]
    for reader in readers * done:
        next(reader)
    state, stopped = first[0].state_dict(), done * int(np.prod(ranks))
    dealt, other_dealt = (
        f"{world} x {micro} at reading" if is_equal else "" for (world, micro), is_equal in (before, after)
    )
    assert state == {"samples": stopped, "plan": "0123"} | ({"dealt": dealt} if equal else {})
    assert all(stream.state_dict() == state for stream in first)
    refused = ""
    if stopped % step:
        refused = f"{stopped} samples.* no step of {step} rows begins"
    elif stopped % DEALT and dealt != other_dealt:
        refused = (
            f"to ranks as '{dealt or 'they come'}', and they are dealt as '{other_dealt or 'they come'}'"
        )
    for stream in second:
        with pytest.raises(InputError, match=refused) if refused else nullcontext():
            stream.load_state_dict(state)
    if refused:
        return
    assert all(stream.state_dict()["samples"] == stopped for stream in second)
    rest = rows_of(second)
    assert rest == rows_of(streams(path, *other_ranks, other_equal))[stopped // step :]
    assert other_equal or np.ravel(rest).tolist() == list(range(stopped, stopped + np.size(rest)))


def test_rows_that_are_not_packed_are_padded_to_their_micro_batch(exports: dict[str, Path]) -> None:
    path = exports["none"]
    blocks = [next(iter(stream)) for stream in streams(path, 2, 3)]
    for block in blocks:
        lengths = block["attention_mask"].sum(1)
        assert block["input_ids"].shape == block["labels"].shape == (3, int(lengths.max()))
    export = open_export(path)
    read = np.array(rows_of(streams(path, 4, 2))).reshape(-1, 2)
    lengths = export.costs(read.ravel(), padded=True).reshape(-1, 2)
    padded = lengths.max(1).sum() * 2 / lengths.sum() - 1
    as_they_come = export.costs(range(read.size), padded=True).reshape(-1, 2)
    assert padded < 0.06 < as_they_come.max(1).sum() * 2 / as_they_come.sum() - 1
    flat = next(iter(SequenceStream(path, world_size=1, rank=0, form="flattened", equal_ranks=True)))
    assert flat["input_ids"].shape[1] == export.costs(range(DEALT), padded=True).sum()


def test_what_has_no_costs_is_refused(tmp_path: Path) -> None:
    write_export(tmp_path / "old", "parquet", {"lengths": [8] * 9}, batch=2, files_without=("rows.arrow",))
    with pytest.raises(InputError, match=r"has no table of its rows; .* export again"):
        SequenceStream(tmp_path / "old", world_size=1, rank=0, equal_ranks=True)


SCRIPT = Path(__file__).parents[2] / "docs/train.py"
STEP = 4


@pytest.mark.slow
def test_a_training_goes_on_with_other_ranks_on_the_same_tokens(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    corpus = {"lengths": [17] * 20, "length": 16, "vocabulary": 300, "method": "best_fit"}
    stream = write_export(tmp_path / "export", "parquet", corpus, batch=STEP)
    rows = np.full((len(stream), 16), 299, np.int64)
    for row, documents in zip(rows, stream, strict=True):
        ids = [token for document in documents for token in document]
        row[: len(ids)] = ids
    whole = len(stream) // STEP
    expected = {
        number + 1: hashlib.sha256(rows[number * STEP : (number + 1) * STEP]).hexdigest()[:16]
        for number in range(whole)
    }
    monkeypatch.chdir(tmp_path)

    def train(steps: int, ranks: int) -> dict[int, str]:
        """The hash of the tokens of each global batch that a training read, by the batch's number. Rank 0 runs here,
        where torch is imported. Of torchrun the script needs no more than what it sets."""
        with socket.socket() as free:
            free.bind(("localhost", 0))
            port = free.getsockname()[1]
        settings = {"WORLD_SIZE": str(ranks), "MASTER_ADDR": "localhost", "MASTER_PORT": str(port)}
        command = [sys.executable, str(SCRIPT), "export", str(steps)]
        others = [
            subprocess.Popen(command, env={**os.environ, **settings, "RANK": str(rank)})
            for rank in range(1, ranks)
        ]
        for name, value in {**settings, "RANK": "0"}.items():
            monkeypatch.setenv(name, value)
        monkeypatch.setattr(sys, "argv", command[1:])
        try:
            runpy.run_path(str(SCRIPT))
            assert [other.wait(timeout=60) for other in others] == [0] * (ranks - 1)
        finally:
            for other in others:
                other.kill()
        printed = re.findall(r"batch (\d+) loss \d+\.\d+ tokens (\w+)", capsys.readouterr().out)
        return {int(number): tokens for number, tokens in printed}

    before, after = train(2, ranks=2), train(0, ranks=1)
    assert list(before) == [1, 2]
    assert list(after) == list(range(3, whole + 1))
    assert before | after == expected
