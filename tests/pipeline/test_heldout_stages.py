"""Held-out documents: they stay what they are, each source has its share, and nothing near them is trained on."""

from __future__ import annotations

import gzip
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dagster_divorder import run_all
from dagster_divorder.core.near_duplicates import THRESHOLD
from dagster_divorder.engine.progress import Silent
from dagster_divorder.errors import InputError
from dagster_divorder.pipeline.plan import make_plan
from dagster_divorder.pipeline.prune import prune
from dagster_divorder.pipeline.run import Run
from dagster_divorder.settings import Settings
from dagster_divorder.stages import GRAPH, heldout
from dagster_divorder.stages.greedy_order import load_order
from dagster_divorder.stages.heldout import consumed_document_mask, heldout_ids
from dagster_divorder.stages.heldout_copies import heldout_table, load_heldout, removed_lines
from dagster_divorder.stages.repeats import load_times
from dagster_divorder.stages.traits import load_traits
from dagster_divorder.store.local import LocalStore
from tests.conftest import topic_records, write_jsonl
from tests.twins.minhash import shingle_texts, similarity

Make = Callable[..., Settings]
SHARE = 0.1


def edited(record: dict[str, Any]) -> dict[str, Any]:
    """A record whose text is near another's, if that is long."""
    words = record["text"].split()
    return {**record, "text": " ".join([*words[:-1], "END!"])}


def ran(settings: Settings, stage: str = "repeats") -> Run:
    run_all(settings, Silent(), GRAPH.needed(settings, stage))
    return Run(settings, LocalStore(settings.store.path).open(), Silent())


def texts_by_source(run: Run) -> dict[str, set[str]]:
    found: dict[str, set[str]] = {}
    for row in heldout_table(run, load_heldout(run)).select(["source", "text"]).to_pylist():
        found.setdefault(row["source"], set()).add(row["text"])
    return found


def trained(run: Run, records: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [record for record, times in zip(records, load_times(run).tolist(), strict=True) if times]


def closest(records: list[dict[str, Any]], held: set[str]) -> np.ndarray:
    """Of each record the similarity of the held-out text that is most like it, by all pairs."""
    sets = [shingle_texts(text) for text in held]
    texts = (shingle_texts(record["text"]) for record in records)
    return np.array([max(len(here & there) / len(here | there) for there in sets) for here in texts])


def assert_nothing_near(held: set[str], training: list[dict[str, Any]]) -> None:
    assert {record["text"] for record in training}.isdisjoint(held)
    assert closest(training, held).max() < THRESHOLD


def test_a_share_of_each_source_is_held_out_with_all_that_is_near(
    tmp_path: Path, make_settings: Make
) -> None:
    records = topic_records(40)
    records += [{**record, "source": "copies"} for record in records] + [edited(record) for record in records]
    records += [{"text": f"single {number}", "source": f"one {number}"} for number in range(2)]
    write_jsonl(tmp_path / "docs.jsonl", records)
    settings = make_settings(heldout={"share": SHARE}, input={"id_field": "text"})
    run = ran(settings, "curated_output")

    table = pq.read_table(settings.output.path / "heldout.parquet")
    # Of equal texts the first counts: the source `copies` has none of its own.
    firsts = Counter({record["text"]: record["source"] for record in reversed(records)}.values())
    held = Counter(table["source"].to_pylist())
    assert held.keys() == {source for source, count in firsts.items() if count > 2}
    assert all(abs(held[source] - SHARE * count) <= 0.5 for source, count in firsts.items())
    lines = [orjson.loads(line) for line in table["record"].to_pylist()]
    assert [line["text"] for line in lines] == table["text"].to_pylist()
    assert all(line in records for line in lines)

    output = list(map(orjson.loads, (settings.output.path / "curated.jsonl").read_bytes().splitlines()))
    assert_nothing_near(set(table["text"].to_pylist()), output)
    removed = list(
        map(orjson.loads, (settings.output.path / "heldout_removed.jsonl").read_bytes().splitlines())
    )
    assert len(records) == len(output) + len(table) + len(removed)
    text_of = dict(zip(table["id"].to_pylist(), table["text"].to_pylist(), strict=True))
    for row in removed:
        assert row["id"] == records[row["record"]]["text"]
        assert row["similarity"] == pytest.approx(similarity(row["id"], text_of[row["document"]]), abs=1e-4)
        assert row["copy"] == ("exact" if row["id"] == text_of[row["document"]] else "near")
    assert {row["copy"] for row in removed} == {"exact", "near"}
    times = load_times(run)
    order = np.load(settings.output.path / "order.npy")
    assert sorted(order.tolist()) == np.flatnonzero(times).tolist()
    assert {stage.scope for stage in make_plan(settings).stages} == {"nothing"}


def test_an_append_leaves_what_is_held_out_and_removes_what_is_near_it(
    tmp_path: Path, make_settings: Make
) -> None:
    records = topic_records(30)
    settings = make_settings(heldout={"share": SHARE})
    write_jsonl(tmp_path / "docs.jsonl", records)
    before = texts_by_source(ran(settings))
    assert sum(map(len, before.values())) == 12

    near = [edited(record) for record in records if record["text"] in set.union(*before.values())]
    records = [*near, *topic_records(10, start=100), *records]
    write_jsonl(tmp_path / "docs.jsonl", records)
    planned = {stage.stage: stage.documents for stage in make_plan(settings).stages}
    run = ran(settings)
    assert texts_by_source(run) == before
    training = trained(run, records)
    assert_nothing_near(set.union(*before.values()), training)
    assert sum(record in near for record in training) < len(near)
    for stage in ("minhash", "heldout_copies"):
        assert planned[stage] == run.receipt(stage).figures["new_documents"] == len(near) + 40
    assert run.receipt("heldout").figures["fitted"].startswith("no")

    # Twice as many: others join them, and a source that was not there has its share.
    records += topic_records(60, start=200)
    records += [
        {"text": f"{record['text']} again", "source": "new"} for record in topic_records(5, start=300)
    ]
    write_jsonl(tmp_path / "docs.jsonl", records)
    run = ran(settings)
    after = texts_by_source(run)
    assert "grown" in run.receipt("heldout").figures["fitted"]
    assert all(texts <= after[source] for source, texts in before.items())
    sizes = Counter(record["source"] for record in records)
    assert all(abs(len(after[source]) - SHARE * size) <= 1 for source, size in sizes.items())
    assert_nothing_near(set.union(*after.values()), trained(run, records))


def test_a_source_that_comes_later_has_its_share_at_once(tmp_path: Path, make_settings: Make) -> None:
    settings = make_settings(heldout={"share": SHARE})
    records = topic_records(30)
    write_jsonl(tmp_path / "docs.jsonl", records)
    before = texts_by_source(ran(settings))
    records += [{**record, "source": "new"} for record in topic_records(5, start=100)]
    write_jsonl(tmp_path / "docs.jsonl", records)
    run = ran(settings)
    after = texts_by_source(run)
    assert len(after.pop("new")) == 2
    assert all(texts <= after[source] for source, texts in before.items())
    assert "no document of source new is held out" in run.receipt("heldout").figures["fitted"]


def test_near_copies_of_a_document_that_is_gone_are_trained_on(tmp_path: Path, make_settings: Make) -> None:
    settings = make_settings(heldout={"share": SHARE})
    records = topic_records(20)
    records += [{**record, "text": record["text"].upper()} for record in records]
    write_jsonl(tmp_path / "docs.jsonl", records)
    run = ran(settings)
    held = set.union(*texts_by_source(run).values())
    twins = {text.upper() for text in held}
    assert len(trained(run, records)) == len(records) - 2 * len(twins)
    gone = min(text for text in held if not text.isupper() and text.upper() not in held)
    left = [record for record in records if record["text"] != gone]
    write_jsonl(tmp_path / "docs.jsonl", left)
    run = ran(settings)
    assert set.union(*texts_by_source(run).values()) == held - {gone}
    assert gone.upper() in {record["text"] for record in trained(run, left)}
    # It is held out again when it comes back.
    write_jsonl(tmp_path / "docs.jsonl", records)
    assert set.union(*texts_by_source(ran(settings)).values()) == held


@pytest.mark.parametrize("trait", ["cluster", "length", "score", "checked"])
def test_the_share_is_of_each_value_of_any_trait(tmp_path: Path, make_settings: Make, trait: str) -> None:
    write_jsonl(tmp_path / "docs.jsonl", topic_records(20))
    run = ran(make_settings(heldout={"share": 0.25}, mixing={"trait": trait}))
    traits = load_traits(run)
    sizes = np.bincount(traits.codes[trait], minlength=len(traits.names[trait]))
    held = {source: len(texts) for source, texts in texts_by_source(run).items()}
    assert [held.get(name, 0) for name in traits.names[trait]] == np.floor(0.25 * sizes + 0.5).tolist()


def test_what_a_trainer_has_consumed_is_neither_held_out_nor_removed(
    tmp_path: Path, make_settings: Make
) -> None:
    records = topic_records(30)
    near = [edited(record) for record in records]
    write_jsonl(tmp_path / "docs.jsonl", records + near)
    run = ran(make_settings(), "curated_output")
    tokens, order = run.column("token_counts", "lengths")[run.view.document_row], load_order(run)
    frozen = int(tokens.sum()) // 2
    consumed = set(order[np.cumsum(tokens[order]) - tokens[order] < frozen].tolist())

    settings = make_settings(heldout={"share": SHARE}, order={"frozen_tokens": frozen, "length_bins": 5})
    records += near
    for _ in range(2):
        run = ran(settings, "curated_output")
        free = ~consumed_document_mask(run)[run.view.document_row]
        assert consumed.isdisjoint(np.flatnonzero(free).tolist())
        held = set.union(*texts_by_source(run).values())
        assert len(held) == 24
        near_held = closest(records, held) >= THRESHOLD
        assert np.array_equal(load_times(run) == 0, free & near_held)
        assert near_held[~free].any()
        records += topic_records(3, start=500)
        write_jsonl(tmp_path / "docs.jsonl", records)


def test_what_was_drawn_is_found_again_after_a_prune_under_other_settings(
    tmp_path: Path, make_settings: Make
) -> None:
    files = [write_jsonl(tmp_path / f"{name}.jsonl", [{"text": f"of {name}"}]) for name in ("one", "two")]
    first, *others = (
        make_settings(heldout=of)
        for of in ({"share": SHARE}, {}, {"share": 0.3}, *({"paths": [str(file)]} for file in files))
    )
    write_jsonl(tmp_path / "docs.jsonl", topic_records(10))
    drawn = heldout_ids(ran(first, "heldout"))
    write_jsonl(tmp_path / "docs.jsonl", [*topic_records(10), *topic_records(8, start=100)])
    for settings in others:
        run = ran(settings, "heldout" if settings.holds_out else "token_counts")
        prune(settings, run.store)
    assert np.array_equal(heldout_ids(ran(first, "heldout")), drawn)
    # A file can be read again.
    assert sum(name.endswith(heldout.DOCUMENTS) for name in run.store.files()) == 1


PARQUET_ROW = [("text", pa.string()), ("source", pa.string()), ("year", pa.int16())]


@pytest.mark.parametrize("kind", ["jsonl", "jsonl.gz", "parquet"])
def test_files_of_their_own_are_kept_whole_and_their_copies_removed(
    tmp_path: Path, make_settings: Make, kind: str
) -> None:
    records = topic_records(30)
    validation = [
        {"text": records[5]["text"], "year": 1999},
        {"text": edited(records[29])["text"], "source": "exam"},
        {"text": edited(records[29])["text"], "source": "the same again"},
        {"text": "words of a validation set that nothing else has", "source": "exam"},
    ]
    write_jsonl(tmp_path / "docs.jsonl", records)
    file = tmp_path / f"wiki.valid.{kind}"
    if kind == "parquet":
        pq.write_table(pa.Table.from_pylist(validation, pa.schema(PARQUET_ROW)), file)
    else:
        lines = b"".join(orjson.dumps(record) + b"\n" for record in validation)
        file.write_bytes(gzip.compress(lines) if kind.endswith("gz") else lines)
    settings = make_settings(heldout={"paths": [str(file)]})
    run = ran(settings, "curated_output")

    rows = pq.read_table(settings.output.path / "heldout.parquet").to_pylist()
    assert [(row["source"], row["text"]) for row in rows] == sorted(
        (record.get("source", "wiki"), record["text"]) for record in (*validation[:2], validation[3])
    )
    for row in rows:
        record = row["record"] if kind == "parquet" else orjson.loads(row["record"])
        of = next(one for one in validation if one["text"] == row["text"])
        assert {name: value for name, value in record.items() if value is not None} == of
    removed = [orjson.loads(line) for line in removed_lines(run, load_heldout(run)).splitlines()]
    assert [(row["record"], row["copy"]) for row in removed] == [(5, "exact"), (29, "near")]
    assert np.flatnonzero(load_times(run) == 0).tolist() == [5, 29]

    # Of the corpus they are independent; of the files they are not.
    write_jsonl(tmp_path / "docs.jsonl", [*topic_records(70, start=40), *records])
    fit = run.receipt("heldout").version
    run = ran(settings)
    assert run.receipt("heldout").version == fit
    assert run.receipt("heldout_copies").figures["new_documents"] == 280
    other = tmp_path / "other.jsonl"
    write_jsonl(other, [{"text": records[7]["text"]}])
    run = ran(make_settings(heldout={"paths": [str(other)]}))
    assert texts_by_source(run) == {"other": {records[7]["text"]}}
    write_jsonl(other, [{"text": records[8]["text"]}])
    assert texts_by_source(ran(make_settings(heldout={"paths": [str(other)]}))) == {
        "other": {records[8]["text"]}
    }


def lines(*records: Any) -> bytes:
    return b"".join(orjson.dumps(record) + b"\n" for record in records)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "valid.jsonl hold no document; expected one at least"),
        (lines({"text": "sound"}, {"other": 1}), "record 2 of .*valid.jsonl: no field 'text'"),
        (lines({"text": ""}), "record 1 of .*: empty text"),
        (b'{"text": "cut sho', "record 1 of .*: not valid JSON"),
        (lines({"text": "x" * 2000}), "record 1 of .*: a record of 2,011 bytes or more"),
        (lines({"text": "y" * 500}, {"text": "z" * 500}), "are 1,0.. bytes; expected 800 at most"),
        (None, r"heldout.paths: no file matches '.*valid.jsonl'"),
    ],
    ids=["empty", "no text", "empty text", "cut short", "too long", "too much", "not there"],
)
def test_files_that_cannot_be_validated_on_are_refused(
    tmp_path: Path, make_settings: Make, monkeypatch: pytest.MonkeyPatch, content: bytes | None, said: str
) -> None:
    monkeypatch.setattr(heldout, "MAX_BYTES", 800 if said.endswith("most") else 1 << 30)
    write_jsonl(tmp_path / "docs.jsonl", topic_records(3))
    if content is not None:
        (tmp_path / "valid.jsonl").write_bytes(content)
    settings = make_settings(
        heldout={"paths": [str(tmp_path / "valid.jsonl")]}, input={"max_record_bytes": 1999}
    )
    with pytest.raises(InputError, match=said):
        run_all(settings, Silent(), ["raw_docs", "heldout"])


def test_what_would_leave_nothing_of_a_source_or_hold_out_nothing_is_refused(
    tmp_path: Path, make_settings: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    records = topic_records(12)
    write_jsonl(tmp_path / "docs.jsonl", records)
    sea = write_jsonl(tmp_path / "valid.jsonl", [record for record in records if "sea" in record["source"]])
    with pytest.raises(InputError, match=r"of source sea.example nothing is left.*12 of its 12 records"):
        ran(make_settings(heldout={"paths": [str(sea)]}))
    with pytest.raises(InputError, match=r"less than half a document.*raise heldout.share"):
        ran(make_settings(heldout={"share": 0.01}))
    with pytest.raises(InputError, match=r"no record has the field 'sauce', which .*mixing.trait"):
        ran(make_settings(heldout={"share": 0.1}, mixing={"trait": "sauce"}))
    monkeypatch.setattr(heldout, "MAX_BYTES", 1000)
    with pytest.raises(
        InputError, match=r"heldout.share = 0.5 holds out 6,\d\d\d bytes; expected 1,000 at most"
    ):
        ran(make_settings(heldout={"share": 0.5}))


@pytest.mark.parametrize("stage", ["k_calibration", "strategy_comparison"])
def test_evidence_is_made_with_documents_held_out(tmp_path: Path, make_settings: Make, stage: str) -> None:
    write_jsonl(tmp_path / "docs.jsonl", topic_records(20))
    settings = make_settings(heldout={"share": SHARE}, k_calibration={"values": (2, 4), "fits": 2})
    run = ran(settings, stage)
    # How many clusters there are is a question to all documents.
    assert run.receipt(stage).figures["documents"] == 80
