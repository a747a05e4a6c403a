"""What tests of whole runs share: a run as far as some stages, and what it has left."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from markupsafe import Markup

from dagster_divorder.engine.progress import Silent
from dagster_divorder.pipeline.run import Run
from dagster_divorder.settings import Settings
from dagster_divorder.stages import GRAPH, open_run, run_all
from dagster_divorder.stages.mix.repeats import load_stream
from dagster_divorder.stages.order.packed_sequences import load_packed
from dagster_divorder.stages.order.sequence_order import load_sequence_order
from dagster_divorder.view.report import html

Make = Callable[..., Settings]
OPINIONS = ("order_beats_shuffling", "nothing_drifts", "clusters_not_degenerate")
"""Checks that a small corpus may fail."""


def run(settings: Settings) -> dict[str, dict[str, Any]]:
    """Figures of each stage of a run to the output."""
    return {stage: receipt.figures for stage, receipt in run_all(settings, Silent()).items()}


def ran(settings: Settings, *stages: str) -> Run:
    """A run as far as some stages; without any, to the output."""
    run_all(settings, Silent(), GRAPH.needed(settings, *stages))
    return open_run(settings)


def sequences_of(run: Run) -> list[tuple[tuple[int, int, int], ...]]:
    """(record, start, length) of each run of tokens of each sequence, in the order of training, epoch after epoch."""
    packed = load_packed(run)
    columns = (load_stream(run).record_of[packed.document], packed.start, packed.length)
    runs = list(zip(*(column.tolist() for column in columns), strict=True))
    read = load_sequence_order(run).reshape(-1)
    return [tuple(runs[packed.indptr[at] : packed.indptr[at + 1]]) for at in read.tolist()]


def exported_rows(settings: Settings) -> list[list[int]]:
    """The rows of the Parquet export."""
    files = sorted((Path(str(settings.exports.path)) / "parquet").glob("*.parquet"))
    return [row for file in files for row in pq.read_table(file)["input_ids"].to_pylist()]


def output_bytes(settings: Settings) -> dict[str, bytes]:
    """Every file of the output but the manifest, which tells times."""
    files = Path(str(settings.output.path)).iterdir()
    return {path.name: path.read_bytes() for path in files if path.name != "curated_meta.json"}


def leave_undrawn(patch: pytest.MonkeyPatch) -> None:
    """Charts of a report are empty: drawing them takes longest, and what is drawn other tests look at."""
    empty = Markup('<svg viewBox="0 0 1 1" aria-hidden="true"></svg>')
    patch.setattr(html, "svg", lambda name, width, height, panel: empty)
