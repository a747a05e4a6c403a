"""strategy_comparison: one table of all pairs of strategies, for documents and for sequences, on this corpus.

No other stage reads it. The pairs are DOCUMENTS and `order.strategy` x SEQUENCES and `sequence.strategy`. Documents are
ordered and packed by `concat` (not at all with `packing.method = "none"`), then the sequences are ordered; a partial
last sequence stays last. Orders are compared with the corpus's own mix; targets and frozen tokens are ignored.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from dagster_divorder.core.measure import Feature, stationarity
from dagster_divorder.core.measure.sequence_features import SequenceRuns, sequence_features
from dagster_divorder.core.measure.stationarity import sampled_places
from dagster_divorder.core.order import order
from dagster_divorder.core.packing import Pieces, pack
from dagster_divorder.core.packing.coordinates import with_coordinates
from dagster_divorder.pipeline.run import Run
from dagster_divorder.pipeline.stage import Made, Table, WholeCorpus
from dagster_divorder.stages.measure.diversity_metrics import Trained
from dagster_divorder.stages.mix.repeats import load_stream, run_counter
from dagster_divorder.stages.order.greedy_order import order_documents
from dagster_divorder.stages.order.sequence_order import sequence_items, vector_sums
from dagster_divorder.stages.topics.components import space_reads
from dagster_divorder.view.measures import SHARE_OF_CLUSTER, TV_OF_CLUSTER, drift_columns, summary_row

DOCUMENTS = ("original", "random", "round_robin", "stratified", "balanced")
SEQUENCES = ("original", "random", "balanced")
"""Strategies that are always compared, for documents and for sequences."""
DISTINCT = "distinct clusters a sequence"
DEVIATIONS = (TV_OF_CLUSTER, SHARE_OF_CLUSTER, "mean prefix deviation, tokens")
"""Columns that are also in the summary of diversity_metrics."""
LOOKED_AT = 1 << 13
"""Most sequences that the drift test uses, in whole batches."""


def _compare_strategies(run: Run) -> Made:
    """The table, a row a pair of strategies, as in Diversity-Ordered Training, the pair with the nearest batches first.
    Values are None if the corpus is smaller than a batch."""
    settings, stream = run.settings, load_stream(run)
    traits, weights = stream.traits, settings.order.traits
    documents = dict.fromkeys([*DOCUMENTS, settings.order.strategy])
    sequences = dict.fromkeys([*SEQUENCES, settings.sequence.strategy])
    rows: list[dict[str, Any]] = []
    count, pairs = run_counter(run, stream.record_of), len(documents) * len(sequences)
    with run.progress("comparing strategies", pairs, "pairs") as advance:
        for of_documents in documents:
            laid = order_documents((traits, settings.seed), settings, of_documents)
            packed = pack(
                Pieces(laid, np.zeros_like(laid), traits.tokens[laid]),
                method="concat" if settings.packing.packs else "none",
                sequence_length=settings.sequence.length,
            )
            sums = vector_sums(run, packed)
            full = len(packed) - int(settings.packing.packs and len(packed) > 0 and packed.padding[-1] > 0)
            items = with_coordinates(sequence_items(run, stream, packed), packed, sums).part(0, full)
            for of_sequences in sequences:
                ordered = order(items, **settings.order_arguments(of_sequences))
                sample = ordered[sampled_places(len(ordered), settings.sequence.batch, LOOKED_AT)]
                runs = SequenceRuns.of(packed, sample, traits.tokens, count)
                features = [
                    *sequence_features(runs, traits.codes, {*weights}),
                    Feature("vectors", "vector", sums[sample]),
                ]
                drift = stationarity(features, len(sample), batch=settings.sequence.batch, seed=settings.seed)
                read = np.concatenate([ordered, np.arange(len(ordered), len(packed))])[np.newaxis]
                trained = Trained(packed, read, np.zeros(len(packed), np.int64))
                figures = trained.measures(stream, count, settings.sequence.batch).figures
                summary, distinct = summary_row("", figures, ["cluster"]), figures["distinct"]["cluster"]
                row = {
                    "documents": of_documents,
                    "sequences": of_sequences,
                    DISTINCT: distinct["mean"],
                    "fewest": distinct["least"],
                    **{name: summary[name] for name in DEVIATIONS},
                    **drift_columns(drift),
                }
                rows.append(row)
                advance(1)
    rows.sort(key=lambda row: (row[TV_OF_CLUSTER] or 0.0, -row[DISTINCT]))
    return Made({"table": rows}, figures={"pairs": len(rows)})


STRATEGY_COMPARISON = WholeCorpus(
    name="strategy_comparison",
    version=9,
    description="Which strategy to use. Diversity, deviations and drift of all pairs of strategies, for documents "
    "and for sequences, on this corpus.",
    reads=lambda settings: ("raw_docs", *space_reads(settings), "traits", "repeats"),
    settings=("order", "packing", "sequence", "input", "chats", "seed"),
    compute=_compare_strategies,
    show=lambda run, receipt: {"comparison": Table(run.rows("strategy_comparison", "table"))},
)
