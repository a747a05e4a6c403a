"""Trainers that do not fit beside the packages of .venv: what `make trainers` installs for each, and scripts run in it.

A folder of packages comes first in PYTHONPATH; what it lacks is found in .venv. The packages that only fetch from clouds,
and those that differ from a trainer's requirements without touching how it reads, are left out of
`requirements-TRAINER.txt`: streaming takes NumPy and transformers from .venv.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / os.environ.get("TRAINERS", ".venv/trainers")


def run_isolated(trainer: str, script: str, *arguments: object, cases: list[dict[str, Any]]) -> None:
    """Run `replay/<script>.py` with the packages of a trainer; the test is skipped where they are not installed."""
    packages = FOLDER / trainer
    if not (packages / ".installed").exists():
        pytest.skip(f"{packages} is not there: make trainers")
    environment = {**os.environ, "PYTHONPATH": str(packages), "HF_HOME": "/nowhere"}
    command = [sys.executable, "-m", f"tests.trainers.replay.{script}", *map(str, arguments)]
    run = subprocess.run(
        command, cwd=ROOT, env=environment, input=json.dumps(cases), text=True, capture_output=True
    )
    assert run.returncode == 0, run.stderr


def replay(trainer: str, script: str, tmp_path: Path, cases: list[dict[str, Any]]) -> list[np.ndarray]:
    """The global batches that the trainer reads in each case, int64 (steps, batch, length); see `tests.trainers.replay`."""
    run_isolated(trainer, script, tmp_path / "batches.npz", cases=cases)
    with np.load(tmp_path / "batches.npz") as found:
        return [found[name] for name in found.files]
