"""The grid of files gives the sequences in the order of the strategy, whatever is killed on the way, and keeps off what
is not its own."""

from __future__ import annotations

import hashlib
import os
import signal
import subprocess
import sys
import tracemalloc
from contextlib import ExitStack
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.sparse import csr_matrix

from dagster_divorder.cli import main
from dagster_divorder.core.order import order
from dagster_divorder.errors import InputError, StoreBusyError, StoreError
from dagster_divorder.store.folders import folder_at
from dagster_divorder.store.manifests import EXPORT_MANIFEST, export_manifest_file
from dagster_divorder.store.output_manifests import entry_of
from dagster_divorder.torch import open_export
from dagster_divorder.verify import load_export
from dagster_divorder.write.exports import parquet
from dagster_divorder.write.grid import PLAN, grid_shuffle
from tests.conftest import examples
from tests.readers.made import NAMES, exported, write_export, write_manifest
from tests.write.exports.made import TAG, arguments


def in_memory(rows: list[Any], shards: int, seed: int) -> list[Any]:
    counts = csr_matrix(np.ones((len(rows), 1), int))
    return [rows[at] for at in order(counts, [0], strategy="grid_shuffle", shards=shards, seed=seed)]


def documents(path: Path) -> list[list[list[int]]]:
    """The ids of each document of each row of an export."""
    export = open_export(path)
    block = export.block(range(len(export)))
    lengths, counts = block.documents
    rows = []
    for ids, row_lengths in zip(block.ids, np.split(lengths, np.cumsum(counts)[:-1]), strict=True):
        rows.append(
            [part.tolist() for part in np.split(ids[: row_lengths.sum()], np.cumsum(row_lengths)[:-1])]
        )
    return rows


def files(path: Path) -> dict[str, str]:
    folder = folder_at(path)
    return {name: hashlib.sha256(folder.read(name)).hexdigest() for name in folder.names()}


@settings(max_examples=examples(25), deadline=None)
@given(
    corpora=st.lists(st.tuples(arguments(), st.sampled_from(NAMES)), min_size=1, max_size=3),
    length=st.integers(2, 9),
    side=st.integers(1, 6),
    seed=st.integers(0, 1 << 40),
)
def test_files_come_in_the_order_of_the_strategy(
    corpora: list[tuple[dict[str, Any], str]], length: int, side: int, seed: int
) -> None:
    with ExitStack() as opened:
        sources = [
            opened.enter_context(exported(name, corpus | {"epochs": 1, "length": length, "vocabulary": 1000}))
            for corpus, name in corpora
        ]
        exports = [path for path, stream in sources if stream]
        rows = [row for _, stream in sources for row in stream]
        if not rows:
            return
        out = Path(opened.enter_context(TemporaryDirectory())) / "out"
        size = 4 * len(rows) * length
        memory = -(-size // min(side, int(len(rows) ** 0.5)))
        manifest = grid_shuffle(exports, out, memory=memory, seed=seed)
        assert manifest["grid_shuffle"]["shards"] == (-(-size // memory)) ** 2
        assert documents(out) == in_memory(rows, manifest["grid_shuffle"]["shards"], seed)
        # Nothing but the export is left, and a second run finds it.
        whole = files(out)
        assert whole.keys() == {*manifest["files"], EXPORT_MANIFEST}
        assert grid_shuffle(exports, out, memory=memory, seed=seed) == manifest and files(out) == whole


CORPUS: dict[str, Any] = {"lengths": [5, 30, 17] * 100, "length": 16}
MEMORY = 4 * 16 * 120


@pytest.fixture(scope="module")
def export(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("export")
    write_export(path, "parquet", CORPUS, key="ab", store={"id": "cd", "path": "x"})
    return path


KILLED = """
import itertools, os, signal, sys
import pyarrow.parquet
from dagster_divorder.write.grid import grid_shuffle
export, out, memory = sys.argv[1:]

def killing(call):
    def one(*given, **named):
        global left
        left -= 1
        if not left:
            os.kill(os.getpid(), signal.SIGKILL)
        return call(*given, **named)
    return one

for moment in itertools.cycle([2, 4, 5, 6, 3, 7, 9]):
    if not (child := os.fork()):
        left = moment
        os.fsync, os.replace, os.unlink = map(killing, (os.fsync, os.replace, os.unlink))
        grid_shuffle(export, out, memory=int(memory), seed=3)
        os._exit(0)
    status = os.waitpid(child, 0)[1]
    print(status, *(name for name in os.listdir(out) if name.startswith(("column", "train"))))
    if not status:
        break
"""


@pytest.mark.slow
def test_after_kills_at_any_moment_the_same_bytes(export: Path, tmp_path: Path) -> None:
    grid_shuffle(export, tmp_path / "whole", memory=MEMORY, seed=3)
    whole = files(tmp_path / "whole")
    assert len(whole) > 3
    # Each process goes on where the last one was killed: before or after a file is safe, or has its name, or is gone.
    ran = subprocess.run(
        [sys.executable, "-c", KILLED, export, tmp_path / "killed", str(MEMORY)],
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    ends, *names_after = zip(*(line.partition(" ")[::2] for line in ran.stdout.splitlines()), strict=True)
    assert set(ends[:-1]) == {str(signal.SIGKILL.value)} and len(ends) > 8
    grown = [set(names.split()) for names in names_after[0]]
    # What was there stays, until all rows are there and the columns go.
    whole_rows = {name for name in whole if name.startswith("train")}
    assert all(before <= after or whole_rows <= before for before, after in pairwise(grown))
    assert len(set(map(len, grown))) > 5
    assert files(tmp_path / "killed") == whole


@pytest.mark.slow
def test_no_more_than_a_column_or_row_is_in_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parquet, "GROUP_BYTES", 1 << 18)
    length, rows, path = 8192, 1024, tmp_path / "export"
    write_export(path, "parquet", {"lengths": [length], "length": length, "end_of_text": False})
    name = f"train-{TAG}-00000-of-00001.parquet"
    with open(path / name, "wb") as file, parquet.open_writer(file, parquet.SCHEMA) as writer:
        full = np.full(rows, length)
        ids = np.arange(length * rows, dtype=np.int32)
        writer.write_table(parquet.table(ids, full, full, np.ones(rows, int)), row_group_size=8)
    manifest = orjson.loads(export_manifest_file(path).read_bytes()) | {"rows": rows, "rows_of_files": [rows]}
    with open(path / name, "rb") as written:
        manifest["files"][name] = entry_of(written)
    del manifest["check"]
    write_manifest(path, manifest)
    size, columns = 4 * length * rows, 8
    grid_shuffle(path, tmp_path / "first", memory=size)  # imports what it needs
    tracemalloc.start()
    manifest_of_columns = grid_shuffle(path, tmp_path / "out", memory=size // columns)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert manifest_of_columns["grid_shuffle"]["shards"] == columns**2
    assert size // columns < peak < size // 4


def test_foreign_and_stale_files_are_refused(export: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    (out / "column-00000-of-00001.parquet").write_text("mine")
    with pytest.raises(InputError, match="which this shuffle did not write"):
        grid_shuffle(export, out)
    assert (out / "column-00000-of-00001.parquet").read_text() == "mine"
    (out / "column-00000-of-00001.parquet").unlink()
    manifest = grid_shuffle(export, out, memory=MEMORY)
    (out / PLAN).write_text(export_manifest_file(out).read_text())
    with pytest.raises(InputError, match="an unfinished shuffle with another version, exports, shards, seed"):
        grid_shuffle(export, out, memory=MEMORY, seed=1)
    begun = tmp_path / "begun"
    grid_shuffle(export, begun, memory=MEMORY, seed=1)
    # A row of another shuffle where this one's is to come; then one that is cut short.
    for spoilt in ((begun / "train-00000-of-00003.parquet").read_bytes(), b"PAR1"):
        again = tmp_path / f"again-{len(spoilt)}"
        again.mkdir()
        (again / PLAN).write_bytes(orjson.dumps(manifest["grid_shuffle"]))
        (again / "train-00000-of-00003.parquet").write_bytes(spoilt)
        with pytest.raises(StoreError, match="is damaged, or belongs to another shuffle"):
            grid_shuffle(export, again, memory=MEMORY)
        assert (again / "train-00000-of-00003.parquet").read_bytes() == spoilt
    (again / "notes.txt").write_text("mine")
    with pytest.raises(InputError, match="txt, which is not a file of this shuffle"):
        grid_shuffle(export, again, memory=MEMORY)


def test_two_processes_do_not_share_a_folder(export: Path, tmp_path: Path) -> None:
    import fcntl

    descriptor = os.open(tmp_path, os.O_RDONLY)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    with pytest.raises(StoreBusyError, match="another process writes into"):
        grid_shuffle(export, tmp_path)
    os.close(descriptor)


def test_what_cannot_be_shuffled_is_refused(export: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="memory is 1,000 bytes, too little") as error:
        grid_shuffle(export, tmp_path / "out", memory=1000)
    enough = int(str(error.value).split("give ")[1].split()[0].replace(",", ""))
    grid_shuffle(export, tmp_path / "out", memory=enough)
    for memory, seed in ((0, 0), (-1, 0), (MEMORY, -1), (MEMORY, 1 << 63)):
        with pytest.raises(InputError, match="expected a memory of 1 or more, and a seed in"):
            grid_shuffle(export, tmp_path / "nothing", memory=memory, seed=seed)
    assert not (tmp_path / "nothing").exists()
    with exported("olmo", CORPUS | {"epochs": 2}) as (path, _), pytest.raises(InputError, match="2 epochs"):
        grid_shuffle(path, tmp_path / "two")


@pytest.mark.parametrize("memory", ["nan", "inf", "-inf", "0", "-1", "1e-12", "1e300", "two", ""])
def test_a_memory_that_is_none_is_refused(
    memory: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["grid-shuffle", "export", str(tmp_path / "out"), f"--memory={memory}"])
    assert f"{memory!r} is not an amount of memory; expected gigabytes" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_the_command_writes_what_verify_takes(
    export: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    assert main(["grid-shuffle", str(export), str(out), "--memory", "0.00001", "--seed", "4"]) == 0
    rows = len(open_export(export))
    assert f"{rows:,} sequences" in capsys.readouterr().out
    manifest = load_export(out)
    assert manifest["grid_shuffle"]["seed"] == 4
    # What it holds is in no planned order any more, and it says so; what was shuffled it says as well.
    assert (manifest["sequence"]["strategy"], manifest["seed"]) == ("grid_shuffle", 4)
    assert [source["sequence"]["strategy"] for source in manifest["sources"]] == ["balanced"]
    assert documents(out) == in_memory(documents(export), load_export(out)["grid_shuffle"]["shards"], 4)
    assert main(["grid-shuffle", str(export), str(out)]) == 1
    assert "this shuffle did not write" in capsys.readouterr().err
