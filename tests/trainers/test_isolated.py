"""Exports before the trainers that need other packages than .venv has: their own samplers, with the
lines that a configuration is to have, read what the models say, and their own writers write the same bytes."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest

from dagster_divorder.trainers import TRAINERS, Reading, rows_for_contiguous_ranks
from dagster_divorder.write.exports import FORMATS
from dagster_divorder.write.exports.rows import Options, Rows
from tests.trainers.environments import replay, run_isolated
from tests.write.exports.made import TAG, Folder, blocks_of, masks_of, rows_of, runs_of

pytestmark = pytest.mark.slow

LENGTH, BATCH = 8, 16
WHOLE, UNEVEN = 192, 203
"""Rows of an epoch, with and without an incomplete last batch."""
SIZES = [(rows, world) for rows in (WHOLE, UNEVEN) for world in (1, 2, 4)]
Case = tuple[dict[str, Any], Literal["default", "best"], Reading, Rows]


def made(count: int, epochs: int = 1, *, index: bool = False) -> Rows:
    """So many rows an epoch, each of other ids."""
    corpus: dict[str, Any] = {"lengths": [count * LENGTH], "end_of_text": False, "vocabulary": 1 << 16}
    return rows_of(**corpus, length=LENGTH, epochs=epochs, index=index)


def sliced(rows: Rows, world: int, micro_batch: int, workers: int) -> Rows:
    """Rows as they have to lie for ranks and workers that each read a contiguous slice."""
    place = rows_for_contiguous_ranks(len(rows), world_size=world, micro_batch=micro_batch, workers=workers)
    return replace(rows, sequence=rows.sequence[place], epochs=np.arange(len(place))[None])


def export(name: str, path: Path, rows: Rows, files: int = 3) -> dict[str, Any]:
    """The files of rows, about so many; what the manifest says of them."""
    path.mkdir()
    options = Options(tag=TAG, shard_bytes=-(-len(rows) // files) * 4 * LENGTH, batch=BATCH)
    return dict(FORMATS[name].write(rows, Folder(path), options))  # type: ignore[arg-type]


def tokens(rows: Rows) -> np.ndarray:
    """The ids that rows hold, (R, L)."""
    return np.concatenate(
        [block.padded(LENGTH, rows.stored.padding, block.ids.dtype) for block in blocks_of(rows)]
    )


def check(trainer: str, environment: str, script: str, tmp_path: Path, cases: list[Case]) -> None:
    """The trainer reads in each case the sequences that its model says, known by their tokens."""
    batches = replay(environment, script, tmp_path, [{"batch": BATCH, **case} for case, *_ in cases])
    for case_batches, (case, way, reading, rows) in zip(batches, cases, strict=True):
        ids = [row.tobytes() for row in tokens(rows).astype(np.int64)]
        sequence = dict(zip(ids, rows.sequence, strict=True))
        assert len(sequence) == len(set(rows.sequence.tolist()))
        sequence[np.full(LENGTH, -1).tobytes()] = -1
        read = np.array([[sequence[row.tobytes()] for row in batch] for batch in case_batches])
        model = getattr(TRAINERS[trainer], way)(reading)
        expected = np.where(model < 0, -1, rows.sequence[rows.epochs.reshape(-1)[model]])
        # A loader that goes on into another epoch is stopped by its number of steps.
        read = read[: len(model)] if len(rows.epochs) > 1 else read
        np.testing.assert_array_equal(np.sort(read), np.sort(expected), str(case))


def test_olmo_core(tmp_path: Path) -> None:
    cases: list[Case] = []
    for count, world in SIZES:
        rows, folder = made(count, epochs=2, index=True), tmp_path / f"{count}-{world}"
        export("olmo", folder, rows)
        case = {"folder": str(folder), "length": LENGTH, "dtype": "uint16", "epochs": 1, "world_size": world}
        reading = Reading(rows=count, batch=BATCH, world_size=world)
        first = replace(rows, epochs=np.arange(count)[None])
        cases += [
            ({**case, "shuffle": False}, "best", reading, first),
            ({**case, "shuffle": False, "workers": 2}, "best", reading, first),
            (
                {**case, "shuffle": True, "work": str(folder), "epochs": 3 if count % BATCH else 2},
                "best",
                replace(reading, epochs=2),
                rows,
            ),
        ]
    check("olmo-core", "olmo-core", "olmo_core", tmp_path, cases)


def lines(trainer: str, reading: Reading, folder: Path) -> str:
    return TRAINERS[trainer].configuration(
        reading, path=str(folder), prefix=f"train-{TAG}", sequence_length=LENGTH
    )


def test_torchtitan(tmp_path: Path) -> None:
    cases: list[Case] = []
    for count, world in SIZES:
        for micro_batch in (1, 4):
            for rows, name in ((made(count), "plan"), (sliced(made(count), world, micro_batch, 1), "sliced")):
                folder = tmp_path / f"{count}-{world}-{micro_batch}-{name}"
                export("parquet", folder, rows)
                reading = Reading(
                    rows=len(rows),
                    batch=BATCH,
                    world_size=world,
                    micro_batch=micro_batch,
                )
                case = {"world_size": world, "lines": lines("torchtitan", reading, folder)}
                cases.append((case, "best", reading, rows))
    check("torchtitan", "torchtitan", "torchtitan", tmp_path, cases)


def test_mds(tmp_path: Path) -> None:
    cases: list[Case] = []
    for count in (WHOLE, UNEVEN):
        rows, folder = made(count), tmp_path / str(count)
        export("mds", folder, rows)
        for world, workers, nodes in [(1, 1, 1), (2, 1, 1), (2, 2, 2), (4, 2, 1), (4, 1, 2), (4, 2, 2)]:
            if nodes > 1 and count != WHOLE:
                continue  # no model says which rows fill up the last batch
            ranks = {"world_size": world, "workers": workers}
            reading = Reading(rows=count, batch=BATCH, **ranks)
            ranks["nodes"] = nodes
            best = lines("mds", reading, folder)
            cases.append(({**ranks, "lines": best}, "best", reading, rows))
            if nodes == 1:
                plain = best.replace("num_canonical_nodes=1,", "")
                cases.append(({**ranks, "lines": plain}, "default", reading, rows))
    check("mds", "streaming", "streaming", tmp_path, cases)


def test_litdata(tmp_path: Path) -> None:
    cases: list[Case] = []
    for count in (WHOLE, UNEVEN):
        for world, workers, micro_batch in [(1, 0, 4), (1, 2, 4), (2, 0, 2), (2, 2, 4), (4, 0, 1), (4, 0, 4)]:
            plan = made(count)
            for rows, name in ((plan, "plan"), (sliced(plan, world, micro_batch, workers), "sliced")):
                folder = tmp_path / f"{count}-{world}-{workers}-{micro_batch}-{name}"
                export("litdata", folder, rows)
                case = {"world_size": world}
                reading = Reading(
                    rows=len(rows), batch=BATCH, micro_batch=micro_batch, workers=workers, **case
                )
                cases.append(({**case, "lines": lines("litdata", reading, folder)}, "best", reading, rows))
    check("litdata", "litdata", "litdata", tmp_path, cases)


@pytest.mark.parametrize(("name", "environment"), [("mds", "streaming"), ("litdata", "litdata")])
def test_files_are_those_of_the_trainers_own_writer(name: str, environment: str, tmp_path: Path) -> None:
    cases = []
    for number, (vocabulary, method, shard_bytes, masked) in enumerate(
        [
            (1 << 16, "concat", 1500, False),
            (1 << 16, "best_fit", 1 << 20, False),
            (70_000, "concat", 1 << 20, True),
            (70_000, "best_fit", 2000, False),
            (1 << 16, "best_fit", 2000, True),
        ]
    ):
        padded = method == "best_fit"
        lengths = [5, 11, 3, 70, 6] * 20 if padded else [1600]
        rows = rows_of(
            lengths,
            length=LENGTH,
            method=method,
            end_of_text=False,
            index=False,
            vocabulary=vocabulary,
            masked=masked,
        )
        assert rows.padded is padded
        ours = tmp_path / f"ours-{number}"
        ours.mkdir()
        about = FORMATS[name].write(rows, Folder(ours), Options(tag=TAG, shard_bytes=shard_bytes))  # type: ignore[arg-type]
        columns = {"tokens" if name == "mds" else "input_ids": tokens(rows).astype(about["dtype"])}
        if padded:
            columns["attention_mask"] = (np.arange(LENGTH) < rows.tokens[:, None]).astype(np.uint8)
        if masked:
            rests = [[*mask, *[False] * (LENGTH - len(mask))] for mask in masks_of(rows)]
            columns["loss_mask"] = np.array(rests, np.uint8)
        np.savez(tmp_path / f"{number}.npz", **columns)
        theirs = {"samples": str(tmp_path / f"{number}.npz"), "folder": str(tmp_path / f"theirs-{number}")}
        cases.append({**theirs, "shard_bytes": shard_bytes, "rows_of_files": about["rows_of_files"]})
    run_isolated(environment, f"{name}_writer", tmp_path, cases=cases)
    for number in range(len(cases)):
        ours, theirs = tmp_path / f"ours-{number}", tmp_path / f"theirs-{number}"
        # All is theirs but the names, which carry a tag.
        named = {
            path.name.replace(f"-{int(TAG, 16)}", "-0").replace(f".{TAG}", ""): path
            for path in ours.iterdir()
        }
        assert named.keys() == {path.name for path in theirs.iterdir()}
        for file in named.keys() - {"index.json"}:
            assert named[file].read_bytes() == (theirs / file).read_bytes(), file
        data = (ours / "index.json").read_text().replace(f"-{int(TAG, 16)}", "-0").replace(f".{TAG}", "")
        index, wanted = json.loads(data), json.loads((theirs / "index.json").read_bytes())
        # litdata's is the time.
        assert index | {"updated_at": ""} == wanted | {"updated_at": ""}


@pytest.mark.parametrize("method", ["concat", "best_fit"])
def test_labels_of_olmo_core_are_those_of_the_mask(method: str, tmp_path: Path) -> None:
    rows = rows_of([5, 11, 3, 70, 6] * 20, length=LENGTH, method=method, vocabulary=1 << 16, masked=True)
    about = export("olmo", tmp_path / "export", rows)
    case = {"folder": str(tmp_path / "export"), "length": LENGTH, "dtype": about["dtype"]}
    run_isolated("olmo-core", "olmo_labels", tmp_path, tmp_path / "labels.npz", cases=[case])
    expected = []
    for runs, mask in zip(runs_of(rows), masks_of(rows), strict=True):
        ids = [token for _, _, run in runs for token in run]
        labels = [token if trained else -100 for token, trained in zip(ids, mask, strict=True)]
        expected.append([*labels[1:], *[-100] * (LENGTH - len(labels) + 1)])
    assert np.load(tmp_path / "labels.npz")["arr_0"].tolist() == expected
