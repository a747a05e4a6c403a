"""`order.append = "extend"`: appended documents come behind the last output, and nothing before them moves."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from dagster_divorder import run_all
from dagster_divorder.engine.progress import Log, Silent
from dagster_divorder.errors import InputError, SettingsError
from dagster_divorder.pipeline.plan import make_plan
from dagster_divorder.pipeline.run import run_checks
from dagster_divorder.settings import Settings
from dagster_divorder.stages import GRAPH, open_run
from dagster_divorder.stages.order.packed_sequences import load_bounds
from dagster_divorder.stages.output import curated_output, exports
from dagster_divorder.store.manifests import EXPORT_MANIFEST
from dagster_divorder.store.output_manifests import MANIFEST, read_manifest
from tests.conftest import over, topic_records, write_jsonl
from tests.pipeline.runs import Make
from tests.pipeline.runs import exported_rows as rows

LENGTH = 64
RECORDS = topic_records(40)
FIRST = 80

VARIANTS: dict[str, dict[str, Any]] = {
    "concat": {},
    "best_fit": {"packing": {"method": "best_fit"}, "order": {"separate_copies": True}},
    "cluster_packed": {"packing": {"method": "cluster_packed", "end_of_text": True}},
    "none": {"packing": {"method": "none"}},
    "chosen": {
        "mixing": {"trait": "source", "weights": "sqrt"},
        "input": {"source_field": "source"},
        "heldout": {"documents": 0.1},
        "selection": {"method": "random", "tokens": 2_000},
    },
}


@pytest.fixture
def make(tmp_path: Path, make_settings: Make) -> Make:
    """Settings that extend outputs, with a Parquet export."""

    def extending(**sections: Any) -> Settings:
        base = {
            "sequence": {"length": LENGTH, "batch": 4},
            "order": {"append": "extend"},
            "exports": {"formats": ("parquet",), "path": tmp_path / "exports"},
            "engine": {"workers": 1},
            "output": {"path": tmp_path / "out"},
        }
        return make_settings(**over(base, sections))

    return extending


def write(folder: Path, records: list[dict[str, Any]]) -> None:
    write_jsonl(folder / "docs.jsonl", records)


def lines(chosen: Settings) -> list[bytes]:
    return [
        line
        for file in sorted(Path(chosen.output.path).glob("curated*.jsonl"))  # type: ignore[arg-type]
        for line in file.read_bytes().splitlines()
    ]


def full(of: list[list[int]]) -> list[list[int]]:
    """Rows without a last one that is not full."""
    return of[:-1] if of and len(of[-1]) < LENGTH else of


def computed(chosen: Settings) -> dict[str, int]:
    """Documents that a run computes, by stage."""
    receipts = run_all(chosen, Silent())
    return {
        stage: receipt.facts["computed"] for stage, receipt in receipts.items() if receipt.facts["computed"]
    }


def files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


@pytest.mark.parametrize("variant", VARIANTS)
def test_no_full_row_moves_in_any_number_of_appends(make: Make, tmp_path: Path, variant: str) -> None:
    chosen, written, before = make(**VARIANTS[variant]), FIRST, (list[list[int]](), list[bytes]())
    assert chosen.order.extends
    stays = set[int]()
    for size in (0, 1, 40):
        written += size
        write(tmp_path, RECORDS[:written])
        assert make_plan(GRAPH, chosen).refusal == ""
        said: list[str] = []
        run_all(chosen, Log(said.append))
        now = rows(chosen), lines(chosen)
        kept = before[0] if variant in ("none", "best_fit") else full(before[0])
        stays.add(len(kept))
        assert now[0][: len(kept)] == kept
        assert now[1][: len(before[1])] == before[1]
        assert not [line for line in said if "changed from" in line]
        before = now
    assert computed(chosen) == {}
    # A stretch is what an append has added in rows that stay.
    stretches = load_bounds(open_run(chosen))[1]
    assert stretches.tolist() == sorted({*stays, len(before[0])})
    checks = run_checks(GRAPH, chosen)
    assert checks["nothing_drifts"].passed, checks["nothing_drifts"].text
    failed = {name: finding.text for name, finding in checks.items() if not finding.passed}
    failed.pop("curated_beats_shuffling", None)
    blocking = {check.name for stage in GRAPH.values() for check in stage.checks if check.blocking}
    assert not blocking & failed.keys(), failed


FORMATS = ("parquet", "ds", "mds", "litdata", "olmo", "megatron")
REWRITTEN = ("megatron",)


@pytest.fixture
def small_files(monkeypatch: pytest.MonkeyPatch) -> None:
    """Outputs and exports of a few records have several files."""
    monkeypatch.setattr(curated_output, "OUTPUT_SHARD_BYTES", 3000)
    monkeypatch.setattr(exports, "EXPORT_SHARD_BYTES", 3000)


@pytest.mark.usefixtures("small_files")
def test_full_files_stay_and_others_are_added(make: Make, tmp_path: Path) -> None:
    chosen = make(exports={"formats": FORMATS})
    write(tmp_path, RECORDS[:FIRST])
    run_all(chosen, Silent())
    folders = {"out": (tmp_path / "out", MANIFEST)}
    folders |= {name: (tmp_path / "exports" / name, EXPORT_MANIFEST) for name in FORMATS}
    before = {name: manifest_of(*place) for name, place in folders.items()}
    nodes = {name: inodes(place) for name, (place, _) in folders.items()}
    # A file that is written again has another inode.
    write(tmp_path, RECORDS[: FIRST + 20])
    run_all(chosen, Silent())
    for name, place in folders.items():
        contents = {entry["content"] for entry in before[name].values() if "content" in entry}
        now = manifest_of(*place)
        stay = [file for file, entry in now.items() if entry.get("content") in contents]
        linked = [file for file in stay if inodes(place[0])[file] in nodes[name].values()]
        assert len(linked) == len(stay)
        if name not in REWRITTEN:
            # Not the last file.
            assert len(stay) >= len(contents) - 1 > 0, name
            assert len(now) > len(before[name])
    for name, finding in run_checks(GRAPH, chosen).items():
        assert finding.passed or name != "every_record_in_output", finding.text
    whole = make(
        exports={"formats": FORMATS, "path": tmp_path / "other"}, output={"path": tmp_path / "other_out"}
    )
    run_all(whole, Silent())
    for name in FORMATS:
        assert files(tmp_path / "exports" / name) == files(tmp_path / "other" / name), name


def manifest_of(folder: Path, name: str) -> dict[str, Any]:
    manifest = read_manifest(folder, name)
    assert manifest is not None
    return dict(manifest["files"])


def inodes(folder: Path) -> dict[str, int]:
    return {path.name: path.stat().st_ino for path in folder.iterdir()}


@pytest.mark.usefixtures("small_files")
def test_a_damaged_file_is_not_taken_over(make: Make, tmp_path: Path) -> None:
    chosen = make(exports={"formats": ("ds",)})
    write(tmp_path, RECORDS[:FIRST])
    run_all(chosen, Silent())
    kept = {}
    for file in [
        next((tmp_path / "exports/ds").glob("*-00000-of-*.ds")),
        *sorted((tmp_path / "out").glob("curated-*.jsonl")),
    ]:
        data = kept[file.name.partition("-of-")[0].rpartition("-")[2]] = file.read_bytes()
        file.write_bytes(data[:-2] + bytes([data[-2] ^ 1]) + data[-1:])
    write(tmp_path, RECORDS[: FIRST + 20])
    run_all(chosen, Silent())
    for name, data in kept.items():
        (file,) = [*tmp_path.glob(f"out/curated-{name}"), *tmp_path.glob(f"exports/ds/*-{name}-of-*.ds")]
        # The last file goes on.
        assert file.read_bytes()[: len(data)] == data, name


def test_what_is_edited_is_refused_and_a_whole_run_goes_on(make: Make, tmp_path: Path) -> None:
    chosen = make()
    write(tmp_path, RECORDS[:FIRST])
    run_all(chosen, Silent())
    before = files(tmp_path / "exports")
    kept = [{**RECORDS[0], "text": "another"}, *RECORDS[1:FIRST]]
    write(tmp_path, kept)
    with pytest.raises(InputError, match=r'records of the last output, which order.append = "extend" keeps'):
        run_all(chosen, Silent())
    assert files(tmp_path / "exports") == before
    whole = make(order={"append": "whole"})
    run_all(whole, Silent())
    after = files(tmp_path / "exports")
    assert after != before
    assert computed(chosen).keys() == {"frozen"}, (
        "an output that was ordered as a whole is extended from then on"
    )
    assert files(tmp_path / "exports") == after
    write(tmp_path, [*kept, *RECORDS[FIRST : FIRST + 5]])
    last = rows(chosen)
    run_all(chosen, Silent())
    assert rows(chosen)[: len(full(last))] == full(last)


def test_no_setting_and_no_refit_moves_what_is_written(make: Make, tmp_path: Path) -> None:
    chosen = make()
    write(tmp_path, RECORDS[:FIRST])
    run_all(chosen, Silent())
    write(tmp_path, RECORDS[: FIRST + 20])
    run_all(chosen, Silent())
    before = rows(chosen)
    for other in (
        make(order={"traits": {"length": 1.0}}),
        make(clusters={"k": 2}),
        make().refitting("clusters"),
        make(packing={"method": "best_fit"}),
    ):
        run_all(other, Silent())
        assert rows(other)[: len(full(before))] == full(before)


def test_sequences_of_another_length_are_refused(make: Make, tmp_path: Path) -> None:
    write(tmp_path, RECORDS[:FIRST])
    run_all(make(), Silent())
    with pytest.raises(InputError, match=r"sequence.length was 64, is 32.*order.append = \"whole\""):
        run_all(make(sequence={"length": 32}), Silent())


@pytest.mark.parametrize(
    ("sections", "said"),
    [
        ({"sequence": {"epochs": 2}}, "sequence.epochs is 2"),
        ({"curriculum": {"score": "length"}}, "curriculum.score is 'length'"),
    ],
)
def test_plans_for_the_whole_are_refused(sections: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=rf'{said}.*order.append = "whole"'):
        Settings(order={"append": "extend"}, **sections)


def test_another_base_model_is_refused() -> None:
    with pytest.raises(SettingsError, match=r"refit names 'model', and order.append is 'extend'"):
        Settings(order={"append": "extend"}).refitting("bins", "model")
