"""`DivOrderComponent` in the folder of a Dagster project: what its YAML may say, and what is refused. And commands of
`dg`, the successor of Dagster's command line (which the tutorial runs)."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import dagster as dg
import pytest
import yaml
from click.testing import CliRunner
from dagster.components.core.component_tree import ComponentTreeException
from dagster.components.testing import DefsFolderSandbox, create_defs_folder_sandbox
from dagster_dg_cli.cli import create_dg_cli

from dagster_divorder import DivOrderComponent, build_definitions, load_settings
from tests.conftest import ROOT, topic_records, write_jsonl
from tests.defs.conftest import CONFIG, run_command

TYPE = "dagster_divorder.DivOrderComponent"


def tables(name: str) -> dict[str, Any]:
    """Settings of a corpus of the project."""
    places = {"store": "store", "output": "curated"}
    written = {
        section: {"path": f"{{{{ context.project_root }}}}/out/{name}/{place}"}
        for section, place in places.items()
    }
    settings = tomllib.loads(CONFIG)
    return {
        **settings,
        "input": {**settings["input"], "paths": [f"{{{{ context.project_root }}}}/data/{name}.jsonl"]},
        "store": written["store"],
        "output": {**settings["output"], **written["output"]},
    }


@pytest.fixture
def project() -> Iterator[DefsFolderSandbox]:
    """A project with two corpora."""
    with create_defs_folder_sandbox() as sandbox:
        (sandbox.project_root / "data").mkdir()
        for name in ("news", "blog"):
            write_jsonl(sandbox.project_root / f"data/{name}.jsonl", topic_records(30))
        yield sandbox


def write(project: DefsFolderSandbox, path: str, *documents: dict[str, Any]) -> Path:
    """A defs.yaml with components, by their attributes or as whole documents; its folder."""
    folder = project.defs_folder_path / path
    folder.mkdir(parents=True, exist_ok=True)
    whole = [
        {"type": TYPE, "attributes": document} if "type" not in document else document
        for document in documents
    ]
    (folder / "defs.yaml").write_text(yaml.safe_dump_all(whole))
    return folder


def specs(project: DefsFolderSandbox) -> dict[str, dg.AssetSpec]:
    """The assets of a project that loads, by key."""
    with project.build_all_defs() as defs:
        dg.Definitions.validate_loadable(defs)
        return {spec.key.to_user_string(): spec for spec in defs.resolve_all_asset_specs()}


def refusal(project: DefsFolderSandbox) -> str:
    """What Dagster says first of a project that it cannot load."""
    with pytest.raises(ComponentTreeException) as refused, project.build_all_defs():
        pass
    assert refused.value.__cause__ is None
    return str(refused.value)


def test_settings_stand_in_the_yaml_or_in_a_file(project: DefsFolderSandbox) -> None:
    root, text = project.project_root, CONFIG.replace('"docs.jsonl"', '"data/news.jsonl"')
    for place in ("store", "curated"):
        text = text.replace(f'"{place}"', f'"out/news/{place}"')
    (root / "news.toml").write_text(text)
    expected = {
        spec.key.to_user_string(): (spec.code_version, spec.deps, spec.group_name)
        for spec in build_definitions(root / "news.toml", key_prefix="news").resolve_all_asset_specs()
    }
    assert "news/greedy_order" in expected
    relative = tables("news") | {
        "input": {**tables("news")["input"], "paths": ["../../../../data/news.jsonl"]}
    }
    for given in (
        {"settings": tables("news")},
        {"settings": relative},
        {"config": "{{ context.project_root }}/news.toml"},
        {"config": "../../../../news.toml"},
    ):
        write(project, "news", {**given, "key_prefix": "news"})
        loaded = specs(project)
        assert {
            key: (spec.code_version, spec.deps, spec.group_name) for key, spec in loaded.items()
        } == expected


@pytest.mark.parametrize(
    ("attributes", "sentence"),
    [
        ({}, "expected either settings or config; the component has neither"),
        (
            {"settings": tables("news"), "upstream": {"raw_doc": ["x"]}},
            "upstream names 'raw_doc'; expected what reads files here: raw_docs",
        ),
    ],
)
def test_what_cannot_be_used_is_refused_in_a_sentence_that_names_the_file(
    project: DefsFolderSandbox, attributes: dict[str, Any], sentence: str
) -> None:
    folder = write(project, "news", attributes)
    said = refusal(project)
    assert said.startswith(f"{folder / 'defs.yaml'}: ")
    assert sentence in said


def test_a_scaffold_of_a_corpus_loads(project: DefsFolderSandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(project.project_root)
    for name in ("news", "my-blog"):
        project.scaffold_component(
            DivOrderComponent,
            name,
            {"paths": [f"data/{name.removeprefix('my-')}.jsonl"]},
        )
    assert {"news/exports", "my_blog/exports"} <= specs(project).keys()
    settings = load_settings(project.defs_folder_path / "news/divorder.toml", {})
    assert settings.input.paths == (str(project.project_root / "data/news.jsonl"),)
    assert settings.store.path == project.project_root / "divorder/news/store"
    # The folder may lie elsewhere on another machine.
    assert str(project.project_root) not in (project.defs_folder_path / "news/divorder.toml").read_text()


@pytest.mark.parametrize(
    ("params", "said"),
    [({}, "no corpus is named"), ({"paths": ["none.jsonl"]}, r"no file matches 'none\.jsonl'")],
)
def test_a_scaffold_of_no_corpus_leaves_nothing(
    params: dict[str, Any], said: str, project: DefsFolderSandbox
) -> None:
    with pytest.raises(click.ClickException, match=said):
        project.scaffold_component(DivOrderComponent, "news", params)
    assert not (project.defs_folder_path / "news").exists()


def test_every_attribute_has_a_description() -> None:
    for name, attribute in DivOrderComponent.get_model_cls().model_fields.items():
        assert attribute.description, name


def test_dg_lists_the_component() -> None:
    listed = CliRunner().invoke(create_dg_cli(), ["list", "components", "--json", "--target-path", str(ROOT)])
    entries = {entry["key"]: entry["summary"] for entry in json.loads(listed.stdout)["items"]}
    assert entries["dagster_divorder.DivOrderComponent"].startswith("Orders a corpus of training data")


def test_the_successor_of_the_command_line_launches_assets(config: Path) -> None:
    result = run_command(config, "dg", "launch", "--assets", "raw_docs", "--target-path", str(ROOT))
    assert result.returncode == 0, result.stderr
    assert "raw_docs: 120 documents, 120 new" in result.stderr
    assert "arning" not in result.stdout + result.stderr
