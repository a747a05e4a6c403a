"""`python -m dagster_divorder.warm`: no run that follows compiles a kernel."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import small_toml, topic_records, write_jsonl

RUN = """
import importlib, pkgutil
from numba.core.registry import CPUDispatcher
from dagster_divorder import run_all, warm
from dagster_divorder.core import kernels
from dagster_divorder.engine.progress import Silent
from dagster_divorder.settings import load_settings
from dagster_divorder.stages import GRAPH

def compiled():
    names = [module.name for module in pkgutil.iter_modules(kernels.__path__, kernels.__name__ + ".")]
    found = [vars(importlib.import_module(name)).values() for name in names]
    return {
        (of.py_func.__module__, of.py_func.__name__, types)
        for values in found for of in values if isinstance(of, CPUDispatcher) for types in of.signatures
    }

warm.warm()
before = compiled()
assert len(before) >= 10, before
settings = load_settings()
# Long, and without a kernel of their own: pictures, and a model's vectors.
without = ("ordering_report", "ordering_animation", "deep_model", "deep_embeddings", "ari_comparison")
run_all(settings, Silent(), [stage for stage in GRAPH.upstream(settings) if stage not in without])
new = compiled() - before
assert not new, new
"""


@pytest.mark.slow
def test_a_first_run_compiles_nothing_after_it(tmp_path: Path) -> None:
    write_jsonl(tmp_path / "docs.jsonl", topic_records(20))
    (tmp_path / "divorder.toml").write_text(
        small_toml(
            advanced={"token_dims": 8},
            clusters={"k": 30},
            order={"traits": {"cluster": 1.0, "source": 1.0}},
            sequence={"length": 32},
            exports={"formats": ["parquet"]},
            output={"sidecars": ["plot"]},
        )
    )
    made = subprocess.run(
        [sys.executable, "-c", RUN], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert made.returncode == 0, made.stderr


OF_AN_EARLIER_VERSION = """
import pickle
from pathlib import Path
from dagster_divorder.core import kernels
from dagster_divorder.core.kernels import order_greedy

folder = Path(order_greedy.totals_of.stats.cache_path)
index, = folder.glob("order_greedy.totals_of-*.nbi")
with index.open("rb") as file:
    version = pickle.load(file)
class Gone: pass
order_greedy.Gone, Gone.__module__, Gone.__qualname__ = Gone, order_greedy.__name__, "Gone"
index.write_bytes(pickle.dumps(version) + pickle.dumps((None, {Gone: "order_greedy.1.nbc"})))
(folder / "sources.txt").write_text("of other sources")
"""
CALLED = """
import numpy as np
from dagster_divorder.core.kernels.order_greedy import SparseItems, totals_of

items = SparseItems(
    np.array([0, 1]), np.zeros(1, np.int32), np.array([3], np.int32), np.zeros(1, np.int32),
    np.ones(1), np.zeros((1, 0), np.float32),
)
assert totals_of(np.zeros(1, np.int64), items).tolist() == [3.0]
print(len(totals_of.stats.cache_hits))
"""


@pytest.mark.slow
def test_kernels_that_an_earlier_version_compiled_are_compiled_anew(tmp_path: Path) -> None:
    """A newer version is installed over an older one, and finds what that one has compiled."""
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path)}

    def run(code: str) -> str:
        done = subprocess.run(
            [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    assert run(f"{CALLED}{OF_AN_EARLIER_VERSION}") == "0"
    assert run(CALLED) == "0"
