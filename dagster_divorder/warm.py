"""`python -m dagster_divorder.warm`: compiles the kernels before a first run, which saves it half a minute.

Kernels compile at their first call, and Numba caches them by processor and Numba version. A run over some documents in
a temporary folder calls the kernels of the default settings and of evidence about the order. Other strategies and
packing methods still compile later.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import orjson

from dagster_divorder.engine.progress import Silent
from dagster_divorder.settings import Settings
from dagster_divorder.stages import GRAPH, run_all

TOPICS = ("tide anchor harbour sail reef", "oven flour crust loaf yeast", "signal wagon steam bridge track")


def warm() -> None:
    """Calls every kernel that a run with default settings calls."""
    records = [
        {"text": f"{number}: " + " ".join([topic] * (1 + number % 7)), "source": topic.split()[0]}
        for number in range(60)
        for topic in TOPICS
    ]
    with tempfile.TemporaryDirectory() as folder:
        at = Path(folder)
        (at / "docs.jsonl").write_bytes(b"".join(orjson.dumps(record) + b"\n" for record in records))
        settings = Settings.model_validate(
            {
                "input": {"paths": [str(at / "docs.jsonl")], "source_field": "source"},
                "store": {"path": at / "store"},
                "output": {"path": at / "output", "sidecars": ()},
                "advanced": {"vocab_size": 512, "token_dims": 8},
                "clusters": {"k": 4},
                "heldout": {"documents": 0.1},
                "exports": {"formats": ["parquet"], "path": at / "exports"},
                "order": {"traits": {"cluster": 1.0, "length": 1.0, "source": 1.0}},
                "sequence": {"length": 64, "batch": 4},
            }
        )
        # Evidence with kernels that an output does not need.
        run_all(settings, Silent(), GRAPH.needed(settings, *GRAPH.needed(settings), "strategy_comparison"))


if __name__ == "__main__":
    warm()
