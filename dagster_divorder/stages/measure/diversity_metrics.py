"""diversity_metrics: measures of all orders, for every window of training.

Documents: in their original order, shuffled (mean of three seeds), and curated. Sequences: shuffled documents packed by
`concat` and shuffled again (mean of three), and the packed sequences as a trainer gets them, epoch after epoch. Windows
are compared with the mix of their stretch (`core.measure.stretches`), and shuffles stay inside stretches; most orders
have one. With a loss mask, windows are whole sequences, shares count trained tokens, and shuffled documents are
packed by `best_fit` if the plan is.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import numpy as np
import orjson

from dagster_divorder.core.measure import (
    Diversity,
    Seam,
    WindowDeviation,
    average,
    beats_shuffling,
    cluster_mix,
    compare_errors,
    distinct_clusters,
    error_curves,
    measure,
    measure_packed,
    worse_batches,
)
from dagster_divorder.core.measure.distinct import distinct_in_sequences
from dagster_divorder.core.measure.packed import (
    ReadRuns,
    RunCounter,
    documents_stream,
    runs_in_order,
    sequences_stream,
    stretch_of_runs,
)
from dagster_divorder.core.measure.stationarity import SHUFFLES as DRIFT_SHUFFLES
from dagster_divorder.core.measure.stretches import off_schedule, shuffled_inside
from dagster_divorder.core.measure.tables import (
    SHUFFLED,
    drift_columns,
    findings,
    table_rows,
)
from dagster_divorder.core.order.schedule import asked_rank
from dagster_divorder.core.order.traits import Traits
from dagster_divorder.core.packing import FILLED, PackedSequences, Pieces, pack
from dagster_divorder.engine.memory import MEASURED_BYTES
from dagster_divorder.pipeline.run import Run
from dagster_divorder.pipeline.stage import (
    Check,
    File,
    Finding,
    Made,
    Picture,
    Shown,
    Table,
    Text,
    WholeCorpus,
)
from dagster_divorder.settings import Settings
from dagster_divorder.stages.corpus.fields import built_in
from dagster_divorder.stages.measure.stationarity import load_stationarity
from dagster_divorder.stages.measure.stationarity import remedy as stationarity_remedy
from dagster_divorder.stages.mix.repeats import load_stream, run_counter, stream_reads
from dagster_divorder.stages.order.greedy_order import load_order, load_stretches
from dagster_divorder.stages.order.packed_sequences import load_bounds, load_packed
from dagster_divorder.stages.order.scores import score_reads, stream_ranks
from dagster_divorder.stages.order.sequence_order import load_sequence_order
from dagster_divorder.stages.topics.cluster_names import load_names
from dagster_divorder.store.state import Receipt
from dagster_divorder.view.measures import (
    followed,
    measures,
    mix_rows,
    side_by_side,
    summary_row,
)
from dagster_divorder.view.verdict import Verdict
from dagster_divorder.view.words import ORDERS, TRAIN_ON

SHUFFLES = 3
SLICES, SHOWN_VALUES = 100, 8
"""Most slices and values of a trait in the mix along training."""
ORDER_BYTES = 100
"""Peak bytes a document while an order is measured."""
FEWEST_COLUMNS = 60
"""Fewest columns of a bar in the picture. With more batches, a column is a batch."""

COUNTED = {True: "the tokens that are trained on", False: "all tokens"}
"""`Settings.counts_trained` -> what shares are of."""

UNPACKED = {"random": "sequences_random", "curated": "sequences"}
"""Order of documents -> order of sequences that it equals if records are not packed."""


def load_metrics(run: Run) -> dict[str, dict[str, Any]]:
    """Order name -> measures, as in `core.measure.Diversity.to_dict`. The orders that DivOrder made also have

    shuffled_batches_worse: by trait, the share of the shuffles' batches with a higher total variation than our worst
        batch. trait_errors: by trait, see `core.measure.compare_errors`. curves: trait_errors along the order.
        off_schedule: `achieved` and `shuffled` distance of a batch's mean rank from the asked one, along a score.
        mixes: of several stretches, see `_mixes_along`.
    """
    metrics: dict[str, dict[str, Any]] = orjson.loads(run.read("diversity_metrics", "metrics"))
    return metrics


def load_table(run: Run) -> list[dict[str, Any]]:
    """Every measure as a row: `trait`, `window`, `measure`, then its value in each order."""
    return run.rows("diversity_metrics", "table")


def _measure_diversity(run: Run) -> Made:
    stream = load_stream(run)
    traits, count = stream.traits, run_counter(run, stream.record_of)
    measured = _measure_orders(run, traits, count)
    worse = {ours: worse_batches(measured[other], measured[ours]) for ours, other in SHUFFLED.items()}
    metrics = {name: diversity.to_dict() for name, diversity in measured.items()}
    for ours, shares in worse.items():
        metrics[ours]["shuffled_batches_worse"] = shares
        metrics[ours] |= _against_shuffles(measured[ours], measured[SHUFFLED[ours]])
    metrics["sequences"] |= _along_training(run, traits, count)
    files: dict[str, Any] = {
        "metrics": File(orjson.dumps(metrics), "json"),
        "table": table_rows(measured, metrics),
    }
    alike = [trait for trait in run.settings.order.traits if not np.ptp(traits.codes[trait])]
    balanced = [trait for trait in _fields_first(run.settings) if trait not in alike]
    shown = list(dict.fromkeys([*balanced, "cluster"]))
    if "plot" in run.settings.output.sidecars:
        files["picture"] = File(_picture(run, traits, count, measured, shown), "png")
    summary = [summary_row(name, metrics[name], shown) for name in ORDERS]
    told = findings(metrics, [trait for trait in shown if trait not in alike])
    told += [f"{trait}: one value in all documents, so it balances nothing" for trait in alike]
    if run.settings.masked:
        told.insert(0, f"shares are of {COUNTED[run.settings.counts_trained]}")
    return Made(files, figures={"balanced": balanced, "traits": shown, "summary": summary, "findings": told})


def _fields_first(settings: Settings) -> list[str]:
    """The balanced traits as people look at them: fields of their records, clusters, what else is computed."""
    computed = built_in(settings)
    return sorted(settings.order.traits, key=lambda trait: (trait in computed, trait != "cluster"))


def _measure_orders(run: Run, traits: Traits, count: RunCounter) -> dict[str, Diversity]:
    settings, whole = run.settings.sequence, run.settings.whole_windows
    packs, stretches = run.settings.packing.packs, load_bounds(run)[1]

    def documents(order: np.ndarray, stretch: np.ndarray | None = None) -> Diversity:
        if whole:
            pieces = _planned_pieces(load_packed(run), order)
            packed = pack(pieces, method="concat", sequence_length=settings.length)
            return sequences(packed, np.arange(len(packed)), None)
        return measure(
            order,
            traits.tokens,
            traits.codes,
            traits.sizes(),
            sequence_length=settings.length,
            batch=settings.batch,
            stretch=stretch,
        )

    def sequences(packed: PackedSequences, epochs: np.ndarray, stretches: np.ndarray | None) -> Diversity:
        return measure_packed(
            packed,
            epochs,
            traits.codes,
            traits.sizes(),
            batch=settings.batch,
            whole=whole,
            counted=count(packed),
            stretches=stretches,
        )

    in_order = _document_stretches(run)

    def shuffled_documents(number: int) -> Diversity:
        if in_order is None:
            return documents(_shuffle(run, len(traits.tokens), number))
        return documents(shuffled_inside(in_order, _random(run, number)), in_order)

    def shuffled_sequences(number: int) -> Diversity:
        return sequences(*_shuffled_sequences(run, traits, number))

    # Each task makes its own order, so that waiting tasks take no memory.
    tasks: list[tuple[str, Callable[[], Diversity]]] = [
        *(("sequences_random", partial(shuffled_sequences, number)) for number in range(SHUFFLES)),
        ("sequences", lambda: sequences(load_packed(run), load_sequence_order(run), stretches)),
    ]
    if packs:
        tasks = [
            ("original", lambda: documents(np.arange(len(traits.tokens)))),
            *(("random", partial(shuffled_documents, number)) for number in range(SHUFFLES)),
            ("curated", lambda: documents(load_order(run), in_order)),
            *tasks,
        ]
    else:
        tasks.insert(0, ("original", lambda: sequences(*_sequences_as_read(run), None)))
    at_once = 2 if ORDER_BYTES * len(traits.tokens) <= MEASURED_BYTES else 1
    measured: dict[str, list[Diversity]] = {}
    with (
        run.progress("measuring orders", len(tasks), "orders") as advance,
        ThreadPoolExecutor(at_once, thread_name_prefix="divorder-measure") as threads,
    ):
        for (name, _), figures in zip(tasks, threads.map(lambda task: task[1](), tasks), strict=True):
            measured.setdefault(name, []).append(figures)
            advance(1)
    if not packs:
        # Each record is a sequence.
        measured |= {name: measured[of_sequences] for name, of_sequences in UNPACKED.items()}
    return {name: average(diversities) for name, diversities in measured.items()}


def _against_shuffles(ours: Diversity, shuffled: Diversity) -> dict[str, Any]:
    """The errors of each trait, compared with the shuffles' errors, as figures and as curves."""
    pairs = {trait: (errors, shuffled.errors[trait]) for trait, errors in ours.errors.items()}
    return {
        "trait_errors": {trait: compare_errors(*pair) for trait, pair in pairs.items()},
        "curves": {"trait_errors": {trait: error_curves(*pair) for trait, pair in pairs.items()}},
    }


def _document_stretches(run: Run) -> np.ndarray | None:
    """The stretch of each document, int64 (M,), by number; None if there is one."""
    stretches = load_stretches(run)
    if len(stretches) <= 2:
        return None
    stretch = np.empty(stretches[-1], np.int64)
    stretch[load_order(run)] = np.repeat(np.arange(len(stretches) - 1), np.diff(stretches))
    return stretch


def _along_training(run: Run, traits: Traits, count: RunCounter) -> dict[str, Any]:
    """`off_schedule` and `mixes`, as far as the order has them (`load_metrics`)."""
    settings, stretches = run.settings, load_bounds(run)[1]
    if len(stretches) <= 2 and not settings.curriculum.on:
        return {}
    packed, order = load_packed(run), load_sequence_order(run)
    if settings.schedule_epochs > 1:
        order = order.reshape(1, -1)
    counted = count(packed)
    found: dict[str, Any] = {}
    if settings.curriculum.on:
        ranks = stream_ranks(run, load_stream(run))[packed.document]
        stretch = np.searchsorted(stretches[1:], order[0], side="right")
        shuffled = order[0][shuffled_inside(stretch, _random(run, 0))]
        found["off_schedule"] = {
            name: _off_schedule(settings, packed, of, ranks, counted)
            for name, of in (("achieved", order[0]), ("shuffled", shuffled))
        }
    if len(stretches) > 2:
        begun = run.receipt("packed_sequences").facts["frozen_sequences"]
        found["mixes"] = _mixes_along(settings, traits, packed, order[0], stretches, counted, begun)
    return found


def _off_schedule(
    settings: Settings, packed: PackedSequences, order: np.ndarray, ranks: np.ndarray, counted: np.ndarray
) -> float:
    """ranks, counted: (Q,), of the plan's runs."""
    runs, indptr = runs_in_order(packed.indptr, order)
    edges = indptr[np.unique(np.append(np.arange(0, len(order), settings.sequence.batch), len(order)))]
    ends = np.append(0, np.cumsum(counted[runs]))[edges]
    middles = 0.5 * (ends[1:] + ends[:-1]) / max(1, ends[-1])
    asked = asked_rank(settings.curriculum.pieces, middles)
    return off_schedule(ranks[runs], counted[runs], asked, edges)


def _mixes_along(
    settings: Settings,
    traits: Traits,
    packed: PackedSequences,
    order: np.ndarray,
    stretches: np.ndarray,
    counted: np.ndarray,
    begun: int,
) -> dict[str, Any]:
    """The mix along training: `trait`; `values`, those with the largest shares; `ends` of stretches, as shares of
    training; `asked` (T, V), shares in each stretch; `achieved` (C, V), in equal slices of training; `next` (V,), in
    the first batch behind the `begun` sequences that stay, if there is one."""
    trait = settings.mixed_trait if settings.mixing.on else _fields_first(settings)[0]
    names, codes = traits.names[trait], traits.codes[trait][packed.document]
    asked = np.bincount(
        stretch_of_runs(packed, stretches) * len(names) + codes, counted, (len(stretches) - 1) * len(names)
    ).reshape(-1, len(names))
    shown = np.argsort(-asked.sum(axis=0), kind="stable")[:SHOWN_VALUES]
    sums = asked.sum(axis=1)
    runs, _ = runs_in_order(packed.indptr, order)
    slices = min(SLICES, max(1, len(order) // settings.sequence.batch))
    batch, _ = runs_in_order(packed.indptr, order[begun : begun + settings.sequence.batch])
    next_ = np.bincount(codes[batch], counted[batch], len(names))[shown] / max(1, counted[batch].sum())
    achieved = cluster_mix(np.arange(len(runs)), counted[runs], codes[runs], len(names), slices)
    return {
        "trait": trait,
        "values": [names[value] for value in shown],
        "ends": (np.cumsum(sums) / max(1.0, sums.sum())).tolist(),
        "asked": (asked / np.maximum(sums, 1.0)[:, np.newaxis])[:, shown].tolist(),
        "achieved": achieved[:, shown].tolist(),
        **({"next": next_.tolist()} if 0 < begun < len(order) else {}),
    }


def _random(run: Run, number: int) -> np.random.Generator:
    return np.random.default_rng([run.settings.seed, number])


def _shuffle(run: Run, items: int, number: int) -> np.ndarray:
    return _random(run, number).permutation(items)


def _sequences_as_read(run: Run) -> tuple[PackedSequences, np.ndarray]:
    """Records that are not packed, in the order of the input."""
    plan = load_packed(run)
    as_read = np.lexsort((plan.start, plan.document))
    return plan, np.tile(as_read, (run.settings.epochs, 1))


def _shuffled_sequences(
    run: Run, traits: Traits, number: int
) -> tuple[PackedSequences, np.ndarray, np.ndarray | None]:
    """Training data without an order: documents shuffled and packed, with as many tokens of each as in the plan, and
    the sequences shuffled for every epoch; in an order of several stretches, the plan's sequences shuffled inside them.
    A partial last sequence stays last, unless all are padded. (The plan, the epochs, the stretches.)"""
    plan, stretches, random = load_packed(run), load_bounds(run)[1], _random(run, number)
    settings = run.settings
    if not settings.packing.packs or len(stretches) > 2:
        last = len(plan) - bool(settings.packing.method in FILLED and plan.padding[-1] > 0)
        stretch = np.searchsorted(stretches[1:], np.arange(last), side="right")
        rows = [
            np.append(shuffled_inside(stretch, random), np.arange(last, len(plan)))
            for _ in range(settings.epochs)
        ]
        return plan, np.stack(rows), stretches
    order, method = _shuffle(run, len(traits.tokens), number), "concat"
    if settings.masked:
        pieces = _planned_pieces(plan, order)
        method = "best_fit" if settings.packing.method == "best_fit" else "concat"
    else:
        tokens = np.bincount(plan.document, plan.length, len(traits.tokens)).astype(np.int64)
        pieces = Pieces(order, np.broadcast_to(np.int64(0), order.shape), tokens[order])
        del tokens
    del plan
    packed = pack(pieces, method=method, sequence_length=settings.sequence.length)
    full = len(packed) if method == "best_fit" else int((packed.padding == 0).sum())
    random = np.random.default_rng([settings.seed, number, 1])
    rows = [np.append(random.permutation(full), np.arange(full, len(packed))) for _ in range(settings.epochs)]
    return packed, np.stack(rows), None


def _planned_pieces(plan: PackedSequences, order: np.ndarray) -> Pieces:
    """The runs of a plan with their documents in another order; the trained tokens are the same."""
    place = np.empty_like(order)
    place[order] = np.arange(len(order))
    runs = np.lexsort((plan.start, place[plan.document]))
    return Pieces(plan.document[runs], plan.start[runs], plan.length[runs])


def _picture(
    run: Run, traits: Traits, count: RunCounter, measured: dict[str, Diversity], shown: list[str]
) -> bytes:
    from dagster_divorder.view.pictures import BAR_PIXELS, ordering_comparison

    labels, clusters = traits.codes["cluster"], traits.sizes()["cluster"]
    distinct, mixes = {}, {}
    for name, (runs, in_sequences) in read_in_order(run, traits).items():
        # The picture leaves out the documents in order, which lie between shuffled and ordered sequences.
        if name != "curated":
            columns = int(
                np.clip(len(in_sequences) // run.settings.sequence.batch, FEWEST_COLUMNS, BAR_PIXELS)
            )
            tokens = count(runs)
            distinct[name] = in_sequences
            mixes[name] = cluster_mix(
                np.arange(len(tokens)), tokens, labels[runs.document], clusters, columns
            )
    return ordering_comparison(measured, distinct, mixes, load_names(run), shown)


def read_in_order(run: Run, traits: Traits) -> dict[str, tuple[ReadRuns, np.ndarray]]:
    """Name -> order that pictures show, the original first: (the runs of tokens as they are read, the number of
    distinct clusters in each sequence, int64 (S,)). For sequences, the first epoch; for shuffles, the first one."""
    labels, clusters = traits.codes["cluster"], traits.sizes()["cluster"]
    packed = {
        "sequences_random": _shuffled_sequences(run, traits, 0)[:2],
        "sequences": (load_packed(run), load_sequence_order(run)),
    }
    documents = {"original": np.arange(len(traits.tokens)), "curated": load_order(run)}
    if not run.settings.packing.packs:
        documents = {}
        packed |= {"original": _sequences_as_read(run), "curated": packed["sequences"]}
    orders = {}
    for name, order in documents.items():
        distinct = distinct_clusters(order, traits.tokens, labels, run.settings.sequence.length)
        orders[name] = documents_stream(order, traits.tokens), distinct
    for name, (sequences, epochs) in packed.items():
        runs = sequences_stream(sequences, epochs[0])
        orders[name] = runs, distinct_in_sequences(runs.indptr, labels[runs.document], clusters)
    return {name: orders[name] for name in ("original", "sequences_random", "curated", "sequences")}


def load_verdict(run: Run) -> Verdict:
    """Whether the curated documents and the sequences beat shuffling in the balanced traits, by the last run's
    measures.

    Raises:
        MissingStageError: diversity_metrics has no result under these settings.
    """
    settings, metrics = run.settings, load_metrics(run)
    figures, several = run.receipt("diversity_metrics").figures, "mixes" in metrics[TRAIN_ON]
    batches = metrics[TRAIN_ON]["split"]["count"] // settings.sequence.batch
    comparisons = {
        ours: beats_shuffling(
            _windows(metrics[ours]),
            _windows(metrics[other]),
            figures["balanced"],
            metrics[ours]["tokens"],
            batches=batches,
            # Across the seam an order of several stretches changes its mix.
            seams=None if several else (_seams(metrics[ours]), _seams(metrics[other])),
        )
        for ours, other in SHUFFLED.items()
    }
    return Verdict(
        sequences=comparisons[TRAIN_ON],
        documents=comparisons["curated"],
        metrics=metrics,
        traits=figures["traits"],
        remedy=remedy(settings),
    )


def remedy(settings: Settings) -> str:
    """What to change if the sequences do not beat shuffling."""
    if settings.packing.method == "related":
        return "packing.method = 'related' puts similar documents into one sequence on purpose; 'concat' mixes them"
    for name, strategy in (
        ("sequence.strategy", settings.sequence.strategy),
        ("order.strategy", settings.order.strategy),
    ):
        if strategy not in ("balanced", "f3"):
            return f"{name} is {strategy!r}; 'balanced' keeps windows at the corpus's mix"
    if settings.curriculum.on:
        return "raise sequence.batch, give the trait more weight in order.traits, or give it fewer values (clusters.k)"
    fill = "; if long documents fill whole sequences, cut them with packing.piece_tokens"
    return (
        "give the trait more weight in order.traits, balance fewer traits, or give them fewer values "
        f"(clusters.k){fill if settings.packing.packs else ''}"
    )


def _windows(figures: dict[str, Any]) -> dict[str, dict[str, WindowDeviation]]:
    return {
        window: {trait: WindowDeviation(**deviation) for trait, deviation in deviations.items()}
        for window, deviations in figures["windows"].items()
    }


def _seams(figures: dict[str, Any]) -> dict[str, Seam]:
    return {trait: Seam(**deviation) for trait, deviation in figures["seam"].items()}


def _quality(run: Run, receipt: Receipt) -> dict[str, float]:
    """A few figures of the quality of the ordered training sequences, rounded as elsewhere, some also as multiples of
    shuffling's. Figures that a small corpus does not have are left out."""
    rows = {row["order"]: row for row in receipt.figures["summary"]}
    ours, shuffled = rows[TRAIN_ON], rows[SHUFFLED[TRAIN_ON]]
    names = followed(receipt.figures["traits"])
    measured = {name: ours[name] for name in names} | drift_columns(load_stationarity(run))
    known = measures(measured)
    figures = {
        known[name].label: float(known[name].show(value).replace(",", ""))
        for name, value in measured.items()
        if value is not None
    }
    times = {
        f"{known[name].name.removesuffix(', mean')}, times shuffled": ours[name] / shuffled[name]
        for name in names
        if ours[name] is not None and shuffled[name]
    }
    metrics = load_metrics(run)[TRAIN_ON]
    if (off := metrics.get("off_schedule")) and off["shuffled"]:
        times["off the schedule, times shuffled"] = off["achieved"] / off["shuffled"]
    return figures | times


def _show_diversity_metrics(run: Run, receipt: Receipt) -> Shown:
    verdict, summary = load_verdict(run), receipt.figures["summary"]
    known = measures(summary[0]).values()
    orders = [{**row, "meaning": of.meaning} for row, of in zip(side_by_side(summary), known, strict=True)]
    shown: dict[str, Table | Picture | Text | float] = {
        "verdict": Text(" ".join([f"**{verdict.sentences[0]}**", verdict.sentences[1]])),
        "orders": Table(orders),
        **_quality(run, receipt),
        "findings": Text("\n".join(f"- {line}" for line in receipt.figures["findings"])),
    }
    if "picture" in receipt.files:
        file = run.store.local(receipt.files["picture"])
        shown["ordering_comparison"] = Picture(file, "orders compared")
    if mixes := verdict.metrics[TRAIN_ON].get("mixes"):
        shown["mix_along_training"] = Table(mix_rows(mixes))
    drift = Table(load_stationarity(run).rows())
    return {**shown, "drift": drift, "measures": Table(load_table(run))}


def _order_beats_shuffling(run: Run) -> Finding:
    """Compares the sequences as a trainer reads them with shuffled sequences (mean of three seeds); a table also has
    the documents in order. The output is complete and can be trained on even if this fails."""
    verdict = load_verdict(run)
    lines = "\n".join(f"- {line}" for line in run.receipt("diversity_metrics").figures["findings"])
    return Finding(
        passed=verdict.sequences.passed,
        text=f"{' '.join(verdict.sentences)}\n\n{verdict.sequences.text()}\n\n{lines}",
        remedy=verdict.remedy,
        figures={ORDERS[TRAIN_ON]: verdict.sequences.rows(), ORDERS["curated"]: verdict.documents.rows()},
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
    shuffles = "shuffles of it"
    if drift.stretches > 1:
        shuffles = "shuffles inside its stretches"
    return Finding(
        passed=drift.passed,
        text=f"{drift.text()}\n\nCompared, along the order and in {DRIFT_SHUFFLES} {shuffles}: features of the "
        f"training sequences, such as clusters, lengths, words and places in the input.\n\nFor training: {meaning}.",
        remedy=stationarity_remedy(run.settings),
        figures={"features": drift.rows()},
    )


def _diversity_metrics_reads(settings: Settings) -> tuple[str, ...]:
    orders = ("greedy_order", "packed_sequences", "sequence_order")
    # Only the picture uses names of clusters.
    names = ["cluster_names"] if "plot" in settings.output.sidecars else []
    return ("raw_docs", *names, "traits", *stream_reads(settings), *score_reads(settings), *orders)


DIVERSITY_METRICS = WholeCorpus(
    name="diversity_metrics",
    version=8,
    description="How well every window of training keeps the corpus's mix: training sequences and documents in order, "
    "compared with shuffles (three seeds) and the original order. *Plots* shows the figures over runs.",
    reads=_diversity_metrics_reads,
    settings=("sequence", "packing", "input.format", "chats", "curriculum", "output.sidecars", "seed"),
    then=("stationarity",),
    quotes=True,
    doing="measuring orders",
    compute=_measure_diversity,
    show=_show_diversity_metrics,
    checks=(
        Check(
            name="order_beats_shuffling",
            description="Every sequence, batch and stretch of ten batches keeps the corpus's mix of the balanced "
            "traits (order.traits: sources, clusters, ...) better than after shuffling, wherever it begins, even "
            "across the seam of two epochs. In an order of several stretches (phases, windows of a score, appends), "
            "the mix is that of its stretch, and the shuffles stay inside stretches.",
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
