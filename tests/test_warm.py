"""`python -m dagster_divorder.warm`: no run that follows compiles a kernel."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import topic_records, write_jsonl

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
assert len(before) > 30, before
settings = load_settings()
run_all(settings, Silent(), GRAPH.upstream(settings))
new = compiled() - before
assert not new, new
"""


@pytest.mark.slow
def test_a_first_run_compiles_nothing_after_it(tmp_path: Path) -> None:
    write_jsonl(tmp_path / "docs.jsonl", topic_records(60))
    (tmp_path / "divorder.toml").write_text(
        """
        [input]
        paths = ["docs.jsonl"]
        [exports]
        formats = ["parquet"]
        [sequence]
        length = 32
        batch = 4
        [advanced]
        vocab_size = 512
        token_dims = 8
        decoder_tokens = 2000
        map_documents = 50
        film_frames = 2
        [order.traits]
        cluster = 1.0
        source = 1.0
        """
    )
    made = subprocess.run(
        [sys.executable, "-c", RUN], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert made.returncode == 0, made.stderr
