"""Asset checks run with their assets; one that finds a broken order stops what would be made from it."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import dagster as dg
import numpy as np
import pytest

from dagster_divorder.stages import GRAPH

Load = Callable[[], dg.Definitions]


@pytest.mark.parametrize("strategy", ["balanced", "original"])
def test_checks_run_with_the_assets_and_say_what_they_found(load: Load, config: Path, strategy: str) -> None:
    config.write_text(
        config.read_text().replace("[sequence]", f'[sequence]\nstrategy = "{strategy}"')
        + f'[order]\nstrategy = "{strategy}"\ntraits = {{ cluster = 1.0 }}\n[exports]\nformats = ["parquet"]\n'
    )
    with dg.DagsterInstance.ephemeral() as instance:
        run = load().resolve_job_def("curate").execute_in_process(instance=instance)
        assert run.success  # a check that warns does not fail the run
        checks = {check.check_name: check for check in run.get_asset_check_evaluations()}
    claimed = {claim.name: (stage, claim) for stage in GRAPH.values() for claim in stage.checks}
    assert set(checks) == set(claimed)
    # Names of checks and keys of settings (`order.length_bins`) are what people write, too.
    names = re.compile(rf"{'|'.join(checks)}|\b\w+\.\w+\b|\S+/\S+")
    for name, check in checks.items():
        stage, claim = claimed[name]
        assert check.asset_key == dg.AssetKey(stage.name)
        assert check.blocking == claim.blocking
        beaten_by_original = name in ("order_beats_shuffling", "nothing_drifts")
        assert check.passed == (strategy == "balanced" or not beaten_by_original), check.description
        words = names.sub("", f"{claim.description}\n{check.description}")
        assert not check.passed or not re.findall(r"\w*_\w*", words), words
    beaten = checks["order_beats_shuffling"]
    assert beaten.severity == dg.AssetCheckSeverity.WARN
    assert "batch across the seam, share error of cluster" in str(beaten.description)
    assert ("What to do: sequence.strategy is 'original'" in str(beaten.description)) != beaten.passed
    still = checks["nothing_drifts"]
    assert still.severity == dg.AssetCheckSeverity.WARN
    assert ("worse than any shuffle: words" in str(still.description)) != still.passed


def test_a_broken_order_stops_the_run_before_an_output_is_made_from_it(
    load: Load, config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "dagster_divorder.stages.order.greedy_order.order_documents",
        lambda section, **_: np.zeros(len(section[0].tokens), np.int64),
    )
    with dg.DagsterInstance.ephemeral() as instance:
        run = load().resolve_job_def("curate").execute_in_process(instance=instance, raise_on_error=False)
        assert not run.success
        materialised = {event.asset_key.to_user_string() for event in run.get_asset_materialization_events()}
        checks = {check.check_name: check for check in run.get_asset_check_evaluations()}
    assert "greedy_order" in materialised
    assert materialised.isdisjoint({"packed_sequences", "sequence_order", "curated_output"})
    check = checks["order_is_a_permutation"]
    assert not check.passed
    assert check.severity == dg.AssetCheckSeverity.ERROR
    assert "119 left out, 1 named more than once" in str(check.description)
    assert "What to do: delete the folder" in str(check.description)
    assert not (config.parent / "curated").exists()
