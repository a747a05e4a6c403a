"""What `warm` compiles is what a default run calls."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import topic_records, write_jsonl

SCRIPT = """
import json
from dagster_divorder.core import warm
from dagster_divorder.core.kernels import order_balance, order_greedy, order_items, packing, sliding_windows, windows
from dagster_divorder.engine.progress import Silent
from dagster_divorder.pipeline import run_all
from dagster_divorder.settings import load_settings

def compiled():
    kernels = (order_balance, order_greedy, order_items, packing, sliding_windows, windows)
    held = [(name, of) for kernel in kernels for name, of in vars(kernel).items() if hasattr(of, "signatures")]
    return sorted(f"{name}{types}" for name, of in held for types in of.signatures)

warm.cluster_map.warm = lambda: None
warm.warm()
warmed = compiled()
run_all(load_settings(), Silent())
print(json.dumps([warmed, compiled()]))
"""


@pytest.mark.slow
def test_a_default_run_compiles_no_order_again(tmp_path: Path) -> None:
    write_jsonl(tmp_path / "docs.jsonl", topic_records())
    environment = {
        "DIVORDER_INPUT__PATHS": str(tmp_path / "docs.jsonl"),
        "DIVORDER_STORE__PATH": str(tmp_path / "store"),
        "DIVORDER_OUTPUT__PATH": str(tmp_path / "output"),
    }
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT], env={**os.environ, **environment}, stdout=subprocess.PIPE, check=True
    )
    warmed, after = json.loads(done.stdout.splitlines()[-1])
    assert "best_of_pool" in str(warmed)
    assert warmed == after
