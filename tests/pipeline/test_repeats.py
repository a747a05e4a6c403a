"""The stages `repeats` and `subset_selection`: every record as often as planned in all that follows; what is chosen is
trained on, and nothing else is lost."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pyarrow.parquet as pq
import pytest

from dagster_divorder import load_results, run_all, where
from dagster_divorder.core.measure.vendi import gram, vendi
from dagster_divorder.engine.progress import Silent
from dagster_divorder.errors import InputError, SettingsError
from dagster_divorder.pipeline.plan import make_plan
from dagster_divorder.pipeline.run import Run, run_checks
from dagster_divorder.settings import Settings, load_settings
from dagster_divorder.stages import GRAPH
from dagster_divorder.store.stages import map_vectors
from dagster_divorder.torch import SequenceDataset
from tests.conftest import topic_records, write_jsonl
from tests.pipeline.runs import OPINIONS, Make, ran

MIX = {"sea.example": 0.5, "kitchen.example": 0.3, "rail.example": 0.2}
"""Some more than once, one not at all."""


@pytest.fixture
def mixed(tmp_path: Path, make_settings: Make) -> Settings:
    records = [{**record, "id": f"doc-{at}"} for at, record in enumerate(topic_records(30))]
    records.append(records[5])
    write_jsonl(tmp_path / "docs.jsonl", records)
    return make_settings(
        input={"id_field": "id", "source_field": "source"},
        mixing={"weights": MIX},
        sequence={"length": 64, "batch": 8, "epochs": 2},
        exports={"formats": ("parquet", "olmo"), "path": tmp_path / "exports"},
    )


def test_every_record_is_everywhere_as_often_as_it_is_planned(mixed: Settings) -> None:
    run = ran(mixed)
    documents = load_results(mixed.store.path).documents
    times = documents["repeats"].to_numpy()
    by_source = (documents.tokens * documents.repeats).groupby(documents.source).sum()
    assert by_source["garden.example"] == 0
    there_is = documents.tokens[documents.source != "garden.example"].sum()
    assert abs(by_source.sum() - there_is) <= 3 * documents.tokens.max()
    shares = by_source / by_source.sum()
    for name, share in MIX.items():
        assert abs(shares[name] - share) * by_source.sum() <= documents.tokens[documents.source == name].max()
    assert times.max() >= 2

    out = mixed.output.path
    order = np.load(out / "order.npy")
    assert np.bincount(order, minlength=len(times)).tolist() == times.tolist()
    assert (documents.position[times == 0] == -1).all()
    assert [order[at] for at in documents.position[times > 0]] == np.flatnonzero(times).tolist()
    written = [orjson.loads(line)["id"] for line in (out / "curated.jsonl").read_bytes().splitlines()]
    assert written == documents.id.to_numpy()[order].tolist()

    # The plan that is written, what notebooks and `where` see: the tokens of each document as often as planned.
    expected = (documents.tokens * documents.repeats).to_numpy()
    plan = pq.read_table(out / "packed_sequences.parquet").to_pandas()
    for of in (plan, load_results(mixed.store.path).sequences):
        assert np.bincount(of.document, of.length, len(times)).tolist() == expected.tolist()
    steps = range(-(-2 * (plan.sequence.max() + 1) // 8))
    read = where(mixed, steps=steps).groupby("id").tokens.sum()
    twice = Counter()
    for name, tokens in zip(documents.id, 2 * expected, strict=True):
        twice[name] += int(tokens)
    assert read.to_dict() == {name: tokens for name, tokens in twice.items() if tokens}
    assert where(mixed, ids=["doc-3"]).tokens.sum() == twice["doc-3"]

    # And what a trainer reads.
    stored, exported = Counter[int](), Counter[int]()
    for count, ids in zip(times.tolist(), token_ids(run), strict=True):
        stored.update({token: 2 * count * number for token, number in Counter(ids).items() if count})
    dataset = SequenceDataset(mixed.exports.path / "parquet")
    for row in range(len(dataset)):
        exported.update(dataset[row]["input_ids"].reshape(-1).tolist())
    padding = exported.total() - stored.total()
    assert 0 <= padding < 2 * 64
    assert (exported - stored).total() == padding
    assert not stored - exported

    findings = run_checks(GRAPH, mixed)
    assert all(finding.passed for name, finding in findings.items() if name not in OPINIONS), findings
    assert {stage.scope for stage in make_plan(GRAPH, mixed).stages} == {"nothing"}


def token_ids(run: Run) -> list[list[int]]:
    """Of every record."""
    rows: list[list[int]] = []
    for _, arrays in run.files("token_counts").each(list(run.view.fragments)):
        ends = np.cumsum(arrays["lengths"])
        rows += [part.tolist() for part in np.split(arrays["ids"], ends[:-1])]
    return rows


def test_a_value_that_is_left_out_is_refused_with_what_leaves_it_out(
    tmp_path: Path, make_settings: Make
) -> None:
    write_jsonl(tmp_path / "docs.jsonl", sourced(0, 40))

    def says(**sections: Any) -> str:
        with pytest.raises(InputError) as caught:
            run_all(make_settings(input={"source_field": "source"}, **sections), Silent())
        return str(caught.value)

    chosen = {"method": "random", "tokens": 60}
    said = says(mixing={"weights": {"a": 1.0, "b": 1.0}}, selection=chosen)
    assert "mixing.weights names '" in said
    assert "held out, not selected, cut, or empty; expected some of" in said


def sourced(first: int, count: int) -> list[dict[str, Any]]:
    """Records of two sources, of many lengths, in order."""
    records = topic_records(-(-(first + count) // 4))
    for at, record in enumerate(records):
        record |= {"text": record["text"] + f" {at}" * (at % 13), "source": "ab"[at % 3 > 0]}
    return records[first : first + count]


TOKENS = 600


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    """Sixty documents, one of them three times."""
    records = topic_records(15)
    records += [records[5], {**records[5], "again": True}]
    return write_jsonl(tmp_path / "docs.jsonl", records)


def selecting(make_settings: Make, corpus: Path, **selection: Any) -> Settings:
    return make_settings(
        input={"paths": [str(corpus)]},
        selection={"method": "spokes", **selection},
        sequence={"length": 64, "batch": 8},
    )


@pytest.mark.slow
def test_what_is_chosen_is_trained_on_and_the_rest_is_listed(corpus: Path, make_settings: Make) -> None:
    with corpus.open("ab") as file:
        file.write(b'{"text": "a"}\n')  # without a next token, and so without a gradient
    settings = selecting(make_settings, corpus, tokens=TOKENS)
    run = ran(settings)
    results = load_results(settings.store.path)
    chosen = results.selection
    tokens = run.column("token_counts", "lengths")
    assert 0.9 * TOKENS < tokens[chosen.selected].sum() <= TOKENS
    assert results.documents.repeats.tolist() == chosen.selected.astype(int).tolist()
    assert (
        sorted(np.load(settings.output.path / "order.npy").tolist())
        == np.flatnonzero(chosen.selected).tolist()
    )
    assert (chosen.record_id == results.documents.record_id).all()
    assert chosen.reason[chosen.selected].unique().tolist() == ["selected"]
    # Of equal texts the first can be chosen.
    assert chosen.reason[60:].tolist() == ["copy of another record"] * 2 + ["no vector"]
    assert chosen.weight.iloc[-1] == 0
    # By falling weight, each that the budget has room for.
    left, fits = TOKENS, []
    for row in chosen[chosen.reason.isin(["selected", "lower weight"])].sort_values("weight").index[::-1]:
        if tokens[row] <= left:
            left -= tokens[row]
            fits.append(row)
    assert sorted(fits) == np.flatnonzero(chosen.selected).tolist()

    left_out = pq.read_table(settings.output.path / "left_out.parquet").to_pandas()
    assert left_out.record.tolist() == np.flatnonzero(~chosen.selected).tolist()
    for column in ("weight", "reason"):
        assert left_out[column].tolist() == chosen[column][~chosen.selected].tolist()
    assert left_out.id.tolist() == chosen.record_id[~chosen.selected].tolist()

    by_name = {row["choice"]: row for row in run.rows("subset_selection", "choices")}
    assert set(by_name) == {"all", "random", "spokes"}
    used = by_name["spokes"]
    vectors = map_vectors(run.store, run.view, run.receipt("gradient_embeddings"))
    assert used["vendi"] == pytest.approx(vendi(gram(vectors, np.flatnonzero(chosen.selected))), abs=1e-3)
    assert used["vendi"] > by_name["random"]["vendi"]
    assert used["documents"] == chosen.selected.sum()
    findings = run_checks(GRAPH, settings)
    assert all(finding.passed for name, finding in findings.items() if name not in OPINIONS), findings
    assert {stage.scope for stage in make_plan(GRAPH, settings).stages} == {"nothing"}


@pytest.mark.slow
def test_what_is_consumed_stays_chosen_and_what_is_held_out_is_not(corpus: Path, make_settings: Make) -> None:
    settings = selecting(make_settings, corpus, method="random", tokens=1_000)
    settings = settings.model_copy(update={"heldout": settings.heldout.model_copy(update={"documents": 0.2})})
    ran(settings)
    before = load_results(settings.store.path)
    consumed = before.sequences[before.sequences.position < 2].document.unique()
    held = before.selection.reason == "held out, or near what is"
    assert held.sum() >= 8
    assert not (held & before.selection.selected).any()

    other = settings.model_copy(
        update={
            "selection": settings.selection.model_copy(update={"method": "spokes"}),
            "order": settings.order.model_copy(update={"frozen_tokens": 2 * 64}),
        }
    )
    ran(other)
    after = load_results(settings.store.path)
    chosen = after.selection
    # Those of the order of documents that far are consumed, too.
    assert set(consumed) <= set(np.flatnonzero(chosen.reason == "consumed by a trainer"))
    assert chosen.selected.sum() > len(consumed)
    assert not (chosen.selected & held).any()
    assert after.sequences[after.sequences.position < 2].equals(
        before.sequences[before.sequences.position < 2]
    )
    few = other.model_copy(update={"selection": other.selection.model_copy(update={"tokens": 1})})
    with pytest.raises(InputError, match=r"selection\.tokens is 1, and a trainer has consumed"):
        ran(few, "subset_selection")


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("[selection]\ntokens = 3", 'tokens is 3, and method is "none"'),
        ('[selection]\nmethod = "random"', "tokens is unset"),
        ('[mixing]\nweights = "unimax"', "set mixing.max_repeats"),
    ],
)
def test_settings_that_contradict_are_refused(given: str, said: str, tmp_path: Path) -> None:
    file = tmp_path / "divorder.toml"
    file.write_text(f"{given}\n")
    with pytest.raises(SettingsError, match=said):
        load_settings(file, environ={})


def test_a_choice_of_too_many_tokens_or_too_few_is_refused(corpus: Path, make_settings: Make) -> None:
    for tokens, said in (
        (1, r"tokens is 1, and the shortest record that can be chosen has \d+"),
        (99_999, r"selection\.tokens is 99,999, and there are [\d,]+ tokens to choose from, in"),
    ):
        with pytest.raises(InputError, match=said):
            ran(selecting(make_settings, corpus, method="random", tokens=tokens), "subset_selection")
