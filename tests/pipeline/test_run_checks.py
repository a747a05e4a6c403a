"""Every check is seen passed, and failed: results are spoilt one by one, and each finding says what to do."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tokenizers import Tokenizer, models

from dagster_divorder.errors import InputError, MissingStageError
from dagster_divorder.pipeline.run import run_checks
from dagster_divorder.settings import Settings
from dagster_divorder.stages import GRAPH, open_run, run_all, run_stage
from dagster_divorder.stages.output import curated_output
from dagster_divorder.stages.topics import clusters
from dagster_divorder.store.arrays import pack, unpack
from dagster_divorder.store.local import LocalStore
from dagster_divorder.store.manifests import manifest_check
from dagster_divorder.store.output_manifests import read_manifest
from dagster_divorder.store.state import save_receipt
from tests.conftest import small_settings, topic_records, write_jsonl
from tests.tiny_models import save_model, save_tokenizer

STAGES = GRAPH.needed(Settings(), "clusters")


@pytest.fixture(scope="module", autouse=True)
def several_files() -> Iterator[None]:
    """An output of 125 records has several files."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(curated_output, "OUTPUT_SHARD_BYTES", 20_000)
        yield


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Settings:
    folder = tmp_path_factory.mktemp("kept")
    records = topic_records(30)
    file = write_jsonl(folder / "docs.jsonl", [*records, records[3], records[3]])
    with open(file, "ab") as more:
        more.write(
            b'{"text": "carriage return"}\r\n{"text": "two of them"}\r\r\n{"text": 3}\n{"text": "no end"}'
        )
    settings = small_settings(folder)
    run_all(settings)
    return settings


@pytest.fixture
def made(kept: Settings, tmp_path: Path) -> Iterator[Settings]:
    """Results to spoil; they are put back afterwards."""
    folder = kept.store.path.parent
    shutil.copytree(folder, tmp_path / "copy")
    yield kept
    shutil.rmtree(folder)
    shutil.copytree(tmp_path / "copy", folder)


def spoil(settings: Settings, stage: str, file: str, change: Callable[[dict[str, np.ndarray]], Any]) -> None:
    """Put other arrays where a stage's receipt says that its result is."""
    store = LocalStore(settings.store.path)
    before = open_run(settings).receipt(stage)
    arrays = {name: array.copy() for name, array in unpack(store.read_verified(before.files[file])).items()}
    change(arrays)
    name = store.put_hashed("stages/spoilt", file, pack(arrays), "safetensors")
    save_receipt(store, replace(before, files={**before.files, file: name}))


def test_every_check_is_passed(kept: Settings) -> None:
    found = run_checks(GRAPH, kept)
    assert list(found) == [check.name for stage in GRAPH.values() for check in stage.checks]
    assert {name: finding.text for name, finding in found.items() if not finding.passed} == {}
    assert found["every_record_in_output"].text.startswith("All 125 accepted records")


def test_without_a_result_there_is_nothing_to_check(tmp_path: Path) -> None:
    with pytest.raises(MissingStageError, match="`divorder run` makes it, or"):
        run_checks(GRAPH, small_settings(tmp_path), stage="packed_sequences")


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (0, "1 left out, 1 named more than once, 0 that do not exist"),
        (125, "1 left out, 0 named more than once, 1 that do not exist"),
        (-1, "1 left out, 0 named more than once, 1 that do not exist"),
    ],
)
@pytest.mark.parametrize("stage", ["greedy_order", "sequence_order"])
def test_an_order_that_is_no_permutation(made: Settings, stage: str, value: int, said: str) -> None:
    def put(arrays: dict[str, np.ndarray]) -> None:
        order = arrays["order"].reshape(-1)
        order[np.flatnonzero(order == 1)] = value

    spoil(made, stage, "order", put)
    name = "order_is_a_permutation" if stage == "greedy_order" else "sequence_order_is_a_permutation"
    finding = run_checks(GRAPH, made, stage=stage)[name]
    assert not finding.passed
    assert said in finding.text
    assert f"materialise {stage} again" in finding.remedy


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (
            lambda plan: plan["length"].__setitem__(0, plan["length"][0] - 1),
            "1 are in no sequence; 0 tokens of sequences are there twice",
        ),
        (
            lambda plan: plan["document"].__setitem__(0, 10_000),
            "72 tokens of sequences are there twice, or in no document",
        ),
    ],
)
def test_a_token_that_is_lost(made: Settings, change: Callable[[Any], None], said: str) -> None:
    spoil(made, "packed_sequences", "plan", change)
    finding = run_checks(GRAPH, made, stage="packed_sequences")["no_token_lost"]
    assert not finding.passed
    assert said in finding.text
    assert "materialise packed_sequences again" in finding.remedy


def shards(settings: Settings) -> list[Path]:
    found = sorted(settings.output.path.glob("curated-*.jsonl"))
    assert len(found) > 1
    return found


def edit(change: Callable[[list[bytes]], list[bytes]]) -> Callable[[Settings], None]:
    def apply(settings: Settings) -> None:
        file = shards(settings)[0]
        file.write_bytes(b"".join(line + b"\n" for line in change(file.read_bytes().split(b"\n")[:-1])))

    return apply


def put_other_manifest(settings: Settings) -> None:
    """A sound manifest, of another output."""
    manifest = (read_manifest(settings.output.path) or {}) | {"key": "0" * 32}
    data = orjson.dumps(manifest | {"check": manifest_check(manifest)})
    (settings.output.path / "curated_meta.json").write_bytes(data)


SPOILT_OUTPUTS: dict[str, tuple[Callable[[Settings], Any], str]] = {
    "a line is gone": (edit(lambda lines: lines[1:]), "it has 124 records"),
    "a line is there twice": (edit(lambda lines: [lines[0], *lines]), "it has 126 records"),
    "a line is longer": (edit(lambda lines: [lines[0] + b" ", *lines[1:]]), "it has 125 records"),
    "a line in place of another": (
        edit(lambda lines: [lines[0][::-1], *lines[1:]]),
        "it has 125 records",
    ),
    "a shard is gone": (lambda settings: shards(settings)[0].unlink(), "cannot be read"),
    "no manifest": (
        lambda settings: (settings.output.path / "curated_meta.json").unlink(),
        "does not hold the output that curated_output made last",
    ),
    "another output": (
        put_other_manifest,
        "does not hold the output that curated_output made last",
    ),
}


@pytest.mark.parametrize(("change", "said"), SPOILT_OUTPUTS.values(), ids=SPOILT_OUTPUTS)
def test_an_output_that_does_not_hold_the_records(
    made: Settings, change: Callable[[Settings], Any], said: str
) -> None:
    change(made)
    finding = run_checks(GRAPH, made, stage="curated_output")["every_record_in_output"]
    assert not finding.passed
    assert said in finding.text
    assert "materialise curated_output again" in finding.remedy
    # What the finding says to do helps.
    (made.output.path / "curated_meta.json").unlink(missing_ok=True)
    run_all(made)
    assert run_checks(GRAPH, made, stage="curated_output")["every_record_in_output"].passed


def test_lines_in_another_order_are_the_same_records(made: Settings) -> None:
    edit(lambda lines: lines[::-1])(made)
    assert run_checks(GRAPH, made, stage="curated_output")["every_record_in_output"].passed


@pytest.mark.parametrize(
    ("sizes", "said"),
    [
        ([70, 30, 20, 0], "4 clusters of 0 to 70 documents; the largest, 0, holds 58%"),
        ([100, 7, 7, 6], "the largest, 0, holds 83%; expected none empty and at most 75% in one"),
        ([6, 100, *[2] * 8], "the largest, 1, holds 82%; expected none empty and at most 50% in one"),
        ([120], "holds 100%; expected none empty and at most 95% in one"),
        ([117, 2, 1], "holds 98%; expected none empty and at most 95% in one"),
    ],
)
def test_clusters_that_tell_little_apart(
    made: Settings, sizes: list[int], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(clusters, "cluster_sizes", lambda run: np.array(sizes))
    finding = run_checks(GRAPH, made, stage="clusters")["clusters_not_degenerate"]
    assert not finding.passed
    assert said in finding.text
    assert "clusters.k" in finding.remedy


def test_one_cluster_that_was_asked_for_is_not_degenerate(tmp_path: Path) -> None:
    write_jsonl(tmp_path / "docs.jsonl", topic_records(5))
    settings = small_settings(tmp_path, clusters={"k": 1})
    run_all(settings, stages=STAGES)
    assert run_checks(GRAPH, settings, stage="clusters")["clusters_not_degenerate"].passed


def test_a_tokenizer_that_drops_letters_makes_documents_without_a_token(tmp_path: Path) -> None:
    """It knows four letters. Where it makes no token at all it is refused."""
    folder = save_model(save_tokenizer(tmp_path / "model"))
    letters = models.BPE({letter: at for at, letter in enumerate("wave")}, [])
    Tokenizer(letters).save(str(folder / "tokenizer.json"))
    settings = small_settings(tmp_path, model={"base": str(folder)})
    write_jsonl(tmp_path / "docs.jsonl", ({"text": f"Война и мир, {n}"} for n in range(12)))
    with pytest.raises(InputError, match=r"makes no token of any of the 12 documents"):
        run_all(settings, stages=STAGES)
    write_jsonl(
        tmp_path / "docs.jsonl", ({"text": f"{'wave ' * (n % 5)}Война и мир, {n}"} for n in range(50))
    )
    run_all(settings, stages=STAGES)
    tokens = run_checks(GRAPH, settings, stage="token_counts")["documents_have_tokens"]
    assert not tokens.passed
    assert "10 of 50 documents have no token (the first: record 0 of the input), 20.00%" in tokens.text


def test_a_damaged_file_is_a_finding(made: Settings) -> None:
    file = made.store.path / open_run(made).receipt("greedy_order").files["order"]
    file.write_bytes(file.read_bytes()[:-1] + b"?")
    finding = run_checks(GRAPH, made, stage="greedy_order")["order_is_a_permutation"]
    assert not finding.passed
    assert "is damaged" in finding.text
    assert finding.remedy == "delete this file and run again"
    file.unlink()
    run_stage("greedy_order", made)
    assert run_checks(GRAPH, made, stage="greedy_order")["order_is_a_permutation"].passed


@pytest.mark.parametrize("format", ["parquet", "jsonl"])
def test_rows_of_parquet_that_are_others_are_noticed(tmp_path: Path, format: str) -> None:
    """That rows of any type are found where nothing is spoilt: tests/bad_input/test_types.py."""
    table = pa.Table.from_pylist(topic_records(10))
    pq.write_table(pa.concat_tables([table, table.slice(3, 2)]), tmp_path / "docs.parquet")
    given = {"paths": [str(tmp_path / "docs.parquet")]}
    settings = small_settings(tmp_path, input=given, output={"format": format})
    run_all(settings)
    finding = run_checks(GRAPH, settings, stage="curated_output")["every_record_in_output"]
    assert finding.passed and finding.text.startswith("All 42 accepted records"), finding.text
    (file,) = tmp_path.glob("curated/curated.*")
    if format == "jsonl":
        file.write_bytes(file.read_bytes().replace(b"sea 7:", b"sea 8:", 1))
    else:
        written = pq.read_table(file)
        pq.write_table(pa.concat_tables([written.slice(1), written.slice(1, 1)]), file)
    finding = run_checks(GRAPH, settings, stage="curated_output")["every_record_in_output"]
    assert "it has 42 records" in finding.text
