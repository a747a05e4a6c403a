"""A mix that moves, from settings to report: what was asked, what can be had, what came, and that nothing else is said.

Every source has a quarter of the documents; one is asked to fall from 80 % to 40 %, which no order can do.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import orjson
import pytest

from dagster_divorder import run_all
from dagster_divorder.cli.runs import summary
from dagster_divorder.core.order.trait_targets import warnings_of
from dagster_divorder.engine.progress import Log
from dagster_divorder.pipeline.checks import run_checks
from dagster_divorder.settings import Settings
from dagster_divorder.stages import GRAPH, open_run
from dagster_divorder.stages.measure.diversity_metrics import load_metrics, load_verdict, remedy
from dagster_divorder.stages.order.traits import load_traits
from dagster_divorder.stages.output.ordering_report import PAGE
from tests.conftest import topic_records, write_jsonl
from tests.view.html_page import Page, check

SEA = "sea.example"


def settings_of(folder: Path, asked: tuple[float, float], **sections: Any) -> Settings:
    return Settings(
        input={"paths": [str(folder / "docs.jsonl")], "source_field": "source"},
        store={"path": folder / "store"},
        output={"path": folder / "curated", "sidecars": ()},
        advanced={"vocab_size": 512, "token_dims": 8},
        clusters={"k": 4},
        order={
            "length_bins": 5,
            "traits": {"length": 1.0, "source": 5.0},
            "targets": {"source": {"progress": (0.0, 1.0), SEA: asked}},
        },
        sequence={"length": 64, "batch": 4, **sections},
    )


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("targets")
    write_jsonl(folder / "docs.jsonl", topic_records(200))
    return folder


def made(settings: Settings) -> tuple[dict[str, Any], list[str]]:
    """(metrics, what the run said) of a run with a report."""
    notes: list[str] = []
    run_all(settings, Log(notes.append), GRAPH.needed(settings, "curated_output", "ordering_report"))
    return load_metrics(open_run(settings)), notes


def test_what_cannot_be_had_is_said_everywhere(corpus: Path) -> None:
    settings = settings_of(corpus, (0.8, 0.4))
    metrics, said = made(settings)
    traits = load_traits(open_run(settings))
    codes, names = traits.codes["source"], traits.names["source"]
    own = traits.tokens[codes == names.index(SEA)].sum() / traits.tokens.sum()
    for name in ("curated", "sequences"):
        found = metrics[name]["targets"]["source"]
        assert found["values"] == [SEA]
        (unmet,) = found["unmet"]
        assert unmet["mean_asked"] == pytest.approx(0.6)
        assert unmet["mean_achievable"] == pytest.approx(own, abs=1e-6)
        assert unmet["asked"] - unmet["achievable"] > 0.25
        curves = metrics[name]["curves"]["targets"]["source"]
        assert curves["achievable"][0][0] > 2 * curves["achievable"][-1][0]
        # What came is near what can be had, and far from what was asked.
        hundredth = found["hundredth"]
        assert hundredth["slices"] == 100
        assert hundredth["off_achievable"]["mean"][0] < 0.1 < 0.25 < hundredth["off_asked"]["mean"][0]
    assert metrics["sequences"]["targets"]["source"]["batch"]["off_achievable"]["mean"][0] < 0.1

    warning = next(line for line in said if line.startswith("order.targets.source asks for"))
    assert repr(SEA) in warning and f"average its share of the corpus, {own:.1%}" in warning
    assert "the asked shares average 60.0%: ask for" in warning
    assert warning in str(summary(settings))
    assert f"target source {SEA}: on average" in str(summary(settings, details=True))
    manifest = orjson.loads((settings.output.path / "curated_meta.json").read_bytes())
    assert manifest["targets"]["source"][SEA] == [0.8, 0.4]
    told = manifest["diversity"]["sequences"]
    assert told["targets"]["source"]["unmet"][0]["mean_asked"] == pytest.approx(0.6)
    assert {"seam", "trait_errors"} <= set(told) and "curves" not in told
    again: list[str] = []
    run_all(settings, Log(again.append))
    assert warning in again


def test_the_check_is_about_the_targets(corpus: Path) -> None:
    settings = settings_of(corpus, (0.8, 0.4))
    metrics, _ = made(settings)
    found = load_verdict(open_run(settings)).sequences
    moving = [c for c in found.comparisons if c.trait == "source"]
    assert moving and all(c.moving for c in moving)
    assert found.traits(moving=False) == ["length"]
    # The order follows; shuffling, which keeps the corpus's mix, does not.
    batch = next(c for c in moving if c.window == "batch")
    assert batch.passed and batch.worst < batch.shuffled_worst
    assert batch.shuffled_mean > 0.1
    finding = run_checks(GRAPH, settings, stage="diversity_metrics")["order_beats_shuffling"]
    assert "source is compared with the achievable mix of its targets, which moves" in finding.text
    assert "order.targets.source asks for" in finding.text
    if not finding.passed:
        assert "order.targets moves source" in remedy(settings)

    page = Page((settings.output.path / PAGE).read_bytes())
    text = " ".join(page.text.split())
    assert "targets" in [of["id"] for of in page.all("section")]
    says = " ".join(of.get("aria-label", "") for of in page.all("div"))
    assert f"{SEA}: asked 79.80 % to 40.20 %, achievable" in says
    assert (
        f"the mix of source (weight 5) moves with progress: {SEA} 80 %, 40 % at 0 %, 100 % of the tokens"
        in text
    )
    assert "own mix of length (weight 1)" in text and "own mix of length (weight 1) and source" not in text
    assert "source: compared with the achievable mix of its targets there, which moves." in text
    assert "percentage points off the achievable mix of the targets for source" in text
    check((settings.output.path / PAGE).read_bytes())
    assert metrics["sequences"]["windows"]["batch"]["source"]["worst"] == batch.worst


def test_what_can_be_had_gives_no_warning(corpus: Path) -> None:
    metrics, _ = made(settings_of(corpus, (0.8, 0.4)))
    curve = [row[0] for row in metrics["sequences"]["curves"]["targets"]["source"]["achievable"]]
    own = sum(curve) / len(curve)
    settings = settings_of(corpus, (1.5 * own, 0.5 * own), epochs=2)
    metrics, said = made(settings)
    assert not [line for line in said if line.startswith("order.targets")]
    found = metrics["sequences"]["targets"]["source"]
    assert found["unmet"][0]["asked"] == pytest.approx(found["unmet"][0]["achievable"], abs=0.01)
    achieved = metrics["sequences"]["curves"]["targets"]["source"]["achieved"]
    assert len(achieved) == 2 and len(achieved[0]) == 100
    assert found["hundredth"]["off_asked"]["mean"][0] < 0.1


def test_a_value_that_gives_way_to_another_is_told_so() -> None:
    def unmet(asked: float, mean_asked: float) -> dict[str, float]:
        return {
            "progress": 0.5,
            "asked": asked,
            "achievable": 0.3,
            "mean_asked": mean_asked,
            "mean_achievable": 0.3,
        }

    figures = {
        "source": {
            "values": ["a", "b", "c"],
            "unmet": [unmet(0.4, 0.3), unmet(0.305, 0.305), unmet(0.2, 0.1)],
        }
    }
    first, second = warnings_of(figures)
    assert "asks for 40.0% of 'a' after 50.0% of the tokens, but 30.0% is achievable there" in first
    assert "Other values need the room" in first
    assert "of 'c'" in second and "the asked shares average 10.0%: ask for" in second
