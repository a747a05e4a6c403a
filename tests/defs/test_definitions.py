"""The code location: it loads, and shows the pipeline as the settings make it."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import dagster as dg
import pytest
import tomlkit

from dagster_divorder.settings import Settings, load_settings
from dagster_divorder.stages import GRAPH, asset_upstream

Load = Callable[[], dg.Definitions]

GROUPS = ["corpus", "embedding", "ordering", "output", "evidence", "report"]
SETTINGS = {
    "defaults": {},
    "deep": {"embedding": {"kind": "deep"}},
    "external": {"embedding": {"kind": "external", "path": "vectors.npy"}},
    "auto": {"embedding": {"kind": "auto"}, "clusters": {"k": "auto"}},
    "selection": {"selection": {"method": "random", "tokens": 5}},
}


@pytest.mark.parametrize("sections", SETTINGS.values(), ids=SETTINGS)
def test_a_run_follows_the_graph_of_the_settings_from_group_to_group(
    load: Load, config: Path, sections: dict
) -> None:
    config.write_text(tomlkit.dumps({"input": {"paths": ["docs.jsonl"]}, **sections}))
    defs = load()
    dg.Definitions.validate_loadable(defs)
    settings = load_settings(config)
    graph = {asset: set(reads) for asset, reads in asset_upstream(GRAPH, settings).items()}
    specs = {spec.key.to_user_string(): spec for spec in defs.resolve_all_asset_specs()}
    assert set(specs) == set(graph)
    job = defs.resolve_implicit_global_asset_job_def()
    followed = {
        invocation.name: {
            dependency.node
            for definition in inputs.values()
            for dependency in definition.get_node_dependencies()
        }
        for invocation, inputs in job.dependencies.items()
    }
    for stage, spec in specs.items():
        assert {dep.asset_key.to_user_string() for dep in spec.deps} == graph[stage]
        assert followed[stage] == graph[stage]
        parts = GRAPH.step(settings, stage)
        assert spec.code_version == "+".join(GRAPH[part].fingerprint(settings) for part in parts)
    group = {stage: GROUPS.index(str(spec.group_name)) for stage, spec in specs.items()}
    assert set(group.values()) == set(range(len(GROUPS)))
    assert [read for stage in graph for read in graph[stage] if group[read] > group[stage]] == []


def assets_of(defs: dg.Definitions, job: str) -> set[str]:
    return {key.to_user_string() for key in defs.resolve_job_def(job).asset_layer.executable_asset_keys}


def assets_needed(settings: Settings, *stages: str) -> set[str]:
    return {stage for stage in GRAPH.needed(settings, *stages) if GRAPH[stage].asset}


def test_jobs_hold_all_that_they_need_and_no_more(load: Load, config: Path) -> None:
    defs = load()
    settings = load_settings(config)
    assert assets_of(defs, "curate") == assets_needed(settings)
    evidence = ("k_calibration", "ari_comparison", "cluster_map", "strategy_comparison")
    reported = assets_needed(settings, *evidence, "ordering_report", "ordering_animation")
    assert assets_of(defs, "report") == reported >= {"curated_output"}


def test_an_error_in_the_settings_ends_a_command_with_one_sentence(
    load: Load, config: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "excepthook", sys.excepthook)
    config.write_text("[clusters]\nkk = 3\n")
    with pytest.raises(dg.DagsterInvalidDefinitionError) as raised:
        load()
    sys.excepthook(raised.type, raised.value, raised.tb)
    assert capsys.readouterr().err == f"divorder: {raised.value}\n"
    assert str(config) in str(raised.value) and "did you mean 'clusters.k'" in str(raised.value)
