"""training_evidence: trains small decoders on the same tokens in several orders, and compares what the orders did.

Models are trained on the first `evidence.tokens` tokens of the plan; if the plan follows a score, on batches that are
evenly spaced in it. `curated` reads the sequences as planned. `random_sequences` reads the same sequences, shuffled
differently each epoch. Every order is compared with these shuffles, each training with a shuffle from the same initial
weights. Orders of documents pack the same tokens again by `concat`, conversations whole by their own method. Losses are
means over the trained tokens. Each training is a file of the result, named by a hash of everything that it reads. A
training that has a file, even in the result before, is not repeated.

Letters: R trainings of an order, e steps an epoch, B sequences a batch, L tokens a sequence, S sequences.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import orjson
import xxhash

from dagster_divorder.core.evidence.training_evidence import (
    HELD_OUT,
    Trained,
    is_beyond_noise,
    summarise,
    with_interval,
)
from dagster_divorder.core.order import order as make_order
from dagster_divorder.core.packing import PackedSequences, Pieces, pack
from dagster_divorder.core.packing.coordinates import with_coordinates
from dagster_divorder.engine.local import KEEP_MEMORY, worker_number
from dagster_divorder.engine.progress import Advance
from dagster_divorder.errors import InputError
from dagster_divorder.pipeline.run import Run
from dagster_divorder.pipeline.stage import File, Made, Shown, Table, Text, WholeCorpus, content_hash
from dagster_divorder.settings.sections import SHUFFLED, TrainedOrder, trained_order
from dagster_divorder.stages.corpus.chat_template import reading
from dagster_divorder.stages.mix.heldout_copies import heldout_table, load_heldout
from dagster_divorder.stages.mix.repeats import TrainingStream, load_stream, run_counter
from dagster_divorder.stages.order.greedy_order import order_documents
from dagster_divorder.stages.order.packed_sequences import load_packed
from dagster_divorder.stages.order.sequence_order import load_sequence_order, sequence_items, vector_sums
from dagster_divorder.stages.output.exports import end_of_text, stored_tokens
from dagster_divorder.stages.text.base_model import load_base_model
from dagster_divorder.stages.topics.components import space_reads
from dagster_divorder.stages.topics.deep_embeddings import call_on_a_worker
from dagster_divorder.store.arrays import pack as pack_arrays
from dagster_divorder.store.arrays import unpack
from dagster_divorder.store.base import Store
from dagster_divorder.store.state import Receipt, load_receipt
from dagster_divorder.view.charts import trainings
from dagster_divorder.view.words import count, fixed
from dagster_divorder.write.exports.rows import Rows

if TYPE_CHECKING:
    from dagster_divorder.models.training import Task

STAGE = "training_evidence"
COLUMNS = ("order", "seed", "learning_rate", "epoch", "source", "loss")
"""Of the table of held-out losses."""
ALL = "all, equal shares"
"""The name of the mean over sources, in tables of sources."""
SEEDS, EPOCHS = 3, 2
"""Trainings of each order, each with other weights and shuffles, and their epochs: orders differ most at the seam."""
STEPS = 250
"""Least steps of an epoch."""
HELD_OUT_SHARE = 0.05
"""Tokens to validate on after each epoch, as a share of the training tokens; equally many of every source."""
TRAINED_VERSION = 5
"""Version of the training code, part of every training's name: a change of the summary alone keeps the trainings."""
TOKENS_A_WORKER = 500_000
"""Fewest tokens for which a worker is started: to start torch takes as long as to train on some 200,000."""


class _Training(NamedTuple):
    """One training. name: of its result."""

    name: str
    order: str
    seed: int
    rate: float


def _train_in_each_order(run: Run) -> Made:
    from dagster_divorder.models.training import KINDS, make_model

    store, notes = run.store, list[str]()
    folder = f"stages/{STAGE}/{TRAINING_EVIDENCE.key(run)}"
    sequences = Sequences.of(run)
    task = make_task(run, sequences, notes)
    before = load_receipt(store, STAGE)
    kept = {name: file for name, file in before.files.items() if store.exists(file)} if before else {}
    known = {**kept, **store.hashed(folder)}
    trainings, arrays = list[_Training](), dict[str, bytes]()
    sources, *texts = task.heldout
    every = pack_arrays({"classes": task.classes, **{str(at): array for at, array in enumerate(texts)}})
    decides = [TRAINED_VERSION, xxhash.xxh3_128_hexdigest(every), sources, task.batch, task.device]
    for name in dict.fromkeys([*run.settings.evidence.orders, SHUFFLED]):
        for seed in range(SEEDS):
            read = pack_arrays(sequences.read_in(trained_order(name), seed))
            for rate in run.settings.evidence.learning_rates:
                key = content_hash(decides, xxhash.xxh3_128_hexdigest(read), seed, rate)
                trainings.append(_Training(f"run-{key}", name, seed, rate))
                if trainings[-1].name not in known:
                    arrays[trainings[-1].name] = read
    # If a run is stopped, all orders are trained with the first seeds.
    missing = sorted((each for each in trainings if each.name in arrays), key=lambda each: each.seed)
    tokens = EPOCHS * sequences.rows * sequences.plan.sequence_length
    if missing:
        run.progress.note(
            f"training {len(missing):,} of {len(trainings):,} models, "
            f"{EPOCHS * sequences.steps:,} steps of {count(sequences.batch, 'sequence')} each"
        )
        doing = f"training {count(len(missing), 'model')}"
        with run.progress(doing, tokens * len(missing), "tokens") as advance:
            for _ in run.engine.each(
                partial(_train, store, folder, task),
                [(each, arrays[each.name]) for each in missing],
                workers=max(1, tokens * len(missing) // TOKENS_A_WORKER),
                gpus=int(task.device == "cuda"),
                # Keeping the memory of a step for the next one saves a third of the time.
                environment=KEEP_MEMORY,
                advance=advance,
            ):
                pass
    known |= store.hashed(folder)
    results = {each: store.read_verified(known[each.name]) for each in trainings}
    trained = {each: Trained(**unpack(result)) for each, result in results.items()}
    compared: dict[tuple[str, float], list[Trained]] = {}
    for each, records in trained.items():
        compared.setdefault((each.order, each.rate), []).append(records)
        if not np.isfinite(records.losses).all():
            notes.append(
                f"the loss of order {each.order}, seed {each.seed}, learning rate {each.rate:g} is no number from step "
                f"{np.argmin(np.isfinite(records.losses)):,} on; lower evidence.learning_rates"
            )
    summary = {
        **summarise(compared, SHUFFLED, sequences.steps, sources, KINDS, tokens),
        "weights": sum(each.numel() for each in make_model(task.class_count, 1, 0).parameters()),
        "seeds": SEEDS,
        "epochs": EPOCHS,
        "steps": sequences.steps,
        "batch": sequences.batch,
        "length": sequences.plan.sequence_length,
        "notes": notes,
    }
    files: dict[str, Any] = {
        **{each.name: File(result, "safetensors") for each, result in results.items()},
        "table": [
            dict(zip(COLUMNS, (*each[1:], epoch + 1, source, float(loss)), strict=True))
            for each, records in trained.items()
            for epoch, losses in enumerate(records.heldout)
            for source, loss in zip([*sources, ALL], [*losses, losses.mean()], strict=True)
        ],
        "summary": File(orjson.dumps(summary, option=orjson.OPT_SERIALIZE_NUMPY), "json"),
    }
    figures = {
        "verdict": " ".join(summary["verdict"]),
        "trainings": len(trainings),
        "trained_now": len(missing),
        "tokens_an_epoch": tokens // EPOCHS,
        "weights": summary["weights"],
        "steps": EPOCHS * sequences.steps,
        "notes": notes,
    }
    return Made(files, figures=figures)


def _train(store: Store, folder: str, task: Task, item: tuple[_Training, bytes], advance: Advance) -> None:
    """Train one model in an engine's worker and store the result."""
    from dagster_divorder.models.training import train

    if task.device == "cuda":
        import torch

        torch.cuda.set_device(worker_number())
    each, arrays = item
    trained = train(task, unpack(arrays), each.seed, each.rate, advance)
    store.put_hashed(folder, each.name, pack_arrays(trained._asdict()), "safetensors")


@dataclass(frozen=True, eq=False)
class Sequences:
    """The training sequences. plan: the sequences, in the order in which the whole plan first reads them. numbers:
    their numbers in the whole plan, int64 (S,). steps: e. batch: B."""

    run: Run
    stream: TrainingStream
    plan: PackedSequences
    numbers: np.ndarray
    steps: int
    batch: int

    @classmethod
    def of(cls, run: Run) -> Sequences:
        """The sequences that `evidence.tokens` asks for.

        Raises:
            InputError: there are fewer tokens than in a sequence.
        """
        settings, evidence, packed = run.settings, run.settings.evidence, load_packed(run)
        assert evidence.tokens is not None
        numbers, stream = load_sequence_order(run)[0], load_stream(run)
        before = np.append(0, np.cumsum(run_counter(run, stream.record_of)(packed)))
        # A sequence without a trained token would leave its batch without a loss.
        numbers = numbers[np.diff(before[packed.indptr])[numbers] > 0]
        if settings.curriculum.on:
            # The beginning of the plan would have only one end of the score: batches are spread evenly.
            share = min(1.0, evidence.tokens / packed.tokens[numbers].sum())
            at = np.arange(len(numbers)) // settings.sequence.batch
            numbers = numbers[np.floor((at + 1) * share) > np.floor(at * share)]
        kept = int(np.searchsorted(np.cumsum(packed.tokens[numbers]), evidence.tokens, side="right"))
        numbers = numbers[:kept]
        plan = packed.take(numbers)
        if settings.has_chats:
            # If sequences hold one record and padding, L is the length of the longest.
            plan = replace(plan, sequence_length=int(plan.tokens.max(initial=1)))
        # Orders of documents repack padded sequences with less padding, which makes fewer.
        none = settings.packing.method == "none"
        full = kept if none else min(kept, int(plan.tokens.sum()) // settings.sequence.length)
        batch = max(1, min(settings.sequence.batch, full // STEPS))
        if not full:
            raise InputError(
                f"evidence.tokens = {evidence.tokens:,} of the plan's {int(packed.length.sum()):,} tokens make no "
                f"sequence of {settings.sequence.length:,}; raise evidence.tokens, or lower sequence.length"
            )
        return cls(run, stream, plan, numbers, full // batch, batch)

    @property
    def rows(self) -> int:
        """Number of sequences in an epoch; a last incomplete batch is left out, as trainers do."""
        return self.steps * self.batch

    def read_in(self, order: TrainedOrder, seed: int) -> dict[str, np.ndarray]:
        """What a training reads, as `models.training.train` takes it."""
        plan, epochs = self.planned(order, seed)
        used, place = np.unique(epochs, return_inverse=True)
        return {**self.tokens(plan, used), "epochs": place.reshape(epochs.shape)}

    def tokens(self, plan: PackedSequences, sequences: np.ndarray) -> dict[str, np.ndarray]:
        """Tokens of S sequences of a plan, each (S, L): their `ids`, integer; `counts`, bool, those that are trained
        on."""
        every = np.arange(len(sequences))
        rows = Rows(plan, sequences, every[None], stored_tokens(self.run))
        ids, trained = rows.gather(), rows.trained
        counts = np.arange(rows.length) < plan.tokens[sequences, None]
        if trained is not None:
            counts = trained.marked(every * rows.length, np.full(len(every), rows.length)).reshape(ids.shape)
        return {"ids": ids, "counts": counts}

    def planned(self, order: TrainedOrder, seed: int) -> tuple[PackedSequences, np.ndarray]:
        """(the sequences of an order, the sequences that each epoch reads in order, int64 (E, n))."""
        settings, rows = self.run.settings, self.rows
        plan = self.plan if order.documents == "curated" else self.packed(order.documents, seed)
        if order.sequences == "original":
            return plan, np.tile(np.arange(rows), (EPOCHS, 1))
        if order.sequences == "random":
            rng = np.random.default_rng([settings.seed + seed, 1])
            shuffled = rng.permutation(len(plan))[:rows]
            return plan, np.stack([shuffled, *(rng.permutation(shuffled) for _ in range(EPOCHS - 1))])
        if order.sequences == "curated":  # the plan's own orders of these sequences
            orders = load_sequence_order(self.run)
            place = np.full(orders.max(initial=-1) + 1, -1)
            place[self.numbers[:rows]] = np.arange(rows)
            read = [place[order][place[order] >= 0] for order in orders]
            return plan, np.stack([read[epoch % len(read)] for epoch in range(EPOCHS)])
        items = sequence_items(self.run, self.stream, plan)
        items = with_coordinates(items, plan, vector_sums(self.run, plan))
        arguments = settings.order_arguments(order.sequences, settings.seed + seed)
        return plan, np.tile(make_order(items, **arguments)[:rows], (EPOCHS, 1))

    def packed(self, documents: str, seed: int) -> PackedSequences:
        """The plan's tokens, packed again with the documents in another order. `concat` leaves out an incomplete last
        sequence."""
        settings, plan = self.run.settings, self.plan
        at = np.lexsort((plan.start, plan.document))
        document, start, length = plan.document[at], plan.start[at], plan.length[at]
        # Adjacent runs of a document are one piece.
        apart = (document[1:] != document[:-1]) | (start[1:] != start[:-1] + length[:-1])
        first = np.flatnonzero(np.append(True, apart))
        pieces = Pieces(document[first], start[first], np.add.reduceat(length, first))
        counted, draw = run_counter(self.run, self.stream.record_of)(pieces), settings.seed + seed
        traits = replace(self.stream.traits.take(pieces.document), tokens=pieces.length, counted=counted)
        order = order_documents((traits, draw), settings, documents)
        own = settings.packing.method
        method = own if own == "none" or (settings.has_chats and own == "best_fit") else "concat"
        packed = pack(pieces.take(order), method=method, sequence_length=self.plan.sequence_length, seed=draw)
        return packed.part(0, len(packed) - int(method == "concat" and packed.padding[-1] > 0))


def make_task(run: Run, sequences: Sequences, notes: list[str]) -> Task:
    """What all trainings share. notes: gets what people should know.

    Raises:
        InputError: no document is held out.
    """
    from dagster_divorder.models.chat_tokens import encode_trained
    from dagster_divorder.models.spec import find_device
    from dagster_divorder.models.tokenize import load_reference
    from dagster_divorder.models.training import Heldout, Task, token_classes

    base, vocabulary = load_base_model(run), run.receipt("base_model").facts["vocabulary"]
    tokens = sequences.tokens(sequences.plan, np.arange(len(sequences.plan)))
    if run.settings.has_chats:
        share = tokens["counts"].sum() / sequences.plan.length.sum()
        notes.append(f"losses are of the tokens that are trained on, {share:.0%} of those that are read")
    classes = token_classes(np.bincount(tokens["ids"].ravel(), minlength=vocabulary))
    table = heldout_table(run, load_heldout(run)).to_pydict()
    if not table["text"]:
        raise InputError(
            "no document of the corpus is held out; expected some to validate on: raise heldout.documents"
        )
    if run.settings.has_chats:
        spans = [[(span["first"], span["last"]) for span in of] for of in table["trained"]]
        ids, lengths, counts = encode_trained(table["text"], spans, load_reference(base.directory))
    else:
        ids, lengths = base.encoder().encode(table["text"])
        counts = np.ones(len(ids), bool)
    # Some documents of every source.
    sources, first, source = np.unique(table["source"], return_index=True, return_inverse=True)
    ends, tokens_an_epoch = np.cumsum(lengths), sequences.rows * sequences.plan.sequence_length
    kept = ends - (ends - lengths)[first][source] <= HELD_OUT_SHARE * tokens_an_epoch / len(sources)
    kept[first] = True
    inside = np.repeat(kept, lengths)
    return Task(
        classes=classes,
        batch=sequences.batch,
        device=call_on_a_worker(run, find_device),
        heldout=Heldout(sources.tolist(), source[kept], classes[ids[inside]], lengths[kept], counts[inside]),
    )


def evidence_tables(summary: Mapping[str, Any]) -> dict[str, list[dict[str, str]]]:
    """By name: `figures`, every figure of every order as mean ± standard error, and its difference from shuffled with
    an interval, * where it differs beyond noise; `rates`, the held-out losses at each learning rate if there are
    several."""
    figures = [
        {
            "figure": figure,
            "order": order["order"],
            "mean": _with_error(order["figures"][figure]["value"]),
            "less shuffled": with_interval(less) + (" *" if is_beyond_noise(less) else ""),
        }
        for figure in summary["orders"][0]["figures"]
        for order in summary["orders"]
        for less in [order["figures"][figure]["less shuffled"]]
    ]
    rates = [
        {
            "order": pair["order"],
            "learning rate": f"{pair['learning rate']:g}",
            HELD_OUT: _with_error(pair),
        }
        for pair in summary["rates"]
    ]
    return {"figures": figures} | ({"rates": rates} if len(rates) > len(summary["orders"]) else {})


def _with_error(figure: Mapping[str, float | None]) -> str:
    return fixed(figure["mean"], 4) + ("" if figure["error"] is None else f" ± {figure['error']:.4f}")


def load_evidence(run: Run) -> dict[str, Any]:
    """The summary of the last result."""
    return orjson.loads(run.read(STAGE, "summary"))


def _show_training_evidence(run: Run, receipt: Receipt) -> Shown:
    summary = load_evidence(run)
    star = "*: differs from the same sequences shuffled beyond noise"
    return {
        "verdict": Text("\n\n".join([*summary["verdict"], *summary["notes"], star])),
        "trainings": trainings(summary),
        **{name: Table(rows) for name, rows in evidence_tables(summary).items()},
    }


def _check_settings(run: Run) -> None:
    if "pairs" in run.settings.forms:
        raise InputError(
            "evidence.tokens is set, but an input holds pairs, whose loss compares two answers; trainings here use the "
            "loss of one text: unset evidence.tokens"
        )


TRAINING_EVIDENCE: WholeCorpus = WholeCorpus(
    name=STAGE,
    version=7,
    description="Whether the order helps training. Small models are trained on the same tokens in several orders and "
    "compared: held-out loss by source, the seam between epochs, gradients, and which differences exceed noise.",
    reads=lambda settings: (
        *("raw_docs", "token_counts", "base_model", *space_reads(settings), "clusters", "traits"),
        *("heldout", "heldout_copies", "repeats", "packed_sequences", "sequence_order"),
    ),
    settings=(
        *("evidence", "order", "sequence", "packing", "curriculum", "mixing"),
        *("engine.device", "seed"),
    ),
    decided_by=lambda run: {
        **TRAINING_EVIDENCE.usual(run),
        "end_of_text": end_of_text(run),
        **reading(run),
    },
    # It costs as much as training, so it exists only on request.
    when=lambda settings: settings.evidence.tokens is not None,
    check=_check_settings,
    compute=_train_in_each_order,
    show=_show_training_evidence,
)
