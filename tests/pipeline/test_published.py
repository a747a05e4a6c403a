"""The published plan: what is frozen, extended, cut and looked up is what trainers hold, whatever ran since; and an
output that a trainer may have read keeps its order while `order.frozen_tokens` is unset. `order.append = "extend"`:
appended documents come behind the last output, and nothing before them moves."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Any

import orjson
import pytest

from dagster_divorder import load_results, run_all, where
from dagster_divorder.engine.progress import Log, Silent
from dagster_divorder.errors import InputError, SettingsError
from dagster_divorder.forensics import plan_freeze
from dagster_divorder.pipeline.plan import make_plan
from dagster_divorder.pipeline.prune import prune
from dagster_divorder.pipeline.published import last_published
from dagster_divorder.pipeline.run import run_checks
from dagster_divorder.settings import Settings
from dagster_divorder.stages import GRAPH, open_run
from dagster_divorder.stages.order.packed_sequences import load_bounds
from dagster_divorder.stages.output import curated_output, exports
from dagster_divorder.store.manifests import EXPORT_MANIFEST, file_at
from dagster_divorder.store.output_manifests import MANIFEST, read_manifest
from dagster_divorder.store.state import load_state
from tests.conftest import changed, over, topic_records, write_jsonl
from tests.pipeline.runs import Make
from tests.pipeline.runs import exported_rows as rows

LENGTH, BATCH, STEPS = 64, 4, 2
RECORDS = topic_records(40)
FIRST = 80


@pytest.fixture
def make(tmp_path: Path, make_settings: Make) -> Make:
    """Settings with two exports, and a corpus for them."""
    write(tmp_path, FIRST)

    def exporting(**sections: Any) -> Settings:
        base = {
            "sequence": {"length": LENGTH, "batch": BATCH},
            "exports": {"formats": ("parquet", "megatron"), "path": tmp_path / "exports"},
            "engine": {"workers": 1},
        }
        return make_settings(**over(base, sections))

    return exporting


def write(folder: Path, records: int) -> None:
    write_jsonl(folder / "docs.jsonl", RECORDS[:records])


def run(settings: Settings) -> list[list[int]]:
    run_all(settings, Silent())
    return rows(settings)


def compute(settings: Settings) -> None:
    """Make measures, and the orders before them, but no output."""
    run_all(settings, Silent(), GRAPH.needed(settings, "diversity_metrics"))


def killed_at(settings: Settings, monkeypatch: pytest.MonkeyPatch, format: str) -> None:
    """A run that ends while it writes an export; earlier formats are written."""
    written = exports._write

    def write_until(run: Any, of: Any, *given: Any) -> None:
        if of.name == format:
            raise KeyboardInterrupt
        written(run, of, *given)

    with monkeypatch.context() as patch:
        patch.setattr(exports, "_write", write_until)
        with pytest.raises(KeyboardInterrupt):
            run_all(settings, Silent())


def test_what_ran_since_without_an_output_changes_no_frozen_row(make: Make, tmp_path: Path) -> None:
    """Appended data, another base model, many seeds, and a prune."""
    settings = make()
    before = run(settings)
    planned = plan_freeze(settings, step=STEPS)
    assert planned.sequences == STEPS * BATCH
    write(tmp_path, 90)
    for trial in ({"advanced": {"vocab_size": 600}}, *({"seed": seed} for seed in range(1, 7)), {}):
        compute(make(**trial))
    store = open_run(settings).store
    with store.lock():
        prune(GRAPH, store)
    assert plan_freeze(settings, step=STEPS) == planned
    after = run(planned.settings)
    assert after[: STEPS * BATCH] == before[: STEPS * BATCH] and after != before
    assert not [name for name, made in run_all(planned.settings, Silent()).items() if made.facts["computed"]]


def test_steps_are_of_the_published_plan(make: Make, tmp_path: Path) -> None:
    settings = make()
    run(settings)
    steps = range(STEPS)
    before = where(settings, steps=steps)
    write(tmp_path, 90)
    compute(settings)
    assert where(settings, steps=steps).equals(before)
    assert where(settings, steps=steps).attrs == {"plan": plan_of(settings, "parquet"), "batch": BATCH}
    read = set(where(settings, steps=range(-(-len(rows(settings)) // BATCH))).id)
    new = {*load_results(settings.store.path).documents.record_id} - read
    assert len(read) == 80 and len(new) == 10 and not len(where(settings, ids=new))
    write_jsonl(tmp_path / "docs.jsonl", [*RECORDS[1:80]])
    compute(settings)
    with pytest.raises(InputError, match=r"1 records of plan .* are no longer in the input"):
        where(settings, steps=range(20))


def plan_of(settings: Settings, format: str) -> str:
    return str((read_manifest(settings.exports.path / format, EXPORT_MANIFEST) or {})["plan"])


@pytest.mark.parametrize("killed", ["parquet", "megatron"])
def test_a_run_that_was_killed_while_it_wrote_exports(
    make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, killed: str
) -> None:
    settings = make()
    before = run(settings)
    held = plan_of(settings, "megatron")
    write(tmp_path, 90)
    killed_at(settings, monkeypatch, killed)
    if killed == "parquet":
        planned = plan_freeze(settings, step=STEPS)
        assert planned.plan == held
        assert run(planned.settings)[: STEPS * BATCH] == before[: STEPS * BATCH]
        return
    other = plan_of(settings, "parquet")
    assert other != held
    for ask in (lambda: plan_freeze(settings, step=STEPS), lambda: where(settings, steps=[0])):
        with pytest.raises(
            InputError, match=f"parquet holds plan {other}, but plan {held} was published last"
        ):
            ask()
    by_path = plan_freeze(settings, step=STEPS, plan=str(tmp_path / "exports/megatron"))
    assert by_path == plan_freeze(settings, step=STEPS, plan=held)
    with pytest.raises(InputError, match=f"parquet holds plan {other}, which does not begin with what stays"):
        run(by_path.settings)
    assert plan_of(settings, "parquet") == other
    file_at(tmp_path / "exports/parquet", EXPORT_MANIFEST).unlink()
    assert run(by_path.settings)[: STEPS * BATCH] == before[: STEPS * BATCH]


def test_what_a_killed_run_has_extended_is_extended(
    make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = make(order={"append": "extend"})
    full = run(settings)[:-1]
    write(tmp_path, 90)
    killed_at(settings, monkeypatch, "megatron")
    extended = rows(settings)[:-1]
    assert len(extended) > len(full)
    write(tmp_path, 100)
    after = run(settings)
    assert after[: len(full)] == full and after[: len(extended)] == extended


def test_a_plan_is_published_when_output_and_exports_hold_it(make: Make) -> None:
    settings = make()
    compute(settings)
    store = open_run(settings).store
    assert last_published(load_state(store)) is None
    with pytest.raises(InputError, match=r"no plan was published in .*; expected a finished run"):
        plan_freeze(settings, step=1)
    run_all(settings, Silent(), GRAPH.needed(settings, "exports"))
    assert last_published(load_state(store)) is None
    run(settings)
    plan = last_published(load_state(store))
    assert plan is not None and plan.fingerprint == plan_of(settings, "parquet")
    assert set(plan.keys) == {
        str(settings.output.path),
        *(f"{settings.exports.path}/{name}" for name in ("parquet", "megatron")),
    }
    state = orjson.loads((Path(str(settings.store.path)) / "state.json").read_bytes())
    assert [known["published"] for known in state["plans"]] == [True]


AHEAD = "order.frozen_tokens is unset, so a run that changes the order of "
SET = "set order.frozen_tokens = 0; if one has, `divorder freeze --step N`"


@pytest.fixture
def make_unset(tmp_path: Path, make: Make) -> Make:
    """Settings with a Parquet export that do not say what stays, and a corpus for them."""
    append(tmp_path, 20)
    unset = {"order": {"frozen_tokens": None}, "exports": {"formats": ("parquet",)}}
    return lambda **sections: make(**over(unset, sections))


def append(folder: Path, per_topic: int) -> None:
    """The corpus has so many records of each topic: the first ones as before, in other places."""
    write_jsonl(folder / "docs.jsonl", topic_records(per_topic))


def refusal(settings: Settings) -> str:
    """Why a run is refused; "" if it ends well. A refused run changes no row and no manifest."""
    folders = [settings.exports.path, settings.output.path]
    files = [file for folder in folders for file in sorted(Path(str(folder)).rglob("*")) if file.is_file()]
    before = {file: file.read_bytes() for file in files}
    try:
        run_all(settings, Silent())
    except InputError as error:
        assert SET in str(error)
        assert before == {file: file.read_bytes() for file in files if file.exists()}
        return str(error)
    return ""


@pytest.mark.parametrize(
    "variant", [{}, {"packing": {"method": "none"}}, {"sequence": {"epochs": 2}}], ids=str
)
def test_an_append_is_refused_from_the_row_on_that_would_change(
    variant: dict[str, Any], tmp_path: Path, make_unset: Make
) -> None:
    settings = make_unset(**variant)
    assert refusal(settings) == "", "a first run changes nothing"
    assert refusal(settings) == "", "nothing is new"
    before = rows(settings)
    before = before[: len(before) // settings.sequence.epochs]
    # Appended behind all others.
    records = topic_records(20)
    write_jsonl(tmp_path / "docs.jsonl", [*records, *topic_records(3, start=50)])
    said = refusal(settings)
    assert refusal(settings) == said, "until something is set"
    assert refusal(changed(settings, order={"frozen_tokens": 0})) == ""
    first = next(at for at, (old, new) in enumerate(zip(before, rows(settings), strict=False)) if old != new)
    assert (
        f"{settings.exports.path / 'parquet'} would change from row {first:,} of {len(before):,} on" in said
    )


def test_settings_that_move_rows_are_refused(make_unset: Make, tmp_path: Path) -> None:
    run_all(make_unset(), Silent())
    for name, section in {
        "seed": 1,
        "sequence": {"length": 32},
        "order": {"traits": {"length": 1.0}},
    }.items():
        assert "would change from row" in refusal(make_unset(**{name: section}))
        assert refusal(make_unset(**{name: section}, exports={"path": tmp_path / name})) == ""


def test_an_order_that_stays_is_not_refused(tmp_path: Path, make_unset: Make) -> None:
    as_read = {"order": {"strategy": "original"}, "sequence": {"strategy": "original"}}
    settings = make_unset(**as_read, packing={"method": "none"})
    run_all(settings, Silent())
    write_jsonl(tmp_path / "docs.jsonl", [*topic_records(20), *topic_records(3, start=50)])
    assert make_plan(GRAPH, settings).refusal.startswith(AHEAD), "a plan computes no order"
    assert refusal(settings) == ""


def test_only_the_formats_that_are_there_are_named(tmp_path: Path, make_unset: Make) -> None:
    both = {"exports": {"formats": ("parquet", "megatron")}}
    anew = {"order": {"frozen_tokens": 0}}
    run_all(make_unset(**both), Silent())
    # A format that is left alone for a while holds an older order than the store knows.
    for per_topic in (22, 24):
        append(tmp_path, per_topic)
        run_all(make_unset(**anew), Silent())
    append(tmp_path, 26)
    said = refusal(make_unset(exports={"formats": ("parquet", "olmo")}))
    assert "parquet would change from row" in said and "olmo" not in said
    said = refusal(make_unset(**both))
    assert "parquet and " in said and "megatron would change perhaps from the first row on" in said
    shutil.rmtree(tmp_path / "exports")
    assert make_plan(GRAPH, make_unset(**both)).refusal == "" and refusal(make_unset(**both)) == ""


def test_a_first_run_that_was_killed_is_protected_once_its_export_is_whole(
    tmp_path: Path, make_unset: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(exports, "Made", lambda *parts: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            run_all(make_unset(), Silent())
    assert rows(make_unset()), "killed between the files and the receipt"
    append(tmp_path, 23)
    assert "would change" in refusal(make_unset())
    append(tmp_path, 20)
    assert refusal(make_unset()) == ""


def test_records_in_training_order_are_protected_without_an_export(tmp_path: Path, make_unset: Make) -> None:
    settings = make_unset(packing={"method": "none"}, exports={"formats": ()})
    curated = tmp_path / "curated"
    run_all(settings, Silent())
    append(tmp_path, 22)
    assert f"{AHEAD}{curated} is refused" in make_plan(GRAPH, settings).refusal
    assert re.match(
        rf"order.frozen_tokens is unset, and {curated} would change from row \d+ of \d+ on", refusal(settings)
    )
    packed = make_unset(exports={"formats": ()}, output={"path": tmp_path / "packed"})
    run_all(packed, Silent())
    append(tmp_path, 24)
    assert make_plan(GRAPH, packed).refusal == "" and refusal(packed) == ""


EXTENDED: dict[str, dict[str, Any]] = {
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
def extending(make: Make) -> Make:
    """Settings that extend outputs, with a Parquet export."""
    base = {"order": {"append": "extend"}, "exports": {"formats": ("parquet",)}}
    return lambda **sections: make(**over(base, sections))


def lines(chosen: Settings) -> list[bytes]:
    return [
        line
        for file in sorted(Path(chosen.output.path).glob("curated*.jsonl"))  # type: ignore[arg-type]
        for line in file.read_bytes().splitlines()
    ]


def full(of: list[list[int]]) -> list[list[int]]:
    return [row for row in of if len(row) == LENGTH]


def computed(chosen: Settings) -> dict[str, int]:
    """Documents that a run computes, by stage."""
    receipts = run_all(chosen, Silent())
    return {
        stage: receipt.facts["computed"] for stage, receipt in receipts.items() if receipt.facts["computed"]
    }


def files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


@pytest.mark.parametrize("variant", EXTENDED)
def test_no_full_row_moves_in_any_number_of_appends(extending: Make, tmp_path: Path, variant: str) -> None:
    chosen, written, before = extending(**EXTENDED[variant]), FIRST, (list[list[int]](), list[bytes]())
    assert chosen.order.extends
    stays = set[int]()
    for size in (0, 1, 40):
        written += size
        write(tmp_path, written)
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


@pytest.fixture
def small_files(monkeypatch: pytest.MonkeyPatch) -> None:
    """Outputs and exports of a few records have several files."""
    monkeypatch.setattr(curated_output, "OUTPUT_SHARD_BYTES", 3000)
    monkeypatch.setattr(exports, "EXPORT_SHARD_BYTES", 3000)


@pytest.mark.usefixtures("small_files")
def test_full_files_stay_and_others_are_added(extending: Make, tmp_path: Path) -> None:
    chosen = extending(exports={"formats": FORMATS})
    run_all(chosen, Silent())
    folders = {"curated": (tmp_path / "curated", MANIFEST)}
    folders |= {name: (tmp_path / "exports" / name, EXPORT_MANIFEST) for name in FORMATS}
    before = {name: manifest_of(*place) for name, place in folders.items()}
    nodes = {name: inodes(place) for name, (place, _) in folders.items()}
    # A file that is written again has another inode.
    write(tmp_path, FIRST + 20)
    run_all(chosen, Silent())
    for name, place in folders.items():
        contents = {entry["content"] for entry in before[name].values() if "content" in entry}
        now = manifest_of(*place)
        stay = [file for file, entry in now.items() if entry.get("content") in contents]
        linked = [file for file in stay if inodes(place[0])[file] in nodes[name].values()]
        assert len(linked) == len(stay)
        if name != "megatron":
            # Not the last file. Those of Megatron are written again.
            assert len(stay) >= len(contents) - 1 > 0, name
            assert len(now) > len(before[name])
    for name, finding in run_checks(GRAPH, chosen).items():
        assert finding.passed or name != "every_record_in_output", finding.text
    whole = extending(
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
def test_a_damaged_file_is_not_taken_over(extending: Make, tmp_path: Path) -> None:
    chosen = extending(exports={"formats": ("ds",)})
    run_all(chosen, Silent())
    kept = {}
    for file in [
        next((tmp_path / "exports/ds").glob("*-00000-of-*.ds")),
        *sorted((tmp_path / "curated").glob("curated-*.jsonl")),
    ]:
        data = kept[file.name.partition("-of-")[0].rpartition("-")[2]] = file.read_bytes()
        file.write_bytes(data[:-2] + bytes([data[-2] ^ 1]) + data[-1:])
    write(tmp_path, FIRST + 20)
    run_all(chosen, Silent())
    for name, data in kept.items():
        (file,) = [*tmp_path.glob(f"curated/curated-{name}"), *tmp_path.glob(f"exports/ds/*-{name}-of-*.ds")]
        # The last file goes on.
        assert file.read_bytes()[: len(data)] == data, name


def test_what_is_edited_is_refused_and_a_whole_run_goes_on(extending: Make, tmp_path: Path) -> None:
    chosen = extending()
    run_all(chosen, Silent())
    before = files(tmp_path / "exports")
    kept = [{**RECORDS[0], "text": "another"}, *RECORDS[1:FIRST]]
    write_jsonl(tmp_path / "docs.jsonl", kept)
    with pytest.raises(InputError, match=r'records of the last output, which order.append = "extend" keeps'):
        run_all(chosen, Silent())
    assert files(tmp_path / "exports") == before
    whole = extending(order={"append": "whole"})
    run_all(whole, Silent())
    after = files(tmp_path / "exports")
    assert after != before
    assert computed(chosen).keys() == {"frozen"}, (
        "an output that was ordered as a whole is extended from then on"
    )
    assert files(tmp_path / "exports") == after
    write_jsonl(tmp_path / "docs.jsonl", [*kept, *RECORDS[FIRST : FIRST + 5]])
    last = rows(chosen)
    run_all(chosen, Silent())
    assert rows(chosen)[: len(full(last))] == full(last)


def test_no_setting_and_no_refit_moves_what_is_written(extending: Make, tmp_path: Path) -> None:
    chosen = extending()
    run_all(chosen, Silent())
    write(tmp_path, FIRST + 20)
    run_all(chosen, Silent())
    before = rows(chosen)
    for other in (
        extending(order={"traits": {"length": 1.0}}),
        extending(clusters={"k": 2}),
        extending().refitting("clusters"),
        extending(packing={"method": "best_fit"}),
    ):
        run_all(other, Silent())
        assert rows(other)[: len(full(before))] == full(before)
    with pytest.raises(InputError, match=r"sequence.length was 64, is 32.*order.append = \"whole\""):
        run_all(extending(sequence={"length": 32}), Silent())


def test_another_base_model_is_refused() -> None:
    with pytest.raises(SettingsError, match=r"refit names 'model', and order.append is 'extend'"):
        Settings(order={"append": "extend"}).refitting("bins", "model")
