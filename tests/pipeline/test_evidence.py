"""The certificate, the comparison of strategies and what drifts, on real files: what is measured, once, of sequences
as a trainer reads them, and what is said of it. What `training_evidence` trains on is the plan, what was trained is
kept, and it tells orders apart."""

from __future__ import annotations

import math
import shutil
from collections.abc import Callable, Iterator
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pytest

from dagster_divorder import load_results, run_all, run_stage
from dagster_divorder.cli import main
from dagster_divorder.core.evidence.training_evidence import HELD_OUT, Trained
from dagster_divorder.engine.progress import Silent
from dagster_divorder.errors import InputError, MissingStageError
from dagster_divorder.models import training
from dagster_divorder.pipeline.run import Run
from dagster_divorder.readers.export import open_export
from dagster_divorder.settings import Settings
from dagster_divorder.settings.sections import SHUFFLED, TRAINED_ORDERS, trained_order
from dagster_divorder.stages import GRAPH, open_run
from dagster_divorder.stages.evidence import strategy_comparison
from dagster_divorder.stages.evidence import training_evidence as stage
from dagster_divorder.stages.measure import stationarity
from dagster_divorder.stages.measure.diversity_metrics import load_metrics, load_verdict, remedy
from dagster_divorder.stages.measure.stationarity import load_stationarity
from dagster_divorder.stages.mix.heldout_copies import load_heldout
from dagster_divorder.stages.mix.repeats import load_stream
from dagster_divorder.stages.order.packed_sequences import load_packed
from dagster_divorder.stages.order.scores import stream_ranks
from dagster_divorder.stages.order.sequence_order import load_sequence_order
from dagster_divorder.stages.order.traits import load_traits
from dagster_divorder.stages.text.loss_mask import load_loss_mask
from tests.conftest import changed, over, read_jsonl, small_settings, topic_chats, topic_records, write_jsonl
from tests.pipeline import runs
from tests.twins.metrics import bucket


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A corpus whose store every test here shares: what is the same is computed once."""
    return write_jsonl(tmp_path_factory.mktemp("evidence") / "docs.jsonl", topic_records(200))


def settings_of(corpus: Path, **sections: dict[str, Any]) -> Settings:
    return small_settings(corpus.parent, **{"sequence": {"length": 64, "batch": 4}, **sections})


def metrics_of(settings: Settings) -> dict[str, dict[str, Any]]:
    run_all(settings, Silent())
    return load_metrics(open_run(settings))


def test_balanced_beats_shuffling_and_the_original_order_does_not(corpus: Path) -> None:
    balanced = settings_of(corpus, order={"traits": {"cluster": 1.0}})
    run_all(balanced, Silent())
    found = load_verdict(open_run(balanced)).check
    assert found.passed and {c.trait for c in found.comparisons} == {"cluster"}
    assert {c.window for c in found.comparisons} >= {"batch", "batch across the seam"}
    as_it_is = settings_of(
        corpus,
        order={"strategy": "original", "traits": {"cluster": 1.0}},
        sequence={"length": 64, "batch": 4, "strategy": "original"},
    )
    with pytest.raises(MissingStageError, match="made with other settings"):
        load_verdict(open_run(as_it_is))
    run_all(as_it_is, Silent())
    found = load_verdict(open_run(as_it_is)).check
    # Topics lie in blocks: the last batch and the first one are of one topic each.
    assert not found.passed and {"batch", "batch across the seam"} <= set(found.failed["cluster"])
    metrics = metrics_of(as_it_is)
    assert metrics["sequences"]["seam"]["cluster"]["worst"] > 0.6
    assert metrics["sequences_random"]["seam"]["cluster"]["worst"] < 0.6


@pytest.mark.parametrize(
    ("sections", "said"),
    [
        ({"sequence": {"strategy": "random"}}, "sequence.strategy is 'random'"),
        ({"order": {"strategy": "stratified"}}, "order.strategy is 'stratified'"),
        ({"packing": {"method": "cluster_packed"}}, "packing.method = 'cluster_packed'"),
        ({}, "more weight in order.traits"),
    ],
    ids=["sequences", "documents", "cluster_packed", "balanced"],
)
def test_a_failed_check_says_what_to_change(corpus: Path, sections: dict[str, Any], said: str) -> None:
    assert said in remedy(settings_of(corpus, **sections))


def test_one_command_prints_the_comparison_of_any_corpus(
    corpus: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """With no output made."""
    sequence = {"length": 128, "batch": 4, "strategy": "original"}
    settings = settings_of(corpus, sequence=sequence, output={"path": corpus.parent / "none"})
    monkeypatch.setattr("dagster_divorder.settings.load_settings", lambda config: settings)
    monkeypatch.setattr(strategy_comparison, "SEQUENCES", ("original",))
    assert main(["compare"]) == 0
    said = capsys.readouterr().out
    stored = open_run(settings).rows("strategy_comparison", "table")
    assert {row["documents"] for row in stored} == set(strategy_comparison.DOCUMENTS)
    nearest = [row["batch TV of cluster"] for row in stored]
    assert nearest == sorted(nearest)
    lines = said.partition("\ncomparison\n")[2].splitlines()[1 : 1 + len(stored)]
    assert [line.split()[0] for line in lines] == [row["documents"] for row in stored]
    assert main(["compare", "--json"]) == 0
    assert orjson.loads(capsys.readouterr().out)["strategy_comparison"]["comparison"] == stored
    assert not settings.output.path.exists()


def test_the_comparison_measures_the_pipelines_own_order(
    corpus: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Same corpus, strategies and seed: the settings' own pair, always compared, is what the stages made."""
    for name in ("DOCUMENTS", "SEQUENCES"):
        monkeypatch.setattr(strategy_comparison, name, ())
    settings = settings_of(corpus)
    figures = metrics_of(settings)["sequences"]
    run_stage("strategy_comparison", settings, Silent())
    (row,) = open_run(settings).rows("strategy_comparison", "table")
    assert row["distinct clusters a sequence"] == figures["distinct"]["cluster"]["mean"]
    assert row["worst share of cluster"] == figures["windows"]["batch"]["cluster"]["worst"]
    assert row["mean prefix deviation, tokens"] == figures["prefix"]["mean"]


def drift_settings(folder: Path, **sections: Any) -> Settings:
    base = {
        "order": {"traits": {"length": 1.0}},
        "input": {"source_field": "source"},
        "sequence": {"length": 64, "batch": 8},
    }
    return small_settings(folder, **over(base, sections))


@pytest.fixture(scope="module")
def drifting(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("stationarity")
    records = topic_records(60)
    # A long document, and records that share a text.
    records[7]["text"] = " ".join(record["text"] for record in records[:40])
    write_jsonl(folder / "docs.jsonl", [*records, records[3], records[200]])
    return folder


def tokens_of(run: Run) -> Iterator[list[tuple[int, int]]]:
    """Of each full sequence, in the order of training: (document, token id) for each of its tokens."""
    ids, lengths = (run.column("token_counts", name) for name in ("ids", "lengths"))
    starts = np.cumsum(lengths) - lengths
    packed = load_packed(run)
    for sequence in load_sequence_order(run)[0].tolist():
        if packed.padding[sequence]:
            continue
        held = []
        for at in range(packed.indptr[sequence], packed.indptr[sequence + 1]):
            document, start = int(packed.document[at]), packed.start[at]
            end, begin = min(start + packed.length[at], lengths[document]), starts[document]
            held += [(document, int(token)) for token in ids[begin + start : begin + end]]
        yield held


@pytest.mark.parametrize("end_of_text", [False, True])
def test_features_are_those_of_the_tokens(drifting: Path, end_of_text: bool) -> None:
    """Token by token, with nothing of the code that makes them."""
    run = runs.ran(drift_settings(drifting, packing={"end_of_text": end_of_text}))
    sample, *_ = stationarity.load_sample(run, load_stream(run))
    found = {feature.name: feature for feature in stationarity.features(run, load_traits(run), sample)}
    traits = load_traits(run)
    vectors = run.column("shallow_embeddings", "vectors")
    topics = [record["source"] for record in read_jsonl(Path(run.settings.input.paths[0]))]
    in_sequences: dict[int, set[int]] = {}
    rows = list(tokens_of(run))
    for at, row in enumerate(rows):
        for document, _ in row:
            in_sequences.setdefault(document, set()).add(at)
    assert {feature.values.shape[0] for feature in found.values()} == {len(rows)}
    long = [document for document, places in in_sequences.items() if len(places) >= 10]
    assert long and found["parts of long documents"].values.shape[1] == len(long)
    # Columns come in any order.
    by_source = [
        [sum(topics[document] == value for document, _ in row) for row in rows] for value in set(topics)
    ]
    assert sorted(found["source"].values.toarray().T.tolist()) == sorted(by_source)
    for at, row in enumerate(rows):
        documents = [document for document, _ in row]
        expected = np.bincount(traits.codes["cluster"][documents], minlength=traits.sizes()["cluster"])
        mix = found["cluster"].values[at].toarray().ravel()
        assert (np.pad(mix, (0, len(expected) - len(mix))) == expected).all()
        words = np.bincount([bucket(token, 12) for _, token in row], minlength=1 << 12)
        assert (found["words"].values[at] == words).all()
        mean = vectors[documents].mean(axis=0)
        assert found["shallow vectors"].values[at] == pytest.approx(mean, abs=1e-5)
        single = found["sequences of one cluster"].values[at].sum()
        assert single == (len(set(traits.codes["cluster"][documents])) == 1)
    # What the order balanced is not looked at, but for vectors.
    assert {name: feature.seen for name, feature in found.items()} == {
        **dict.fromkeys(("cluster", "sequences of one cluster", "parts of long documents"), False),
        **{"source": False, "words": False, "shallow vectors": True},
    }


def test_it_is_measured_once_whatever_evidence_comes_later(drifting: Path, tmp_path: Path) -> None:
    np.save(tmp_path / "vectors.npy", np.random.default_rng(0).normal(size=(242, 6)).astype(np.float32))
    settings = drift_settings(
        drifting,
        embedding={"kind": "external", "path": tmp_path / "vectors.npy"},
        store={"path": tmp_path / "store"},
        output={"path": tmp_path / "curated"},
    )
    first = run_all(settings, Silent())
    for name in ("base_model", "token_counts", "shallow_embeddings"):
        run_stage(name, settings, Silent())
    run_stage("diversity_metrics", settings, Silent())
    later = run_all(settings, Silent())
    for name in ("diversity_metrics", "stationarity"):
        assert (later[name].version, later[name].files) == (first[name].version, first[name].files)
        assert later[name].figures["new_documents"] == 0
    names = {of.feature for of in load_stationarity(open_run(settings)).features}
    assert "external vectors" in names and "shallow vectors" not in names
    assert later["curated_output"].figures["written"] is False


LENGTH = 32
FEW = ("original", "curated")


@pytest.fixture(scope="module", autouse=True)
def few() -> Iterator[None]:
    """One training of each order, in steps of a few sequences."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stage, "SEEDS", 1)
        patch.setattr(stage, "STEPS", 1)
        yield


@pytest.fixture(scope="module")
def blocks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """In blocks of one topic each, and each topic a source."""
    return write_jsonl(tmp_path_factory.mktemp("evidence") / "docs.jsonl", topic_records(40))


def training_of(folder: Path, blocks: Path, evidence: dict[str, Any], **sections: Any) -> Settings:
    """The `blocks` in a store in `folder`."""
    base = {
        "input": {"paths": [str(blocks)], "source_field": "source"},
        "heldout": {"documents": 0.1},
        "sequence": {"length": LENGTH, "batch": 4},
        "engine": {"workers": 1},
        "evidence": {"tokens": 1_000, "orders": FEW, **evidence},
    }
    return small_settings(folder, **over(base, sections))


def ran(settings: Settings, *stages: str) -> Run:
    return runs.ran(settings, *(stages or ("training_evidence",)))


def planned(settings: Settings, *more: str) -> Run:
    """A run whose store holds what trainings read, and none has run."""
    return ran(settings, *GRAPH.reads("training_evidence", settings), *more)


@pytest.fixture(scope="module")
def plan(blocks: Path) -> Path:
    """A folder whose store holds what trainings read."""
    planned(training_of(blocks.parent / "plan", blocks, {}))
    return blocks.parent / "plan"


@pytest.fixture
def settings(tmp_path: Path, blocks: Path, plan: Path) -> Callable[..., Settings]:
    """Of a store in which everything but trainings is made."""
    shutil.copytree(plan, tmp_path, dirs_exist_ok=True)
    return partial(training_of, tmp_path, blocks)


def test_it_trains_once_and_what_is_added_alone(
    settings: Callable[..., Settings], monkeypatch: pytest.MonkeyPatch
) -> None:
    run = ran(settings({}))
    figures = run.receipt("training_evidence").figures
    # Shuffled sequences, against which all is held, come by themselves.
    assert (figures["trainings"], figures["trained_now"]) == (3, 3)
    first = stage.load_evidence(run)
    assert [row["order"] for row in first["orders"]] == [*FEW, SHUFFLED]
    table = load_results(run.settings.store.path).evidence
    assert list(table.columns) == ["order", "seed", "learning_rate", "epoch", "source", "loss"]
    assert set(table.source) == {*(record["source"] for record in topic_records(1)), stage.ALL}
    assert set(table.epoch) == {1, 2}
    of_one = table[(table.order == "curated") & (table.epoch == 2)].set_index("source")
    assert of_one.loss[stage.ALL] == pytest.approx(of_one.loss.drop(stage.ALL).mean())
    assert figures["verdict"].startswith("Held-out loss, mean over sources: curated")

    assert ran(settings({})).receipt("training_evidence").facts["computed"] == 0
    monkeypatch.setattr(stage, "SEEDS", 2)
    more = ran(settings({"orders": (*FEW, "random_documents")}))
    figures = more.receipt("training_evidence").figures
    assert (figures["trainings"], figures["trained_now"]) == (8, 5)
    again = stage.load_evidence(more)
    kept = load_results(run.settings.store.path).evidence
    assert kept[(kept.seed == 0) & kept.order.isin(table.order)].reset_index(drop=True).equals(table)
    assert again["orders"][0]["figures"][HELD_OUT]["less shuffled"]["low"] is not None
    # Of another order of the plan nothing is kept.
    monkeypatch.setattr(stage, "SEEDS", 1)
    figures = ran(settings({"orders": ("curated",)}, seed=1)).receipt("training_evidence").figures
    assert figures["trained_now"] == 2


def test_what_is_read_is_what_a_trainer_reads_of_the_export(
    settings: Callable[..., Settings], tmp_path: Path
) -> None:
    of = settings({}, exports={"formats": ("parquet",), "path": tmp_path / "exports"})
    run = planned(of, "exports")
    export, made = open_export(tmp_path / "exports" / "parquet"), stage.Sequences.of(run)
    block = export.block(range(made.rows))
    arrays = made.read_in(TRAINED_ORDERS["curated"], 0)
    np.testing.assert_array_equal(arrays["ids"], block.ids)
    assert arrays["counts"].all()
    assert (arrays["epochs"] == np.arange(made.rows)).all()


@pytest.mark.parametrize("method", ["concat", "best_fit"])
def test_every_order_is_of_the_same_tokens(settings: Callable[..., Settings], method: str) -> None:
    made = stage.Sequences.of(planned(settings({}, packing={"method": method})))
    rows, whole = made.rows, made.tokens(made.plan, np.arange(len(made.plan)))
    of_plan = np.bincount(whole["ids"][whole["counts"]], minlength=600)
    for name in (*TRAINED_ORDERS, "stratified/original", "curated/f3", "round_robin/balanced"):
        plan, epochs = made.planned(trained_order(name), 0)
        assert epochs.shape == (2, rows), name
        assert all(len(np.unique(read)) == rows for read in epochs), name
        tokens = made.tokens(plan, np.arange(len(plan)))
        found = np.bincount(tokens["ids"][tokens["counts"]], minlength=600)
        # All but what fills no whole sequence.
        assert (found <= of_plan).all() and of_plan.sum() - found.sum() < LENGTH, name
        arrays = made.read_in(trained_order(name), 0)
        assert (arrays["ids"][arrays["epochs"]] == tokens["ids"][epochs]).all()
    plan, _ = made.planned(TRAINED_ORDERS["original"], 0)
    assert (np.diff(plan.document) >= 0).all()
    shuffled = [made.planned(TRAINED_ORDERS["random_sequences"], seed)[1].tolist() for seed in (0, 1)]
    assert shuffled[0][0] != shuffled[1][0] and shuffled[0][0] != shuffled[0][1]


@pytest.mark.parametrize("epochs", [1, 2])
def test_a_plan_along_a_score_is_trained_on_from_end_to_end(
    settings: Callable[..., Settings], epochs: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stage, "EPOCHS", epochs)
    curriculum = {"score": "length", "shape": "rise"}
    sequence = {"length": LENGTH, "batch": 4, "epochs": epochs}
    evidence = {"tokens": 3_000, "orders": ("curated", "random_documents")}
    run = planned(settings(evidence, curriculum=curriculum, sequence=sequence), "scores")
    made = stage.Sequences.of(run)
    every = load_sequence_order(run)
    assert made.rows < 0.7 * every.shape[1]
    for name in evidence["orders"]:
        _, read = made.planned(trained_order(name), 0)
        assert read.shape == (epochs, made.rows)
        assert all((np.bincount(epoch) == 1).all() for epoch in read)
    curated = made.planned(trained_order("curated"), 0)[1][0]
    packed = load_packed(run)
    of = np.repeat(np.arange(len(packed.indptr) - 1), np.diff(packed.indptr))
    rank = stream_ranks(run, load_stream(run))[packed.document]
    ranks = (np.bincount(of, rank * packed.length) / np.bincount(of, packed.length))[made.numbers[curated]]
    first, last = ranks[: len(ranks) // 4].mean(), ranks[-len(ranks) // 4 :].mean()
    assert first < 0.3 and last > 0.7
    # It is the plan's own order of these sequences.
    place = {number: at for at, number in enumerate(made.numbers[: made.rows].tolist())}
    assert [place[number] for number in every[0].tolist() if number in place] == curated.tolist()


def test_a_known_bad_order_is_caught(settings: Callable[..., Settings]) -> None:
    """Blocks of one topic each, as the input has them: a check that cannot tell them from a shuffle is none."""
    run = ran(settings({"tokens": 6_000, "orders": FEW}))
    summary = stage.load_evidence(run)
    original, curated, _ = summary["orders"]
    original, curated = (order["figures"][HELD_OUT]["less shuffled"]["mean"] for order in (original, curated))
    assert original > 0.2 and abs(curated) < 0.3 * original


def test_a_killed_run_goes_on_with_the_trainings_that_are_left(
    settings: Callable[..., Settings], monkeypatch: pytest.MonkeyPatch
) -> None:
    of, trained, train = settings({}), count(), stage._train

    def train_two(*given: Any, **options: Any) -> Any:
        if next(trained) == 2:
            raise KeyboardInterrupt
        return train(*given, **options)

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(stage, "_train", train_two)
        ran(of)
    run = ran(of)
    assert run.receipt("training_evidence").figures["trained_now"] == 1


def test_a_training_that_fails_is_named_and_the_others_go_on(
    settings: Callable[..., Settings], monkeypatch: pytest.MonkeyPatch
) -> None:
    train = training.train

    def failing(task: Any, rows: Any, seed: int, rate: float, *more: Any) -> Trained:
        trained = train(task, rows, seed, rate, *more)
        return trained if rate < 1 else Trained(*(np.nan * of for of in trained))

    monkeypatch.setattr(training, "train", failing)
    summary = stage.load_evidence(ran(settings({"learning_rates": (3e-3, 10.0)})))
    assert summary["learning rate"] == 3e-3
    means = {(row["order"], row["learning rate"]): row["mean"] for row in summary["rates"]}
    assert all((mean is None) == (rate == 10.0) for (_, rate), mean in means.items())
    assert len(means) == 6
    said = "the loss of order curated, seed 0, learning rate 10 is no number from step 0 on"
    assert any(note.startswith(said) for note in summary["notes"])


def test_bad_input_is_said(settings: Callable[..., Settings]) -> None:
    for section, value, said in (
        ("evidence", {"tokens": 5}, "evidence.tokens = 5 of the plan.s .* tokens make no sequence of 32"),
        ("engine", {"device": "cuda"}, 'engine.device is "cuda", which torch .* does not find'),
    ):
        with pytest.raises(InputError, match=said):
            ran(changed(settings({}), **{section: value}))


def test_one_command_shows_it(
    settings: Callable[..., Settings], tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: Any
) -> None:
    of = settings({"orders": ("curated",)})
    monkeypatch.setattr("dagster_divorder.settings.load_settings", lambda config: of)
    assert main(["prove"]) == main(["summary", "training_evidence"]) == 0
    shown = capsys.readouterr().out
    assert "Held-out loss, mean over sources: curated" in shown
    assert "random_sequences" in shown and "differs from the same sequences shuffled" in shown
    assert main(["report"]) == 0
    page = (of.output.path / "ordering_report.html").read_text()
    assert "Held-out loss, mean over sources: curated" in page and ">held-out loss less shuffled<" in page
    of = settings({"tokens": None})
    assert main(["prove"]) == 1
    assert "evidence.tokens is unset" in capsys.readouterr().err


@pytest.fixture
def chat_settings(tmp_path: Path) -> Callable[..., Settings]:
    chats = write_jsonl(tmp_path / "chats.jsonl", topic_chats(40))
    conversations = {"paths": [str(chats)], "source_field": "source", "format": "messages"}
    return partial(training_of, tmp_path, chats, input=conversations, sequence={"length": 160, "batch": 4})


@pytest.mark.parametrize("method", ["best_fit", "none", "concat"])
def test_every_order_of_conversations_has_the_same_masks(
    chat_settings: Callable[..., Settings], method: str
) -> None:
    run = planned(chat_settings({"tokens": 4_000}, packing={"method": method}))
    made, mask = stage.Sequences.of(run), load_loss_mask(run)
    assert made.rows >= 4
    is_trained = np.zeros(mask.begins[-1], bool)
    for first, last in zip(mask.trained.first, mask.trained.last, strict=True):
        is_trained[first:last] = True
    totals = set()
    for name in (*TRAINED_ORDERS, "original/balanced"):
        order = trained_order(name)
        plan, epochs = made.planned(order, 0)
        arrays = made.read_in(order, 0)
        expected = np.zeros(arrays["ids"].shape, bool)
        for row, sequence in enumerate(np.unique(epochs)):
            at = 0
            for place in range(plan.indptr[sequence], plan.indptr[sequence + 1]):
                length = plan.length[place]
                first = mask.begins[made.stream.record_of[plan.document[place]]]
                tokens = slice(first + plan.start[place], first + plan.start[place] + length)
                expected[row, at : at + length] = is_trained[tokens]
                at += length
        np.testing.assert_array_equal(arrays["counts"], expected)
        assert expected.any(axis=1).all() and not expected.all()
        rows = made.stream.record_of[plan.document]
        totals.add(int(mask.within(rows, plan.start, plan.length).sum()))
    # `concat` leaves out a last sequence that is not full.
    assert len(totals) == 1 or method == "concat"


def test_conversations_are_validated_whole_by_what_is_trained_on(
    chat_settings: Callable[..., Settings], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stage, "HELD_OUT_SHARE", 1.0)
    run = planned(chat_settings({"tokens": 4_000}))
    task = stage.make_task(run, stage.Sequences.of(run), [])
    heldout, mask = load_heldout(run), load_loss_mask(run)
    lengths, counts = task.heldout.lengths, task.heldout.counts
    rows = np.flatnonzero(heldout.documents)
    whole = run.column("token_counts", "lengths")[rows]
    assert sorted(lengths) == sorted(whole)
    assert counts.sum() == mask.within(rows, 0, whole).sum() < len(counts)

    run_all(chat_settings({"tokens": 1_000}), Silent(), GRAPH.needed(run.settings, "training_evidence"))
    assert all(
        math.isfinite(row["loss"])
        for row in load_results(run.settings.store.path).evidence.to_dict("records")
    )
    answers = chat_settings({"tokens": 4_000}, chats={"train_on": "last"})
    before = stage.TRAINING_EVIDENCE.key(open_run(run.settings))
    assert stage.TRAINING_EVIDENCE.key(planned(answers)) != before


def test_pairs_have_no_evidence_of_this_kind(tmp_path: Path) -> None:
    record = {"prompt": "Q", "chosen": "A", "rejected": "B", "source": "a"}
    pairs = write_jsonl(tmp_path / "pairs.jsonl", [record])
    settings = training_of(tmp_path, pairs, {}, input={"paths": [str(pairs)], "format": "pairs"})
    with pytest.raises(InputError, match="an input holds pairs, whose loss compares two answers"):
        run_all(settings, Silent(), GRAPH.needed(settings, "training_evidence"))
