"""Trainers that do not fit beside the packages of .venv: scripts run with what `make trainers` installs for each.

A trainer's folder of packages comes first in PYTHONPATH, and what it lacks is found in .venv. So
`requirements-TRAINER.txt` names what a trainer imports and .venv has not, or not in a version that it takes; all but
torchvision, and NumPy for streaming, which asks for an older one.
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

from tests.conftest import ROOT

FOLDER = os.environ.get("TRAINERS")
"""Where the packages are, as `make test-trainers` says; elsewhere these tests are skipped."""


def run_isolated(
    trainer: str, script: str, tmp_path: Path, *arguments: object, cases: list[dict[str, Any]]
) -> None:
    """Run `isolated/<script>.py` with the packages of a trainer; the test is skipped where they are not installed."""
    if FOLDER is None:
        pytest.skip("of packages that .venv has not: make test-trainers")
    packages = ROOT / FOLDER / trainer
    environment = {**os.environ, "PYTHONPATH": str(packages), "HF_HOME": str(tmp_path / "hf")}
    command = [sys.executable, "-m", f"tests.trainers.isolated.{script}", *map(str, arguments)]
    run = subprocess.run(
        command, cwd=ROOT, env=environment, input=json.dumps(cases), text=True, capture_output=True
    )
    assert run.returncode == 0, run.stderr


def replay(trainer: str, script: str, tmp_path: Path, cases: list[dict[str, Any]]) -> list[np.ndarray]:
    """The global batches read in each case (see `tests.trainers.isolated`), int64 (steps, batch, length)."""
    run_isolated(trainer, script, tmp_path, tmp_path / "batches.npz", cases=cases)
    with np.load(tmp_path / "batches.npz") as arrays:
        return [arrays[name] for name in arrays.files]
