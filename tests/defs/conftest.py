"""A small corpus with a settings file that makes every stage quick, and the code location loaded with it."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import dagster as dg
import pytest

from tests.conftest import topic_records, write_jsonl

CONFIG = """
[input]
paths = ["docs.jsonl"]
source_field = "source"
[store]
path = "store"
[output]
path = "curated"
[model]
vocab_size = 512
dim = 16
[deep]
train_tokens = 2000
[k_calibration]
values = [2, 3, 4]
[clusters]
k = 4
[sequence]
length = 128
batch = 4
[animation]
frames = 4
"""
BINARIES = Path(sys.executable).parent


def make_corpus(folder: Path) -> Path:
    """A corpus in a folder; its settings file."""
    write_jsonl(folder / "docs.jsonl", topic_records(30))
    file = folder / "divorder.toml"
    file.write_text(CONFIG)
    return file


@pytest.fixture
def config(tmp_path: Path) -> Path:
    return make_corpus(tmp_path)


@pytest.fixture
def load(config: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], dg.Definitions]:
    """Loads the code location with the settings file as it is now."""

    def definitions() -> dg.Definitions:
        import dagster_divorder.definitions as module

        monkeypatch.setenv("DIVORDER_CONFIG", str(config))
        return importlib.reload(module).defs

    return definitions


def environment(config: Path) -> dict[str, str]:
    """The environment of a subprocess that works with a settings file."""
    own = {
        name: value for name, value in os.environ.items() if not name.startswith(("DAGSTER_", "DIVORDER_"))
    }
    return {**own, "DIVORDER_CONFIG": str(config), "DAGSTER_DISABLE_TELEMETRY": "1"}


def metadata_of(run: Any) -> dict[str, dict[str, Any]]:
    """Of a run executed in this process: asset -> metadata name -> value."""
    return {
        event.asset_key.to_user_string(): dict(event.materialization.metadata)
        for event in run.get_asset_materialization_events()
    }


def versions_of(run: Any) -> dict[str, str]:
    """Of a run executed in this process: asset -> data version."""
    return {
        event.asset_key.to_user_string(): (event.materialization.tags or {})["dagster/data_version"]
        for event in run.get_asset_materialization_events()
    }
