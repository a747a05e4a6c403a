"""The code location: it loads, its assets report what they made, and the command line runs them all."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
from pathlib import Path

import dagster as dg
import orjson
import pytest

from dagster_divorder.settings import CODE_VERSIONS, load_settings
from tests.conftest import topic_records, write_jsonl

FIGURES = ("documents", "new_documents", "reused_documents", "seconds", "documents_per_second")


@pytest.fixture
def config(tmp_path: Path) -> Path:
    write_jsonl(tmp_path / "docs.jsonl", topic_records(30))
    file = tmp_path / "divorder.toml"
    file.write_text(
        '[input]\npaths = ["docs.jsonl"]\nsource_field = "source"\n'
        '[store]\npath = "store"\n[output]\npath = "curated"\n'
        "[model]\nvocab_size = 512\ndim = 16\n[clusters]\nk = 4\n[sequence]\nlength = 128\nbatch = 4\n"
    )
    return file


def definitions(config: Path, monkeypatch: pytest.MonkeyPatch) -> dg.Definitions:
    import dagster_divorder.definitions as module

    monkeypatch.setenv("DIVORDER_CONFIG", str(config))
    return importlib.reload(module).defs


def test_assets_jobs_and_code_versions(config: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    defs = definitions(config, monkeypatch)
    dg.Definitions.validate_loadable(defs)
    specs = {spec.key.to_user_string(): spec for spec in defs.resolve_all_asset_specs()}
    assert set(specs) == set(CODE_VERSIONS)
    settings = load_settings(config)
    for name, spec in specs.items():
        assert spec.code_version == settings.recipe(name)
        assert spec.group_name in {"corpus", "embedding", "ordering", "evidence", "output"}
        assert spec.description


def test_an_edited_settings_file_changes_the_code_version_it_concerns(
    config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def versions() -> dict[str, str | None]:
        defs = definitions(config, monkeypatch)
        return {spec.key.to_user_string(): spec.code_version for spec in defs.resolve_all_asset_specs()}

    before = versions()
    config.write_text(config.read_text().replace("k = 4", "k = 5"))
    after = versions()
    assert {name for name in before if before[name] != after[name]} == {"clusters"}


def test_materialising_everything_reports_figures_and_stable_data_versions(
    config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    defs = definitions(config, monkeypatch)
    assets = list(defs.assets or [])
    resources = {"settings": load_settings(config)}
    with dg.DagsterInstance.ephemeral() as instance:
        versions: list[dict[str, str]] = []
        for attempt in range(2):
            run = dg.materialize(assets, instance=instance, resources=resources)  # type: ignore[arg-type]
            assert run.success
            made = {
                event.asset_key.to_user_string(): event
                for event in run.get_asset_materialization_events()
                if event.asset_key
            }
            assert set(made) == set(CODE_VERSIONS)
            for name, event in made.items():
                metadata = event.materialization.metadata
                assert set(FIGURES) <= set(metadata), name
                if attempt:
                    assert metadata["new_documents"].value == 0, name
            tags = {name: dict(event.materialization.tags or {}) for name, event in made.items()}
            versions.append({name: tag["dagster/data_version"] for name, tag in tags.items()})
        assert versions[0] == versions[1]
        orders = made["diversity_metrics"].materialization.metadata["orders"].value
        assert [record.data["order"] for record in orders.records] == [
            "original",
            "random",
            "curated",
            "sequences random",
            "sequences",
        ]
        measures = [
            record.data
            for record in made["diversity_metrics"].materialization.metadata["measures"].value.records
        ]
        assert {row["window"] for row in measures} >= {
            "sequence",
            "sequence (flush)",
            "batch",
            "batch (anywhere)",
            "prefix",
            "corpus",
        }
        assert {row["trait"] for row in measures} >= {"cluster", "length"}
        picture = made["diversity_metrics"].materialization.metadata["ordering_comparison"].value
        assert str(picture).startswith("![orders compared](data:image/png;base64,")
        compared = made["strategy_comparison"].materialization.metadata["comparison"].value
        settings = load_settings(config).comparison
        assert len(compared.records) == len(settings.documents) * len(settings.sequences)


@pytest.mark.parametrize("strategy", ["balanced", "original"])
def test_the_check_runs_with_the_assets_and_says_by_how_much(
    config: Path, monkeypatch: pytest.MonkeyPatch, strategy: str
) -> None:
    config.write_text(
        config.read_text().replace("[sequence]", f'[sequence]\nstrategy = "{strategy}"')
        + f'[order]\nstrategy = "{strategy}"\ntraits = {{ cluster = 1.0 }}\n'
    )
    defs = definitions(config, monkeypatch)
    with dg.DagsterInstance.ephemeral() as instance:
        run = defs.resolve_implicit_global_asset_job_def().execute_in_process(instance=instance)
        assert run.success  # a failed check does not fail the run
        (check,) = run.get_asset_check_evaluations()
    assert (check.check_name, check.asset_key) == (
        "order_beats_shuffling",
        dg.AssetKey("diversity_metrics"),
    )
    assert check.passed == (strategy == "balanced")
    assert check.severity == dg.AssetCheckSeverity.WARN
    assert "any batch: cluster mean" in str(check.description)
    assert "not compared: 10 batches" in str(check.description)
    assert ("What to do: sequence.strategy is 'original'" in str(check.description)) != check.passed


def environment(config: Path) -> dict[str, str]:
    own = {
        name: value for name, value in os.environ.items() if not name.startswith(("DAGSTER_", "DIVORDER_"))
    }
    return {**own, "DIVORDER_CONFIG": str(config), "DAGSTER_DISABLE_TELEMETRY": "1"}


def test_the_command_line_materialises_everything_and_the_summary_tells(config: Path) -> None:
    binaries = Path(sys.executable).parent
    command = [
        str(binaries / "dagster"),
        "asset",
        "materialize",
        "--select",
        "*",
        "-m",
        "dagster_divorder.definitions",
    ]
    run = subprocess.run(command, capture_output=True, text=True, env=environment(config), cwd=config.parent)
    assert run.returncode == 0, run.stderr
    assert "dagster_divorder" not in "".join(line for line in run.stderr.splitlines() if "Warning" in line)
    meta = orjson.loads((config.parent / "curated/curated_meta.json").read_bytes())
    assert meta["counts"]["records"] == 120
    summary = subprocess.run(
        [str(binaries / "divorder"), "summary"], capture_output=True, text=True, env=environment(config)
    )
    assert summary.returncode == 0, summary.stderr
    for part in ("120 records", "original", "random", "curated", "clusters", str(config.parent / "curated")):
        assert part in summary.stdout


def test_bad_settings_stop_the_command_line_with_the_key(config: Path) -> None:
    divorder = Path(sys.executable).parent / "divorder"
    bad = {**environment(config), "DIVORDER_CLUSTERS__KK": "3"}
    run = subprocess.run([str(divorder), "summary"], capture_output=True, text=True, env=bad)
    assert run.returncode == 1
    assert "nearest valid key is 'clusters.k'" in run.stderr
    assert "Traceback" not in run.stderr


def test_bad_input_fails_the_run_and_names_the_lines(config: Path) -> None:
    (config.parent / "docs.jsonl").write_text('{"text": "fine"}\n{"body": 1}\n')
    divorder = Path(sys.executable).parent / "divorder"
    run = subprocess.run([str(divorder), "run"], capture_output=True, text=True, env=environment(config))
    assert run.returncode == 1
    assert "1 of 2 records were refused (50.0%)" in run.stderr
    assert "docs.jsonl:2: no field 'text'" in run.stderr
    assert not list((config.parent / "store").rglob("*.arrow"))
