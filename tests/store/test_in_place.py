"""Lines written where they belong are the bytes of the gather, whatever arrays, files and the system's calls."""

from __future__ import annotations

import hashlib
import os
from functools import partial
from itertools import pairwise
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dagster_divorder.settings.places import Url
from dagster_divorder.store.local import LocalStore
from dagster_divorder.write import in_place
from dagster_divorder.write.curated import OutputFolder
from dagster_divorder.write.in_place import can_stage_in_place, stage_in_place
from tests.conftest import examples


def array_of(lines: list[bytes], before: int) -> pa.Array:
    """Lines as a slice of a longer array."""
    return pa.array([b"other"] * before + lines, pa.large_binary())[before:]


@settings(deadline=None, max_examples=examples(40))
@given(data=st.data(), most=st.integers(1, 9))
def test_files_hold_the_lines_in_order(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject, most: int
) -> None:
    arrays = data.draw(
        st.lists(st.lists(st.binary(max_size=5), min_size=1, max_size=4), min_size=1, max_size=4)
    )
    lines = [line for array in arrays for line in array]
    # Records repeat, and some are not used.
    rows = np.array(data.draw(st.lists(st.integers(0, len(lines) - 1), min_size=1, max_size=20)))
    limits = sorted(data.draw(st.sets(st.integers(1, len(rows)), max_size=3)) | {len(rows)})
    before = data.draw(st.integers(0, 2))
    folder = tmp_path_factory.mktemp("in_place")
    told: list[int] = []

    def write_some(descriptor: int, buffers: tuple[memoryview, bytes], offset: int) -> int:
        return os.pwrite(descriptor, b"".join(buffers)[:most], offset)

    files = {str(end): (first, end) for first, end in pairwise([0, *limits])}
    with (
        pytest.MonkeyPatch.context() as patch,
        OutputFolder(LocalStore(folder / "store").open(), folder / "out") as output,
    ):
        # The system may take a part of what it is given.
        patch.setattr(in_place.os, "pwritev", write_some)
        stage_in_place(
            output,
            [partial(array_of, array, before) for array in arrays],
            np.cumsum([0, *map(len, arrays)]),
            rows,
            np.array([len(lines[row]) for row in rows]),
            files,
            told.append,
        )
        written = {name: (folder / "out" / output.staged[name]).read_bytes() for name in files}
    assert written == {
        name: b"".join(lines[row] + b"\n" for row in rows[first:end]) for name, (first, end) in files.items()
    }
    assert output.entries == {
        name: {
            "bytes": len(of),
            "sha256": hashlib.sha256(of).hexdigest(),
            "head": hashlib.sha256(of[:4096]).hexdigest(),
        }
        for name, of in written.items()
    }
    assert sum(told) == len(rows)
    assert list((folder / "out").iterdir()) == []


def test_long_lines_of_a_folder_that_the_cache_holds_are_written_in_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(in_place, "main_memory", lambda: 16 * 10_000)
    long = np.full(5, 2_000)
    assert can_stage_in_place(tmp_path, long)
    assert not can_stage_in_place(tmp_path, long // 2 - 1)
    assert not can_stage_in_place(tmp_path, np.full(6, 2_000))
    assert not can_stage_in_place(Url("s3://bucket/output"), long)
