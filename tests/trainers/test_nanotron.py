"""How datatrove's reader, which nanotron reads `.ds` files with, numbers its rows. nanotron itself is only modelled."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from dagster_divorder.trainers import TRAINERS, Reading


@pytest.mark.slow
def test_datatrove_reads_files_in_the_order_of_their_names_and_ends_there(tmp_path: Path) -> None:
    reader = pytest.importorskip("datatrove.utils.dataset")
    reading = Reading(rows=30, batch=4)
    length, sizes = 5, {"2": 12, "10": 11, "1": 7}  # as text, 10 comes before 2
    start = 0
    for name in sorted(sizes):
        rows = np.arange(start, start + sizes[name], dtype=np.uint16)
        np.repeat(rows, length).tofile(tmp_path / f"{name}.ds")
        start += sizes[name]
    data = reader.DatatroveFolderDataset(str(tmp_path), seq_len=length - 1, filename_pattern="*.ds")
    read = np.array([data[row]["input_ids"].tolist() for row in range(len(data))])
    np.testing.assert_array_equal(read, np.repeat(np.arange(30), length).reshape(-1, length))
    np.testing.assert_array_equal(
        TRAINERS["nanotron"].default(reading), read[:28, 0].reshape(-1, reading.batch)
    )
    with pytest.raises(IndexError):
        data[len(data)]
