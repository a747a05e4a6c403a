"""diversity_metrics: measures of all orders, for every window of training.

Documents: in their original order, shuffled (mean of three seeds), and curated. Sequences: shuffled documents packed by
`concat` and shuffled again (mean of three), and the packed sequences as a trainer gets them, epoch after epoch. Windows
are compared with the mix of the whole order; for a trait with `order.targets`, with the achievable mix closest to its
targets. With a loss mask, windows are whole sequences, shares count the tokens that `chats.balance` names, and shuffled
documents are packed by `best_fit` if the plan is.
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
)
from dagster_divorder.core.measure.stationarity import SHUFFLES as DRIFT_SHUFFLES
from dagster_divorder.core.measure.tables import (
    SHUFFLED,
    drift_columns,
    findings,
    schedule_findings,
    table_rows,
)
from dagster_divorder.core.order.trait_targets import followed, trait_targets, warnings_of
from dagster_divorder.core.order.traits import Traits
from dagster_divorder.core.packing import PackedSequences, Pieces, pack
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
from dagster_divorder.stages.measure.schedule import follows_the_schedule, load_schedule
from dagster_divorder.stages.measure.stationarity import load_stationarity
from dagster_divorder.stages.measure.stationarity import remedy as stationarity_remedy
from dagster_divorder.stages.mix.repeats import load_stream, run_counter, stream_reads
from dagster_divorder.stages.order.greedy_order import load_order
from dagster_divorder.stages.order.packed_sequences import batch_tokens, load_packed
from dagster_divorder.stages.order.sequence_order import load_sequence_order
from dagster_divorder.stages.topics.cluster_names import load_names
from dagster_divorder.store.state import Receipt
from dagster_divorder.view import schedule
from dagster_divorder.view.answer import TextTable
from dagster_divorder.view.measures import (
    ALONG_SCHEDULE,
    FOLLOWED,
    MEASURES,
    SUMMARY,
    side_by_side,
    summary_row,
)
from dagster_divorder.view.schedule import rows as schedule_rows
from dagster_divorder.view.verdict import Verdict
from dagster_divorder.view.words import ORDERS, TRAIN_ON

SHUFFLES = 3
ORDER_BYTES = 100
"""Peak bytes a document while an order is measured."""
FEWEST_COLUMNS = 60
"""Fewest columns of a bar in the picture. With more batches, a column is a batch."""

COUNTED = {True: "the tokens that are trained on", False: "all tokens"}
"""`Settings.counts_trained` -> what shares are of."""

UNPACKED = {"random": "sequences_random", "curated": "sequences"}
"""Order of documents -> order of sequences that it equals if records are not packed."""

LEGEND = "\n".join(
    [
        "Training sequences in order are what a trainer reads. Shuffled: the mean of three shuffles. Original order: "
        "the input as it is. Topics are the clusters that were found in the corpus.",
        "",
        *(
            f"- **{measure.label}**: {measure.meaning}."
            for name, measure in MEASURES.items()
            if name not in ALONG_SCHEDULE
        ),
    ]
)


def load_metrics(run: Run) -> dict[str, dict[str, Any]]:
    """Order name -> measures, as in `core.measure.Diversity.to_dict`. The orders that DivOrder made also have

    shuffled_batches_worse: by trait, the share of the shuffles' batches with a higher total variation than our worst
        batch. trait_errors: by trait, see `core.measure.compare_errors`. targets: by trait with targets, see
        `core.order.trait_targets.followed`. curves: trait_errors and targets along the order.
    """
    metrics: dict[str, dict[str, Any]] = orjson.loads(run.read("diversity_metrics", "metrics"))
    return metrics


def load_table(run: Run) -> list[dict[str, Any]]:
    """Every measure as a row: `trait`, `window`, `measure`, then its value in each order."""
    return run.rows("diversity_metrics", "table")


def _measure_diversity(run: Run) -> Made:
    stream = load_stream(run)
    traits, count = stream.traits, run_counter(run, stream.view)
    measured = _measure_orders(run, traits, count)
    worse = {ours: worse_batches(measured[other], measured[ours]) for ours, other in SHUFFLED.items()}
    metrics = {name: diversity.to_dict() for name, diversity in measured.items()}
    for ours, shares in worse.items():
        metrics[ours]["shuffled_batches_worse"] = shares
        metrics[ours] |= _against_shuffles(measured[ours], measured[SHUFFLED[ours]])
    _add_targets(run, traits, count, metrics)
    files: dict[str, Any] = {
        "metrics": File(orjson.dumps(metrics), "json"),
        "table": table_rows(measured, metrics),
    }
    if "plot" in run.settings.output.sidecars:
        files["picture"] = File(_picture(run, traits, count, measured), "png")
    summary = [summary_row(name, metrics[name]) for name in ORDERS]
    alike = [trait for trait in run.settings.order.traits if not np.ptp(traits.codes[trait])]
    told = schedule_findings(load_schedule(run)) if run.settings.curriculum.on else findings(metrics, alike)
    told += [f"{trait}: one value in all documents, so it balances nothing" for trait in alike]
    if run.settings.masked:
        told.insert(0, f"shares are of {COUNTED[run.settings.counts_trained]}")
    return Made(files, figures={"summary": summary, "findings": told})


def _note_unmet_targets(run: Run, receipt: Receipt) -> None:
    """Note the targets that the corpus cannot meet, in every run, even if the run measures nothing."""
    if run.settings.order.targets:
        metrics = orjson.loads(run.store.read_verified(receipt.files["metrics"]))
        for warning in warnings_of(metrics["sequences"]["targets"]):
            run.progress.note(warning)


def _measure_orders(run: Run, traits: Traits, count: RunCounter) -> dict[str, Diversity]:
    settings, whole = run.settings.sequence, run.settings.whole_windows
    targets, packs = trait_targets(run.settings.order.targets, traits), run.settings.packing.packs

    def documents(order: np.ndarray) -> Diversity:
        if whole:
            pieces = _planned_pieces(load_packed(run), order)
            packed = pack(pieces, method="concat", sequence_length=settings.length)
            return sequences(packed, np.arange(len(packed)))
        return measure(
            order,
            traits.tokens,
            traits.codes,
            traits.sizes(),
            sequence_length=settings.length,
            batch=settings.batch,
            targets=targets,
        )

    def sequences(packed: PackedSequences, epochs: np.ndarray) -> Diversity:
        return measure_packed(
            packed,
            epochs,
            traits.codes,
            traits.sizes(),
            batch=settings.batch,
            whole=whole,
            counted=count(packed),
            targets=targets,
        )

    def shuffled_documents(number: int) -> Diversity:
        return documents(_shuffle(run, len(traits.tokens), number))

    def shuffled_sequences(number: int) -> Diversity:
        return sequences(*_shuffled_sequences(run, traits, number))

    # Each task makes its own order, so that waiting tasks take no memory.
    tasks: list[tuple[str, Callable[[], Diversity]]] = [
        *(("sequences_random", partial(shuffled_sequences, number)) for number in range(SHUFFLES)),
        ("sequences", lambda: sequences(load_packed(run), load_sequence_order(run))),
    ]
    if packs:
        tasks = [
            ("original", lambda: documents(np.arange(len(traits.tokens)))),
            *(("random", partial(shuffled_documents, number)) for number in range(SHUFFLES)),
            ("curated", lambda: documents(load_order(run))),
            *tasks,
        ]
    else:
        tasks.insert(0, ("original", lambda: sequences(*_sequences_as_read(run))))
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


def _add_targets(run: Run, traits: Traits, count: RunCounter, metrics: dict[str, dict[str, Any]]) -> None:
    """Add to the metrics how the orders that DivOrder made follow their targets."""
    tables = run.settings.order.targets
    # By order, for each epoch: documents int64 (Q,), counted tokens of each run int64 (Q,).
    epochs: dict[str, list[tuple[np.ndarray, np.ndarray]]] = {name: [] for name in SHUFFLED}
    window = 0
    if tables:
        order, packed = load_order(run), load_packed(run)
        counted = count(packed)
        window = batch_tokens(run, packed, counted)
        epochs["curated"] = [(order, traits.counted[order])]
        for epoch in load_sequence_order(run):
            runs, _ = runs_in_order(packed.indptr, epoch)
            epochs["sequences"].append((packed.document[runs], counted[runs]))
        if not run.settings.packing.packs:
            epochs["curated"] = epochs["sequences"][:1]
    for name, streams in epochs.items():
        figures, curves = followed(tables, traits, streams, window)
        metrics[name]["targets"] = figures
        metrics[name]["curves"]["targets"] = curves


def _shuffle(run: Run, items: int, number: int) -> np.ndarray:
    return np.random.default_rng([run.settings.seed, number]).permutation(items)


def _sequences_as_read(run: Run) -> tuple[PackedSequences, np.ndarray]:
    """Records that are not packed, in the order of the input."""
    plan = load_packed(run)
    as_read = np.lexsort((plan.start, plan.document))
    return plan, np.tile(as_read, (run.settings.sequence.epochs, 1))


def _shuffled_sequences(run: Run, traits: Traits, number: int) -> tuple[PackedSequences, np.ndarray]:
    """Training data without an order: documents shuffled and packed, with as many tokens of each as in the plan, and
    the sequences shuffled for every epoch. A partial last sequence stays last, unless all are padded."""
    plan = load_packed(run)
    if not run.settings.packing.packs:
        random = np.random.default_rng([run.settings.seed, number])
        return plan, np.stack([random.permutation(len(plan)) for _ in range(run.settings.sequence.epochs)])
    order, method = _shuffle(run, len(traits.tokens), number), "concat"
    if run.settings.masked:
        pieces = _planned_pieces(plan, order)
        method = "best_fit" if run.settings.packing.method == "best_fit" else "concat"
    else:
        tokens = np.bincount(plan.document, plan.length, len(traits.tokens)).astype(np.int64)
        pieces = Pieces(order, np.broadcast_to(np.int64(0), order.shape), tokens[order])
        del tokens
    del plan
    packed = pack(pieces, method=method, sequence_length=run.settings.sequence.length)
    full = len(packed) if method == "best_fit" else int((packed.padding == 0).sum())
    random = np.random.default_rng([run.settings.seed, number, 1])
    rows = [
        np.append(random.permutation(full), np.arange(full, len(packed)))
        for _ in range(run.settings.sequence.epochs)
    ]
    return packed, np.stack(rows)


def _planned_pieces(plan: PackedSequences, order: np.ndarray) -> Pieces:
    """The runs of a plan with their documents in another order; the trained tokens are the same."""
    place = np.empty_like(order)
    place[order] = np.arange(len(order))
    runs = np.lexsort((plan.start, place[plan.document]))
    return Pieces(plan.document[runs], plan.start[runs], plan.length[runs])


def _picture(run: Run, traits: Traits, count: RunCounter, measured: dict[str, Diversity]) -> bytes:
    from dagster_divorder.view.pictures import BAR_PIXELS, PicturedOrder, ordering_comparison

    labels, clusters = traits.codes["cluster"], traits.sizes()["cluster"]
    orders = {name: PicturedOrder(diversity) for name, diversity in measured.items()}
    for name, (runs, distinct) in read_in_order(run, traits).items():
        # The picture leaves out the documents in order, which lie between shuffled and ordered sequences.
        if name != "curated":
            columns = int(np.clip(len(distinct) // run.settings.sequence.batch, FEWEST_COLUMNS, BAR_PIXELS))
            tokens = count(runs)
            mix = cluster_mix(np.arange(len(tokens)), tokens, labels[runs.document], clusters, columns)
            orders[name] = PicturedOrder(measured[name], distinct, mix)
    schedule = load_schedule(run) if run.settings.curriculum.on else None
    return ordering_comparison(orders, load_names(run), schedule)


def read_in_order(run: Run, traits: Traits) -> dict[str, tuple[ReadRuns, np.ndarray]]:
    """Name -> order that pictures show, the original first: (the runs of tokens as they are read, the number of
    distinct clusters in each sequence, int64 (S,)). For sequences, the first epoch; for shuffles, the first one."""
    labels, clusters = traits.codes["cluster"], traits.sizes()["cluster"]
    packed = {
        "sequences_random": _shuffled_sequences(run, traits, 0),
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
    measures. A trait with a moving target is compared with the closest achievable mix.

    Raises:
        MissingStageError: diversity_metrics has no result under these settings.
    """
    settings, metrics = run.settings, load_metrics(run)
    comparisons = {
        ours: beats_shuffling(
            _windows(metrics[ours]),
            _windows(metrics[other]),
            settings.order.traits,
            metrics[ours]["tokens"],
            seams=(_seams(metrics[ours]), _seams(metrics[other])),
            moving=settings.order.targets,
        )
        for ours, other in SHUFFLED.items()
    }
    return Verdict(
        sequences=comparisons[TRAIN_ON],
        documents=comparisons["curated"],
        metrics=metrics,
        remedy=remedy(settings),
        schedule=load_schedule(run) if settings.curriculum.on else None,
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
    if settings.order.targets:
        return (
            f"order.targets moves {', '.join(settings.order.targets)}, and correlated traits move too, as topics do "
            "with sources: leave correlated traits out of order.traits, or give them targets of their own"
        )
    if settings.curriculum.on:
        return (
            "set a larger curriculum.window, give the trait more weight in order.traits, or give it fewer values "
            "(clusters.k, order.length_bins)"
        )
    fill = "; if long documents fill whole sequences, cut them with packing.piece_tokens"
    return (
        "give the trait more weight in order.traits, balance fewer traits, or give them fewer values (clusters.k, "
        f"order.length_bins){fill if settings.packing.packs else ''}"
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
    measured = {name: ours[name] for name in FOLLOWED} | drift_columns(load_stationarity(run))
    figures = {
        MEASURES[name].label: float(MEASURES[name].show(value).replace(",", ""))
        for name, value in measured.items()
        if value is not None
    }
    times = {
        f"{MEASURES[name].name.removesuffix(', mean')}, times shuffled": ours[name] / shuffled[name]
        for name in FOLLOWED
        if ours[name] is not None and shuffled[name]
    }
    if run.settings.curriculum.on:
        scale = load_schedule(run)["scales"]["sequences"]
        pairs = (
            {"off the schedule": (scale["off"]["achieved"], scale["off"]["shuffled"])} if scale["off"] else {}
        )
        pairs |= {
            f"batch TV there of {trait}": (figures["batch"], figures["shuffled"])
            for trait, figures in scale["traits"].items()
        }
        times |= {
            f"{name}, times window shuffles": ours / other for name, (ours, other) in pairs.items() if other
        }
    return figures | times


def _show_diversity_metrics(run: Run, receipt: Receipt) -> Shown:
    verdict = load_verdict(run)
    shown: dict[str, Table | Picture | Text | float] = {
        "verdict": Text(" ".join([f"**{verdict.sentences[0]}**", verdict.sentences[1]])),
        "orders": Text(f"{TextTable(side_by_side(receipt.figures['summary'])).markdown()}\n\n{LEGEND}"),
        **_quality(run, receipt),
        "findings": Text("\n".join(f"- {line}" for line in receipt.figures["findings"])),
    }
    if "picture" in receipt.files:
        file = run.store.local(receipt.files["picture"])
        shown["ordering_comparison"] = Picture(file, "orders compared")
    if verdict.schedule:
        shown["along_the_schedule"] = Text(schedule.markdown(verdict.schedule))
    drift = Table(load_stationarity(run).rows())
    if verdict.schedule:
        shown["schedule"] = Table(schedule_rows(verdict.schedule["scales"]["sequences"]))
    return {**shown, "drift": drift, "measures": Table(load_table(run))}


def _order_beats_shuffling(run: Run) -> Finding:
    """Compares the sequences as a trainer reads them with shuffled sequences (mean of three seeds); a table also has
    the documents in order. The output is complete and can be trained on even if this fails."""
    verdict = load_verdict(run)
    lines = "\n".join(f"- {line}" for line in run.receipt("diversity_metrics").figures["findings"])
    if verdict.schedule:
        return Finding(
            passed=verdict.passed or not verdict.compared,
            text=f"{' '.join(verdict.sentences)}\n\n{lines}",
            remedy=verdict.remedy,
            figures={items: schedule_rows(scale) for items, scale in verdict.schedule["scales"].items()},
        )
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
    if drift.follows:
        shuffles, meaning = (
            "shuffles inside the windows of its schedule",
            (
                "only the score moves, and features that depend on it"
                if drift.passed
                else "features move that do not depend on the score. The output is complete and can be trained on"
            ),
        )
    return Finding(
        passed=drift.passed,
        text=f"{drift.text()}\n\nCompared, along the order and in {DRIFT_SHUFFLES} {shuffles}: features of the "
        f"training sequences, such as topics, lengths, words and places in the input.\n\nFor training: {meaning}.",
        remedy=stationarity_remedy(run.settings),
        figures={"features": drift.rows()},
    )


def _diversity_metrics_reads(settings: Settings) -> tuple[str, ...]:
    orders = ("greedy_order", "packed_sequences", "sequence_order")
    # Only the picture uses names of clusters.
    names = ["cluster_names"] if "plot" in settings.output.sidecars else []
    schedule = ["schedule"] if settings.curriculum.on else []
    return ("raw_docs", *names, "traits", *stream_reads(settings), *orders, *schedule)


def _diversity_metrics_settings(settings: Settings) -> dict[str, Any]:
    return {
        "targets": settings.order.targets,
        "sequence": [settings.sequence.length, settings.sequence.batch, settings.sequence.epochs],
        "end_of_text": settings.packing.end_of_text,
        **({} if settings.packing.packs else {"packs": False}),
        **({"masked": True, "method": settings.packing.method} if settings.masked else {}),
        **settings.counted_key,
        "plot": "plot" in settings.output.sidecars,
        # A new measure is a new key, so that no summary lacks it.
        "measures": SUMMARY,
        "seed": settings.seed,
    }


DIVERSITY_METRICS = WholeCorpus(
    name="diversity_metrics",
    version=5,
    group="ordering",
    kinds={"numpy", "numba"},
    description="How well every window of training keeps the corpus's mix: training sequences and documents in order, "
    "compared with shuffles (three seeds) and the original order. *Plots* shows the figures over runs.",
    reads=_diversity_metrics_reads,
    settings=_diversity_metrics_settings,
    content=("metrics",),
    then=("stationarity",),
    quotes=("picture",),
    doing="measuring orders",
    compute=_measure_diversity,
    publish=_note_unmet_targets,
    show=_show_diversity_metrics,
    checks=(
        Check(
            name="order_beats_shuffling",
            description="Every sequence, batch and stretch of ten batches keeps the corpus's mix of the balanced "
            "traits (order.traits: topics, lengths, ...) better than after shuffling, wherever it begins, even across "
            "the seam of two epochs. Along a curriculum every batch keeps the mix at its point of the schedule better "
            "than after shuffling inside windows.",
            check=_order_beats_shuffling,
        ),
        Check(
            name="follows_the_schedule",
            description="The order follows the curriculum's schedule as closely as a shuffle inside the windows of the "
            "schedule.",
            check=follows_the_schedule,
            when=lambda settings: settings.curriculum.on,
        ),
        Check(
            name="nothing_drifts",
            description="The end of training is like its beginning: along the training sequences no feature drifts "
            "more than in shuffles, not even features that the order did not balance, such as words.",
            check=_nothing_drifts,
        ),
    ),
)
