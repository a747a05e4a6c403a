"""diversity_metrics: orders measured side by side, and what they certify for every window of training.

Documents: in their original order, shuffled (mean of three seeds), and curated. Sequences: shuffled documents packed by
`concat` and shuffled again (mean of three), and the packed sequences as a trainer gets them, epoch after epoch. The
corpus's mix that windows are held against is that of the order itself, so both kinds have their own; a trait with
`order.targets` is held against what can be had of them.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import numpy as np
import orjson

from dagster_divorder.core.metrics import (
    Diversity,
    Seam,
    Verdict,
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
from dagster_divorder.core.metrics.packed import runs_in_order
from dagster_divorder.core.packing import PackedSequences, Pieces, pack
from dagster_divorder.pipeline.cluster_names import load_names
from dagster_divorder.pipeline.diversity_tables import SHUFFLED, findings, summary_rows, table_rows
from dagster_divorder.pipeline.greedy_order import load_order
from dagster_divorder.pipeline.packed_sequences import load_packed
from dagster_divorder.pipeline.run import Run, content_hash
from dagster_divorder.pipeline.sequence_order import load_sequence_order
from dagster_divorder.pipeline.stationarity import seal_stationarity
from dagster_divorder.pipeline.targets import followed, trait_targets, warnings_of
from dagster_divorder.pipeline.traits import Traits, load_traits
from dagster_divorder.settings import Settings
from dagster_divorder.store.arrays import pack_rows, unpack_rows
from dagster_divorder.store.local import LocalStore
from dagster_divorder.store.receipts import Receipt

SHUFFLES = 3
ORDER_BYTES = 100
"""What measuring an order takes for a document, at its peak."""
TOGETHER_BYTES = 256 << 20
"""Two orders are measured at a time where one takes no more than this."""


def run(run: Run) -> Receipt:
    settings = run.settings
    uses = {name: run.receipt(name).version for name in ("greedy_order", "sequence_order")}
    traits = load_traits(run)
    key = content_hash(settings.recipe("diversity_metrics"), traits.version, uses)
    folder = f"stages/diversity_metrics/{key}"
    found = run.store.sealed(folder)
    reused = "metrics" in found and "table" in found
    measured = None
    if not reused:
        measured = _measure_orders(run, traits)
        worse = {ours: worse_batches(measured[other], measured[ours]) for ours, other in SHUFFLED.items()}
        metrics = {name: diversity.to_dict() for name, diversity in measured.items()}
        for ours, shares in worse.items():
            metrics[ours]["shuffled_batches_worse"] = shares
            metrics[ours] |= _against_shuffles(measured[ours], measured[SHUFFLED[ours]])
        _follow(run, traits, metrics)
        found = {
            "metrics": run.store.seal(folder, "metrics", orjson.dumps(metrics), "json"),
            "table": run.store.seal(folder, "table", pack_rows(table_rows(measured, metrics)), "parquet"),
        }
    files = {name: found[name] for name in ("metrics", "table")}
    if settings.output.plot:
        # Clusters may be named anew while nothing else changes.
        name = f"picture-{run.receipt('clusters').files['names'].rsplit('/', 1)[1]}"
        if name not in found:
            picture = _picture(run, traits, measured or _measure_orders(run, traits))
            found[name] = run.store.seal(folder, name, picture, "png")
        files["picture"] = found[name]
    files["stationarity"], drift = seal_stationarity(run, traits, folder)
    documents = len(traits.tokens)
    metrics = load_metrics(run.store, found["metrics"])
    for warning in warnings_of(metrics["sequences"]["targets"]):
        run.progress.note(warning)
    return Receipt(
        stage="diversity_metrics",
        recipe=settings.recipe("diversity_metrics"),
        key=key,
        version=found["metrics"].rsplit(".", 2)[1],
        uses=uses,
        files=files,
        report={
            "documents": documents,
            "new_documents": 0 if reused else documents,
            "reused_documents": documents if reused else 0,
            "summary": summary_rows(metrics),
            "findings": [*findings(metrics), drift.claim()],
        },
    )


def _measure_orders(run: Run, traits: Traits) -> dict[str, Diversity]:
    settings = run.settings.sequence
    targets = trait_targets(run.settings.order.targets, traits)

    def documents(order: np.ndarray) -> Diversity:
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
            packed, epochs, traits.codes, traits.sizes(), batch=settings.batch, targets=targets
        )

    def shuffled_documents(number: int) -> Diversity:
        return documents(_shuffle(run, len(traits.tokens), number))

    def shuffled_sequences(number: int) -> Diversity:
        return sequences(*_shuffled_sequences(run, traits, number))

    # Each task makes its order itself, so that no other is in memory meanwhile.
    tasks: list[tuple[str, Callable[[], Diversity]]] = [
        ("original", lambda: documents(np.arange(len(traits.tokens)))),
        *(("random", partial(shuffled_documents, number)) for number in range(SHUFFLES)),
        ("curated", lambda: documents(load_order(run))),
        *(("sequences_random", partial(shuffled_sequences, number)) for number in range(SHUFFLES)),
        ("sequences", lambda: sequences(load_packed(run), load_sequence_order(run))),
    ]
    at_once = 2 if ORDER_BYTES * len(traits.tokens) <= TOGETHER_BYTES else 1
    measured: dict[str, list[Diversity]] = {}
    with (
        run.progress("measuring orders", len(tasks), "orders") as advance,
        ThreadPoolExecutor(at_once, thread_name_prefix="divorder-measure") as threads,
    ):
        for (name, _), figures in zip(tasks, threads.map(lambda task: task[1](), tasks), strict=True):
            measured.setdefault(name, []).append(figures)
            advance(1)
    return {name: average(of) for name, of in measured.items()}


def _against_shuffles(ours: Diversity, shuffled: Diversity) -> dict[str, Any]:
    """Errors of each trait apart against the shuffles', and both as lines."""
    of = {trait: (errors, shuffled.errors[trait]) for trait, errors in ours.errors.items()}
    return {
        "trait_errors": {trait: compare_errors(*pair) for trait, pair in of.items()},
        "curves": {"trait_errors": {trait: error_curves(*pair) for trait, pair in of.items()}},
    }


def _follow(run: Run, traits: Traits, metrics: dict[str, dict[str, Any]]) -> None:
    """How ours follow their targets, into the metrics of each."""
    tables, sequence = run.settings.order.targets, run.settings.sequence
    epochs: dict[str, list[tuple[np.ndarray, np.ndarray]]] = {name: [] for name in SHUFFLED}
    if tables:
        order, packed = load_order(run), load_packed(run)
        epochs["curated"] = [(order, traits.tokens[order])]
        runs = [runs_in_order(packed.indptr, epoch)[0] for epoch in load_sequence_order(run)]
        epochs["sequences"] = [(packed.document[of], packed.length[of]) for of in runs]
    for name, streams in epochs.items():
        figures, curves = followed(tables, traits, streams, sequence.length * sequence.batch)
        metrics[name]["targets"] = figures
        metrics[name]["curves"]["targets"] = curves


def _shuffle(run: Run, items: int, number: int) -> np.ndarray:
    return np.random.default_rng([run.settings.seed, number]).permutation(items)


def _shuffled_sequences(run: Run, traits: Traits, number: int) -> tuple[PackedSequences, np.ndarray]:
    """What training gets without any order: shuffled documents, packed, and every epoch the sequences shuffled; a last
    one that is not full stays last."""
    order = _shuffle(run, len(traits.tokens), number)
    lengths = traits.tokens[order] + run.settings.packing.end_of_text
    pieces = Pieces(order, np.broadcast_to(np.int64(0), order.shape), lengths)
    packed = pack(pieces, method="concat", sequence_length=run.settings.sequence.length)
    full = int((packed.padding == 0).sum())
    random = np.random.default_rng([run.settings.seed, number, 1])
    rows = [
        np.append(random.permutation(full), np.arange(full, len(packed)))
        for _ in range(run.settings.sequence.epochs)
    ]
    return packed, np.stack(rows)


def _picture(run: Run, traits: Traits, measured: dict[str, Diversity]) -> bytes:
    from dagster_divorder.view.pictures import BAR_PIXELS, PicturedOrder, ordering_comparison

    labels, clusters = traits.codes["cluster"], traits.sizes()["cluster"]
    documents = len(traits.tokens)

    def pictured(name: str, order: np.ndarray, *, bar: bool = True) -> PicturedOrder:
        distinct = distinct_clusters(order, traits.tokens, labels, run.settings.sequence.length)
        columns = max(1, min(len(distinct), BAR_PIXELS))
        mix = cluster_mix(order, traits.tokens, labels, clusters, columns) if bar else None
        return PicturedOrder(measured[name], distinct, mix)

    orders = {
        "original": pictured("original", np.arange(documents)),
        "random": pictured("random", _shuffle(run, documents, 0), bar=False),
        "curated": pictured("curated", load_order(run)),
        "sequences": PicturedOrder(measured["sequences"]),
    }
    return ordering_comparison(orders, load_names(run))


def load_table(store: LocalStore, file: str) -> list[dict[str, Any]]:
    """Every measure as a row: `trait`, `window`, `measure`, then its value in each order."""
    return unpack_rows(store.unseal(file))


def load_metrics(store: LocalStore, file: str) -> dict[str, dict[str, Any]]:
    """Measures by order name, as `core.metrics.Diversity.to_dict` gives them. Ours also have

    shuffled_batches_worse: by trait, the share of the shuffles' batches whose total variation exceeds that of our worst
        batch. trait_errors: by trait, see `core.metrics.compare_errors`. targets: by trait with targets, see
        `pipeline.targets.followed`. curves: the last two along the order.
    """
    metrics: dict[str, dict[str, Any]] = orjson.loads(store.unseal(file))
    return metrics


def verdicts(settings: Settings) -> dict[str, Verdict]:
    """Whether the curated documents and the sequences beat shuffling, by the last run's measures, for the traits that
    are balanced. One whose target moves is held against the mix that can be had of it.

    Raises:
        MissingStageError: diversity_metrics has no result under these settings.
    """
    run = Run(settings, LocalStore(settings.store.path).open(create=False))
    metrics = load_metrics(run.store, run.receipt("diversity_metrics").files["metrics"])
    return {
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


def remedy(settings: Settings) -> str:
    """What to change where the sequences do not beat shuffling."""
    if settings.packing.method == "related":
        return (
            "packing.method = 'related' puts like documents into one sequence on purpose; 'concat' mixes them"
        )
    for name, strategy in (
        ("sequence.strategy", settings.sequence.strategy),
        ("order.strategy", settings.order.strategy),
    ):
        if strategy not in ("balanced", "f3"):
            return f"{name} is {strategy!r}; 'balanced' is what keeps windows at the corpus's mix"
    if settings.order.targets:
        return (
            f"order.targets moves {', '.join(settings.order.targets)}, and other traits move with it where they go "
            "together, as topics go with sources: leave these out of order.traits, or give them targets of their own"
        )
    return (
        "give the trait more weight in order.traits, balance fewer traits, or make fewer values of them (clusters.k, "
        "order.length_bins); where long documents fill whole sequences, cut them with packing.piece_tokens"
    )


def _windows(figures: dict[str, Any]) -> dict[str, dict[str, WindowDeviation]]:
    return {
        window: {trait: WindowDeviation(**deviation) for trait, deviation in of.items()}
        for window, of in figures["windows"].items()
    }


def _seams(figures: dict[str, Any]) -> dict[str, Seam]:
    return {trait: Seam(**of) for trait, of in figures["seam"].items()}
