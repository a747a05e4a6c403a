"""The code location shows the pipeline as the settings make it; and `build_definitions` in any Dagster project: names,
merging, executors, assets upstream, and what is refused."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
import tomlkit

from dagster_divorder import build_definitions
from dagster_divorder.settings import Settings, load_settings
from dagster_divorder.stages import GRAPH, asset_upstream
from tests.conftest import topic_records, write_jsonl
from tests.defs.conftest import execute, make_corpus

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


Corpus = Callable[..., dg.Definitions]


@pytest.fixture
def corpus(tmp_path: Path) -> Corpus:
    """Makes a corpus in a folder of its own, named for its prefix, and its definitions."""

    def build(prefix: str = "news", **arguments: Any) -> dg.Definitions:
        config = make_corpus(tmp_path / prefix)
        return build_definitions(config, **{"key_prefix": prefix} | arguments)

    return build


@dg.asset
def docs() -> None:
    """Writes documents."""


def project(*corpora: dg.Definitions, **own: Any) -> dg.Definitions:
    """Corpora merged with an asset and resources of a project."""
    own = {"assets": [docs], "resources": {"settings": "theirs"}, "executor": dg.in_process_executor} | own
    return dg.Definitions.merge(*corpora, dg.Definitions(**own))


def keys(defs: dg.Definitions) -> set[str]:
    return {key.to_user_string() for key in defs.resolve_all_asset_keys()}


# Names and merging ---------------------------------------------------------------------------------------------------


def test_corpora_merge_with_a_project_of_its_own_and_every_name_has_its_prefix(corpus: Corpus) -> None:
    @dg.job
    def curate() -> None: ...

    @dg.logger
    def console(_: object) -> Any: ...

    prefixes = ["corpus0", "corpus1"]
    defs = project(
        *(corpus(prefix, upstream={"raw_docs": ["docs"]}) for prefix in prefixes),
        jobs=[curate],
        loggers={"console": console},
    )
    dg.Definitions.validate_loadable(defs)
    repository = defs.get_repository_def()
    jobs = {job.name for job in repository.get_all_jobs()} - {"curate", "__ASSET_JOB"}
    specs = [spec for spec in defs.resolve_all_asset_specs() if spec.key != docs.key]
    for names in (
        jobs,
        {sensor.name for sensor in repository.sensor_defs},
        {schedule.name for schedule in repository.schedule_defs},
        {str(spec.group_name) for spec in specs},
        {node.name for node in repository.get_job("__ASSET_JOB").nodes} - {"docs"},
    ):
        assert {name.split("_")[0] for name in names} == set(prefixes), names
    assert {spec.key.path[0] for spec in specs} == set(prefixes)
    assert repository.get_job("corpus1_curate").executor_def is dg.in_process_executor
    assert repository.get_job("corpus1_curate").loggers == {"console": console}


def test_a_prefix_of_two_parts(corpus: Corpus) -> None:
    defs = corpus("x", key_prefix="text/news")
    assert "text/news/raw_docs" in keys(defs)
    assert defs.resolve_job_def("text_news_curate")


# Settings ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (None, "which is not a file"),
        ('[input]\npaths = ["empty"]', "no file matches"),
    ],
)
def test_settings_that_cannot_be_used_are_refused_in_a_sentence(
    tmp_path: Path, text: str | None, said: str
) -> None:
    file = tmp_path / "divorder.toml"
    (tmp_path / "empty").mkdir()
    if text is not None:
        file.write_text(text)
    with pytest.raises(dg.DagsterInvalidDefinitionError) as refused:
        build_definitions(file)
    assert said in str(refused.value) and str(tmp_path) in str(refused.value)


def test_a_folder_that_was_read_may_be_empty_for_a_while(tmp_path: Path) -> None:
    config = make_corpus(tmp_path)
    config.write_text(config.read_text().replace("docs.jsonl", "in"))
    docs = write_jsonl(tmp_path / "in/docs.jsonl", topic_records(5))
    execute(build_definitions(config), dg.DagsterInstance.ephemeral(), "raw_docs")
    docs.unlink()
    dg.Definitions.validate_loadable(build_definitions(config))


# Assets upstream -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("upstream", "expected"),
    [
        ("docs", {"docs"}),
        (dg.AssetKey(["raw", "docs"]), {"raw/docs"}),
        (["raw/docs", docs, dg.AssetSpec("more")], {"raw/docs", "docs", "more"}),
    ],
    ids=["text", "key", "several"],
)
def test_assets_upstream_are_named_as_deps_are(corpus: Corpus, upstream: Any, expected: set[str]) -> None:
    defs = corpus(upstream={"raw_docs": upstream})
    dg.Definitions.validate_loadable(defs)
    (raw_docs,) = (spec for spec in defs.resolve_all_asset_specs() if spec.key.path[-1] == "raw_docs")
    assert {dep.asset_key.to_user_string() for dep in raw_docs.deps} == expected
    assert expected < keys(defs)  # those that the project does not have are external


@pytest.mark.parametrize("asset", ["clusters", "external_embeddings"])
def test_an_asset_that_reads_no_files_of_others_has_nothing_upstream(corpus: Corpus, asset: str) -> None:
    with pytest.raises(dg.DagsterInvalidDefinitionError) as refused:
        corpus(upstream={asset: ["docs"]})
    assert f"upstream names '{asset}'; expected what reads files here: raw_docs" in str(refused.value)
