"""An estimate is what a run then takes, leaves nothing behind, and says where a larger one fits."""

from __future__ import annotations

import dataclasses
import os
import tempfile
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import orjson
import pytest

import dagster_divorder
from dagster_divorder.cli import main
from dagster_divorder.cli.estimates import bytes_of
from dagster_divorder.errors import InputError
from dagster_divorder.estimates import calibration
from dagster_divorder.estimates import first_run as estimates
from dagster_divorder.estimates.calibration import Calibration, Measured, Sampled
from dagster_divorder.estimates.first_run import make_estimate
from dagster_divorder.pipeline.prune import disk_use
from dagster_divorder.pipeline.stage import Size
from dagster_divorder.settings import Settings
from dagster_divorder.stages import GRAPH, run_all
from dagster_divorder.store.connect import store_of
from tests.conftest import topic_records, write_jsonl

Make = Callable[..., Settings]


@pytest.fixture(autouse=True)
def in_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another current folder and temporary folder, each empty."""
    (tmp_path / "here").mkdir()
    (tmp_path / "temporary").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    monkeypatch.setenv("TMPDIR", str(tmp_path / "temporary"))
    monkeypatch.setattr(tempfile, "tempdir", None)
    for name in [name for name in os.environ if name.startswith("DIVORDER_")]:
        monkeypatch.delenv(name)


@pytest.fixture
def in_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a process, which the first two tests start and which imports all that a run imports."""
    here = nullcontext(lambda function, item: function(item))
    monkeypatch.setattr(calibration, "Worker", lambda variables: here)


def left_in(folder: Path) -> list[Path]:
    return sorted(folder.rglob("*"))


def size_of(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def test_ten_documents_are_measured_whole(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    corpus = write_jsonl(tmp_path / "with space/docs.jsonl", topic_records(20)[::8])
    before = left_in(tmp_path)
    assert main(["estimate", str(corpus), "--json"]) == 0
    said = orjson.loads(capsys.readouterr().out)
    assert said["measured_whole"]
    assert said["documents"] == 10
    assert said["fits_here"]
    assert {"raw_docs", "base_model", "curated_output", "exports"} <= {row["stage"] for row in said["stages"]}
    assert all(row["seconds"] > 0 for row in said["stages"])
    assert said["exports"]["parquet"] > 0
    assert said["seconds"] == pytest.approx(
        said["start_seconds"] + sum(row["seconds"] for row in said["stages"])
    )
    assert left_in(tmp_path) == before


def test_a_growing_sample_tells_what_a_run_leaves(
    tmp_path: Path, make_settings: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_jsonl(tmp_path / "docs.jsonl", topic_records(500))
    size = (tmp_path / "docs.jsonl").stat().st_size
    monkeypatch.setattr(calibration, "WHOLE_BYTES", 10_000)
    monkeypatch.setattr(calibration, "PLAIN_BYTES", (size // 12, size // 6, size // 3))
    monkeypatch.setattr(estimates, "PLAIN_BYTES", (size // 3,))
    settings = make_settings(exports={"formats": ["parquet"], "path": str(tmp_path / "exports")})
    found = make_estimate(settings)
    assert not found.measured_whole
    assert found.sampled_bytes < size / 2
    assert [stage.stage for stage in found.stages] == list(GRAPH.needed(settings))
    assert not (tmp_path / "store").exists()
    assert not (tmp_path / "curated").exists()
    run_all(settings)
    assert found.documents == pytest.approx(2_000, rel=0.05)
    assert found.output == pytest.approx(size_of(tmp_path / "curated"), rel=0.1)
    assert found.exports["parquet"] == pytest.approx(size_of(tmp_path / "exports/parquet"), rel=0.3)
    assert found.store == pytest.approx(sum(disk_use(store_of(settings.store)).values()), rel=0.3)


@pytest.mark.usefixtures("in_this_process")
@pytest.mark.parametrize("kind", ["deep", "evidence"])
def test_stages_of_neural_networks_are_measured_on_a_few_documents(
    tmp_path: Path, make_settings: Make, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    write_jsonl(tmp_path / "docs.jsonl", topic_records(40))
    monkeypatch.setattr(calibration, "FEW_BYTES", (4_000, 8_000))
    few = {"decoder_tokens": 2_000}
    if kind == "deep":
        settings = make_settings(embedding={"kind": "deep"}, advanced=few)
        found = make_estimate(settings)
        stages = {"deep_model", "deep_embeddings"}
    else:
        settings = make_settings(
            advanced=few,
            heldout={"documents": 0.1},
            evidence={"tokens": 500, "orders": ("curated",), "seeds": 1, "batch": 4},
            sequence={"length": 32, "batch": 4},
            engine={"workers": 1},
        )
        found = make_estimate(settings, *GRAPH.needed(settings), "training_evidence")
        stages = {"training_evidence"}
    timed = {stage.stage: stage.seconds for stage in found.stages}
    assert stages <= timed.keys()
    assert all(timed.values()), found.notes
    assert any("neural networks" in note for note in found.notes)


@pytest.mark.usefixtures("in_this_process")
def test_an_error_of_a_run_names_the_input_and_not_the_sample(tmp_path: Path, make_settings: Make) -> None:
    write_jsonl(tmp_path / "docs.jsonl", topic_records(5))
    with pytest.raises(InputError, match=r"body.*") as raised:
        make_estimate(make_settings(input={"text_field": "body"}))
    assert str(tmp_path / "docs.jsonl") in str(raised.value)
    # The folder of this test is none of the sample's.
    assert "divorder-estimate" not in str(raised.value)
    assert not left_in(tmp_path / "temporary")


@pytest.mark.usefixtures("in_this_process")
def test_what_is_refused_is_said(tmp_path: Path, make_settings: Make) -> None:
    corpus = write_jsonl(tmp_path / "docs.jsonl", topic_records(10))
    with corpus.open("ab") as file:
        file.write(b'{"text": 5}\n{"broken\n' * 5)
    found = make_estimate(make_settings())
    assert found.documents == 40
    assert any("20.0% of the sampled records" in note for note in found.notes)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["nowhere.jsonl"], "no file matches 'nowhere.jsonl'"),
        (["empty.jsonl"], "empty.jsonl holds no readable record"),
        ([], "no settings name an input"),
    ],
)
def test_an_input_that_is_none_is_an_error(
    arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("empty.jsonl").touch()
    assert main(["estimate", *arguments]) == 1
    assert said in capsys.readouterr().err


def test_an_empty_input_of_settings_is_an_error(tmp_path: Path, make_settings: Make) -> None:
    (tmp_path / "docs.jsonl").touch()
    with pytest.raises(InputError, match=r"docs\.jsonl holds no records"):
        make_estimate(make_settings())


@pytest.mark.usefixtures("in_this_process")
def test_paths_take_the_place_of_those_in_the_settings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    records = [{"body": record["text"]} for record in topic_records(5)]
    write_jsonl(tmp_path / "here/other.jsonl", records)
    Path("divorder.toml").write_text('[input]\npaths = ["none.jsonl"]\ntext_field = "body"\n')
    found = dagster_divorder.estimate("other.jsonl")
    assert found.documents == 20


# The model of larger machines, on measurements that are written down ------------------------------------------------


def sampled(megabytes: float, seconds: dict[str, float]) -> Sampled:
    return Sampled(
        stages={name: Measured(of, of, 100 << 20, 50 << 20, True) for name, of in seconds.items()},
        size=Size(megabytes * 400, megabytes * 1e6, megabytes * 250_000),
        records=int(megabytes * 400),
        refused=0,
        store={
            "documents": int(megabytes * 4e5),
            "fits/base_model": 20_000_000,
            "stages/token_counts": int(megabytes * 5e5),
        },
        output=int(megabytes * 1e6),
        exports={},
    )


@pytest.fixture
def written_down(tmp_path: Path, make_settings: Make, monkeypatch: pytest.MonkeyPatch) -> Settings:
    """Settings whose stages are raw_docs, base_model, token_counts and shallow_embeddings, in 4 MB of 16 measured."""
    settings = make_settings(advanced={"vocab_size": 32_768})
    runs = [
        sampled(1, {"raw_docs": 0.12, "base_model": 9.0, "token_counts": 1.03, "shallow_embeddings": 0.1}),
        sampled(2, {"raw_docs": 0.12, "base_model": 9.0, "token_counts": 0.05, "shallow_embeddings": 0.1}),
        sampled(4, {"raw_docs": 0.14, "base_model": 9.0, "token_counts": 0.08, "shallow_embeddings": 0.2}),
    ]
    for run in runs[1:]:
        run.stages["base_model"] = dataclasses.replace(run.stages["base_model"], computed=False)
    excerpt = SimpleNamespace(bytes=4_000_000, total=16e6, stored=8_000_000)
    monkeypatch.setattr(estimates, "find_inputs", lambda settings: [None])
    monkeypatch.setattr(estimates, "draw", lambda found, wanted: excerpt)
    monkeypatch.setattr(
        estimates,
        "calibrate",
        lambda settings, excerpts, stages: Calibration(1.0, runs, [], settings, settings, 4_000_000),
    )
    monkeypatch.setattr(estimates, "count_workers", lambda setting: 2)
    monkeypatch.setattr(estimates, "main_memory", lambda: 8_000_000_000)
    monkeypatch.setattr(estimates, "_free", lambda settings: 100_000_000_000)
    return settings


STAGES = ("shallow_embeddings",)


def test_a_stage_grows_with_what_was_new_to_it_and_a_fit_with_its_sample(written_down: Settings) -> None:
    found = {stage.stage: stage for stage in make_estimate(written_down, *STAGES).stages}
    # 0.03 s a MB of new documents, 0.02 s fixed, and 0.98 s that the process loads once.
    assert found["token_counts"].seconds == pytest.approx(0.98 + 0.02 + 0.03 * 16, rel=0.01)
    # Half of a base model is the vocabulary: with a sample of 16 MB instead of 1 it takes (16.8 + 16) / (16.8 + 1).
    assert found["base_model"].seconds == pytest.approx(9.0 * 32.8 / 17.8, rel=0.01)
    assert found["base_model"].disk == 20_000_000
    assert found["token_counts"].disk == pytest.approx(16 * 5e5)
    assert found["raw_docs"].disk == pytest.approx(16 * 4e5)


def test_a_size_is_one_of_files_as_these(written_down: Settings) -> None:
    found = make_estimate(written_down, *STAGES, size=80_000_000)
    assert (found.file_bytes, found.text_bytes) == (80_000_000, 160_000_000)
    assert found.output == 160_000_000
    assert found.fits_here
    assert not found.machines


def test_half_a_terabyte_is_for_more_machines(written_down: Settings) -> None:
    found = make_estimate(written_down, *STAGES, size=500_000_000_000)
    assert not found.fits_here
    assert found.disk > found.disk_here
    # 120 bytes a document in the driver, and a worker of 400 MB a core.
    assert found.memory == pytest.approx(120 * found.documents + 2 * 400 * 2**20, rel=0.02)
    seconds = [machine.seconds for machine in found.machines]
    assert seconds == sorted(seconds, reverse=True)
    shared = sum(stage.shared_processor_seconds for stage in found.stages)
    assert shared > 0.9 * sum(stage.processor_seconds for stage in found.stages)
    assert found.seconds == pytest.approx(shared * 1.2 / 2, rel=0.05)


@pytest.mark.parametrize(
    ("text", "size"), [("500GB", 500e9), ("1.5 TB", 1.5e12), ("800mb", 8e8), (" 2 Gb ", 2e9)]
)
def test_sizes_are_read(text: str, size: float) -> None:
    assert bytes_of(text) == size


@pytest.mark.parametrize("text", ["500", "GB", "-1GB", "0MB", "nanGB", "infTB", "5 KB", "", "1e400GB"])
def test_what_is_no_size_is_refused(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["estimate", f"--size={text}"])
    assert "500GB" in capsys.readouterr().err


def test_noise_makes_no_stage_free() -> None:
    fixed, rate = estimates._line([1.0, 2.0], [0.2, 0.1], least=0.25)
    assert (fixed, rate) == pytest.approx((0.075, 0.0125))
    assert estimates._line([1.0, 2.0], [5.0, 5.0]) == (5.0, 0.0)
    assert estimates._line([1.0, 3.0], [1.0, 4.0]) == (0.0, 4 / 3)
    assert estimates._line([4.0], [2.0]) == (0.0, 0.5)
