"""What is trained on, and how often. Held-out documents stay what they are, each source has its share, and no copy of
them is trained on; every record is as often as planned in all that follows; what is chosen is trained on, and nothing
else is lost."""

from __future__ import annotations

import gzip
import io
import re
import unicodedata
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pyarrow.parquet as pq
import pytest
from tokenizers import Tokenizer

from dagster_divorder import load_results, run_all, where
from dagster_divorder.core.measure.vendi import gram, vendi
from dagster_divorder.core.mix.selection import semdedup
from dagster_divorder.engine.progress import Silent
from dagster_divorder.errors import InputError
from dagster_divorder.models.bootstrap import END
from dagster_divorder.pipeline.fit import PinnedFit
from dagster_divorder.pipeline.prune import prune
from dagster_divorder.pipeline.run import Run, run_checks
from dagster_divorder.settings import Settings
from dagster_divorder.stages import GRAPH, open_run
from dagster_divorder.stages.mix import heldout
from dagster_divorder.stages.mix.consumed import consumed_text_mask
from dagster_divorder.stages.mix.heldout import heldout_ids
from dagster_divorder.stages.mix.heldout_copies import heldout_table, load_heldout
from dagster_divorder.stages.mix.repeats import load_plan
from dagster_divorder.stages.order.greedy_order import load_order
from dagster_divorder.stages.text.base_model import load_base_model
from dagster_divorder.stages.text.loss_mask import load_loss_mask
from dagster_divorder.store.ids import hex_ids
from dagster_divorder.store.stages import map_vectors
from dagster_divorder.torch import SequenceDataset
from tests.conftest import changed, read_jsonl, topic_chats, topic_records, write_jsonl
from tests.pipeline.runs import OPINIONS, Make, ran, sequences_of

SHARE = 0.1


def edited(record: dict[str, Any]) -> dict[str, Any]:
    """A record whose text differs from another's in case and white space alone."""
    return {**record, "text": record["text"].capitalize().replace(" ", " \t", 1) + "\n"}


def texts_by_source(run: Run) -> dict[str, set[str]]:
    found: dict[str, set[str]] = {}
    for row in heldout_table(run, load_heldout(run)).select(["source", "text"]).to_pylist():
        found.setdefault(row["source"], set()).add(row["text"])
    return found


def fold(text: str) -> str:
    """A slow twin of `core.mix.heldout.folded`."""
    return re.sub(r"\s+", " ", unicodedata.normalize("NFC", text).casefold()).strip()


def are_copies(records: list[dict[str, Any]], held: set[str]) -> np.ndarray:
    """Which records have the text of a held-out document, but for case and white space."""
    texts = set(map(fold, held))
    return np.array([fold(record["text"]) in texts for record in records])


def assert_no_copy(held: set[str], training: list[dict[str, Any]]) -> None:
    assert training and not are_copies(training, held).any()


def test_a_share_of_each_source_is_held_out_with_its_copies(tmp_path: Path, make_settings: Make) -> None:
    records = topic_records(40)
    records += [{**record, "source": "copies"} for record in records] + [edited(record) for record in records]
    records += [{"text": f"single {number}", "source": f"one {number}"} for number in range(2)]
    write_jsonl(tmp_path / "docs.jsonl", records)
    settings = make_settings(heldout={"documents": SHARE}, input={"id_field": "text"})
    ran(settings, "curated_output")

    table = pq.read_table(settings.output.path / "heldout.parquet")
    # Of equal texts the first counts: the source `copies` has none of its own.
    firsts = Counter({record["text"]: record["source"] for record in reversed(records)}.values())
    held = Counter(table["source"].to_pylist())
    assert held.keys() == {source for source, count in firsts.items() if count > 2}
    assert all(abs(held[source] - SHARE * count) <= 0.5 for source, count in firsts.items())
    lines = [orjson.loads(line) for line in table["record"].to_pylist()]
    assert [line["text"] for line in lines] == table["text"].to_pylist()
    assert all(line in records for line in lines)

    output, removed = (
        read_jsonl(settings.output.path / name) for name in ("curated.jsonl", "heldout_removed.jsonl")
    )
    assert_no_copy(set(table["text"].to_pylist()), output)
    assert len(records) == len(output) + len(table) + len(removed)
    text_of = dict(zip(table["id"].to_pylist(), table["text"].to_pylist(), strict=True))
    for row in removed:
        assert row["id"] == records[row["record"]]["text"]
        assert fold(row["id"]) == fold(text_of[row["document"]])
    assert {row["id"] == text_of[row["document"]] for row in removed} == {False, True}


def test_twice_as_many_documents_hold_out_more_beside_what_is(tmp_path: Path, make_settings: Make) -> None:
    """A source that was not there has its share."""
    records = topic_records(30)
    settings = make_settings(heldout={"documents": SHARE})
    write_jsonl(tmp_path / "docs.jsonl", records)
    before = texts_by_source(ran(settings, "repeats"))
    assert sum(map(len, before.values())) == 12

    copies = [edited(record) for record in records if record["text"] in set.union(*before.values())]
    records = [*copies, *topic_records(70, start=100), *records]
    records += [
        {"text": f"{record['text']} again", "source": "new"} for record in topic_records(5, start=300)
    ]
    write_jsonl(tmp_path / "docs.jsonl", records)
    run = ran(settings, "repeats")
    after = texts_by_source(run)
    assert "grown" in run.receipt("heldout").figures["fitted"]
    assert all(texts <= after[source] for source, texts in before.items())
    sizes = Counter(record["source"] for record in records)
    assert all(abs(len(after[source]) - SHARE * size) <= 1 for source, size in sizes.items())
    trained = [records[at] for at in np.flatnonzero(load_plan(run)["times"])]
    assert_no_copy(set.union(*after.values()), trained)


def test_what_a_trainer_has_consumed_is_neither_held_out_nor_removed(
    tmp_path: Path, make_settings: Make
) -> None:
    records = topic_records(30)
    copies = [edited(record) for record in records]
    write_jsonl(tmp_path / "docs.jsonl", records + copies)
    run = ran(make_settings(), "curated_output")
    tokens, order = run.column("token_counts", "lengths"), load_order(run).order
    frozen = int(tokens.sum()) // 2
    consumed = set(order[np.cumsum(tokens[order]) - tokens[order] < frozen].tolist())

    settings = make_settings(heldout={"documents": SHARE}, order={"frozen_tokens": frozen})
    records += copies
    wanted = 0
    for _ in range(2):
        run = ran(settings, "curated_output")
        free = ~consumed_text_mask(run)
        assert consumed.isdisjoint(np.flatnonzero(free).tolist())
        held = set.union(*texts_by_source(run).values())
        # A tenth of each source, as far as it was not read; appends change nothing about it.
        unread = Counter(record["source"] for record, left in zip(records, free, strict=True) if left)
        wanted = wanted or sum(min(6, number) for number in unread.values())
        assert len(held) == wanted
        copied = are_copies(records, held)
        assert np.array_equal(load_plan(run)["times"] == 0, free & copied)
        assert copied[~free].any()
        records += topic_records(3, start=500)
        write_jsonl(tmp_path / "docs.jsonl", records)


def test_what_was_drawn_is_found_again_after_a_prune_under_other_settings(
    tmp_path: Path, make_settings: Make
) -> None:
    first, *others = (make_settings(heldout=of) for of in ({"documents": SHARE}, {}, {"documents": 0.3}))
    write_jsonl(tmp_path / "docs.jsonl", topic_records(10))
    drawn = heldout_ids(ran(first, "heldout"))
    write_jsonl(tmp_path / "docs.jsonl", [*topic_records(10), *topic_records(8, start=100)])
    for settings in others:
        run = ran(settings, "heldout" if settings.holds_out else "token_counts")
        prune(GRAPH, run.store)
    assert np.array_equal(heldout_ids(ran(first, "heldout")), drawn)


def test_a_share_that_holds_out_nothing_or_too_much_is_refused(
    tmp_path: Path, make_settings: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_jsonl(tmp_path / "docs.jsonl", topic_records(12))
    with pytest.raises(InputError, match=r"less than half a document.*raise heldout.documents"):
        ran(make_settings(heldout={"documents": 0.01}), "repeats")
    monkeypatch.setattr(heldout, "MAX_BYTES", 1000)
    with pytest.raises(
        InputError, match=r"heldout.documents = 0.5 holds out 6,\d\d\d bytes; expected at most 1,000"
    ):
        ran(make_settings(heldout={"documents": 0.5}), "repeats")


def words_of(data: bytes) -> set[bytes]:
    """The words `mark...` of a file, through its compression."""
    if data.startswith(b"PAR1"):
        data = repr(pq.read_table(io.BytesIO(data)).to_pylist()).encode()
    elif data.startswith(b"\x1f\x8b"):
        data = gzip.decompress(data)
    return set(re.findall(rb"mark[a-z]{4}", data))


def mark(number: int) -> str:
    return "mark" + "".join(chr(ord("a") + number // 26**place % 26) for place in range(4))


def test_a_word_of_held_out_texts_alone_is_in_nothing_that_is_learnt_or_shown(
    tmp_path: Path, make_settings: Make
) -> None:
    records = topic_records(6)
    for number, record in enumerate(records):
        record["text"] = f"{record['text']} " + f"so {mark(number)} is more than one {mark(number)} " * 4
    records += [
        {**record, "text": f"{record['text']}{' ' * end}"} for record in records for end in range(1, 5)
    ]
    write_jsonl(tmp_path / "docs.jsonl", records)
    settings = make_settings(
        heldout={"documents": 0.07},
        advanced={"vocab_size": 2048},
        input={"source_field": "source"},
        embedding={"kind": "auto"},
        order={"separate_copies": True},
        exports={"formats": ["parquet"], "path": str(tmp_path / "exports")},
    )
    # The next test holds for every stage.
    shown = ("curated_output", "exports", "cluster_names", "ordering_report")
    run_all(settings, Silent(), GRAPH.needed(settings, *shown))
    run = open_run(settings)
    held = words_of(" ".join(set.union(*texts_by_source(run).values())).encode())
    of_all = {mark(number).encode() for number in range(24)}
    assert 2 <= len(held) < 12 and held < of_all

    # The records themselves, and what is held out, by name.
    stored = ("records/", "documents/", "fits/heldout/")
    files = {name: run.store.read(name) for name in run.store.files() if not name.startswith(stored)}
    for folder in (settings.output.path, tmp_path / "exports"):
        files |= {str(path): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    told = {name: words_of(data) for name, data in files.items() if "heldout" not in Path(name).name}
    base = {name for name in told if "/base_model/" in name or Path(name).name.startswith("tokenizer")}
    leaks = {name: words & held for name, words in told.items() if words & held and name not in base}
    assert not leaks
    # They are looked for where words are: of what is trained on there are some.
    learnt = set.union(*(told[name] for name in base))
    assert learnt and learnt.isdisjoint(held)
    for kind in ("cluster_names", "ordering_report"):
        assert any(words for name, words in told.items() if kind in name), kind


@pytest.mark.parametrize("trait", ["source", "cluster"])
@pytest.mark.parametrize("frozen", [0, 100])
def test_what_leaves_out_held_out_documents_is_all_that_can(
    make_settings: Make, trait: str, frozen: int
) -> None:
    settings = make_settings(
        heldout={"documents": SHARE},
        mixing={"trait": trait},
        embedding={"kind": "auto"},
        order={"frozen_tokens": frozen},
    )
    reads = GRAPH.upstream(settings)
    before, pending = set[str](), ["heldout"]
    while pending:
        before.add(name := pending.pop())
        pending += reads[name]
    for name, of in reads.items():
        if "heldout_copies" in of:
            assert name not in before
        elif isinstance(GRAPH[name], PinnedFit) and name not in ("bin_edges", "k_calibration", "frozen"):
            assert name in before or (name, frozen) == ("base_model", 100)


def test_conversations_are_held_out_as_the_model_reads_them(tmp_path: Path, make_settings: Make) -> None:
    records = topic_chats()
    write_jsonl(tmp_path / "docs.jsonl", [*records, *({**record, "source": "copies"} for record in records)])
    settings = make_settings(input={"format": "messages"}, heldout={"documents": SHARE})
    run = ran(settings, "curated_output")
    table = pq.read_table(settings.output.path / "heldout.parquet")
    tokenizer = Tokenizer.from_file(str(load_base_model(run).directory / "tokenizer.json"))
    held, mask = load_heldout(run), load_loss_mask(run)
    rows = np.flatnonzero(held.documents)
    trained = mask.within(rows, 0, run.column("token_counts", "lengths")[rows]).tolist()
    trained_tokens = dict(zip(hex_ids(held.ids[held.to[rows]]), trained, strict=True))
    assert sorted(table["id"].to_pylist()) == sorted(trained_tokens)
    for row in table.to_pylist():
        record = orjson.loads(row["record"])
        answers = [row["text"][span["first"] : span["last"]] for span in row["trained"]]
        assert answers == [message["content"] + END for message in record["messages"][1::2]]
        encoded = tokenizer.encode(row["text"], add_special_tokens=False)
        places = {at for span in row["trained"] for at in range(span["first"], span["last"])}
        assert len(set(map(encoded.char_to_token, places))) == trained_tokens[row["id"]]
    output = (settings.output.path / "curated.jsonl").read_bytes().splitlines()
    held_words, training = (
        [" ".join(message["content"] for message in orjson.loads(line)["messages"]) for line in lines]
        for lines in (table["record"].to_pylist(), output)
    )
    assert_no_copy(set(held_words), [{"text": text} for text in training])

    # Another template writes them otherwise, and fewer answers are trained on.
    (tmp_path / "chat.jinja").write_text(
        "{% for message in messages %}{{ message.role }}: {{ message.content + eos_token }}{% endfor %}"
    )
    other = make_settings(
        input={"format": "messages"},
        heldout={"documents": SHARE},
        chats={"template": tmp_path / "chat.jinja", "train_on": "last"},
    )
    ran(other, "curated_output")
    rewritten = pq.read_table(settings.output.path / "heldout.parquet")
    assert rewritten["record"] == table["record"]
    for row in rewritten.to_pylist():
        (span,), last = row["trained"], orjson.loads(row["record"])["messages"][-1]["content"]
        assert row["text"].endswith(f"assistant: {last}{END}")
        # Without a generation prompt a model writes the header, too.
        assert row["text"][span["first"] : span["last"]] == f"assistant: {last}{END}"


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


def test_what_was_read_stays_as_often_when_its_mix_goes(mixed: Settings) -> None:
    read = sequences_of(ran(mixed))[:40]
    unmixed = changed(mixed, mixing={"weights": None}, order={"frozen_tokens": 40 * 64})
    said = (
        r"consumed records are there less often than they were read .* mixing.weights = \"natural\" if a mix"
    )
    with pytest.raises(InputError, match=said):
        ran(unmixed)
    assert sequences_of(ran(changed(unmixed, mixing={"weights": "natural"})))[:40] == read


def test_every_record_is_everywhere_as_often_as_it_is_planned(mixed: Settings) -> None:
    run = ran(mixed)
    documents = load_results(mixed.store.path).documents
    times = documents["repeats"].to_numpy()
    assert not times[documents.source == "garden.example"].any() and times.max() >= 2

    out = mixed.output.path
    order = np.load(out / "order.npy")
    assert np.bincount(order, minlength=len(times)).tolist() == times.tolist()
    assert (documents.position[times == 0] == -1).all()
    assert [order[at] for at in documents.position[times > 0]] == np.flatnonzero(times).tolist()
    written = [record["id"] for record in read_jsonl(out / "curated.jsonl")]
    assert written == documents.id.to_numpy()[order].tolist()

    # The plan that is written, what notebooks and `where` see: the tokens of each document as often as planned.
    expected = (documents.tokens * documents.repeats).to_numpy()
    plan = pq.read_table(out / "packed_sequences.parquet").to_pandas()
    for of in (plan, load_results(mixed.store.path).sequences):
        assert np.bincount(of.document, of.length, len(times)).tolist() == expected.tolist()
    steps = range(-(-2 * (plan.sequence.max() + 1) // 8))
    read = where(mixed, steps=steps).groupby("id").tokens.sum()
    twice = (2 * documents.tokens * documents.repeats).groupby(documents.id).sum()
    assert read.to_dict() == twice[twice > 0].to_dict()
    assert where(mixed, ids=["doc-3"]).tokens.sum() == twice["doc-3"]

    # And what a trainer reads.
    stored, exported = Counter[int](), Counter[int]()
    ids, lengths = (run.column("token_counts", name) for name in ("ids", "lengths"))
    for count, of_record in zip(times.tolist(), np.split(ids, np.cumsum(lengths)[:-1]), strict=True):
        stored.update({token: 2 * count * n for token, n in Counter(of_record.tolist()).items() if count})
    dataset = SequenceDataset(mixed.exports.path / "parquet")
    for row in range(len(dataset)):
        exported.update(dataset[row]["input_ids"].reshape(-1).tolist())
    padding = exported.total() - stored.total()
    assert 0 <= padding < 2 * 64
    assert (exported - stored).total() == padding
    assert not stored - exported

    findings = run_checks(GRAPH, mixed)
    assert all(finding.passed for name, finding in findings.items() if name not in OPINIONS), findings


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
def test_semdedup_weighs_records_by_its_distances(corpus: Path, make_settings: Make) -> None:
    settings = selecting(make_settings, corpus, method="semdedup", tokens=900)
    run = ran(settings, "subset_selection")
    chosen = load_results(settings.store.path).selection
    rows = np.flatnonzero(chosen.reason.isin(["selected", "lower weight"]))
    vectors = map_vectors(run.store, run.view, run.receipt("gradient_embeddings"))
    np.testing.assert_array_equal(chosen.weight[rows], semdedup(vectors, rows, seed=settings.seed))


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


@pytest.mark.slow
def test_what_is_consumed_stays_chosen_and_what_is_held_out_is_not(corpus: Path, make_settings: Make) -> None:
    settings = selecting(make_settings, corpus, method="random", tokens=1_000)
    settings = changed(settings, heldout={"documents": 0.2})
    ran(settings)
    before = load_results(settings.store.path)
    consumed = before.sequences[before.sequences.position < 2].document.unique()
    held = before.selection.reason == "held out, or near what is"
    assert held.sum() >= 8
    assert not (held & before.selection.selected).any()

    other = changed(settings, selection={"method": "spokes"}, order={"frozen_tokens": 2 * 64})
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
    with pytest.raises(InputError, match=r"selection\.tokens is 1, and a trainer has consumed"):
        ran(changed(other, selection={"tokens": 1}), "subset_selection")


def test_a_choice_of_too_many_tokens_or_too_few_is_refused(corpus: Path, make_settings: Make) -> None:
    for tokens, said in (
        (1, r"tokens is 1, and the shortest record that can be chosen has \d+"),
        (99_999, r"selection\.tokens is 99,999, and there are [\d,]+ tokens to choose from, in"),
    ):
        with pytest.raises(InputError, match=said):
            ran(selecting(make_settings, corpus, method="random", tokens=tokens), "subset_selection")
