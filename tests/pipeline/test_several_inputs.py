"""The input as a person names it: never what DivOrder wrote, long records refused, what is left out said. Inputs of
unlike shape (`[[input]]`): one order over all, records as they came, and only what is new computed. Fields: the user's
own ids (`input.id_field`), where they are shown and what they leave alone; fields inside objects (structs in Parquet),
named by the way to them."""

from __future__ import annotations

import gzip
import json
import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dagster_divorder import load_results, run_all
from dagster_divorder.engine.progress import Silent
from dagster_divorder.errors import InputError
from dagster_divorder.pipeline.plan import make_plan
from dagster_divorder.pipeline.prune import prune
from dagster_divorder.pipeline.run import run_checks
from dagster_divorder.settings import Settings
from dagster_divorder.stages import GRAPH, open_run, run_stage
from dagster_divorder.stages.corpus import raw_docs
from dagster_divorder.stages.corpus.ids import record_names
from dagster_divorder.stages.output.ordering_report import PAGE
from dagster_divorder.store.local import LocalStore
from dagster_divorder.store.state import Receipt
from dagster_divorder.view.shown import Text
from tests.conftest import Notes, read_jsonl, topic_records, write_jsonl
from tests.pipeline.runs import Make, output_bytes


def write_books(path: Path, records: list[dict[str, Any]]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    rows = [{"book": {"text": r["text"], "score": r["score"], "key": at}} for at, r in enumerate(records)]
    pq.write_table(pa.Table.from_pylist(rows), path, row_group_size=7)
    return path


def write_web(path: Path, records: list[dict[str, Any]]) -> Path:
    return write_jsonl(
        path, [{"body": r["text"], "url": f"u/{at}", "lang": "en"} for at, r in enumerate(records)]
    )


def write_code(path: Path, records: list[dict[str, Any]]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = [{"content": r["text"], "meta": {"origin": r["source"]}, "lang": "py"} for r in records]
    path.write_bytes(gzip.compress(b"".join(orjson.dumps(line) + b"\n" for line in lines), mtime=0))
    return path


def write_corpus(folder: Path, per_topic: int = 12) -> None:
    write_books(folder / "books/a.parquet", topic_records(per_topic))
    write_web(folder / "web/a.jsonl", topic_records(per_topic, 100))
    write_code(folder / "code/a.jsonl.gz", topic_records(per_topic, 200))


def blocks(folder: Path) -> list[dict[str, Any]]:
    return [
        {
            "paths": [str(folder / "books")],
            "text_field": "book.text",
            "source": "books",
            "id_field": "book.key",
        },
        {"paths": [str(folder / "web")], "text_field": "body", "id_field": "url", "source": "web"},
        {"paths": [str(folder / "code")], "text_field": "content", "source_field": "meta.origin"},
    ]


@pytest.fixture
def corpus(tmp_path: Path, make_settings: Make) -> Callable[..., Settings]:
    """Settings of the corpus, with a store and an output of a name."""
    write_corpus(tmp_path / "in")

    def of(name: str = "a", **sections: Any) -> Settings:
        traits = dict.fromkeys(("cluster", "length", "source", "lang", "book.score"), 1.0)
        sections = {
            "input": blocks(tmp_path / "in"),
            "order": {"traits": traits},
            "output": {"path": tmp_path / name / "out", "sidecars": ()},
            **sections,
        }
        return make_settings(store={"path": tmp_path / name / "store"}, **sections)

    return of


def read_raw(folder: Path) -> Counter[bytes]:
    """The records of the corpus as an output of JSON lines holds them."""
    found = Counter[bytes]()
    for path in sorted((folder / "books").iterdir()):
        found.update(orjson.dumps(row) for row in pq.read_table(path).to_pylist())
    for path in sorted((folder / "web").iterdir()):
        found.update(path.read_bytes().splitlines())
    for path in sorted((folder / "code").iterdir()):
        found.update(gzip.decompress(path.read_bytes()).splitlines())
    return found


def run_and_check(settings: Settings) -> dict[str, Receipt]:
    receipts = run_all(settings, Silent())
    folder = Path(settings.input.paths[0]).parent
    written = (settings.output.path / "curated.jsonl").read_bytes().splitlines()
    assert Counter(written) == read_raw(folder)
    assert all(finding.passed for finding in run_checks(GRAPH, settings, stage="curated_output").values())
    return receipts


def test_every_record_of_every_input_is_ordered_with_its_own_fields(
    tmp_path: Path, corpus: Callable[..., Settings]
) -> None:
    settings = corpus()
    planned = make_plan(GRAPH, settings)
    assert planned.records == 144
    run_and_check(settings)
    documents = load_results(settings.store.path).documents
    assert documents["id"].tolist()[:96] == [*map(str, range(48)), *(f"u/{at}" for at in range(48))]
    assert documents["id"].isna().tolist() == [False] * 96 + [True] * 48
    assert documents["source"].tolist()[:96] == ["books"] * 48 + ["web"] * 48
    assert documents["source"].tolist()[96:] == [record["source"] for record in topic_records(12, 200)]
    assert documents["lang"].isna().tolist() == [True] * 48 + [False] * 96
    assert documents["book.score"].tolist()[:48] == [record["score"] for record in topic_records(12)]
    assert documents["book.score"].isna().tolist() == [False] * 48 + [True] * 96
    order = [
        line["book"]["text"] if "book" in line else line.get("body") or line["content"]
        for line in read_jsonl(settings.output.path / "curated.jsonl")
    ]
    texts = [r["text"] for start in (0, 100, 200) for r in topic_records(12, start)]
    assert [texts[at] for at in documents.sort_values("position").index] == order
    assert all(stage.scope == "nothing" for stage in make_plan(GRAPH, settings).stages)


def test_a_change_of_one_input_gives_what_a_run_from_scratch_with_the_same_fits_does(
    tmp_path: Path, corpus: Callable[..., Settings]
) -> None:
    """Copied, so that both have the fits of the first run."""
    settings = corpus(clusters={"k": 4}, refit={"clusters": "never"})
    run_and_check(settings)
    known = read_raw(tmp_path / "in")
    write_code(tmp_path / "in/code/b.jsonl.gz", topic_records(1, 300))
    write_books(tmp_path / "in/books/a.parquet", topic_records(12, 1))
    shutil.move(tmp_path / "in/web/a.jsonl", tmp_path / "in/web/z.jsonl")
    receipts = run_and_check(settings)
    new = (read_raw(tmp_path / "in") - known).total()
    assert receipts["token_counts"].figures["new_documents"] == new > 0
    before = output_bytes(settings)
    prune(GRAPH, LocalStore(settings.store.path).open())
    # Every record is read anew where none is known.
    for path in (settings.store.path / "records").rglob("*"):
        if path.is_file():
            path.unlink()
    run_and_check(settings)
    assert output_bytes(settings) == before


def test_equal_lines_of_two_inputs_are_read_each_by_its_own_fields(
    tmp_path: Path, make_settings: Make
) -> None:
    records = [{"a": f"first {at}", "b": f"second {at}", "n": at} for at in range(40)]
    write_jsonl(tmp_path / "x.jsonl", records)
    write_jsonl(tmp_path / "y.jsonl", records)
    inputs = [
        {"paths": [str(tmp_path / "x.jsonl")], "text_field": "a", "source": "x", "id_field": "a"},
        {"paths": [str(tmp_path / "y.jsonl")], "text_field": "b", "source_field": "n", "id_field": "b"},
    ]
    for given in (inputs, inputs[::-1], inputs):
        settings = make_settings(input=given)
        receipts = run_all(settings, Silent())
        assert receipts["raw_docs"].figures["documents"] == 80
        documents = load_results(settings.store.path).documents.sort_values("source").reset_index()
        assert sorted(documents["id"]) == sorted([r["a"] for r in records] + [r["b"] for r in records])
        assert sorted(documents["source"]) == sorted(["x"] * 40 + [str(at) for at in range(40)])
        assert documents["record_id"].nunique() == 40
    assert receipts["raw_docs"].figures["new_records"] == 0


def test_parquet_of_the_same_columns_stays_parquet(tmp_path: Path, make_settings: Make) -> None:
    for name in ("a", "b"):
        write_books(tmp_path / f"{name}.parquet", topic_records(12, ord(name)))
    text = {"text_field": "book.text"}
    inputs = [{"paths": [str(tmp_path / f"{name}.parquet")], "source": name, **text} for name in "ab"]
    settings = make_settings(input=inputs, order={"traits": {"source": 1.0, "book.score": 1.0}})
    run_all(settings, Silent())
    written = pq.read_table(settings.output.path / "curated.parquet")
    rows = [row for name in "ab" for row in pq.read_table(tmp_path / f"{name}.parquet").to_pylist()]
    assert sorted(map(str, written.to_pylist())) == sorted(map(str, rows))
    assert load_results(settings.store.path).documents["source"].tolist() == ["a"] * 48 + ["b"] * 48
    other = {"paths": [str(write_web(tmp_path / "c.jsonl", topic_records(3)))], "text_field": "body"}
    with pytest.raises(
        InputError, match=r"output\.format = 'parquet' needs Parquet input, with the same columns in every"
    ):
        run_all(make_settings(input=[*inputs, other], output={"format": "parquet"}), Silent())


@pytest.mark.parametrize(
    ("second", "said"),
    [
        ({"paths": ["gone"]}, r"^input 2 \(gone\): input\.paths: no file matches 'gone'"),
        (
            {"text_field": "words"},
            r"^input 2 \(.*/books\): .*a\.parquet: input\.text_field: no column 'words'",
        ),
        ({"id_field": "own"}, r"^input 2 \(.*/books\): input\.id_field: no record has .* in the field 'own'"),
        (
            {"paths": ["IN/web"], "text_field": "body"},
            r"^input 2 \(.*\): .*a\.jsonl also belongs to input 1 \(.*web\); name it",
        ),
    ],
)
def test_errors_name_the_input(
    tmp_path: Path, make_settings: Make, second: dict[str, Any], said: str
) -> None:
    write_corpus(tmp_path / "in", 3)
    web, books = blocks(tmp_path / "in")[1], blocks(tmp_path / "in")[0] | second
    books["paths"] = [path.replace("IN", str(tmp_path / "in")) for path in books["paths"]]
    with pytest.raises(InputError, match=said):
        run_all(make_settings(input=[web, books]), Silent(), ("raw_docs", "ids"))


def test_rejects_name_their_files(tmp_path: Path, make_settings: Make) -> None:
    write_jsonl(tmp_path / "x.jsonl", [*({"text": f"t {at}"} for at in range(40)), {"n": "no"}])
    rows = [{"body": f"u {at}" if at < 40 else None} for at in range(41)]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "y.parquet")
    inputs = [
        {"paths": [str(tmp_path / "x.jsonl")], "max_reject_share": 0.5},
        {"paths": [str(tmp_path / "y.parquet")], "text_field": "body"},
    ]
    settings = make_settings(input=inputs)
    run_all(settings, Silent())
    rejects = read_jsonl(settings.output.path / "rejects.jsonl")
    named = [(Path(reject["path"]).name, reject.get("line", reject.get("row"))) for reject in rejects]
    assert named == [("x.jsonl", 41), ("y.parquet", 41)]


@pytest.mark.parametrize("pattern", ["**/*.json*", ""])
def test_three_runs_read_the_same_records_with_store_and_output_among_the_input(
    tmp_path: Path, make_settings: Make, pattern: str
) -> None:
    write_jsonl(tmp_path / "in/docs.jsonl", [*topic_records(15), {"no": "text"}])
    (tmp_path / "in/notes.txt").touch()
    settings = make_settings(input={"paths": [str(tmp_path / pattern)], "max_reject_share": 0.5})
    outputs = []
    for _ in range(3):
        run_all(settings)
        files = settings.output.path.iterdir()
        outputs.append({path.name: (path.stat().st_mtime_ns, path.read_bytes()) for path in files})
        assert orjson.loads(outputs[-1]["curated_meta.json"][1])["counts"]["records"] == 60
        assert make_plan(GRAPH, settings).new_records == 0
    assert outputs[0] == outputs[1] == outputs[2]
    said = shown(settings)
    assert f"2 written by DivOrder (first: {settings.output.path})" in said
    assert (f"Not read: 1 .txt (first: {tmp_path}/in/notes.txt)" in said) == (not pattern)


def shown(settings: Settings) -> str:
    run = open_run(settings)
    remarks = raw_docs.RAW_DOCS.show(run, run.receipt("raw_docs"))["remarks"]
    assert isinstance(remarks, Text)
    return remarks.markdown


def test_what_is_odd_is_told_until_it_is_mended(tmp_path: Path, make_settings: Make) -> None:
    lines = [orjson.dumps({"text": f"label {n % 5}", "n": n}) + b"\n" for n in range(100)]
    file, notes, settings = tmp_path / "docs.jsonl", Notes(), make_settings()
    file.write_bytes(b"".join(lines)[:-9])
    receipt = run_stage("raw_docs", settings, notes)
    begins = sum(map(len, lines[:-1]))
    assert receipt.figures["partial_lines"] == 1
    assert receipt.facts["unfinished"] == [[str(file), 100, begins]]
    cut_short, few = notes.said
    assert f"Not read: line 100 of {file}, from byte {begins:,} on" in cut_short
    assert few.startswith("99 records hold 5 distinct texts of 7 bytes on average, as short as labels")
    assert "set input.text_field" in few
    found = shown(settings)
    assert cut_short in found and few in found
    file.write_bytes(b"".join(b'{"text": "a boat of number %d on its way home"}\n' % n for n in range(100)))
    notes = Notes()
    assert run_stage("raw_docs", settings, notes).figures["records"] == 100
    assert notes.said == []


def with_ids(per_topic: int = 15) -> list[dict[str, Any]]:
    return [{**record, "id": f"doc-{at}"} for at, record in enumerate(topic_records(per_topic))]


@pytest.mark.usefixtures("undrawn")
def test_ids_are_shown_and_nothing_that_does_not_show_them_is_made_again(
    tmp_path: Path, make_settings: Make
) -> None:
    write_jsonl(tmp_path / "docs.jsonl", [*with_ids(), {"id": 7, "body": "no text"}])
    limit = {"max_reject_share": 0.5}
    without, named = make_settings(input=limit), make_settings(input={**limit, "id_field": "id"})
    stages = GRAPH.needed(without, "ordering_report")
    before = {stage: receipt.version for stage, receipt in run_all(without, Silent(), stages).items()}
    files = output_bytes(without)
    assert load_results(without.store.path).documents["id"].isna().all()

    planned = {stage.stage for stage in make_plan(GRAPH, named).stages if stage.scope != "nothing"}
    assert planned == {"ids", "curated_output"}
    receipts = run_all(named, Silent(), GRAPH.needed(named, "ordering_report"))
    anew = {stage for stage, receipt in receipts.items() if receipt.figures["new_documents"]}
    assert anew == {"ids", "curated_output", "ordering_report"}
    changed = {stage for stage in before if receipts[stage].version != before[stage]}
    assert changed == {"curated_output", "ordering_report"}
    assert load_results(named.store.path).documents["id"].tolist() == [f"doc-{at}" for at in range(60)]
    written = output_bytes(named)
    assert {**written, PAGE: b""} == {**files, PAGE: b""} and written[PAGE] != files[PAGE]

    run_all(without, Silent(), stages)
    assert output_bytes(without) == files
    assert load_results(without.store.path).documents["id"].isna().all()


BIG = 2**60 + 1
NUMBERS = [BIG, BIG + 1, None], pd.array([BIG, BIG + 1, None], "Int64")
TEXTS = ["007", "7", ""], ["007", "7", ""]


@pytest.mark.parametrize(
    ("kind", "ids", "shown"),
    [
        ("jsonl", *NUMBERS),
        ("parquet", *NUMBERS),
        ("jsonl", *TEXTS),
        ("parquet", *TEXTS),
        ("jsonl", [7, "a", 2**64 - 1], ["7", "a", str(2**64 - 1)]),
        ("jsonl", [True, 1.5, "only"], [None, None, "only"]),
        ("jsonl", [2**64, -(2**70), 7], pd.array([None, None, 7], "Int64")),
        (
            "parquet",
            pa.array([2**64 - 1, 2**64 - 2, None], pa.uint64()),
            [str(2**64 - 1), str(2**64 - 2), None],
        ),
    ],
)
def test_ids_keep_their_type_and_every_digit(
    tmp_path: Path, make_settings: Make, kind: str, ids: list[Any], shown: Any
) -> None:
    records = [{"text": f"text {at}", "name": own} for at, own in enumerate(ids)]
    file = tmp_path / f"docs.{kind}"
    if kind == "jsonl":
        # As Python writes them, with whole numbers of any size.
        file.write_text("".join(json.dumps(record) + "\n" for record in records), encoding="utf-8")
    else:
        texts = [record["text"] for record in records]
        pq.write_table(pa.table({"text": texts, "name": ids}), file)
    settings = make_settings(input={"paths": [str(file)], "id_field": "name"}, clusters={"k": 1})
    run_all(settings, Silent(), GRAPH.needed(settings, "greedy_order"))
    documents = load_results(settings.store.path).documents
    expected = pd.Series(shown, dtype="str" if isinstance(shown, list) else "Int64")
    pd.testing.assert_series_equal(documents["id"], expected, check_names=False)
    run = open_run(settings)
    for at in range(3):
        unnamed = pd.isna(expected[at]) or expected[at] == ""
        shown = f"record_id {documents['record_id'][at]}" if unnamed else str(expected[at])
        assert record_names(run, np.array([at]), "record_id ") == [shown]


def test_what_is_amiss_with_ids_is_counted_and_said(tmp_path: Path, make_settings: Make) -> None:
    notes = Notes()
    records = with_ids()
    records[3]["id"], records[4]["id"] = None, "doc-5"
    del records[9]["id"]
    write_jsonl(tmp_path / "docs.jsonl", records)
    figures = run_all(make_settings(input={"id_field": "id"}), notes, ("raw_docs", "ids"))["ids"].figures
    assert (figures["records_without_id"], figures["repeated_ids"]) == (2, 1)
    assert "of 60 records 2 have no id in 'id', and 1 repeat the id of an earlier record" in notes.said
