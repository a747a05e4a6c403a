"""Orders of conversations balance the tokens that are trained on; what else is balanced of conversations."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_array_equal

from dagster_divorder import run_all
from dagster_divorder.engine.progress import Silent
from dagster_divorder.pipeline.run import Run
from dagster_divorder.settings import Settings
from dagster_divorder.stages import GRAPH, open_run
from dagster_divorder.stages.measure.diversity_metrics import load_metrics
from dagster_divorder.stages.mix.repeats import item_records, load_sources, load_stream, run_counter
from dagster_divorder.stages.order import bin_edges
from dagster_divorder.stages.order import traits as traits_stage
from dagster_divorder.stages.order.packed_sequences import load_packed, packed_items
from dagster_divorder.stages.order.traits import load_traits
from dagster_divorder.stages.text.loss_mask import load_loss_mask
from tests.conftest import TOPICS, topic_text, write_jsonl
from tests.pipeline.runs import Make

SILENT_WEIGHT = {"weight": 0}
TOPIC_NAMES = sorted(TOPICS)


def chat(number: int, **last: Any) -> dict[str, Any]:
    """A conversation of a source: those of `long` ask much and answer little, those of `short` the reverse."""
    asks, answers = (40, 5) if number % 2 else (5, 40)
    messages: list[dict[str, Any]] = []
    for turn in range(1 + number % 3):
        messages.append(
            {"role": "user", "content": topic_text(TOPIC_NAMES[number % 4], 2 * number + turn, asks)}
        )
        messages.append(
            {"role": "assistant", "content": topic_text(TOPIC_NAMES[number % 4], 7 * number + turn, answers)}
        )
    messages[-1] |= last
    return {"messages": messages, "source": "long" if number % 2 else "short", "turns": "mine"}


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    return write_jsonl(tmp_path / "docs.jsonl", [chat(number) for number in range(120)])


def settings_of(make: Make, **sections: Any) -> Settings:
    inputs = {"format": "messages", "source_field": "source"}
    return make(**({"input": inputs} | sections))


def trained_tokens(run: Run) -> np.ndarray:
    mask = load_loss_mask(run)
    return mask.tokens(np.arange(len(run.view)))


def run(settings: Settings, *stages: str) -> Run:
    run_all(settings, Silent(), GRAPH.needed(settings, *(stages or ("sequence_order",))))
    return open_run(settings)


def trained_places(left: Run) -> list[np.ndarray]:
    """The trained tokens of each record, bool (length,), one span at a time."""
    mask = load_loss_mask(left)
    trained = np.zeros(mask.begins[-1], bool)
    for first, last in zip(mask.trained.first, mask.trained.last, strict=True):
        trained[first:last] = True
    return [trained[mask.begins[row] : mask.begins[row + 1]] for row in range(len(left.view))]


@pytest.mark.parametrize(
    "packing",
    [
        {"method": "best_fit"},
        {"method": "none"},
        {"method": "concat", "end_of_text": True},
    ],
    ids=lambda packing: "-".join(map(str, packing.values())),
)
def test_rows_of_sequences_count_what_is_trained_on(make_settings: Make, corpus: Path, packing: dict) -> None:
    left = run(settings_of(make_settings, packing=packing))
    packed, traits, places = load_packed(left), load_stream(left).traits, trained_places(left)
    if packing.get("end_of_text"):
        # It is trained on where the token before it is.
        places = [np.append(trained, trained[-1:]) for trained in places]
    clusters = traits.codes["cluster"]
    expected = np.zeros((len(packed), traits.sizes()["cluster"]), int)
    for sequence in range(len(packed)):
        for at in range(packed.indptr[sequence], packed.indptr[sequence + 1]):
            document, start = packed.document[at], packed.start[at]
            inside = places[document][start : start + packed.length[at]]
            expected[sequence, clusters[document]] += inside.sum()
    items = packed_items(left.settings, traits, packed, run_counter(left, item_records(left))(packed))
    assert_array_equal(items.counts[:, items.groups == 0].toarray(), expected)
    assert expected.sum() <= sum(trained.sum() for trained in places) < load_packed(left).length.sum()


def test_the_order_of_sequences_balances_all_tokens_beside_the_trained_ones(
    make_settings: Make, corpus: Path
) -> None:
    left = run(settings_of(make_settings, sequence={"length": 1024, "batch": 4}))
    traits, packed = load_traits(left), load_packed(left)
    items = packed_items(left.settings, traits, packed, run_counter(left, item_records(left))(packed))
    counted = items.counts[:, items.groups == 0].sum()
    assert items.groups.max() == 3
    of_all = items.counts[:, items.groups == 2]
    assert_array_equal(np.asarray(of_all.sum(axis=1)).ravel(), packed.tokens)
    scale = (counted / packed.length.sum()) ** 2
    assert items.weights.tolist() == pytest.approx([1, 1, scale, scale])
    assert_array_equal(traits.counted, trained_tokens(left))
    assert 0 < counted < packed.length.sum()


def test_turns_are_a_trait(make_settings: Make, corpus: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (bin_edges, traits_stage):
        monkeypatch.setattr(module, "BINS", 5)
    left = run(settings_of(make_settings, order={"traits": {"cluster": 1.0, "turns": 1.0}}))
    records = [json.loads(line) for line in corpus.read_bytes().splitlines()]
    turns = np.array([len(record["messages"]) for record in records])
    codes = load_traits(left).codes["turns"]
    assert (np.diff(codes[np.argsort(turns, kind="stable")]) >= 0).all()
    assert len(np.unique(codes)) == 3


@pytest.mark.parametrize("too_long", ["truncate", "cut"])
def test_what_packing_leaves_out_does_not_count(make_settings: Make, corpus: Path, too_long: str) -> None:
    """Neither of a record in the order of documents and in mixes, nor in the measures of any order."""
    settings = settings_of(make_settings, sequence={"length": 150}, packing={"too_long": too_long})
    left = run(settings, "diversity_metrics")
    traits, packed = load_traits(left), load_packed(left)
    mask = load_loss_mask(left)
    of_plan = mask.within(packed.document, packed.start, packed.length)
    assert (traits.counted.sum() < trained_tokens(left).sum()) == (too_long != "cut")
    assert_array_equal(traits.counted, np.bincount(packed.document, of_plan, len(left.view)))
    assert {figures["tokens"] for figures in load_metrics(left).values()} == {of_plan.sum()}


def test_shares_of_a_mix_are_of_trained_tokens(make_settings: Make, corpus: Path) -> None:
    settings = settings_of(make_settings, mixing={"trait": "source", "weights": {"long": 0.5, "short": 0.5}})
    left = run(settings)
    stream = load_stream(left)
    of_source = np.bincount(stream.traits.codes["source"], stream.traits.counted)
    assert of_source.max() / of_source.sum() == pytest.approx(0.5, abs=0.01)
    in_tokens = np.bincount(stream.traits.codes["source"], stream.traits.tokens)
    assert in_tokens.max() / in_tokens.sum() > 0.6
    assert sum(row["tokens trained on"] for row in load_sources(left)) == of_source.sum()
