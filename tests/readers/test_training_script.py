"""docs/train.py stops in the middle, and goes on with another number of ranks, on the plan's own stream of tokens."""

from __future__ import annotations

import hashlib
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.readers.made import write_export

ROOT = Path(__file__).parents[2]
BATCH = 4


def train(ranks: int, folder: Path, stop_after: int) -> dict[int, str]:
    """The hash of the tokens of each global batch that a training read, by the batch's number."""
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)]
    run = subprocess.run(
        [*launch, str(ROOT / "docs/train.py"), "export", "--stop-after", str(stop_after)],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
    )
    assert run.returncode == 0, run.stderr
    return {
        int(number): found
        for number, found in re.findall(r"batch (\d+) loss \d+\.\d+ tokens (\w+)", run.stdout)
    }


@pytest.mark.slow
def test_a_training_goes_on_with_other_ranks_on_the_same_tokens(tmp_path: Path) -> None:
    corpus = {"lengths": [17] * 20, "length": 16, "vocabulary": 300, "method": "best_fit"}
    stream = write_export(tmp_path / "export", "parquet", corpus, batch=BATCH)
    rows = np.full((len(stream), 16), 299, np.int64)
    for row, documents in zip(rows, stream, strict=True):
        ids = [token for document in documents for token in document]
        row[: len(ids)] = ids
    whole = len(stream) // BATCH
    expected = {
        number + 1: hashlib.sha256(rows[number * BATCH : (number + 1) * BATCH]).hexdigest()
        for number in range(whole)
    }
    found = [train(2, tmp_path, 2), train(1, tmp_path, whole)]
    assert [list(part) for part in found] == [[1, 2], list(range(3, whole + 1))]
    assert found[0] | found[1] == expected
