"""nothing_drifts: features of the sequences along their order, those it balanced and those it never saw, against
shuffles of the same sequences. The output is whole and can be trained on, whatever this says."""

from __future__ import annotations

from dagster_divorder.pipeline.run import Run
from dagster_divorder.pipeline.stationarity import load_stationarity, remedy
from dagster_divorder.pipeline.verify import Finding


def look(run: Run) -> Finding:
    found = load_stationarity(run)
    return Finding(
        passed=found.passed,
        text=found.text(),
        remedy=remedy(run.settings),
        figures={"features": found.rows()},
    )
