"""docs/train.py stops in the middle, and goes on with another number of ranks, on the plan's own stream of tokens."""

from __future__ import annotations

import hashlib
import os
import re
import runpy
import socket
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.readers.made import write_export

SCRIPT = Path(__file__).parents[2] / "docs/train.py"
BATCH = 4


def batches(printed: str) -> dict[int, str]:
    """The hash of the tokens of each global batch that a training read, by the batch's number."""
    return {
        int(number): tokens
        for number, tokens in re.findall(r"batch (\d+) loss \d+\.\d+ tokens (\w+)", printed)
    }


@pytest.mark.slow
def test_a_training_goes_on_with_other_ranks_on_the_same_tokens(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    corpus = {"lengths": [17] * 20, "length": 16, "vocabulary": 300, "method": "best_fit"}
    stream = write_export(tmp_path / "export", "parquet", corpus, batch=BATCH)
    rows = np.full((len(stream), 16), 299, np.int64)
    for row, documents in zip(rows, stream, strict=True):
        ids = [token for document in documents for token in document]
        row[: len(ids)] = ids
    whole = len(stream) // BATCH
    expected = {
        number + 1: hashlib.sha256(rows[number * BATCH : (number + 1) * BATCH]).hexdigest()[:16]
        for number in range(whole)
    }
    monkeypatch.chdir(tmp_path)

    def train(steps: int, ranks: int) -> dict[int, str]:
        """Rank 0 runs here, where torch is imported. Of torchrun the script needs no more than what it sets."""
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
        return batches(capsys.readouterr().out)

    before, after = train(2, ranks=2), train(0, ranks=1)
    assert list(before) == [1, 2]
    assert list(after) == list(range(3, whole + 1))
    assert before | after == expected
