"""diversity_metrics: measures of all orders, for every window of training (`core.measure.order`).

Documents: in their original order, shuffled (mean of three seeds), and curated, each packed by `concat`. Sequences:
shuffled documents packed and shuffled again (mean of three), and the packed sequences as a trainer gets them, epoch
after epoch. Windows are compared with the mix of their stretch (`core.measure.windows`), and shuffles stay inside
stretches; most orders have one. Shares are of the tokens that count.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import orjson

from dagster_divorder.core.distinct import distinct_values
from dagster_divorder.core.measure import (
    Measures,
    average,
    beats_shuffling,
    cluster_mix,
    compare_errors,
    error_curves,
    measure,
    packed_counts,
)
from dagster_divorder.core.measure.along import Binned, binned
from dagster_divorder.core.measure.runs import ReadRuns, RunCounter, runs_in_order, sequences_stream
from dagster_divorder.core.measure.shuffling_check import findings
from dagster_divorder.core.measure.windows import off_schedule, shuffled_inside
from dagster_divorder.core.packing import FILLED, PackedSequences, Pieces, pack
from dagster_divorder.core.packing.report import distinct_per_sequence
from dagster_divorder.pipeline.run import Run
from dagster_divorder.pipeline.stage import Chart, Check, File, Finding, Made, Shown, Table, Text, WholeCorpus
from dagster_divorder.settings import Settings
from dagster_divorder.stages.corpus.fields import built_in
from dagster_divorder.stages.measure.stationarity import load_stationarity
from dagster_divorder.stages.measure.stationarity import remedy as stationarity_remedy
from dagster_divorder.stages.mix.repeats import TrainingStream, load_stream, run_counter
from dagster_divorder.stages.order.greedy_order import load_order
from dagster_divorder.stages.order.packed_sequences import load_bounds, load_packed
from dagster_divorder.stages.order.scores import stream_ranks
from dagster_divorder.stages.order.sequence_order import load_sequence_order
from dagster_divorder.stages.text.loss_mask import has_loss_mask
from dagster_divorder.stages.topics.cluster_names import load_names
from dagster_divorder.store.state import Receipt
from dagster_divorder.view import charts
from dagster_divorder.view.measures import drift_columns, followed, measures, side_by_side, summary_row
from dagster_divorder.view.verdict import Verdict
from dagster_divorder.view.words import ORDERS, TRAIN_ON

SHUFFLES = 3
SHUFFLED = {"curated": "random", "sequences": "sequences_random"}
"""The shuffled order that each of our orders is compared with."""
SLICES, SHOWN_VALUES = 100, 8
"""Most slices, and values of a trait, in the mix along training."""
DRAWN = ("original", "sequences_random", "sequences")
"""Orders whose clusters pictures show."""
COLUMNS, BINS = (60, 180), 60
"""Fewest and most columns of a bar, so that each is some pixels wide; in between, a column is a batch. Points of the
curves of clusters in a sequence."""


def load_metrics(run: Run) -> dict[str, dict[str, Any]]:
    """Order name -> figures, as in `core.measure.order.Measures`. The orders that DivOrder made also have

    trait_errors: by trait, see `core.measure.compare_errors`. curves: trait_errors along the order. off_schedule:
        `achieved` and `shuffled` distance of a batch's mean rank from the asked one, along a score. mixes: of several
        stretches, see `_mixes_along`.
    """
    metrics: dict[str, dict[str, Any]] = orjson.loads(run.read("diversity_metrics", "metrics"))
    return metrics


@dataclass(frozen=True, eq=False)
class Trained:
    """Packed sequences as a trainer reads them. epochs: int64 (E, S). stretch: int64 (S,), of each sequence."""

    packed: PackedSequences
    epochs: np.ndarray
    stretch: np.ndarray

    def measures(self, stream: TrainingStream, count: RunCounter, batch: int) -> Measures:
        traits = stream.traits
        return measure(
            packed_counts(self.packed, traits.codes, traits.sizes(), count(self.packed)),
            self.epochs,
            batch=batch,
            sequence_length=self.packed.sequence_length,
            documents=len(distinct_values(self.packed.document)),
            stretch=self.stretch,
        )


def load_trained(run: Run, name: str, number: int = 0) -> Trained:
    """An order of `ORDERS`. number: of the shuffle."""
    settings, plan, stretches = run.settings, load_packed(run), load_bounds(run)[1]
    packs, random = settings.packing.packs, np.random.default_rng([settings.seed, number])
    stretch = np.searchsorted(stretches[1:], np.arange(len(plan)), side="right")
    if name == "sequences" or (name == "curated" and not packs):
        return Trained(plan, load_sequence_order(run), stretch)
    if name == "original" and not packs:
        as_read = np.lexsort((plan.start, plan.document))
        return Trained(plan, np.tile(as_read, (settings.sequence.epochs, 1)), np.zeros_like(stretch))
    order, begins, *_ = load_order(run)
    if name == "sequences_random" or not packs:
        # Training data without an order: documents shuffled and packed, and the sequences shuffled for every epoch; in
        # an order of several stretches, or without packing, the plan's sequences shuffled inside them. A partial last
        # sequence stays last, unless all are padded.
        packed, method = plan, settings.packing.method
        if packs and not stretch.any():
            method = "best_fit" if method == "best_fit" else "concat"
            packed = _packed_anew(plan, random.permutation(len(order)), method)
            stretch, random = (
                np.zeros(len(packed), np.int64),
                np.random.default_rng([settings.seed, number, 1]),
            )
        full = len(packed) - bool(method in FILLED and len(packed) and packed.padding[-1] > 0)
        rest = np.arange(full, len(packed))
        epochs = [
            np.append(shuffled_inside(stretch[:full], random), rest) for _ in range(settings.sequence.epochs)
        ]
        return Trained(packed, np.stack(epochs), stretch)
    of_document = np.zeros(len(order), np.int64)
    if name == "original":
        order = np.arange(len(order))
    else:
        of_document[order] = np.repeat(np.arange(len(begins) - 1), np.diff(begins))
    if name == "random":
        order = shuffled_inside(of_document, random)
    packed = _packed_anew(plan, order, "concat")
    stretch = of_document[packed.document[packed.indptr[:-1]]]
    return Trained(packed, np.arange(len(packed))[np.newaxis], stretch)


def _packed_anew(plan: PackedSequences, order: np.ndarray, method: str) -> PackedSequences:
    """The runs of a plan with their documents in another order, int64 (M,), packed anew: the tokens are the same."""
    place = np.empty_like(order)
    place[order] = np.arange(len(order))
    runs = np.lexsort((plan.start, place[plan.document]))
    pieces = Pieces(plan.document[runs], plan.start[runs], plan.length[runs])
    return pack(pieces, method=method, sequence_length=plan.sequence_length)


def _measure_diversity(run: Run) -> Made:
    settings, stream = run.settings, load_stream(run)
    traits, count = stream.traits, run_counter(run, stream.record_of)
    shuffles = {name: SHUFFLES if name in SHUFFLED.values() else 1 for name in ORDERS}
    measured = dict[str, Measures]()
    with run.progress("measuring orders", sum(shuffles.values()), "orders") as advance:
        for name, number in shuffles.items():
            each = []
            for shuffle in range(number):
                each.append(load_trained(run, name, shuffle).measures(stream, count, settings.sequence.batch))
                advance(1)
            measured[name] = average(each)
    metrics = {name: one.figures for name, one in measured.items()}
    for ours, other in SHUFFLED.items():
        pairs = {
            trait: (errors, measured[other].errors[trait]) for trait, errors in measured[ours].errors.items()
        }
        metrics[ours] = metrics[ours] | {
            "trait_errors": {trait: compare_errors(*pair) for trait, pair in pairs.items()},
            "curves": {"trait_errors": {trait: error_curves(*pair) for trait, pair in pairs.items()}},
        }
    metrics["sequences"] |= _along_training(run, stream, count)
    files: dict[str, Any] = {"metrics": File(orjson.dumps(metrics), "json")}
    alike = [trait for trait in settings.order.traits if not np.ptp(traits.codes[trait])]
    balanced = [trait for trait in _fields_first(settings) if trait not in alike]
    shown = list(dict.fromkeys([*balanced, "cluster"]))
    files["along"] = _clusters_along(run, stream, count)
    if "plot" in settings.output.sidecars:
        from dagster_divorder.view.pictures import ordering_comparison

        before_and_after = _before_and_after(run, metrics, files["along"])
        files["picture"] = File(ordering_comparison(metrics, before_and_after), "png")
    of = [trait for trait in shown if trait not in alike]
    told = findings(metrics["sequences"], metrics["sequences_random"], of)
    told += [f"{trait}: one value in all documents, so it balances nothing" for trait in alike]
    if settings.has_chats:
        counted = "the tokens that are trained on" if has_loss_mask(settings) else "all tokens"
        told.insert(0, f"shares are of {counted}")
    summary = [summary_row(name, metrics[name], shown) for name in ORDERS]
    return Made(files, figures={"balanced": balanced, "traits": shown, "summary": summary, "findings": told})


def _fields_first(settings: Settings) -> list[str]:
    """The balanced traits as people look at them: fields of their records, clusters, what else is computed."""
    computed = built_in(settings)
    return sorted(settings.order.traits, key=lambda trait: (trait in computed, trait != "cluster"))


def _along_training(run: Run, stream: TrainingStream, count: RunCounter) -> dict[str, Any]:
    """`off_schedule` and `mixes`, as far as the order has them (`load_metrics`)."""
    settings, ours = run.settings, load_trained(run, "sequences")
    packed, order, counted = ours.packed, ours.epochs[0], count(ours.packed)
    found: dict[str, Any] = {}
    if settings.curriculum.on:
        ranks = stream_ranks(run, stream)[packed.document]

        def distance(order: np.ndarray) -> float:
            runs, indptr = runs_in_order(packed.indptr, order)
            edges = np.unique(np.append(np.arange(0, len(order), settings.sequence.batch), len(order)))
            return off_schedule(ranks[runs], counted[runs], settings.curriculum.pieces, indptr[edges])

        random = np.random.default_rng([settings.seed, 0])
        shuffled = order[shuffled_inside(ours.stretch[order], random)]
        found["off_schedule"] = {"achieved": distance(order), "shuffled": distance(shuffled)}
    if ours.stretch.any():
        found["mixes"] = _mixes_along(settings, stream, ours, counted)
    return found


def _mixes_along(
    settings: Settings, stream: TrainingStream, ours: Trained, counted: np.ndarray
) -> dict[str, Any]:
    """The mix along training: `trait`; `values`, those with the largest shares; `ends` of stretches, as shares of
    training; `asked` (T, V), shares in each stretch; `achieved` (C, V), in equal slices of training."""
    trait = settings.mixed_trait if settings.mixing.on else _fields_first(settings)[0]
    packed, order, names = ours.packed, ours.epochs[0], stream.traits.names[trait]
    codes, size = stream.traits.codes[trait][packed.document], settings.sequence.batch
    asked = np.zeros((int(ours.stretch.max()) + 1, len(names)))
    np.add.at(asked, (ours.stretch.repeat(np.diff(packed.indptr)), codes), counted)
    shown, sums = np.argsort(-asked.sum(axis=0), kind="stable")[:SHOWN_VALUES], asked.sum(axis=1)
    runs, _ = runs_in_order(packed.indptr, order)
    slices = min(SLICES, max(1, len(order) // size))
    mixes = {
        "trait": trait,
        "values": [names[value] for value in shown],
        "ends": (np.cumsum(sums) / max(1.0, sums.sum())).tolist(),
        "asked": (asked / np.maximum(sums, 1.0)[:, np.newaxis])[:, shown].tolist(),
        "achieved": cluster_mix(counted[runs], codes[runs], len(names), slices)[:, shown].tolist(),
    }
    return mixes


def _clusters_along(run: Run, stream: TrainingStream, count: RunCounter) -> dict[str, np.ndarray]:
    """What `charts.before_and_after` draws of each order of `read_in_order`: `ORDER mix`, float32 (C, K); `ORDER
    distinct`, float64 (B, 4), the fields of a `Binned`."""
    labels, clusters, arrays = stream.traits.codes["cluster"], stream.traits.sizes()["cluster"], {}
    for name, runs in read_in_order(run).items():
        columns = int(np.clip((len(runs.indptr) - 1) // run.settings.sequence.batch, *COLUMNS))
        arrays[f"{name} mix"] = cluster_mix(count(runs), labels[runs.document], clusters, columns)
        bins = binned(distinct_per_sequence(runs.indptr, labels[runs.document]), BINS)
        arrays[f"{name} distinct"] = np.column_stack([bins.at, bins.mean, bins.low, bins.high])
    return arrays


def _before_and_after(
    run: Run, metrics: dict[str, dict[str, Any]], arrays: dict[str, np.ndarray]
) -> dict[str, Chart]:
    mixes = {name: arrays[f"{name} mix"] for name in DRAWN}
    sequences = {name: Binned(*arrays[f"{name} distinct"].T) for name in DRAWN}
    return charts.before_and_after(metrics, mixes, sequences, load_names(run))


def read_in_order(run: Run) -> dict[str, ReadRuns]:
    """The runs of tokens as they are read in each order of DRAWN: in the first epoch; of shuffles, the first one."""
    read = {name: load_trained(run, name) for name in DRAWN}
    return {name: sequences_stream(of.packed, of.epochs[0]) for name, of in read.items()}


def load_verdict(run: Run) -> Verdict:
    """Whether the sequences beat shuffling in the balanced traits, by the last run's measures.

    Raises:
        MissingStageError: diversity_metrics has no result under these settings.
    """
    metrics, figures = load_metrics(run), run.receipt("diversity_metrics").figures
    # Across the seam an order of several stretches changes its mix.
    seam = "mixes" not in metrics[TRAIN_ON]
    ours, shuffled = metrics[TRAIN_ON], metrics[SHUFFLED[TRAIN_ON]]
    return Verdict(
        check=beats_shuffling(ours, shuffled, figures["balanced"], seam=seam),
        metrics=metrics,
        traits=figures["traits"],
        remedy=remedy(run.settings),
    )


def remedy(settings: Settings) -> str:
    """What to change if the sequences do not beat shuffling."""
    if settings.packing.method == "cluster_packed":
        return "packing.method = 'cluster_packed' packs similar documents together on purpose; 'concat' mixes them"
    for name, strategy in (
        ("sequence.strategy", settings.sequence.strategy),
        ("order.strategy", settings.order.strategy),
    ):
        if strategy not in ("balanced", "f3"):
            return f"{name} is {strategy!r}; 'balanced' keeps windows at the corpus's mix"
    if settings.curriculum.on:
        return "raise sequence.batch, give the trait more weight in order.traits, or give it fewer values (clusters.k)"
    return "give the trait more weight in order.traits, balance fewer traits, or give them fewer values (clusters.k)"


def _quality(run: Run, receipt: Receipt) -> dict[str, float]:
    """A few figures of the quality of the ordered training sequences, rounded as elsewhere, some also as multiples of
    shuffling's. Figures that a small corpus does not have are left out."""
    rows = {row["order"]: row for row in receipt.figures["summary"]}
    ours, shuffled = rows[TRAIN_ON], rows[SHUFFLED[TRAIN_ON]]
    names = followed(receipt.figures["traits"])
    values = {name: ours[name] for name in names} | drift_columns(load_stationarity(run))
    known = measures(values)
    figures = {
        known[name].label: float(known[name].show(value).replace(",", ""))
        for name, value in values.items()
        if value is not None
    }
    for name in names:
        if ours[name] is not None and shuffled[name]:
            what = known[name].name.removesuffix(", mean")
            figures[f"{what}, times shuffled"] = ours[name] / shuffled[name]
    off = load_metrics(run)[TRAIN_ON].get("off_schedule")
    if off and off["shuffled"]:
        figures["off the schedule, times shuffled"] = off["achieved"] / off["shuffled"]
    return figures


def _show_diversity_metrics(run: Run, receipt: Receipt) -> Shown:
    verdict, summary = load_verdict(run), receipt.figures["summary"]
    known = measures(summary[0]).values()
    orders = [{**row, "meaning": of.meaning} for row, of in zip(side_by_side(summary), known, strict=True)]
    return {
        "verdict": Text(" ".join([f"**{verdict.sentences[0]}**", verdict.sentences[1]])),
        **_before_and_after(run, verdict.metrics, run.arrays("diversity_metrics", "along")),
        **charts.windows(verdict),
        "orders": Table(orders),
        **_quality(run, receipt),
        "findings": Text("\n".join(f"- {line}" for line in receipt.figures["findings"])),
        f"{ORDERS[TRAIN_ON]}, windows of every size": Table(verdict.check.rows()),
    }


def _order_beats_shuffling(run: Run) -> Finding:
    """Compares the sequences as a trainer reads them with shuffled sequences (mean of three seeds). The output is
    complete and can be trained on even if this fails."""
    verdict = load_verdict(run)
    lines = [*verdict.check.notes, *run.receipt("diversity_metrics").figures["findings"]]
    return Finding(
        passed=verdict.check.passed,
        text="\n\n".join([" ".join(verdict.sentences), "\n".join(f"- {line}" for line in lines)]),
        remedy=verdict.remedy,
    )


def _nothing_drifts(run: Run) -> Finding:
    """Compares features along the order of the sequences, balanced or not, with shuffles of the same sequences. The
    output is complete and can be trained on even if this fails."""
    drift = load_stationarity(run)
    meaning = (
        "the end of training is like its beginning, as far as these features show"
        if drift.passed
        else "the end of an epoch has other data than its beginning. The output is complete and can be trained on"
    )
    return Finding(
        passed=drift.passed,
        text=f"{drift.claim()}\n\nFor training: {meaning}.",
        remedy=stationarity_remedy(run.settings),
    )


DIVERSITY_METRICS = WholeCorpus(
    name="diversity_metrics",
    version=11,
    description="How well every window of training keeps the corpus's mix: training sequences and documents in order, "
    "compared with shuffles (three seeds) and the original order.",
    reads=(
        *("raw_docs", "traits", "repeats", "scores", "cluster_names"),
        *("greedy_order", "packed_sequences", "sequence_order"),
    ),
    settings=("sequence", "packing", "input.format", "chats", "curriculum", "output.sidecars", "seed"),
    then=("stationarity",),
    quotes=True,
    doing="measuring orders",
    compute=_measure_diversity,
    show=_show_diversity_metrics,
    checks=(
        Check(
            name="order_beats_shuffling",
            description="Every sequence, batch and run of ten batches keeps the corpus's mix of the balanced traits "
            "(order.traits: sources, clusters, ...) better than after shuffling, whatever sequence it begins with, "
            "even across the seam of two epochs. In an order of several stretches (phases, windows of a score, "
            "appends), the mix is that of its stretch, and the shuffles stay inside stretches.",
            check=_order_beats_shuffling,
        ),
        Check(
            name="nothing_drifts",
            description="The end of training is like its beginning: along the training sequences no feature drifts "
            "more than in shuffles, not even features that the order did not balance, such as words.",
            check=_nothing_drifts,
        ),
    ),
)
