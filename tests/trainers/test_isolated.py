"""Exports before the trainers that need other packages than .venv has: their own samplers read the plan's batches where
the order is said to be kept, and others where it is said to be lost; their own writers write the same bytes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dagster_divorder.exports import FORMATS
from tests.exports.made_rows import made_rows, write
from tests.trainers.environments import replay, run_isolated

pytestmark = pytest.mark.slow

ROWS, LENGTH, BATCH = 192, 8, 16
STEPS = ROWS // BATCH
WORLDS = (1, 2, 4)
USUAL = {"batch": BATCH, "epochs": 2}


@pytest.fixture(scope="module")
def plan() -> np.ndarray:
    """Rows in the order of a plan, uint16 (ROWS, LENGTH), no two of them alike."""
    ids = np.random.default_rng(0).integers(1, 1 << 16, (ROWS, LENGTH)).astype(np.uint16)
    ids[:, 0] = np.arange(ROWS)
    return ids


def sliced(plan: np.ndarray, world: int, micro_batch: int, workers: int = 1) -> np.ndarray:
    """The same rows as they have to lie for ranks and workers that each read a contiguous slice."""
    order = np.arange(ROWS).reshape(-1, workers, world, micro_batch).transpose(2, 1, 0, 3)
    return plan[order.ravel()]


def export(name: str, path: Path, ids: np.ndarray, files: int = 1) -> str:
    """The folder of an export in so many files, or one more."""
    row_bytes = {"parquet": 4 * LENGTH, "mds": 4 + 2 * LENGTH, "litdata": 8 + 2 * LENGTH}[name]
    head = 300 if name == "mds" else 8
    write(FORMATS[name], path, made_rows(ids), shard_bytes=head + row_bytes * ROWS // files)
    return str(path)


def kept(batches: np.ndarray, *epochs: np.ndarray) -> int:
    """How many batches hold just the rows of the epochs' batches, in whatever order inside a batch."""
    expected = np.concatenate(epochs).reshape(-1, BATCH, LENGTH)
    assert batches.shape == expected.shape
    return sum(
        sorted(found.tolist()) == sorted(wanted.tolist())
        for found, wanted in zip(batches, expected, strict=True)
    )


def test_olmo_core(plan: np.ndarray, tmp_path: Path) -> None:
    for number, part in enumerate(np.split(plan, 3)):
        part.tofile(tmp_path / f"train-{number:05d}.npy")
    first, second = (np.random.default_rng(epoch).permutation(ROWS) for epoch in (1, 2))
    for epoch, order in ((1, first), (2, second)):
        name = f"global_indices_dataset_size{ROWS}_epoch{epoch}_seed0_v1.npy"
        order.astype(np.uint32).tofile(tmp_path / name)
    usual = {**USUAL, "folder": str(tmp_path), "length": LENGTH, "dtype": "uint16"}
    ways: list[dict[str, Any]] = [
        {"shuffle": True},
        {"shuffle": False},
        {"shuffle": False, "workers": 2},
        {"shuffle": True, "work": str(tmp_path)},
    ]
    cases = [{**usual, "world_size": world, **way} for way in ways for world in WORLDS]
    found = replay("olmo-core", "olmo_core", tmp_path, cases)
    assert [kept(batches, plan, plan) for batches in found[:3]] == [0] * 3
    assert [kept(batches, plan, plan) for batches in found[3:9]] == [2 * STEPS] * 6
    assert [kept(batches, plan[first], plan[second]) for batches in found[9:]] == [2 * STEPS] * 3


def test_torchtitan(plan: np.ndarray, tmp_path: Path) -> None:
    whole, three, four = (export("parquet", tmp_path / str(n), plan, n) for n in (1, 3, 4))
    # How many batches of each of two epochs are the plan's.
    expected: list[tuple[dict[str, Any], tuple[int, int]]] = [
        ({"world_size": 1, "folder": whole, "streaming": False}, (STEPS, 0)),
        ({"world_size": 2, "folder": whole, "streaming": False}, (0, 0)),
        ({"world_size": 4, "folder": four, "streaming": False}, (0, 0)),
        ({"world_size": 2, "folder": whole, "streaming": True}, (STEPS, STEPS)),
        ({"world_size": 4, "folder": whole, "streaming": True}, (STEPS, STEPS)),
        ({"world_size": 2, "folder": four, "streaming": True}, (0, 0)),
        ({"world_size": 4, "folder": four, "streaming": True}, (0, 0)),
        ({"world_size": 2, "folder": three, "streaming": True}, (STEPS, STEPS)),
    ]
    for world in WORLDS:
        for micro_batch in (1, 4):
            folder = export(
                "parquet", tmp_path / f"{world}-{micro_batch}", sliced(plan, world, micro_batch), 3
            )
            case = {"world_size": world, "folder": folder, "streaming": False, "micro_batch": micro_batch}
            expected.append((case, (STEPS, 0)))
    usual = {"length": LENGTH, "batch": BATCH, "micro_batch": 4, "steps": 2 * STEPS}
    found = replay("torchtitan", "torchtitan", tmp_path, [{**usual, **case} for case, _ in expected])
    for batches, (case, count) in zip(found, expected, strict=True):
        assert (kept(batches[:STEPS], plan), kept(batches[STEPS:], plan)) == count, case


def test_mds(plan: np.ndarray, tmp_path: Path) -> None:
    usual = {**USUAL, "folder": export("mds", tmp_path / "mds", plan, 3)}
    cases: list[dict[str, Any]] = [
        {**usual, "world_size": world, "workers": workers, "nodes": nodes, "canonical": canonical}
        for world in WORLDS
        for workers in (1, 2)
        for nodes in (1, 2)
        for canonical in (None, 1)
        if nodes <= world
    ]
    for batches, case in zip(replay("streaming", "streaming", tmp_path, cases), cases, strict=True):
        lost = case["nodes"] > 1 and case["canonical"] is None
        assert kept(batches, plan, plan) == (0 if lost else 2 * STEPS), case


def test_litdata(plan: np.ndarray, tmp_path: Path) -> None:
    whole = export("litdata", tmp_path / "whole", plan, 3)
    usual = {**USUAL, "micro_batch": 4}
    ways = [(1, 0), (1, 2), (2, 0), (2, 2), (4, 0)]
    cases: list[dict[str, Any]] = [
        {**usual, "folder": whole, "world_size": world, "workers": workers} for world, workers in ways
    ]
    for world, workers in ways:
        ids = sliced(plan, world, 4, max(workers, 1))
        folder = export("litdata", tmp_path / f"{world}-{workers}", ids, 3)
        cases.append({**usual, "folder": folder, "world_size": world, "workers": workers})
    found = [kept(batches, plan, plan) for batches in replay("litdata", "litdata", tmp_path, cases)]
    assert found == [2 * STEPS, 0, 0, 0, 0] + [2 * STEPS] * 5


@pytest.mark.parametrize(("name", "trainer"), [("mds", "streaming"), ("litdata", "litdata")])
def test_files_are_those_of_the_trainers_own_writer(name: str, trainer: str, tmp_path: Path) -> None:
    random = np.random.default_rng(1)
    cases = []
    for dtype, padded, shard_bytes in [
        ("uint16", False, 1500),
        ("uint16", True, 1 << 20),
        ("uint32", False, 1 << 20),
        ("uint32", True, 2000),
    ]:
        ours, number = tmp_path / f"ours-{len(cases)}", len(cases)
        tokens = random.integers(1, LENGTH + 1, ROWS) if padded else np.full(ROWS, LENGTH)
        held = np.arange(LENGTH) < tokens[:, None]
        vocabulary = 1 << (16 if dtype == "uint16" else 18)
        ids = np.where(held, random.integers(1, vocabulary, held.shape), 0).astype(dtype)
        manifest = write(FORMATS[name], ours, made_rows(ids, tokens, vocabulary=vocabulary), shard_bytes)
        columns = {"tokens" if name == "mds" else "input_ids": ids.astype(manifest["dtype"])}
        columns |= {"attention_mask": held.astype(np.uint8)} if padded else {}
        np.savez(tmp_path / f"{number}.npz", **columns)
        cases.append(
            {
                "samples": str(tmp_path / f"{number}.npz"),
                "folder": str(tmp_path / f"theirs-{number}"),
                "shard_bytes": shard_bytes,
                "rows_of_files": manifest["rows_of_files"],
            }
        )
    run_isolated(trainer, f"{name}_writer", cases=cases)
    for number in range(len(cases)):
        ours, theirs = tmp_path / f"ours-{number}", tmp_path / f"theirs-{number}"
        names = {path.name for path in theirs.iterdir()}
        assert names == {path.name for path in ours.iterdir()} - {"manifest.json"}
        for file in names - {"index.json"}:
            assert (ours / file).read_bytes() == (theirs / file).read_bytes(), file
        found, wanted = (json.loads((folder / "index.json").read_bytes()) for folder in (ours, theirs))
        # litdata's is the time.
        assert found | {"updated_at": ""} == wanted | {"updated_at": ""}
