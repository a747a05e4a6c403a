"""training_evidence: trains small decoders on the same tokens in several orders, and compares what the orders did.

Models are trained on the first `evidence.tokens` tokens of the plan; if the plan follows a score, on batches that are
evenly spaced in it. `curated` reads the sequences as planned. `random_sequences` reads the same sequences, shuffled
differently each epoch. Every order is compared with these shuffles, each training with a shuffle from the same initial
weights. Orders whose attention stops at documents are compared with shuffles read in that way. Orders along a score
also consist of the plan's sequences. Orders of documents pack the same tokens again by `concat`, conversations whole by
their own method. The output does not need this stage.

Losses are means over the trained tokens, in training and in validation, which reads whole conversations.

Each training is a file of the result, named by everything that decides it. A training that has a file, even in the
result before, is not repeated. Letters: R trainings of an order, e steps an epoch, B sequences a batch, L tokens a
sequence.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import orjson

from dagster_divorder.core.evidence.training_evidence import (
    AVERAGES,
    Trained,
    curriculum_verdict,
    estimate,
    mean,
    order_figures,
    schedule_figures,
    sensitivity,
    source_figures,
    verdict,
)
from dagster_divorder.core.measure.vendi import window_scores
from dagster_divorder.core.order import order as make_order
from dagster_divorder.core.order.epochs import epoch_orders
from dagster_divorder.core.order.items import Items, document_items
from dagster_divorder.core.packing import PackedSequences, Pieces, pack, sequence_counts, with_all_tokens
from dagster_divorder.core.packing.coordinates import with_coordinates
from dagster_divorder.core.rows import row_entries
from dagster_divorder.core.spans import Spans
from dagster_divorder.engine.local import KEEP_MEMORY, worker_number
from dagster_divorder.engine.progress import Advance
from dagster_divorder.errors import InputError
from dagster_divorder.pipeline.run import Run
from dagster_divorder.pipeline.stage import (
    File,
    Made,
    Picture,
    Shown,
    Table,
    Text,
    WholeCorpus,
    content_hash,
    versions,
)
from dagster_divorder.settings import Settings
from dagster_divorder.settings.sections import TrainedOrder, shuffled_order, trained_order
from dagster_divorder.stages.corpus.chat_template import reading
from dagster_divorder.stages.mix.heldout_copies import heldout_reads, heldout_table, load_heldout
from dagster_divorder.stages.mix.repeats import TrainingStream, load_stream, run_counter, stream_reads
from dagster_divorder.stages.order.packed_sequences import load_packed, sequence_traits
from dagster_divorder.stages.order.sequence_order import load_sequence_order, vector_sums
from dagster_divorder.stages.output.exports import check_special_tokens, named_end_of_text, stored_tokens
from dagster_divorder.stages.text.base_model import load_base_model
from dagster_divorder.stages.text.loss_mask import load_loss_mask
from dagster_divorder.stages.topics.components import chosen_space_version, chosen_vectors, space_reads
from dagster_divorder.stages.topics.deep_embeddings import call_on_a_worker
from dagster_divorder.store.arrays import pack as pack_arrays
from dagster_divorder.store.arrays import unpack
from dagster_divorder.store.base import Store
from dagster_divorder.store.space import map_vectors
from dagster_divorder.store.state import Receipt, load_receipt
from dagster_divorder.units import duration
from dagster_divorder.view.evidence import order_rows, rate_rows, schedule_rows, source_rows
from dagster_divorder.write.exports.rows import Rows

if TYPE_CHECKING:
    from dagster_divorder.models.training import Task

STAGE = "training_evidence"
REFERENCE = "random_sequences"
ALL = "all, equal shares"
"""The name of the mean over sources, in tables of sources."""
STEPS = 250
"""Least steps of an epoch if `evidence.batch` is unset."""
HELD_OUT_SHARE = 0.05
"""Tokens to validate on after each epoch, as a share of the training tokens; equally many of every source."""
TIMED_STEPS = 6
TRAINED_VERSION = 2
"""Version of the training code, part of every training's name: a change of the summary alone keeps the trainings."""
PLAIN = {"original", "random", "repeated", "curated"}
"""Orders that do not use traits."""


class _Size(NamedTuple):
    """rows: number of the plan's sequences that are used. steps: of an epoch. batch: B."""

    rows: int
    steps: int
    batch: int


class _Training(NamedTuple):
    """One training. name: of its result. data: name of the file that it reads."""

    name: str
    order: str
    seed: int
    rate: float
    schedule: str
    data: str


def orders_of(settings: Settings) -> list[str]:
    """`evidence.orders` and the orders that they are compared with."""
    orders = settings.evidence.orders
    return list(dict.fromkeys([*orders, REFERENCE, *map(shuffled_order, orders)]))


def _train_in_each_order(run: Run) -> Made:
    from dagster_divorder.models.training import matrix_names

    evidence, store = run.settings.evidence, run.store
    folder = f"stages/{STAGE}/{TRAINING_EVIDENCE.key(run)}"
    prepared = _Prepared.of(run, folder)
    trainings = prepared.trainings()
    before = load_receipt(store, STAGE)
    known = {**(before.files if before else {}), **store.hashed(folder)}
    results = {
        each.name: store.read_verified(known[each.name])
        for each in trainings
        if each.name in known and store.exists(known[each.name])
    }
    # If a run is stopped, all orders are trained with the first seeds.
    missing = sorted((each for each in trainings if each.name not in results), key=lambda each: each.seed)
    if missing:
        run.progress.note(
            f"training {len(missing):,} of {len(trainings):,} models ({evidence.model}): "
            f"{prepared.expectation(len(missing))}"
        )
        prepared.train(missing)
        stored = store.hashed(folder)
        results |= {each.name: store.read_verified(stored[each.name]) for each in missing}
    trained = {each: _unpack(results[each.name]) for each in trainings}
    names = matrix_names(evidence.model, prepared.class_count, prepared.tokens.length)
    summary = _summary(run, prepared, trained, names)
    from dagster_divorder.view.pictures import training_evidence as draw

    files: dict[str, Any] = {
        **{name: File(data, "safetensors") for name, data in results.items()},
        "table": _table(trained, prepared.sources),
        "summary": File(orjson.dumps(summary, option=orjson.OPT_SERIALIZE_NUMPY), "json"),
        "picture": File(draw(summary), "png"),
    }
    figures = {
        "verdict": " ".join(summary["verdict"]),
        "trainings": len(trainings),
        "trained_now": len(missing),
        "tokens_an_epoch": prepared.tokens.rows * prepared.tokens.length,
        "weights": summary["weights"],
        "steps": prepared.tokens.size.steps * evidence.epochs,
        "notes": summary["notes"],
    }
    return Made(files, figures=figures)


@dataclass(frozen=True, eq=False)
class _Tokens:
    """The training sequences. plan: the sequences, in the order in which the plan first reads them. numbers: their
    numbers in the whole plan, int64 (S,)."""

    run: Run
    stream: TrainingStream
    plan: PackedSequences
    numbers: np.ndarray
    size: _Size

    @classmethod
    def of(cls, run: Run, size: _Size | None = None) -> _Tokens:
        """size: by default the size that `evidence.tokens` asks for."""
        packed, read = load_packed(run), load_sequence_order(run).ravel()
        numbers = read[np.sort(np.unique(read, return_index=True)[1])]
        stream, mask = load_stream(run), load_loss_mask(run)
        if mask is not None:
            rows = stream.view.document_row[packed.document]
            before = np.concatenate([[0], np.cumsum(mask.within(rows, packed.start, packed.length))])
            # A sequence without a trained token would leave its batch without a loss.
            numbers = numbers[np.diff(before[packed.indptr])[numbers] > 0]
        places = np.arange(len(numbers))
        if run.settings.curriculum.on:
            # The beginning of the plan would have only one end of the score.
            places = evenly_first(len(numbers), run.settings.evidence.batch or run.settings.sequence.batch)
        size = size or _whole_size(run.settings, packed, packed.tokens[numbers[places]])
        numbers = numbers[np.sort(places[: size.rows])]
        plan = _take(packed, numbers)
        if run.settings.masked:
            # If sequences hold one record and padding, L is the length of the longest.
            plan = replace(plan, sequence_length=int(plan.tokens.max()))
        return cls(run, stream, plan, numbers, size)

    @property
    def length(self) -> int:
        """L."""
        return self.plan.sequence_length

    @property
    def rows(self) -> int:
        """Number of sequences that are read; a last incomplete batch is left out, as trainers do."""
        return self.size.steps * self.size.batch

    def ids(self, plan: PackedSequences) -> tuple[np.ndarray, Spans | None]:
        """(token ids of a plan's sequences (S, L), their trained places as in `Rows.trained`)."""
        every = np.arange(len(plan))
        with self.run.store.scratch() as scratch:
            tokens = stored_tokens(self.run, load_base_model(self.run).directory, scratch)
            rows = Rows(plan, every, every[None], tokens)
            return rows.gather(), rows.trained

    def data(self, order: TrainedOrder, seed: int) -> dict[str, np.ndarray]:
        """What a training reads: `ids` (n, L), in the order in which they are first read; the `lengths` of these rows'
        runs, int64 (Q,), and their `counts`, int64 (n,); `epochs`, the rows of each epoch, int64 (E, n); `padded`, bool
        (1,), whether any row has padding; and `trained`, as in `in_memory_export`, if not all tokens are trained."""
        plan, epochs = self.planned(order, seed)
        read = epochs.ravel()
        first, place = read[np.sort(np.unique(read, return_index=True)[1])], np.empty(len(plan), np.int64)
        place[first] = np.arange(len(first))
        used = _take(plan, first)
        ids, trained = self.ids(used)
        return {
            "ids": ids,
            **({"trained": np.stack([trained.first, trained.last])} if trained else {}),
            "lengths": used.length,
            "counts": np.diff(used.indptr),
            "epochs": place[epochs],
            "padded": np.array([bool(used.padding.any())]),
        }

    def diversity(self) -> dict[str, float]:
        """The mean Vendi score of a sample of batches of the first epoch, by order name."""
        run, scores = self.run, {}
        vectors = map_vectors(run.store, run.view, chosen_vectors(run))
        for name in orders_of(run.settings):
            plan, epochs = self.planned(trained_order(name), 0)
            read = _take(plan, epochs[0])
            records = self.stream.record(read.document)
            of_batches = window_scores(vectors, records, read.length, self.size.batch * self.length)
            scores[name] = float(np.mean(of_batches))
        return scores

    def planned(self, order: TrainedOrder, seed: int) -> tuple[PackedSequences, np.ndarray]:
        """(the sequences of an order, the sequences that each epoch reads in order, int64 (E, n))."""
        settings, rows, epochs = self.run.settings, self.rows, self.run.settings.evidence.epochs
        plan = self.plan if order.documents == "curated" else self.packed(order.documents, seed)
        every = np.arange(len(plan))
        if order.sequences == "curated":
            return plan, self.curated_epochs(rows)
        if order.sequences == "original":
            return plan, np.tile(every[:rows], (epochs, 1))
        draw = settings.seed + seed
        if order.sequences in ("random", "repeated"):
            shuffled = np.random.default_rng([draw, 1]).permutation(len(plan))[:rows]
            if order.sequences == "repeated":
                return plan, np.tile(shuffled, (epochs, 1))
            anew = [np.random.default_rng([draw, 1, at]).permutation(shuffled) for at in range(1, epochs)]
            return plan, np.stack([shuffled, *anew])
        items = self.plan_items if plan is self.plan else self.items(plan)
        name = order.sequences
        if name == "epochs":
            name = settings.sequence.strategy
            items = items.part(0, rows)
            arguments = self.arguments(name, items)
            return plan, epoch_orders(
                items.counts, items.groups, epochs, coordinates=items.coordinates, **arguments
            )
        sequences = make_order(
            items.counts, items.groups, coordinates=items.coordinates, **self.arguments(name, items, seed)
        )
        return plan, np.tile(sequences[:rows], (epochs, 1))

    def arguments(self, strategy: str, items: Items, seed: int = 0) -> dict[str, Any]:
        common = self.run.settings.order_arguments(strategy)
        return {**common, "weights": items.weights, "seed": common["seed"] + seed}

    def curated_epochs(self, rows: int) -> np.ndarray:
        """The plan's own orders of these sequences, int64 (E, n), as places in `plan`."""
        orders = load_sequence_order(self.run)
        if self.run.settings.schedule_epochs > 1:
            # One order covers all epochs, and no epoch reads every sequence.
            orders = orders.reshape(1, -1)
        place = np.full(orders.max(initial=-1) + 1, -1)
        place[self.numbers[:rows]] = np.arange(rows)
        read = [row for order in orders for row in place[order][place[order] >= 0].reshape(-1, rows)]
        return np.stack([read[epoch % len(read)] for epoch in range(self.run.settings.evidence.epochs)])

    def packed(self, documents: str, seed: int) -> PackedSequences:
        """The plan's tokens, packed again with the documents in another order. `concat` leaves out an incomplete last
        sequence."""
        settings, traits = self.run.settings, self.stream.traits
        pieces = _whole_pieces(self.plan)
        draw = settings.seed + seed
        if documents == "original":
            order = np.arange(len(pieces))
        elif documents == "clusters":
            shuffled = np.random.default_rng([draw, 2]).permutation(len(pieces))
            order = shuffled[np.argsort(traits.codes["cluster"][pieces.document[shuffled]], kind="stable")]
        else:
            balanced = {name: traits.codes[name][pieces.document] for name in settings.order.traits}
            items = document_items(
                run_counter(self.run, self.stream.view)(pieces),
                balanced,
                settings.order.traits,
                within=settings.order.within,
                lengths=pieces.length,
            )
            order = make_order(items.counts, items.groups, **self.arguments(documents, items, seed))
        method = _method(settings)
        packed = pack(pieces.take(order), method=method, sequence_length=self.length, seed=draw)
        return (
            packed
            if method != "concat"
            else packed.part(0, len(packed) - bool(len(packed) and packed.padding[-1]))
        )

    @cached_property
    def plan_items(self) -> Items:
        """The sequences of the plan as items."""
        return self.items(self.plan)

    def items(self, plan: PackedSequences) -> Items:
        """The sequences as items to order."""
        settings, traits = self.run.settings, self.stream.traits
        names = sequence_traits(settings.order.traits)
        codes = {name: traits.codes[name] for name in names}
        tokens = run_counter(self.run, self.stream.view)(plan)
        counts, groups = sequence_counts(plan, codes, traits.sizes(), tokens)
        items = Items(counts, groups, np.array([settings.order.traits[name] for name in names]))
        if traits.trained is not None:
            items = with_all_tokens(items, plan, codes, traits.sizes())
        if settings.sequence.vectors:
            items = with_coordinates(items, plan, vector_sums(self.run, plan))
        return items


@dataclass(frozen=True, eq=False)
class _Prepared:
    """What the trainings of a run share. sources: sources with held-out documents, sorted. shared: arrays."""

    run: Run
    folder: str
    tokens: _Tokens
    sources: list[str]
    class_count: int
    shared: dict[str, np.ndarray]
    device: str
    notes: list[str]

    @classmethod
    def of(cls, run: Run, folder: str) -> _Prepared:
        from dagster_divorder.models.spec import find_device
        from dagster_divorder.models.training import token_classes

        tokens, evidence, notes = _Tokens.of(run), run.settings.evidence, list[str]()
        device = call_on_a_worker(run, find_device)
        vocabulary = run.receipt("base_model").facts["vocabulary"]
        ids, trained = tokens.ids(tokens.plan)
        counts = np.bincount(ids.ravel(), minlength=vocabulary)
        if trained:
            share = (trained.last - trained.first).sum() / tokens.plan.length.sum()
            notes.append(f"losses are of the tokens that are trained on, {share:.0%} of those that are read")
        classes, class_count = token_classes(evidence.model, counts)
        heldout = _heldout_rows(run, classes, tokens.rows, tokens.length, notes)
        shared = {"classes": classes, **{f"heldout {at}": rows for at, rows in enumerate(heldout.values())}}
        prepared = cls(run, folder, tokens, sorted(heldout), class_count, shared, device, notes)
        if evidence.budget_seconds is None:
            return prepared
        size = prepared.within(evidence.budget_seconds)
        return replace(prepared, tokens=tokens if size == tokens.size else _Tokens.of(run, size))

    @cached_property
    def decides(self) -> str:
        """A hash of everything that decides a training, except its order, seed and learning rate."""
        run, evidence = self.run, self.run.settings.evidence
        model = [evidence.model, _config_hash(evidence.model)]
        return content_hash(
            TRAINED_VERSION,
            [self.tokens.size, *model, evidence.epochs, "cosine", self.device],
            versions(run, "packed_sequences", "sequence_order", "base_model"),
            [content_hash(array) for array in self.shared.values()],
            *([reading(run)] if run.settings.masked else []),
            *([content_hash(self.tokens.numbers)] if run.settings.curriculum.on else []),
        )

    def trainings(self) -> list[_Training]:
        from dagster_divorder.models.training import learning_rates

        settings, evidence = self.run.settings, self.run.settings.evidence
        rates = learning_rates(evidence.model, evidence.learning_rates)
        trainings = []
        every = product(orders_of(settings), range(evidence.seeds), rates, evidence.schedules)
        for name, seed, rate, schedule in every:
            order = trained_order(name)
            reads, strategies = _reading_key(settings, order), {order.documents, order.sequences}
            traits = [versions(self.run, "traits"), chosen_space_version(self.run)]
            decides: list[Any] = [*traits] if strategies - PLAIN else []
            # The cosine is left out of the name, so that trainings from before there were other schedules keep theirs.
            decides += [] if schedule == "cosine" else [schedule]
            decides += ["documents alone"] if order.apart else []
            drawn = seed if strategies - {"original", "curated"} else 0
            data = f"data-{content_hash(reads, drawn)[:16]}"
            result = f"run-{content_hash(self.decides, [[reads, order.apart], seed, rate, *decides])}"
            trainings.append(_Training(result, name, seed, rate, schedule, data))
        return trainings

    def train(self, trainings: list[_Training]) -> None:
        """Run trainings, and store each result under the training's name."""
        run, folder = self.run, self.folder
        data: dict[str, str] = {}
        try:
            for each in trainings:
                if each.data not in data:
                    arrays = pack_arrays(self.tokens.data(trained_order(each.order), each.seed))
                    data[each.data] = run.store.put_hashed(folder, each.data, arrays, "safetensors")
            train = partial(_train, run.store, folder, self.task(trainings[0]))
            items = [each._replace(data=data[each.data]) for each in trainings]
            tokens = self.tokens.rows * self.tokens.length * run.settings.evidence.epochs
            gpus = int(self.device == "cuda")
            with run.progress(f"training {len(items):,} models", tokens * len(items), "tokens") as advance:
                # Keeping the memory of a step for the next one saves a third of the time.
                for failure in run.engine.each(
                    train, items, gpus=gpus, environment=KEEP_MEMORY, advance=advance
                ):
                    if failure:
                        run.progress.note(failure)
        finally:
            run.store.delete(*data.values())

    def task(self, each: _Training) -> Task:
        from dagster_divorder.models.training import Task

        evidence = self.run.settings.evidence
        return Task(
            model=evidence.model,
            classes=self.shared["classes"],
            class_count=self.class_count,
            seed=each.seed,
            learning_rate=each.rate,
            schedule=each.schedule,
            batch=self.tokens.size.batch,
            epochs=evidence.epochs,
            attend_within_documents=trained_order(each.order).apart,
            device=self.device,
            heldout={name: self.shared[f"heldout {at}"] for at, name in enumerate(self.sources)},
        )

    def within(self, budget: float) -> _Size:
        """The size that fits into `budget` seconds, at most the whole size. The first answer is stored, so that stopped
        trainings can continue.

        Raises:
            InputError: not even one step fits.
        """
        kept, whole = self.run.store.hashed(self.folder), self.tokens.size
        if "size" in kept:
            size = _Size(**orjson.loads(self.run.store.read_verified(kept["size"])))
        else:
            steps = self._steps_before() or self.measured(budget)
            size = whole if steps >= whole.steps else _Size(steps * whole.batch, steps, whole.batch)
            self.run.store.put_hashed(self.folder, "size", orjson.dumps(size._asdict()), "json")
        if size.steps < whole.steps:
            asked, trained = (each.steps * each.batch * self.tokens.length for each in (whole, size))
            self.notes.append(
                f"evidence.budget_seconds = {budget:g} leaves {trained:,} tokens an epoch of {asked:,} that were asked "
                "for"
            )
        return size

    def _steps_before(self) -> int | None:
        """Steps of an epoch in the last result, if it differs only in its code version, so that its trainings can be
        used; else None."""
        run, last = self.run, load_receipt(self.run.store, STAGE)
        settings = TRAINING_EVIDENCE.fingerprint(run.settings).partition("-")[2]
        same = last and (last.fingerprint.partition("-")[2], last.upstream) == (
            settings,
            versions(run, *_training_evidence_reads(run.settings)),
        )
        if not last or not same or not run.store.exists(last.files["summary"]):
            return None
        steps: int = orjson.loads(run.store.read_verified(last.files["summary"]))["steps"]
        return steps

    def step_seconds(self) -> float:
        """Seconds of a step on this machine: the mean of a few steps, without the first, which loads libraries."""
        memo = self.run.memo
        if "step_seconds" not in memo:
            few, whole = min(TIMED_STEPS, self.tokens.size.steps), self.tokens.size
            trial = replace(self.tokens, size=_Size(few * whole.batch, few, whole.batch))
            arrays = trial.data(trained_order("curated"), 0)
            curated = _Training("", "curated", 0, 1e-3, "cosine", "")
            task = replace(self.task(curated), epochs=1, heldout={})
            times = [time.perf_counter()]
            with self.run.progress("measuring the speed", few, "steps") as advance:

                def timed(tokens: int) -> None:
                    times.append(time.perf_counter())
                    advance(1)

                _trained(task, arrays | {"epochs": arrays["epochs"][:1]}, timed)
            times = times[1:] if len(times) > 2 else times
            memo["step_seconds"] = (times[-1] - times[0]) / max(1, len(times) - 1)
        seconds: float = memo["step_seconds"]
        return seconds

    def at_once(self, trainings: int) -> int:
        """Number of trainings that run at once."""
        engine = self.run.engine
        return max(1, min(trainings, engine.gpus if self.device == "cuda" else engine.workers))

    def expectation(self, trainings: int) -> str:
        """The work and the time of some trainings, in words."""
        from dagster_divorder.models.training import noisy_batches

        size, epochs, at_once = self.tokens.size, self.run.settings.evidence.epochs, self.at_once(trainings)
        heldout = sum(self.shared[f"heldout {at}"].shape[1] for at in range(len(self.sources)))
        # A forward pass over held-out tokens takes a third of a training step.
        steps = epochs * (size.steps + heldout / size.batch / 3) + noisy_batches(size.steps)
        seconds = math.ceil(trainings / at_once) * steps * self.step_seconds()
        return (
            f"{size.steps * epochs:,} steps of {size.batch:,} sequences each, {at_once:,} at a time; about "
            f"{duration(seconds)}"
        )

    def measured(self, budget: float) -> int:
        """Number of steps an epoch that fit into `budget` seconds."""
        evidence = self.run.settings.evidence
        step = self.step_seconds()
        count = _count_trainings(self.run.settings)
        at_once = self.at_once(count)
        steps = int(budget * at_once / (count * step * evidence.epochs))
        if steps < 1:
            raise InputError(
                f"evidence.budget_seconds is {budget:g}, but one step of each of {count} trainings takes "
                f"{duration(step * count * evidence.epochs / at_once)}; expected more than that: raise it, or set "
                "fewer orders, schedules or seeds, or a smaller model"
            )
        return steps


def _method(settings: Settings) -> str:
    """How orders of documents are packed."""
    own = settings.packing.method
    return own if own == "none" or (settings.masked and own == "best_fit") else "concat"


def _whole_size(settings: Settings, packed: PackedSequences, tokens: np.ndarray) -> _Size:
    """tokens: number in each sequence, in the order of the first epoch, without padding, int64 (S,).

    Raises:
        InputError: there are fewer tokens than in a batch.
    """
    evidence, length = settings.evidence, settings.sequence.length
    assert evidence.tokens is not None
    planned = int(packed.length.sum())
    if settings.masked:
        rows = int(np.searchsorted(np.cumsum(tokens), evidence.tokens, side="right"))
    else:
        rows, tokens = min(evidence.tokens, planned) // length, packed.tokens
    batch = evidence.batch or max(1, min(settings.sequence.batch, rows // STEPS))
    # Orders of documents repack padded sequences with less padding, which makes fewer.
    full = rows if _method(settings) == "none" else min(rows, int(tokens[:rows].sum()) // length)
    steps = full // batch
    if steps < 1:
        raise InputError(
            f"evidence.tokens = {evidence.tokens:,} of the plan's {planned:,} tokens make {full:,} sequences of "
            f"{length:,} tokens, but a batch has {batch:,}; expected at least one batch: raise evidence.tokens, or "
            "lower evidence.batch or sequence.length"
        )
    return _Size(rows, steps, batch)


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


def _reading_key(settings: Settings, order: TrainedOrder) -> list[Any]:
    """The settings that decide when a training reads which tokens: options of strategies, and what they balance."""
    from dagster_divorder.core.order import STRATEGIES

    strategies = [order.documents, order.sequences]
    options = {name: settings.strategy_key(name) for name in strategies if name in STRATEGIES}
    sequence = settings.sequence
    balanced = [settings.order.traits, sequence.vectors, sequence.batch, *settings.within_key.values()]
    return [*strategies, [settings.seed, options, balanced if {*strategies} - PLAIN else None]]


def _config_hash(model: str) -> str:
    """A hash of the config.json of a model in a directory; "" for any other model."""
    file = Path(model) / "config.json"
    return content_hash(file.read_bytes().hex()) if file.is_file() else ""


def _heldout_rows(
    run: Run, classes: np.ndarray, sequences: int, length: int, notes: list[str]
) -> dict[str, np.ndarray]:
    """Source -> its held-out documents as in `Task.heldout`: end to end, or whole conversations. length: L.

    Raises:
        InputError: no document is held out.
    """
    table = heldout_table(run, load_heldout(run)).drop_columns(["id", "record"])
    if not table.num_rows:
        raise InputError(
            "no document of the corpus is held out; expected some to validate on: raise heldout.documents, or set it "
            "to other files"
        )
    trait = run.settings.mixed_traits[0]
    texts: dict[str, list[tuple[str, ...]]] = {}
    for source, *read in zip(*(table.column(name).to_pylist() for name in table.column_names), strict=True):
        texts.setdefault(source or "", []).append(tuple(read))
    most = max(1, int(HELD_OUT_SHARE * sequences / len(texts)))
    rows_of = _masked_rows if run.settings.masked else _plain_rows
    heldout = {source: rows_of(run, texts[source], classes, most, length) for source in sorted(texts)}
    if unread := [source for source, rows in heldout.items() if not rows.shape[1]]:
        notes.append(
            f"of the held-out documents of {trait} {', '.join(unread)} no trained token lies within {length:,} tokens: "
            "its loss is left out; raise sequence.length"
        )
        heldout = {source: rows for source, rows in heldout.items() if rows.shape[1]}
    if not heldout:
        raise InputError(
            f"no held-out document has a trained token in its first {length:,} tokens; expected one to validate on: "
            "raise sequence.length or heldout.documents"
        )
    if not run.settings.heldout.paths:
        without = sorted(set(load_stream(run).traits.names[trait]) - texts.keys())
        if without:
            notes.append(
                f"no document of {trait} {', '.join(without[:5])}{' and others' if len(without) > 5 else ''} is held "
                "out: its loss is missing; raise heldout.documents"
            )
    return heldout


def _plain_rows(
    run: Run, texts: Sequence[tuple[str, ...]], classes: np.ndarray, most: int, length: int
) -> np.ndarray:
    """Texts laid end to end, int32 (2, n, L), at most `most` rows: token classes and positions."""
    ids, lengths = load_base_model(run).encoder().encode([text or "" for (text,) in texts])
    ids = classes[ids[: most * length]]
    rows = np.zeros((2, -(-max(1, len(ids)) // length), length), np.int32)
    rows[0] = -1
    rows[0].ravel()[: len(ids)] = ids
    begins = np.zeros(rows[0].size, bool)
    begins[::length] = True
    begins[(starts := np.cumsum(lengths))[starts < len(ids)]] = True
    at = np.arange(len(begins))
    rows[1].ravel()[:] = at - np.maximum.accumulate(np.where(begins, at, 0))
    return rows


def _masked_rows(
    run: Run, texts: Sequence[tuple[Any, ...]], classes: np.ndarray, most: int, length: int
) -> np.ndarray:
    """Whole texts with their trained spans, int32 (3, n, L): as many as fit into `most` rows by their tokens, at least
    one. Texts longer than a row are truncated; a text without a trained token to predict is left out."""
    from dagster_divorder.models.chat_tokens import encode_trained

    read, spans = zip(*texts, strict=True)
    ids, lengths, trained = encode_trained(
        read,
        [[(span["first"], span["last"]) for span in each] for each in spans],
        load_base_model(run).directory,
    )
    begins, cut = np.cumsum(lengths) - lengths, np.minimum(lengths, length)
    # The first token of a document has nothing to be predicted from.
    trained[begins[lengths > 0]] = False
    before = np.concatenate([[0], np.cumsum(trained)])
    used = np.flatnonzero(before[begins + cut] > before[begins])
    used = used[: max(1, int(np.searchsorted(np.cumsum(cut[used]), most * length, side="right")))]
    if not len(used):
        return np.zeros((3, 0, length), np.int32)
    packed = pack(Pieces(used, np.zeros_like(used), cut[used]), method="best_fit", sequence_length=length)
    before = np.cumsum(packed.length) - packed.length
    in_document = np.arange(before[-1] + packed.length[-1]) - before.repeat(packed.length)
    token = begins[packed.document].repeat(packed.length) + in_document
    row = np.arange(len(packed)).repeat(np.diff(packed.indptr))
    place = (row * length + before - before[packed.indptr[row]]).repeat(packed.length) + in_document
    rows = np.zeros((3, len(packed) * length), np.int32)
    rows[0] = -1
    rows[:, place] = classes[ids[token]], in_document, trained[token]
    return rows.reshape(3, -1, length)


def _train(store: Store, folder: str, task: Task, each: _Training, advance: Advance) -> str:
    """Train one model in an engine's worker and store the result. Returns why it failed, or ""."""
    if task.device == "cuda":
        import torch

        torch.cuda.set_device(worker_number())
    task = replace(
        task,
        seed=each.seed,
        learning_rate=each.rate,
        schedule=each.schedule,
        attend_within_documents=trained_order(each.order).apart,
    )
    trained = _trained(task, unpack(store.read_verified(each.data)), advance)
    arrays = {**trained._asdict(), "failed": np.array([trained.failed])}
    store.put_hashed(folder, each.name, pack_arrays(arrays), "safetensors")
    return "" if trained.failed < 0 else _failure(each, trained)


def _trained(task: Task, arrays: Mapping[str, np.ndarray], advance: Advance) -> Trained:
    from dagster_divorder.models.training import in_memory_export, train

    return train(task, in_memory_export(arrays, task.batch), advance)


def _failure(each: _Training, trained: Trained) -> str:
    return (
        f"the loss of order {each.order}, seed {each.seed}, learning rate {each.rate:g} is no number from step "
        f"{trained.failed:,} on; lower evidence.learning_rates"
    )


def _unpack(data: bytes) -> Trained:
    arrays: dict[str, Any] = unpack(data)
    return Trained(**{**arrays, "failed": int(arrays["failed"][0])})


def _table(results: Mapping[_Training, Trained], sources: list[str]) -> list[dict[str, Any]]:
    """Held-out losses, a row per training, epoch and source; after the last epoch also for averaged weights."""
    return [
        {
            "order": each.order,
            "seed": each.seed,
            "learning_rate": each.rate,
            "schedule": each.schedule,
            "epoch": epoch + 1,
            "source": source,
            "loss": float(loss),
            **{name: float(value) for name, value in zip(AVERAGES, averaged, strict=True)},
        }
        for each, trained in results.items()
        for epoch, losses in enumerate(trained.heldout)
        for source, loss, averaged in zip(
            [*sources, ALL],
            [*losses, np.mean(losses)],
            _with_mean(trained.averaged if epoch + 1 == len(trained.heldout) else np.nan * trained.averaged),
            strict=True,
        )
    ]


def _with_mean(averaged: np.ndarray) -> np.ndarray:
    """`Trained.averaged` (2, S) with a row for each source and one for their mean, float64 (S + 1, 2)."""
    return np.vstack([averaged.T, averaged.mean(axis=1)])


def _summary(
    run: Run, prepared: _Prepared, results: Mapping[_Training, Trained], names: list[str]
) -> dict[str, Any]:
    """All figures that people see, at the learning rate that suits the shuffled sequences best. Schedules of the
    learning rate after the first have only held-out losses."""
    from dagster_divorder.models.training import count_weights, is_attention, learning_rates

    evidence, size = run.settings.evidence, prepared.tokens.size
    orders, rates = orders_of(run.settings), learning_rates(evidence.model, evidence.learning_rates)
    by: dict[tuple[str, str, float], list[Trained]] = {}
    for each, trained in results.items():
        by.setdefault((each.order, each.schedule, each.rate), []).append(trained)
    heldout = {
        key: estimate([trained.heldout[-1].mean() for trained in several]) for key, several in by.items()
    }
    best = {
        schedule: min(rates, key=lambda rate: heldout[REFERENCE, schedule, rate]["mean"] or math.inf)
        for schedule in evidence.schedules
    }
    first_schedule = evidence.schedules[0]
    ours = {name: by[name, first_schedule, best[first_schedule]] for name in orders}
    attention = np.array([is_attention(name) for name in names])
    diversity = prepared.tokens.diversity()
    rows = [
        {
            "order": name,
            "vendi": diversity[name],
            **order_figures(ours[name], ours[shuffled_order(name)], size.steps, attention),
        }
        for name in orders
    ]
    figures = {row["order"]: row for row in rows}
    first = "curated" if "curated" in orders else next(name for name in orders if name != REFERENCE)
    shown = sensitivity(figures[first], evidence.epochs * prepared.tokens.rows * prepared.tokens.length)
    schedules = schedule_figures(
        {(name, schedule): by[name, schedule, best[schedule]] for name in orders for schedule in best},
        {name: shuffled_order(name) for name in orders},
        {},
    )
    follows = run.settings.curriculum.on
    along = [name for name in orders if follows and trained_order(name).sequences == "curated"]
    return {
        "verdict": [
            *verdict(figures, first, shuffled_order(first)),
            *([shown] if shown else []),
            *curriculum_verdict(schedules, rows, along, run.settings.curriculum.score or ""),
        ],
        "orders": rows,
        "sources": [
            {"order": name, **figures_of_source}
            for name in orders
            for figures_of_source in source_figures(ours[name], ours[shuffled_order(name)], prepared.sources)
        ],
        "schedules": schedules,
        "rates": [
            {"order": name, "schedule": schedule, "learning rate": rate, **heldout[name, schedule, rate]}
            for name, schedule, rate in by
        ],
        "layers": [
            {"order": name, "matrix": matrix, "ranks": mean([trained.ranks[:, at] for trained in ours[name]])}
            for name in orders
            for at, matrix in enumerate(names)
        ],
        "learning rate": best[first_schedule],
        "model": evidence.model,
        "weights": count_weights(evidence.model, prepared.class_count, prepared.tokens.length),
        "seeds": evidence.seeds,
        "epochs": evidence.epochs,
        "steps": size.steps,
        "batch": size.batch,
        "length": prepared.tokens.length,
        "notes": [
            *prepared.notes,
            *(_failure(each, trained) for each, trained in results.items() if trained.failed >= 0),
        ],
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
        "schedules": Table(schedule_rows(summary)),
        **({"rates": Table(rates)} if (rates := rate_rows(summary)) else {}),
        "picture": Picture(run.store.local(receipt.files["picture"]), "trainings in several orders"),
    }


def _training_evidence_settings(settings: Settings) -> dict[str, Any]:
    evidence = settings.evidence.model_dump(mode="json", exclude={"model", "schedule"})
    schedules = settings.evidence.schedules
    orders = [trained_order(name) for name in orders_of(settings)]
    return {
        **evidence,
        "schedule": "cosine" if schedules == ("cosine",) else schedules,
        "device": settings.engine.device,
        "model": [settings.evidence.model, _config_hash(settings.evidence.model)],
        "of orders": [[_reading_key(settings, order), order.apart] for order in orders],
        "batch": [evidence["batch"], settings.sequence.batch, settings.sequence.length],
        "trait": settings.mixed_traits[0],
        "seed": settings.seed,
    }


def _training_evidence_reads(settings: Settings) -> tuple[str, ...]:
    return (
        *("raw_docs", "token_counts", "base_model", *space_reads(settings), "clusters", "traits"),
        *(*heldout_reads(settings), *stream_reads(settings), "packed_sequences", "sequence_order"),
    )


def _training_evidence_inputs(run: Run) -> dict[str, Any]:
    """The results that the stage reads, and the end-of-text token of a checkpoint."""
    results, token = versions(run, *_training_evidence_reads(run.settings)), named_end_of_text(run)
    return {**results, **({"end_of_text": token} if isinstance(token, list) else {}), **reading(run)}


def _check_settings(run: Run) -> None:
    from dagster_divorder.models.training import check_model

    if "pairs" in run.settings.forms:
        raise InputError(
            "evidence.tokens is set, but an input holds pairs, whose loss compares two answers; trainings here use the "
            "loss of one text: unset evidence.tokens"
        )
    _check_epochs(run.settings)
    check_model(run.settings.evidence.model, run.settings.sequence.length)
    check_special_tokens(run.settings)


def _check_epochs(settings: Settings) -> None:
    evidence = settings.evidence
    orders = {trained_order(name).sequences: name for name in orders_of(settings)}
    if settings.curriculum.on and "epochs" in orders:
        raise InputError(
            f"evidence.orders names {orders['epochs']!r}, which follows no score, but the plan follows "
            f"{settings.curriculum.score}; set sequence.epochs to {evidence.epochs} and use curated instead"
        )
    if "curated" in orders and settings.schedule_epochs > 1 and settings.schedule_epochs != evidence.epochs:
        raise InputError(
            f"evidence.epochs is {evidence.epochs}, but the plan has one schedule over {settings.schedule_epochs} "
            f"epochs; expected {settings.schedule_epochs}: set evidence.epochs, or sequence.epochs to "
            f'{evidence.epochs}, or curriculum.epochs to "each"'
        )


def evenly_first(items: int, batch: int) -> np.ndarray:
    """Places 0 to items - 1 in runs of `batch`, int64 (items,), in an order whose every beginning is spread evenly."""
    runs = -(-items // batch)
    # Multiples of the golden ratio, less their whole parts.
    order = np.argsort(np.argsort(np.arange(runs) * 0.6180339887498949 % 1.0, kind="stable"), kind="stable")
    places = (order[:, None] * batch + np.arange(batch)).ravel()
    return places[places < items]


def _count_trainings(settings: Settings) -> int:
    evidence = settings.evidence
    rates = max(1, len(evidence.learning_rates)) * len(evidence.schedules)
    return len(orders_of(settings)) * evidence.seeds * rates


TRAINING_EVIDENCE = WholeCorpus(
    name=STAGE,
    version=4,
    kinds={"pytorch"},
    description="Whether the order helps training. Small models are trained on the same tokens in several orders and "
    "compared: held-out loss by source, the seam between epochs, gradients, and which differences exceed noise.",
    evidence="what the order does to small models trained in it",
    reads=_training_evidence_reads,
    settings=_training_evidence_settings,
    inputs=_training_evidence_inputs,
    # It costs as much as training, so it exists only on request.
    when=lambda settings: settings.evidence.tokens is not None,
    check_settings=_check_settings,
    compute=_train_in_each_order,
    show=_show_training_evidence,
)
