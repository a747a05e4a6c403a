"""Files of a moment lie in the store, where the next run removes them, and not in the system's temporary folder."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

from tests.faults.conftest import make_corpus
from tests.faults.runner import Runner

KILLED = """
import os, signal
from dagster_divorder.cli import main
from dagster_divorder.models import bootstrap
def train(*given, **options):
    folder = given[1]
    (folder / "half-written").write_bytes(b"1")
    os.kill(os.getpid(), signal.SIGKILL)
bootstrap.train = train
main()
"""


def test_what_a_run_that_was_killed_in_training_left_is_removed_by_the_next(
    tmp_path: Path, runner: Runner
) -> None:
    config, temporary = make_corpus(tmp_path, files=1), tmp_path / "temporary"
    temporary.mkdir()
    killed = subprocess.run(
        [sys.executable, "-c", KILLED, "--config", str(config), "run"],
        env={
            **os.environ,
            "TMPDIR": str(temporary),
            "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
        },
        capture_output=True,
        text=True,
    )
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    assert list(temporary.iterdir()) == []
    scratch = tmp_path / "store/scratch"
    assert [path.name for path in scratch.rglob("*") if path.is_file()] == ["half-written"]
    # What the next run does first of all; it ends soon, since the input is gone.
    (tmp_path / "in").rename(tmp_path / "elsewhere")
    assert runner.run(config, tmp_path / "log") == 1
    assert list(scratch.iterdir()) == []
