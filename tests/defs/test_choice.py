"""An append where a trainer may have read the export: the sensor asks first, and every page says what to set."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import dagster as dg
import pytest
from dagster._core.definitions.sensor_definition import SensorExecutionData

from tests.conftest import topic_records, write_jsonl

pytestmark = pytest.mark.slow
EXPORTING = """settle_seconds = 0
[exports]
formats = ["parquet"]
path = "exports"
"""


def test_the_sensor_asks_before_it_changes_an_export(
    config: Path, load: Callable[[], dg.Definitions]
) -> None:
    config.write_text(config.read_text().replace("[clusters]", f"{EXPORTING}[clusters]"))
    instance, cursor = dg.DagsterInstance.ephemeral(), None

    def tick() -> SensorExecutionData:
        nonlocal cursor
        context = dg.build_sensor_context(instance=instance, cursor=cursor)
        ticked = load().resolve_sensor_def("watch_input").evaluate_tick(context)
        cursor = ticked.cursor
        return ticked

    def failed() -> dict[str, str | None]:
        made = load().resolve_job_def("curate").execute_in_process(instance=instance)
        found = {
            each.check_name: each
            for each in made.get_asset_check_evaluations()
            if each.asset_key.path == ["exports"]
        }
        assert all(each.severity == dg.AssetCheckSeverity.WARN for each in found.values() if not each.passed)
        return {name: each.description for name, each in found.items() if not each.passed}

    assert failed() == {}
    assert "no change" in (tick().skip_message or "")
    write_jsonl(config.parent / "docs.jsonl", topic_records(31))
    asked = tick()
    assert not asked.run_requests and "no run starts yet: order.frozen_tokens is unset" in asked.skip_message
    (finding,) = asked.asset_events
    assert (finding.asset_key, finding.check_name) == (dg.AssetKey("exports"), "trainers_keep_the_order")
    assert finding.description == asked.skip_message and not finding.passed
    again = tick()
    assert again.skip_message == asked.skip_message and not again.asset_events, "once is enough"
    assert "divorder freeze --step N" in failed()["trainers_keep_the_order"], (
        "a run by hand says it afterwards"
    )
    write_jsonl(config.parent / "docs.jsonl", topic_records(32))
    assert tick().asset_events
    config.write_text(f"{config.read_text()}[order]\nfrozen_tokens = 0\n")
    assert len(tick().run_requests) == 1
    assert failed() == {}
