"""The stage `subset_selection`: what is chosen is trained on, and nothing else is lost."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from dagster_divorder import load_results, run_all
from dagster_divorder.core.measure.vendi import gram, vendi
from dagster_divorder.engine.progress import Silent
from dagster_divorder.errors import InputError, SettingsError
from dagster_divorder.pipeline.plan import make_plan
from dagster_divorder.pipeline.run import Run, run_checks
from dagster_divorder.settings import Settings, load_settings
from dagster_divorder.stages import GRAPH, open_run
from dagster_divorder.stages.mix.subset_selection import load_choices
from dagster_divorder.store.space import map_vectors
from tests.conftest import topic_records, write_jsonl
from tests.pipeline.test_repeats import OPINIONS

Make = Callable[..., Settings]
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


def ran(settings: Settings, *stages: str) -> Run:
    run_all(settings, Silent(), GRAPH.needed(settings, *stages) if stages else None)
    return open_run(settings)


@pytest.mark.slow
def test_what_is_chosen_is_trained_on_and_the_rest_is_listed(corpus: Path, make_settings: Make) -> None:
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
    assert chosen.reason[-2:].tolist() == ["copy of another record"] * 2
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

    by_name = {row["choice"]: row for row in load_choices(run)}
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


@pytest.mark.slow
def test_by_gradients_what_has_none_cannot_be_chosen(corpus: Path, make_settings: Make) -> None:
    with corpus.open("ab") as file:
        file.write(b'{"text": "a"}\n')  # without a next token
    settings = selecting(make_settings, corpus, tokens=TOKENS)
    ran(settings, "subset_selection")
    chosen = load_results(settings.store.path).selection
    assert set(chosen.reason[:60]) == {"selected", "lower weight"}
    assert chosen.reason[60:].tolist() == ["copy of another record"] * 2 + ["no vector"]
    assert chosen.weight.iloc[-1] == 0


@pytest.mark.parametrize("method", ["random", "semdedup"])
def test_every_method_fills_a_budget_of_tokens(method: str, corpus: Path, make_settings: Make) -> None:
    settings = selecting(make_settings, corpus, method=method, tokens=900)
    ran(settings, "subset_selection")
    run = open_run(settings)
    chosen = load_results(settings.store.path).selection
    tokens = run.column("token_counts", "lengths")
    left = 900 - tokens[chosen.selected].sum()
    assert 0 <= left < tokens[chosen.reason == "lower weight"].min()


def test_what_cannot_be_is_refused(corpus: Path, make_settings: Make) -> None:
    with pytest.raises(
        InputError, match=r"selection\.tokens is 99,999, and there are [\d,]+ tokens to choose from, in"
    ):
        ran(selecting(make_settings, corpus, tokens=99_999), "subset_selection")


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("tokens = 3", 'tokens is 3, and method is "none"'),
        ('method = "random"', "tokens is unset"),
    ],
)
def test_settings_that_contradict_are_refused(given: str, said: str, tmp_path: Path) -> None:
    file = tmp_path / "divorder.toml"
    file.write_text(f"[selection]\n{given}\n")
    with pytest.raises(SettingsError) as error:
        load_settings(file, environ={})
    assert said in str(error.value)


def test_a_choice_that_holds_no_record_is_refused(corpus: Path, make_settings: Make) -> None:
    with pytest.raises(InputError, match=r"tokens is 1, and the shortest record that can be chosen has \d+"):
        ran(selecting(make_settings, corpus, method="random", tokens=1), "subset_selection")
