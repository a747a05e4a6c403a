"""Conversations: records longer than a sequence, records without a trained token, what is packed of them, counted and
listed; orders balance the tokens that are trained on. People, models and files see their words, or what the model
reads, and never the form in which a store keeps them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from numpy.testing import assert_array_equal

from dagster_divorder import load_results, run_all
from dagster_divorder.chats.document import words
from dagster_divorder.cli import main
from dagster_divorder.cli.runs import run as run_command
from dagster_divorder.core.packing import PackedSequences
from dagster_divorder.core.spans import Spans
from dagster_divorder.corpus.stored import contents
from dagster_divorder.defs.metadata import result_metadata
from dagster_divorder.engine.progress import Silent
from dagster_divorder.errors import InputError
from dagster_divorder.models.tokenize import load_encoder
from dagster_divorder.pipeline.run import Run
from dagster_divorder.settings import Settings, load_settings
from dagster_divorder.stages import GRAPH, open_run
from dagster_divorder.stages.measure.diversity_metrics import load_metrics
from dagster_divorder.stages.mix.repeats import load_sources, load_stream
from dagster_divorder.stages.order import bin_edges
from dagster_divorder.stages.order import traits as traits_stage
from dagster_divorder.stages.order.packed_sequences import PACKED_SEQUENCES, left_out_lines, load_packed
from dagster_divorder.stages.order.sequence_order import load_sequence_order, sequence_items
from dagster_divorder.stages.order.traits import load_traits
from dagster_divorder.stages.output import ordering_animation
from dagster_divorder.stages.output.curated_output import CURATED_OUTPUT
from dagster_divorder.stages.text.loss_mask import LossMask, load_loss_mask
from tests.conftest import TOPICS, read_jsonl, small_toml, topic_text, write_jsonl
from tests.pipeline.runs import Make, ran
from tests.tiny_models import AFFIXES, save_model, save_tokenizer

LENGTH = 96
PLANS = pytest.mark.parametrize("method", ["none", "concat"])


def chat(
    topic: str, number: int, *words: int, trained: tuple[int, ...] = (), asks: int = 4
) -> dict[str, Any]:
    """A conversation with an answer of so many words after each question of `asks`. trained: weights of the answers."""
    turns: list[dict[str, Any]] = []
    for at, length in enumerate(words):
        weight = {"weight": trained[at]} if trained else {}
        turns += [
            {"role": "user", "content": topic_text(topic, 10 * number + at, asks)},
            {"role": "assistant", "content": topic_text(topic, 10 * number + at, length), **weight},
        ]
    return {"id": f"{topic}-{number}", "messages": turns}


def chats(per_topic: int = 30) -> list[dict[str, Any]]:
    """Conversations of four topics, of one to five exchanges; some are longer than LENGTH, and of these some have an
    answer that is."""
    return [
        chat(topic, number, *((3 + (number * at * 5) % 17) for at in range(1, 2 + number % 5)))
        for topic in ("sea", "kitchen", "garden", "rail")
        for number in range(per_topic)
    ] + [chat("rail", 100 + number, 5, 150, 5) for number in range(3)]


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    return write_jsonl(tmp_path / "docs.jsonl", chats())


@pytest.fixture
def make(make_settings: Make, corpus: Path) -> Make:
    def of_chats(packing: dict[str, Any], **sections: Any) -> Settings:
        text = {"paths": [str(corpus)], "format": "messages", "id_field": "id"}
        sequence = {"length": LENGTH, **sections.pop("sequence", {})}
        return make_settings(**{"input": text, "packing": packing, "sequence": sequence} | sections)

    return of_chats


def packed(settings: Settings) -> Run:
    return ran(settings, "sequence_order")


def tokens_of(run: Run) -> np.ndarray:
    return run.column("token_counts", "lengths")


def parts(plan: PackedSequences, document: int) -> list[tuple[int, int]]:
    """(start, length) of the runs of a document, rising."""
    own = plan.document == document
    return sorted(zip(plan.start[own].tolist(), plan.length[own].tolist(), strict=True))


def passes(run: Run) -> str:
    """What the check of the plan says, which must pass."""
    finding = PACKED_SEQUENCES.checks[0].check(run)
    assert finding.passed, finding.text
    return finding.text


@PLANS
def test_the_end_of_a_long_record_is_truncated(make: Make, method: str) -> None:
    run = packed(make({"method": method, "too_long": "truncate"}))
    plan, tokens = load_packed(run), tokens_of(run)
    long = tokens > LENGTH
    assert 10 < long.sum() < 80
    for document, length in enumerate(tokens.tolist()):
        assert sum(size for _, size in parts(plan, document)) == min(length, LENGTH)
        assert parts(plan, document)[0][0] == 0
    figures = run.receipt("packed_sequences").figures
    assert figures["too_long_documents"] == long.sum()
    assert figures["too_long_tokens_left_out"] == (tokens - LENGTH)[long].sum()
    assert "that are left out on purpose" in passes(run)


@PLANS
def test_what_is_not_trained_on_is_in_no_sequence(make: Make, corpus: Path, method: str) -> None:
    """A prompt that fills the sequence, and under `last` a last answer that the record leaves out."""
    prompt = chat("rail", 200, 3)
    prompt["messages"][0]["content"] = topic_text("rail", 201, 150)
    write_jsonl(corpus, [*chats(), prompt, chat("rail", 202, 4, 4, trained=(1, 0))])
    run = packed(make({"method": method, "too_long": "truncate"}, chats={"train_on": "last"}))
    plan, tokens = load_packed(run), tokens_of(run)
    mask = load_loss_mask(run)
    kept = np.minimum(tokens, LENGTH)
    trained = mask.within(np.arange(len(run.view)), 0, kept) > 0
    assert not trained[-2:].any()
    assert sorted(set(plan.document.tolist())) == np.flatnonzero(trained).tolist()
    figures = run.receipt("packed_sequences").figures
    assert figures["untrained_documents"] == (~trained).sum()
    assert figures["untrained_tokens_left_out"] == kept[~trained].sum()
    assert f"{figures['untrained_documents']:,} records" in left_out_lines(figures, "truncate")[-1]
    if method != "concat":
        assert figures["untrained_sequences"] == 0
    passes(run)


def test_parts_of_a_cut_prompt_make_no_sequence(make: Make, corpus: Path) -> None:
    """Under "cut" a prompt of several sequences would fill some that have no loss."""
    prompt = chat("rail", 200, 3)
    prompt["messages"][0]["content"] = topic_text("rail", 201, 400)
    write_jsonl(corpus, [*chats(), prompt])
    run = packed(make({"method": "best_fit", "too_long": "cut"}))
    tokens = int(tokens_of(run)[-1])
    assert [start for start, _ in parts(load_packed(run), len(chats()))] == [tokens // LENGTH * LENGTH]
    assert run.receipt("packed_sequences").figures["untrained_sequences"] == 0
    passes(run)
    laid = packed(make({"method": "concat", "too_long": "cut"}))
    assert sum(length for _, length in parts(load_packed(laid), len(chats()))) == tokens
    figures = laid.receipt("packed_sequences").figures
    assert figures["untrained_sequences"] > 0
    assert "have no trained token, and so no loss" in left_out_lines(figures, "cut")[-1]
    passes(laid)


def test_nothing_left_to_train_on_is_refused(make: Make) -> None:
    with pytest.raises(
        InputError, match="packing leaves out all 123 records: 123 are longer than a sequence of 8"
    ):
        packed(make({"method": "none", "too_long": "drop"}, sequence={"length": 8}))


def test_pairs_are_neither_packed_nor_cut(make_settings: Make, tmp_path: Path) -> None:
    pairs = [
        {"prompt": topic_text(topic, number, 5), "chosen": topic_text(topic, number, 4 + number % 30),
         "rejected": topic_text(topic, number + 1, 3 + number % 60)}
        for topic in ("sea", "rail")
        for number in range(40)
    ]  # fmt: skip
    write_jsonl(tmp_path / "docs.jsonl", pairs)
    named = {"paths": [str(tmp_path / "docs.jsonl")], "format": "pairs"}
    for packing, message in (
        (
            {"method": "best_fit"},
            r"packing.method is 'best_fit', but pairs of an input .* set packing.method",
        ),
        ({"too_long": "cut"}, "packing.too_long is 'cut'"),
    ):
        with pytest.raises(ValueError, match=message):
            make_settings(input=named, packing=packing)
        with pytest.raises(InputError, match=message):
            run_all(make_settings(packing=packing), Silent())
    assert not (tmp_path / "store" / "stages").exists(), "refused before anything is computed"

    settings = make_settings(input=named)
    assert (settings.packing.method, settings.packing.too_long) == ("none", "truncate")
    run = packed(make_settings(sequence={"length": 64}))
    plan, tokens = load_packed(run), tokens_of(run)
    assert sorted(plan.document.tolist()) == list(range(len(pairs)))
    assert plan.length[np.argsort(plan.document)].tolist() == np.minimum(tokens, 64).tolist()
    assert 0 < (tokens > 64).sum() < len(pairs) / 2
    passes(run)


def curated(settings: Settings) -> list[str]:
    """The own ids of the records of the output, in their order."""
    return [record["id"] for record in read_jsonl(settings.output.path / "curated.jsonl")]


@pytest.mark.parametrize("too_long", ["drop", "cut"])
def test_records_that_are_not_packed_are_written_as_they_are_trained_on(make: Make, too_long: str) -> None:
    settings = make({"method": "none", "too_long": too_long}, sequence={"epochs": 2, "batch": 4})
    run_all(settings, Silent())
    run, ids = open_run(settings), np.array([record["id"] for record in chats()])
    plan, orders = load_packed(run), load_sequence_order(run)
    read = ids[plan.document[orders[0]]].tolist()
    assert curated(settings) == list(dict.fromkeys(read))
    written = np.load(settings.output.path / "order.npy")
    assert ids[written].tolist() == curated(settings)
    finding = CURATED_OUTPUT.checks[0].check(run)
    assert finding.passed
    if too_long == "drop":
        left_out = len(ids) - len(written)
        assert f"accepted records but the {left_out} that are in no sequence are in" in finding.text
        text = str(run_command(settings))
        assert "Records in the order of training, for tools that do not pack: " in text
        assert f"{left_out} records are longer than a sequence: they are left out, and " in text
    metrics = load_metrics(run)
    assert metrics["curated"] == metrics["sequences"]
    as_it_was, ours = (metrics[name]["windows"]["batch"]["cluster"] for name in ("original", "sequences"))
    assert as_it_was["worst"] > ours["worst"]


def exchange(number: int) -> dict[str, Any]:
    """A conversation of a source: those of `long` ask much and answer little, those of `short` the reverse."""
    asks, answers = (40, 5) if number % 2 else (5, 40)
    made = chat(sorted(TOPICS)[number % 4], number, *[answers] * (1 + number % 3), asks=asks)
    return {**made, "source": "long" if number % 2 else "short", "turns": "mine"}


@pytest.fixture
def exchanging(make_settings: Make, tmp_path: Path) -> Make:
    write_jsonl(tmp_path / "docs.jsonl", [exchange(number) for number in range(120)])
    return partial(make_settings, input={"format": "messages", "source_field": "source"})


def trained_tokens(run: Run) -> np.ndarray:
    mask = load_loss_mask(run)
    return mask.within(np.arange(len(run.view)), 0, np.diff(mask.begins))


def test_an_end_of_text_token_is_trained_on_where_the_token_before_it_is() -> None:
    mask = LossMask(np.array([0, 3, 5, 5]), Spans(np.array([1]), np.array([3])))
    assert mask.within(np.arange(3), 0, np.array([4, 3, 1])).tolist() == [3, 0, 0]
    assert mask.within(np.arange(3), 0, np.array([2, 2, 0])).tolist() == [1, 0, 0]


def test_the_order_of_sequences_balances_all_tokens_beside_the_trained_ones(exchanging: Make) -> None:
    left = ran(exchanging(sequence={"length": 1024, "batch": 4}), "sequence_order")
    traits, packed = load_traits(left), load_packed(left)
    items = sequence_items(left, load_stream(left), packed)
    counted = items.counts[:, items.groups == 0].sum()
    assert items.groups.max() == 3
    of_all = items.counts[:, items.groups == 2]
    assert_array_equal(np.asarray(of_all.sum(axis=1)).ravel(), packed.tokens)
    scale = (counted / packed.length.sum()) ** 2
    assert items.weights.tolist() == pytest.approx([1, 1, scale, scale])
    assert_array_equal(traits.counted, trained_tokens(left))
    assert 0 < counted < packed.length.sum()


def test_turns_are_a_trait(exchanging: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (bin_edges, traits_stage):
        monkeypatch.setattr(module, "BINS", 5)
    left = ran(exchanging(order={"traits": {"cluster": 1.0, "turns": 1.0}}), "traits")
    turns = np.array([len(record["messages"]) for record in map(exchange, range(120))])
    codes = load_traits(left).codes["turns"]
    assert (np.diff(codes[np.argsort(turns, kind="stable")]) >= 0).all()
    assert len(np.unique(codes)) == 3


@pytest.mark.parametrize("too_long", ["truncate", "cut"])
def test_what_packing_leaves_out_does_not_count(exchanging: Make, too_long: str) -> None:
    """Neither of a record in the order of documents and in mixes, nor in the measures of any order."""
    settings = exchanging(sequence={"length": 150}, packing={"too_long": too_long})
    left = ran(settings, "diversity_metrics")
    traits, packed = load_traits(left), load_packed(left)
    mask = load_loss_mask(left)
    of_plan = mask.within(packed.document, packed.start, packed.length)
    assert (traits.counted.sum() < trained_tokens(left).sum()) == (too_long != "cut")
    assert_array_equal(traits.counted, np.bincount(packed.document, of_plan, len(left.view)))
    assert {figures["tokens"] for figures in load_metrics(left).values()} == {of_plan.sum()}


def test_shares_of_a_mix_are_of_trained_tokens(exchanging: Make) -> None:
    settings = exchanging(mixing={"trait": "source", "weights": {"long": 0.5, "short": 0.5}})
    left = ran(settings, "sequence_order")
    stream = load_stream(left)
    of_source = np.bincount(stream.traits.codes["source"], stream.traits.counted)
    assert of_source.max() / of_source.sum() == pytest.approx(0.5, abs=0.01)
    in_tokens = np.bincount(stream.traits.codes["source"], stream.traits.tokens)
    assert in_tokens.max() / in_tokens.sum() > 0.6
    assert sum(row["tokens trained on"] for row in load_sources(left)) == of_source.sum()


SETTINGS: dict[str, dict[str, Any]] = {
    "input": {"format": "messages", "id_field": "id", "source_field": "source", "max_reject_share": 0.1},
    "output": {"sidecars": ("plot",)},
    "advanced": {"token_dims": 8},
    "embedding": {"kind": "auto"},
    "clusters": {"k": (2, 4)},
    "heldout": {"documents": 0.1},
    "selection": {"method": "spokes", "tokens": 1000},
    "order": {"traits": {"cluster": 1.0, "length": 1.0, "source": 1.0}, "separate_copies": True},
    "sequence": {"length": 64, "batch": 4},
    "exports": {"formats": ("parquet", "olmo"), "path": "exports"},
    "engine": {"workers": 1},
}
TELLTALES = ('\x1e{"m', "\\u001e", "messages", '"trained":[')
"""Texts of which each would be in what a store keeps of a conversation, in some way of quoting it."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A corpus of conversations, and all that a run makes of it with everything asked for."""
    folder = tmp_path_factory.mktemp("chats")
    records = [
        {**chat(topic, number, 10 + number, 40 - number, asks=20), "source": topic}
        for topic in ("sea", "kitchen", "rail")
        for number in range(24)
    ]
    unanswered = {"id": "unanswered", "messages": [{"role": "user", "content": "And?"}]}
    write_jsonl(folder / "docs.jsonl", [*records, unanswered])
    save_model(folder / "model", "llama", tie_word_embeddings=True)
    save_tokenizer(folder / "model", *AFFIXES["llama"])
    (folder / "divorder.toml").write_text(small_toml(**SETTINGS, deep={"model": str(folder / "model")}))
    settings = load_settings(folder / "divorder.toml")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ordering_animation, "FRAMES", 2)  # pictures without a word of a record
        run_all(settings, Silent(), GRAPH.upstream(settings))
    return folder


def texts_in(path: Path) -> Iterator[str]:
    if path.suffix == ".parquet":
        table = pq.read_table(path)
        yield str(table.drop_columns(["record"] if "record" in table.column_names else []).to_pylist())
    else:
        yield path.read_bytes().decode(errors="replace")


def assert_none_shows(text: str, where: object, telltales: Sequence[str] = TELLTALES) -> None:
    for telltale in telltales:
        assert telltale not in text, (where, text[max(0, text.index(telltale) - 200) :][:400])


def test_no_file_shows_how_a_store_keeps_conversations(folder: Path) -> None:
    files = [path for part in ("curated", "exports") for path in (folder / part).rglob("*") if path.is_file()]
    assert {"ordering_report.html", "heldout.parquet", "left_out.parquet"} <= {path.name for path in files}
    # Cluster names, samples of fits: all results but the documents themselves.
    files += [path for part in ("fits", "stages") for path in (folder / "store" / part).rglob("*.*")]
    for path in files:
        if path.name == "chat_template.jinja":  # beside an export, as its model has it
            continue
        # Lines of JSON are records, as they were read.
        telltales = [text for text in TELLTALES if path.suffix != ".jsonl" or text != "messages"]
        for text in texts_in(path):
            # The report shows input.format, as it was set.
            assert_none_shows(text.replace("<td>messages</td>", ""), path, telltales)


def test_no_page_of_dagster_and_no_answer_does(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    settings = load_settings(folder / "divorder.toml")
    run = open_run(settings)
    # raw_docs shows what was rejected, as it was read.
    for stage in set(GRAPH.upstream(settings)) - {"raw_docs"}:
        receipt = run.receipt(stage)
        for name, value in result_metadata(GRAPH[stage].show(run, receipt), receipt.figures).items():
            assert_none_shows(str(value), (stage, name))
    stages = ("k_calibration", "ari_comparison", "cluster_map", "subset_selection")
    for command in (["summary"], ["summary", "diversity_metrics", *stages]):
        assert main(["--config", str(folder / "divorder.toml"), *command]) == 0
        printed = capsys.readouterr()
        assert_none_shows(printed.out + printed.err, command)


def test_a_model_with_a_tokenizer_of_its_own_reads_the_words(folder: Path) -> None:
    run = open_run(load_settings(folder / "divorder.toml"))
    documents = contents(run.view.fragments, np.arange(len(run.view)), run.records.texts).to_pylist()
    _, lengths = load_encoder(folder / "model").encode([words(document) for document in documents])
    assert run.column("deep_embeddings", "tokens").tolist() == lengths.tolist()


def test_what_is_trained_on_is_told_apart(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    settings = load_settings(folder / "divorder.toml")
    run = open_run(settings)
    table = load_results(folder / "store").documents
    mask = load_loss_mask(run)
    assert table["trained_tokens"].tolist() == trained_tokens(run).tolist()
    tokens, trained = int(table["tokens"].sum()), int(table["trained_tokens"].sum())
    packed = load_packed(run)
    documents = load_stream(run).record_of[packed.document]
    in_plan = int(mask.within(documents, packed.start, packed.length).sum())
    assert run.receipt("packed_sequences").figures["trained_tokens"] == in_plan
    assert main(["--config", str(folder / "divorder.toml"), "summary"]) == 0
    told = f"+ 1 rejected; 72 different texts\n{packed.length.sum():,} tokens ({in_plan:,} trained on) in "
    assert told in capsys.readouterr().out
    page = (folder / "curated" / "ordering_report.html").read_text()
    assert f"{tokens:,} tokens, {trained:,} trained on" in page
