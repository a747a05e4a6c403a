"""Runs of our assets: checks, data versions, what is said and shown, errors, the log on a terminal, and `divorder run`
as a run of Dagster."""

from __future__ import annotations

import io
import json
import re
import signal
from collections.abc import Callable
from pathlib import Path

import dagster as dg
import numpy as np
import orjson
import pytest
from PIL import Image

from dagster_divorder import build_definitions
from dagster_divorder.cli import main
from dagster_divorder.defs import assets
from dagster_divorder.defs.log import COLUMNS, short_lines
from dagster_divorder.defs.metadata import (
    INLINE_CHARACTERS,
    PICTURE_BYTES,
    PICTURE_WIDTH,
    picture,
    result_metadata,
    table,
)
from dagster_divorder.pipeline.run import run_graph
from dagster_divorder.pipeline.stage import Link, Table
from dagster_divorder.stages import GRAPH
from tests.conftest import topic_records, write_jsonl
from tests.defs.conftest import metadata_of, pictures, rows_of, versions_of

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


def test_an_append_changes_versions_downstream_and_a_pinned_fit_keeps_its_own(
    load: Load, config: Path
) -> None:
    curate = load().resolve_job_def("curate")
    with dg.DagsterInstance.ephemeral() as instance:
        before = versions_of(curate.execute_in_process(instance=instance))
        with open(config.parent / "docs.jsonl", "ab") as file:
            file.write(b"\n  \n")  # no record
        again = versions_of(curate.execute_in_process(instance=instance))
        assert {stage for stage in before if again[stage] != before[stage]} <= {"curated_output"}
        with open(config.parent / "docs.jsonl", "ab") as file:
            file.write(orjson.dumps(topic_records(1, start=99)[0]) + b"\n")
        run = curate.execute_in_process(instance=instance)
    metadata, after = metadata_of(run), versions_of(run)
    for stage in ("raw_docs", "token_counts", "shallow_embeddings", "clusters"):
        assert metadata[stage]["new_documents"].value == 1, stage
    assert {stage for stage, version in after.items() if version == before[stage]} == {"base_model"}


def test_a_table_too_wide_for_the_page_is_behind_a_link_with_its_words_as_they_are() -> None:
    narrow = [
        {"file": "a.jsonl", "records": 1200, "share": 0.123456},
        {"file": "b", "records": 1, "share": None},
    ]
    shown = table(narrow)
    assert isinstance(shown, dg.TableMetadataValue)
    assert rows_of(shown)[0] == {"file": "a.jsonl", "records": 1200, "share": 0.1235}
    words = "| ![x](http://a.b/c.png) <b>_bold_</b> `code` \\ $x$\n# head | ~no~ &amp;"
    shown = table([{**row, "text": words} for row in narrow])
    assert isinstance(shown, dg.MarkdownMetadataValue) and len(shown.value) >= INLINE_CHARACTERS
    assert rows_of(shown)[0] == {**narrow[0], "share": 0.1235, "text": words.replace("\n", " ")}
    assert not re.search(r"(?<!\\)[<!\[`]", shown.value)


@pytest.mark.parametrize("side", [40, 300])
def test_a_picture_on_the_page_is_of_bounded_size(tmp_path: Path, side: int) -> None:
    noise = np.random.default_rng(0).integers(0, 256, (side, 2 * side, 3), dtype=np.uint8)
    noise[200:, 200:] = 0
    file = tmp_path / "noise.png"
    Image.fromarray(noise).save(file)
    (shown,) = pictures({"noise": picture(file.read_bytes(), "noise")}).values()
    assert len(shown) <= PICTURE_BYTES
    width, height = Image.open(io.BytesIO(shown)).size
    assert width <= PICTURE_WIDTH
    assert width == pytest.approx(2 * height, abs=2)
    assert (shown == file.read_bytes()) == (side == 40)


def test_metadata_says_nothing_twice_and_nothing_without_a_value(tmp_path: Path) -> None:
    figures = {
        "bytes": 59_091,
        "empty": "",
        "none": None,
        "fitted": "no: kept",
        "copies": {"copies": 0, "together": 0},
        "sizes": {"mean": 2.72649, "most": 1200, "unknown": None},
        "hash": "bcf1f58c60ea1e4760656150c6b59cf8",
        "films": ["film.mp4"],
        "folder": str(tmp_path),
        "rejected": 0,
        "share": 0.123456,
    }
    shown = {"output": Link(tmp_path), "rows": Table([]), "share": 0.5}
    assert result_metadata(shown, figures) == {
        "output": dg.MetadataValue.path(str(tmp_path)),
        "share": 0.5,
        "bytes": "59.1 kB",
        "sizes": "mean 2.726, most 1,200",
        "rejected": 0,
    }
    (row,) = rows_of(table([{"file": "a.jsonl", "bytes": 59_091}]))
    assert row == {"file": "a.jsonl", "bytes": "59.1 kB"}


def test_an_error_is_a_failure_that_begins_with_its_sentence(config: Path) -> None:
    config.write_text(config.read_text().replace("[input]", '[input]\nid_field = "none"'))
    curate = build_definitions(config).resolve_job_def("curate")
    result = curate.execute_in_process(raise_on_error=False)
    (failure,) = [event for event in result.all_events if event.is_step_failure]
    said = failure.step_failure_data.user_failure_data
    assert said and str(said.description).startswith("input.id_field: no record has")


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_cancelled_run_ends_though_python_loses_the_error(
    config: Path, monkeypatch: pytest.MonkeyPatch, number: signal.Signals
) -> None:
    class Collected:
        def __del__(self) -> None:
            signal.raise_signal(number)

    monkeypatch.setattr(assets, "run_graph", lambda *given: (Collected(), run_graph(*given))[1])
    with dg.DagsterInstance.ephemeral() as instance:
        with pytest.raises(dg.DagsterExecutionInterruptedError):
            build_definitions(config).resolve_job_def("curate").execute_in_process(instance=instance)
        (run,) = instance.get_runs()
        events = [event.dagster_event for event in instance.all_logs(run.run_id) if event.dagster_event]
    assert [event.step_key for event in events if event.is_step_start] == ["raw_docs"]


def test_lines_have_time_and_message_and_fit_a_terminal(capfd: pytest.CaptureFixture[str]) -> None:
    @dg.asset
    def words(context) -> None:  # Dagster refuses annotations that are text.
        context.log.debug("not said")
        context.log.info("words: " + "some more " * 20)
        context.log.warning("odd words")

    defs = dg.Definitions(assets=[words], loggers={"console": short_lines})
    job = defs.resolve_implicit_global_asset_job_def()
    assert job.execute_in_process(run_config={"loggers": {"console": {}}}).success
    lines = capfd.readouterr().err.splitlines()
    assert max(map(len, lines)) <= COLUMNS
    said = [line[9:] for line in lines]
    assert said[0].startswith("INFO words: some more") and said[-1] == "WARNING odd words"
    assert " ".join(said[:-1]) == "INFO words: " + " ".join(["some more"] * 20)
    assert {line[:9] for line in lines[1:-1]} == {" " * 9}


# divorder run with DAGSTER_HOME --------------------------------------------------------------------------------------


@pytest.fixture
def home(config: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An instance of Dagster whose history lies in a relative folder, and the corpus elsewhere."""
    home = config.parent / "home"
    home.mkdir()
    storage = "storage: {sqlite: {base_dir: .dagster_home/storage}}\ntelemetry: {enabled: false}\n"
    (home / "dagster.yaml").write_text(storage)
    monkeypatch.setenv("DAGSTER_HOME", str(home))
    monkeypatch.chdir(config.parent)
    return home


def materialised(home: Path) -> dict[str, str | None]:
    """Asset -> data version, as the instance has them."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(home)
        with dg.DagsterInstance.get() as instance:
            events = {
                key: instance.get_latest_materialization_event(key) for key in instance.get_asset_keys()
            }
    return {
        key.to_user_string(): event.asset_materialization.tags["dagster/data_version"]
        for key, event in events.items()
        if event and event.asset_materialization and event.asset_materialization.tags
    }


def test_the_command_runs_in_the_instance_of_the_home(
    home: Path, config: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["run", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["corpus"]["records"] == 120
    made = materialised(home)
    assert {"raw_docs", "clusters", "curated_output"} <= made.keys()
    assert made.keys().isdisjoint({"k_calibration", "strategy_comparison"})
    # A stage without an asset is made by the asset that it belongs to.
    assert main(["run", "cluster_names"]) == 0
    write_jsonl(config.parent / "docs.jsonl", topic_records(31))
    assert main(["run", "clusters"]) == 0
    again = materialised(home)
    assert again["clusters"] != made["clusters"] and again["curated_output"] == made["curated_output"]


def test_the_command_says_what_is_wrong_in_one_sentence(
    home: Path, config: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def said() -> str:
        assert main(["run"]) == 1
        return next(line for line in capsys.readouterr().err.splitlines() if line.startswith("divorder: "))

    text = config.read_text()
    config.write_text(text.replace("[input]", '[input]\nid_field = "none"'))
    assert said().startswith("divorder: input.id_field: no record has")
    config.write_text(text)
    for folder in ("home", str(home / "missing")):
        monkeypatch.setenv("DAGSTER_HOME", folder)
        assert "expected the absolute path of a folder" in said()
