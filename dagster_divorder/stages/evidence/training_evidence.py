"""training_evidence: trains small decoders on the same tokens in several orders, and compares what the orders did.

Models are trained on the first `evidence.tokens` tokens of the plan; if the plan follows a score, on batches that are
evenly spaced in it. `curated` reads the sequences as planned. `random_sequences` reads the same sequences, shuffled
differently each epoch. Every order is compared with these shuffles, each training with a shuffle from the same initial
weights. Orders whose attention stops at documents are compared with shuffles read in that way. Orders of documents pack
the same tokens again by `concat`, conversations whole by their own method. The output does not need this stage.

Losses are means over the trained tokens. Validation reads held-out documents one by one, as `loss_by_source` does.

Each training is a file of the result, named by a hash of everything that it reads. A training that has a file, even in
the result before, is not repeated. Letters: R trainings of an order, e steps an epoch, B sequences a batch, L tokens a
sequence, S sequences.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import orjson
import xxhash

from dagster_divorder.core.evidence.training_evidence import (
    Trained,
    estimate,
    mean,
    order_figures,
    sensitivity,
    source_figures,
    verdict,
)
from dagster_divorder.core.order import order as make_order
from dagster_divorder.core.order.items import Items, document_items
from dagster_divorder.core.packing import PackedSequences, Pieces, pack, sequence_counts, with_all_tokens
from dagster_divorder.core.packing.coordinates import with_coordinates
from dagster_divorder.core.rows import row_entries
from dagster_divorder.engine.local import KEEP_MEMORY, worker_number
from dagster_divorder.engine.progress import Advance
from dagster_divorder.errors import InputError
from dagster_divorder.pipeline.run import Run
from dagster_divorder.pipeline.stage import File, Made, Picture, Shown, Table, Text, WholeCorpus, content_hash
from dagster_divorder.settings import Settings
from dagster_divorder.settings.sections import TrainedOrder, shuffled_order, trained_order
from dagster_divorder.stages.corpus.chat_template import reading
from dagster_divorder.stages.mix.heldout_copies import heldout_reads, heldout_table, load_heldout
from dagster_divorder.stages.mix.repeats import TrainingStream, load_stream, run_counter, stream_reads
from dagster_divorder.stages.order.packed_sequences import load_packed, sequence_traits
from dagster_divorder.stages.order.sequence_order import first_reads, load_sequence_order, vector_sums
from dagster_divorder.stages.output.exports import check_special_tokens, named_end_of_text, stored_tokens
from dagster_divorder.stages.text.base_model import load_base_model
from dagster_divorder.stages.text.loss_mask import load_loss_mask
from dagster_divorder.stages.topics.components import space_reads
from dagster_divorder.stages.topics.deep_embeddings import call_on_a_worker
from dagster_divorder.store.arrays import pack as pack_arrays
from dagster_divorder.store.arrays import unpack
from dagster_divorder.store.base import Store
from dagster_divorder.store.state import Receipt, load_receipt
from dagster_divorder.view.evidence import order_rows, rate_rows, source_rows
from dagster_divorder.view.words import count
from dagster_divorder.write.exports.rows import Rows

if TYPE_CHECKING:
    from dagster_divorder.models.training import Task, Texts

STAGE = "training_evidence"
REFERENCE = "random_sequences"
ALL = "all, equal shares"
"""The name of the mean over sources, in tables of sources."""
SEEDS, EPOCHS = 3, 2
"""Trainings of each order, each with other weights and shuffles, and their epochs: orders differ most at the seam."""
STEPS = 250
"""Least steps of an epoch."""
HELD_OUT_SHARE = 0.05
"""Tokens to validate on after each epoch, as a share of the training tokens; equally many of every source."""
TRAINED_VERSION = 3
"""Version of the training code, part of every training's name: a change of the summary alone keeps the trainings."""


class _Training(NamedTuple):
    """One training. name: of its result. data: name of the file that it reads."""

    name: str
    order: str
    seed: int
    rate: float
    data: str


def orders_of(settings: Settings) -> list[str]:
    """`evidence.orders` and the orders that they are compared with."""
    orders = settings.evidence.orders
    return list(dict.fromkeys([*orders, REFERENCE, *map(shuffled_order, orders)]))


def _train_in_each_order(run: Run) -> Made:
    store, notes = run.store, list[str]()
    folder = f"stages/{STAGE}/{TRAINING_EVIDENCE.key(run)}"
    sequences = Sequences.of(run)
    task = make_task(run, sequences, notes)
    before = load_receipt(store, STAGE)
    kept = {name: file for name, file in before.files.items() if store.exists(file)} if before else {}
    known = {**kept, **store.hashed(folder)}
    try:
        trainings = _name_trainings(sequences, task, folder, known)
        # If a run is stopped, all orders are trained with the first seeds.
        missing = sorted((each for each in trainings if each.name not in known), key=lambda each: each.seed)
        tokens = sequences.epochs * sequences.rows * sequences.plan.sequence_length
        if missing:
            run.progress.note(
                f"training {len(missing):,} of {len(trainings):,} models, "
                f"{sequences.epochs * sequences.steps:,} steps of {count(sequences.batch, 'sequence')} each"
            )
            train = partial(_train, store, folder, task)
            with run.progress(
                f"training {len(missing):,} models", tokens * len(missing), "tokens"
            ) as advance:
                # Keeping the memory of a step for the next one saves a third of the time.
                for _ in run.engine.each(
                    train, missing, gpus=int(task.device == "cuda"), environment=KEEP_MEMORY, advance=advance
                ):
                    pass
    finally:
        written = store.hashed(folder)
        store.discard(*(file for name, file in written.items() if name.startswith("data-")))
    known |= written
    results = {each: store.read_verified(known[each.name]) for each in trainings}
    trained = {each: Trained(**unpack(result)) for each, result in results.items()}
    for each, records in trained.items():
        if not np.isfinite(records.losses).all():
            notes.append(
                f"the loss of order {each.order}, seed {each.seed}, learning rate {each.rate:g} is no number from step "
                f"{np.argmin(np.isfinite(records.losses)):,} on; lower evidence.learning_rates"
            )
    summary = _summary(run, sequences, task, trained, notes)
    from dagster_divorder.view.pictures import training_evidence as draw

    files: dict[str, Any] = {
        **{each.name: File(result, "safetensors") for each, result in results.items()},
        "table": _table(trained, sorted(task.heldout)),
        "summary": File(orjson.dumps(summary, option=orjson.OPT_SERIALIZE_NUMPY), "json"),
        "picture": File(draw(summary), "png"),
    }
    figures = {
        "verdict": " ".join(summary["verdict"]),
        "trainings": len(trainings),
        "trained_now": len(missing),
        "tokens_an_epoch": tokens // sequences.epochs,
        "weights": summary["weights"],
        "steps": sequences.epochs * sequences.steps,
        "notes": notes,
    }
    return Made(files, figures=figures)


def _name_trainings(
    sequences: Sequences, task: Task, folder: str, known: Mapping[str, str]
) -> list[_Training]:
    """All trainings of a run. Stores what those read whose names are not `known`."""
    settings, store = sequences.run.settings, sequences.run.store
    heldout = {f"{source} {at}": array for source, of in task.heldout.items() for at, array in enumerate(of)}
    every = pack_arrays({"classes": task.classes, **heldout})
    decides = [TRAINED_VERSION, xxhash.xxh3_128_hexdigest(every), task.batch, task.device]
    trainings, data = [], dict[str, str]()
    for name in orders_of(settings):
        order = trained_order(name)
        for seed in range(SEEDS):
            arrays = pack_arrays(sequences.read_in(order, seed))
            reads = xxhash.xxh3_128_hexdigest(arrays)
            for rate in _learning_rates(settings):
                result = f"run-{content_hash(decides, reads, order.apart, seed, rate)}"
                if result not in known and reads not in data:
                    data[reads] = store.put_hashed(folder, f"data-{reads}", arrays, "safetensors")
                trainings.append(_Training(result, name, seed, rate, data.get(reads, "")))
    return trainings


def _learning_rates(settings: Settings) -> tuple[float, ...]:
    """`evidence.learning_rates`, or the model's own rate."""
    from dagster_divorder.models.training import LEARNING_RATE

    return settings.evidence.learning_rates or (LEARNING_RATE,)


def _train(store: Store, folder: str, task: Task, each: _Training, advance: Advance) -> None:
    """Train one model in an engine's worker and store the result."""
    from dagster_divorder.models.training import train

    if task.device == "cuda":
        import torch

        torch.cuda.set_device(worker_number())
    task = replace(task, seed=each.seed, learning_rate=each.rate, apart=trained_order(each.order).apart)
    trained = train(task, unpack(store.read_verified(each.data)), advance)
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
            InputError: there are fewer tokens than in a batch.
        """
        settings, evidence, packed = run.settings, run.settings.evidence, load_packed(run)
        assert evidence.tokens is not None
        numbers, stream, mask = first_reads(load_sequence_order(run)), load_stream(run), load_loss_mask(run)
        if mask is not None:
            rows = stream.record_of[packed.document]
            before = np.concatenate([[0], np.cumsum(mask.within(rows, packed.start, packed.length))])
            # A sequence without a trained token would leave its batch without a loss.
            numbers = numbers[np.diff(before[packed.indptr])[numbers] > 0]
        places = np.arange(len(numbers))
        if settings.curriculum.on:
            # The beginning of the plan would have only one end of the score.
            places = evenly_first(len(numbers), settings.sequence.batch)
        tokens = np.cumsum(packed.tokens[numbers[places]])
        kept = int(np.searchsorted(tokens, evidence.tokens, side="right"))
        numbers = numbers[np.sort(places[:kept])]
        plan = _take(packed, numbers)
        if settings.masked:
            # If sequences hold one record and padding, L is the length of the longest.
            plan = replace(plan, sequence_length=int(plan.tokens.max(initial=1)))
        # Orders of documents repack padded sequences with less padding, which makes fewer.
        none = settings.packing.method == "none"
        full = kept if none else min(kept, int(plan.tokens.sum()) // settings.sequence.length)
        batch = max(1, min(settings.sequence.batch, full // STEPS))
        if full < batch:
            raise InputError(
                f"evidence.tokens = {evidence.tokens:,} of the plan's {int(packed.length.sum()):,} tokens make "
                f"{full:,} sequences of {settings.sequence.length:,} tokens, but a batch has {batch:,}; expected at "
                "least one batch: raise evidence.tokens, or lower sequence.length"
            )
        return cls(run, stream, plan, numbers, full // batch, batch)

    @property
    def epochs(self) -> int:
        """Epochs of a training; as many as one schedule of the plan spans."""
        return max(EPOCHS, self.run.settings.schedule_epochs)

    @property
    def rows(self) -> int:
        """Number of sequences in an epoch; a last incomplete batch is left out, as trainers do."""
        return self.steps * self.batch

    def read_in(self, order: TrainedOrder, seed: int) -> dict[str, np.ndarray]:
        """What a training reads, as `models.training.train` takes it."""
        plan, epochs = self.planned(order, seed)
        used, place = np.unique(epochs, return_inverse=True)
        return {**self.tokens(_take(plan, used)), "epochs": place.reshape(epochs.shape)}

    def tokens(self, plan: PackedSequences) -> dict[str, np.ndarray]:
        """A plan's tokens, each (S, L): their `ids`, integer; `counts`, bool, those that are trained on; `begins`,
        bool, those that begin a document."""
        every = np.arange(len(plan))
        rows = Rows(plan, every, every[None], stored_tokens(self.run, load_base_model(self.run).directory))
        ids, trained = rows.gather(), rows.trained
        counts = np.arange(rows.length) < plan.tokens[:, None]
        if trained is not None:
            counts = trained.marked(every * rows.length, np.full(len(plan), rows.length)).reshape(ids.shape)
        before = np.cumsum(plan.length) - plan.length
        row = every.repeat(np.diff(plan.indptr))
        begins = np.zeros(ids.shape, bool)
        begins[row, before - before[plan.indptr[row]]] = True
        return {"ids": ids, "counts": counts, "begins": begins}

    def planned(self, order: TrainedOrder, seed: int) -> tuple[PackedSequences, np.ndarray]:
        """(the sequences of an order, the sequences that each epoch reads in order, int64 (E, n))."""
        rows, epochs = self.rows, self.epochs
        plan = self.plan if order.documents == "curated" else self.packed(order.documents, seed)
        if order.sequences == "curated":
            return plan, self.curated_epochs()
        if order.sequences == "original":
            return plan, np.tile(np.arange(rows), (epochs, 1))
        if order.sequences == "random":
            rng = np.random.default_rng([self.run.settings.seed + seed, 1])
            shuffled = rng.permutation(len(plan))[:rows]
            return plan, np.stack([shuffled, *(rng.permutation(shuffled) for _ in range(epochs - 1))])
        items = self.items(plan)
        arguments = self.arguments(order.sequences, items, seed)
        ordered = make_order(items.counts, items.groups, coordinates=items.coordinates, **arguments)
        return plan, np.tile(ordered[:rows], (epochs, 1))

    def curated_epochs(self) -> np.ndarray:
        """The plan's own orders of these sequences, int64 (E, n), as places in `plan`."""
        orders = load_sequence_order(self.run)
        if self.run.settings.schedule_epochs > 1:
            # One order covers all epochs, and no epoch reads every sequence.
            orders = orders.reshape(1, -1)
        place = np.full(orders.max(initial=-1) + 1, -1)
        place[self.numbers[: self.rows]] = np.arange(self.rows)
        read = [row for order in orders for row in place[order][place[order] >= 0].reshape(-1, self.rows)]
        return np.stack([read[epoch % len(read)] for epoch in range(self.epochs)])

    def packed(self, documents: str, seed: int) -> PackedSequences:
        """The plan's tokens, packed again with the documents in another order. `concat` leaves out an incomplete last
        sequence."""
        settings, codes = self.run.settings, self.stream.traits.codes
        pieces, draw = _whole_pieces(self.plan), settings.seed + seed
        if documents == "original":
            order = np.arange(len(pieces))
        elif documents == "clusters":
            shuffled = np.random.default_rng([draw, 2]).permutation(len(pieces))
            order = shuffled[np.argsort(codes["cluster"][pieces.document[shuffled]], kind="stable")]
        else:
            items = document_items(
                run_counter(self.run, self.stream.record_of)(pieces),
                {name: codes[name][pieces.document] for name in settings.order.traits},
                settings.order.traits,
                lengths=pieces.length,
            )
            order = make_order(items.counts, items.groups, **self.arguments(documents, items, seed))
        own = settings.packing.method
        method = own if own == "none" or (settings.masked and own == "best_fit") else "concat"
        packed = pack(pieces.take(order), method=method, sequence_length=self.plan.sequence_length, seed=draw)
        return packed.part(0, len(packed) - int(method == "concat" and packed.padding[-1] > 0))

    def items(self, plan: PackedSequences) -> Items:
        """The sequences as items to order."""
        settings, traits = self.run.settings, self.stream.traits
        names = sequence_traits(settings.order.traits)
        codes = {name: traits.codes[name] for name in names}
        tokens = run_counter(self.run, self.stream.record_of)(plan)
        counts, groups = sequence_counts(plan, codes, traits.sizes(), tokens)
        items = Items(counts, groups, np.array([settings.order.traits[name] for name in names]))
        if traits.trained is not None:
            items = with_all_tokens(items, plan, codes, traits.sizes())
        return with_coordinates(items, plan, vector_sums(self.run, plan))

    def arguments(self, strategy: str, items: Items, seed: int) -> dict[str, Any]:
        common = self.run.settings.order_arguments(strategy)
        return {**common, "weights": items.weights, "seed": common["seed"] + seed}


def evenly_first(items: int, batch: int) -> np.ndarray:
    """Places 0 to items - 1 in runs of `batch`, int64 (items,), in an order whose every beginning is spread evenly."""
    runs = -(-items // batch)
    # Multiples of the golden ratio, less their whole parts.
    order = np.argsort(np.argsort(np.arange(runs) * 0.6180339887498949 % 1.0, kind="stable"), kind="stable")
    places = (order[:, None] * batch + np.arange(batch)).ravel()
    return places[places < items]


def _take(plan: PackedSequences, sequences: np.ndarray) -> PackedSequences:
    """A plan with some of its sequences, in the given order."""
    runs, indptr = row_entries(plan.indptr, sequences)
    columns = {name: getattr(plan, name)[runs] for name in ("document", "start", "length")}
    return PackedSequences(**columns, indptr=indptr, sequence_length=plan.sequence_length)


def _whole_pieces(plan: PackedSequences) -> Pieces:
    """The tokens of a plan by document; adjacent runs of a document become one piece."""
    at = np.lexsort((plan.start, plan.document))
    document, start, length = plan.document[at], plan.start[at], plan.length[at]
    begins = np.ones(len(at), bool)
    begins[1:] = (document[1:] != document[:-1]) | (start[1:] != start[:-1] + length[:-1])
    first = np.flatnonzero(begins)
    return Pieces(document[first], start[first], np.add.reduceat(length, first) if len(first) else length)


def make_task(run: Run, sequences: Sequences, notes: list[str]) -> Task:
    """What all trainings share; their seed, learning rate and attention are set for each. notes: gets what people
    should know.

    Raises:
        InputError: no document is held out.
    """
    from dagster_divorder.models.spec import find_device
    from dagster_divorder.models.training import Task, token_classes

    vocabulary = run.receipt("base_model").facts["vocabulary"]
    tokens = sequences.tokens(sequences.plan)
    if run.settings.masked:
        share = tokens["counts"].sum() / sequences.plan.length.sum()
        notes.append(f"losses are of the tokens that are trained on, {share:.0%} of those that are read")
    classes, class_count = token_classes(np.bincount(tokens["ids"].ravel(), minlength=vocabulary))
    heldout = _heldout_texts(run, sequences.rows * sequences.plan.sequence_length, notes)
    return Task(
        classes=classes,
        class_count=class_count,
        seed=0,
        batch=sequences.batch,
        apart=False,
        device=call_on_a_worker(run, find_device),
        heldout={
            source: (classes[ids], lengths, counts) for source, (ids, lengths, counts) in heldout.items()
        },
    )


def _heldout_texts(run: Run, tokens: int, notes: list[str]) -> dict[str, Texts]:
    """Source -> some of its held-out documents. tokens: of an epoch."""
    from dagster_divorder.models.chat_tokens import encode_trained

    table, base, trait = (
        heldout_table(run, load_heldout(run)),
        load_base_model(run),
        run.settings.mixed_traits[0],
    )
    if not table.num_rows:
        raise InputError(
            "no document of the corpus is held out; expected some to validate on: raise heldout.documents, or set it "
            "to other files"
        )
    rows: dict[str, list[dict[str, Any]]] = {}
    for row in table.drop_columns(["id", "record"]).to_pylist():
        rows.setdefault(row["source"] or "", []).append(row)
    heldout, most, encoder = dict[str, Any](), HELD_OUT_SHARE * tokens / len(rows), base.encoder()
    for source in sorted(rows):
        texts = [row["text"] or "" for row in rows[source]]
        if run.settings.masked:
            spans = [[(span["first"], span["last"]) for span in row["trained"]] for row in rows[source]]
            ids, lengths, counts = encode_trained(texts, spans, base.directory)
        else:
            ids, lengths = encoder.encode(texts)
            counts = np.ones(len(ids), bool)
        ends = np.cumsum(lengths)
        kept = max(1, int(np.searchsorted(ends, most, side="right")))
        heldout[source] = (ids[: ends[kept - 1]], lengths[:kept], counts[: ends[kept - 1]])
    if not run.settings.heldout.paths:
        without = sorted(set(load_stream(run).traits.names[trait]) - rows.keys())
        if without:
            notes.append(
                f"no document of {trait} {', '.join(without[:5])}{' and others' if len(without) > 5 else ''} is held "
                "out: its loss is missing; raise heldout.documents"
            )
    return heldout


def _table(results: Mapping[_Training, Trained], sources: list[str]) -> list[dict[str, Any]]:
    """Held-out losses, a row per training, epoch and source."""
    return [
        {
            "order": each.order,
            "seed": each.seed,
            "learning_rate": each.rate,
            "epoch": epoch + 1,
            "source": source,
            "loss": float(loss),
        }
        for each, trained in results.items()
        for epoch, losses in enumerate(trained.heldout)
        for source, loss in zip([*sources, ALL], [*losses, losses.mean()], strict=True)
    ]


def _summary(
    run: Run, sequences: Sequences, task: Task, results: Mapping[_Training, Trained], notes: list[str]
) -> dict[str, Any]:
    """All figures that people see, at the learning rate that suits the shuffled sequences best."""
    from dagster_divorder.models.training import make_model, named_matrices

    orders, sources = orders_of(run.settings), sorted(task.heldout)
    by: dict[tuple[str, float], list[Trained]] = {}
    for each, trained in results.items():
        by.setdefault((each.order, each.rate), []).append(trained)
    losses = {key: np.array([trained.heldout[-1].mean() for trained in of]) for key, of in by.items()}
    heldout = {key: estimate(of) for key, of in losses.items()}
    best = min(_learning_rates(run.settings), key=lambda rate: heldout[REFERENCE, rate]["mean"] or math.inf)
    ours = {name: by[name, best] for name in orders}
    model = make_model(task.class_count, sequences.plan.sequence_length)
    matrices = [name for name, _ in named_matrices(model)]
    attention = np.array(["att" in name.lower() for name in matrices])
    figures = {
        name: order_figures(ours[name], ours[shuffled_order(name)], sequences.steps, attention)
        for name in orders
    }
    first = "curated" if "curated" in orders else next(name for name in orders if name != REFERENCE)
    differences = losses[first, best] - losses[shuffled_order(first), best]
    read = sequences.epochs * sequences.rows * sequences.plan.sequence_length
    shown = [*verdict(figures, first, shuffled_order(first)), sensitivity(differences, read)]
    return {
        "verdict": [sentence for sentence in shown if sentence],
        "orders": [{"order": name, **figures[name]} for name in orders],
        "sources": [
            {"order": name, **row}
            for name in orders
            for row in source_figures(ours[name], ours[shuffled_order(name)], sources)
        ],
        "rates": [{"order": name, "learning rate": rate, **heldout[name, rate]} for name, rate in by],
        "layers": [
            {"order": name, "matrix": matrix, "ranks": mean([trained.ranks[:, at] for trained in ours[name]])}
            for name in orders
            for at, matrix in enumerate(matrices)
        ],
        "learning rate": best,
        "weights": sum(weight.numel() for weight in model.parameters()),
        "seeds": SEEDS,
        "epochs": sequences.epochs,
        "steps": sequences.steps,
        "batch": sequences.batch,
        "length": sequences.plan.sequence_length,
        "notes": notes,
    }


def load_evidence(run: Run) -> dict[str, Any]:
    """The summary of the last result."""
    return orjson.loads(run.read(STAGE, "summary"))


def _show_training_evidence(run: Run, receipt: Receipt) -> Shown:
    summary = load_evidence(run)
    return {
        "verdict": Text("\n\n".join([*summary["verdict"], *summary["notes"]])),
        "orders": Table(order_rows(summary)),
        "sources": Table(source_rows(summary)),
        **({"rates": Table(rates)} if (rates := rate_rows(summary)) else {}),
        "picture": Picture(run.store.local(receipt.files["picture"]), "trainings in several orders"),
    }


def _training_evidence_reads(settings: Settings) -> tuple[str, ...]:
    return (
        *("raw_docs", "token_counts", "base_model", *space_reads(settings), "clusters", "traits"),
        *(*heldout_reads(settings), *stream_reads(settings), "packed_sequences", "sequence_order"),
    )


def _decided_by(run: Run) -> dict[str, Any]:
    """Also the end-of-text token of a checkpoint."""
    return {
        **TRAINING_EVIDENCE.usual(run),
        "end_of_text": named_end_of_text(run),
        **reading(run),
    }


def _check_settings(run: Run) -> None:
    settings = run.settings
    if "pairs" in settings.forms:
        raise InputError(
            "evidence.tokens is set, but an input holds pairs, whose loss compares two answers; trainings here use the "
            "loss of one text: unset evidence.tokens"
        )
    check_special_tokens(settings)


TRAINING_EVIDENCE = WholeCorpus(
    name=STAGE,
    version=6,
    description="Whether the order helps training. Small models are trained on the same tokens in several orders and "
    "compared: held-out loss by source, the seam between epochs, gradients, and which differences exceed noise.",
    reads=_training_evidence_reads,
    settings=(
        *("evidence", "order", "sequence", "packing", "curriculum", "mixing"),
        *("engine.device", "seed"),
    ),
    decided_by=_decided_by,
    # It costs as much as training, so it exists only on request.
    when=lambda settings: settings.evidence.tokens is not None,
    check=_check_settings,
    compute=_train_in_each_order,
    show=_show_training_evidence,
)
