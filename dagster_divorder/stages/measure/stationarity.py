"""stationarity: whether anything drifts along the sequences of the first epoch, as a trainer reads them, inside the
stretches of the order (`core.measure.windows`).

Letters: S sampled sequences, Q runs of tokens in them, D dims.

The sample consists of whole batches, evenly spaced along the order, of at most TOKENS and SEQUENCES, but at least
twenty batches. It leaves out a partial last sequence. Mixes and means use the tokens that shares
are of; words use all tokens. Features come from the plan, the traits, the token ids and the vectors that an output
needs, so the result does not depend on which evidence exists. Files are read fragment by fragment.
Cost: bounded, except for one pass over the files with the documents; docs/decisions/measures.md has times.
Memory: 16 KB a sequence for its words, and S x D of one kind of vectors. Two features are in memory at a time: one is
prepared while the one before is compared with its shuffles.
"""

from __future__ import annotations

from collections.abc import Generator

import numpy as np
import orjson

from dagster_divorder.core.distinct import distinct_values
from dagster_divorder.core.measure.sequence_features import SequenceRuns, sequence_features
from dagster_divorder.core.measure.stationarity import Feature, Stationarity, sampled_places, stationarity
from dagster_divorder.core.order.traits import Traits, column_codes
from dagster_divorder.core.packing import FILLED
from dagster_divorder.core.topics.cluster import ClusterFit, assign, fit
from dagster_divorder.engine.base import ahead
from dagster_divorder.engine.progress import counted
from dagster_divorder.pipeline.run import Run
from dagster_divorder.pipeline.stage import File, Made, Shown, Table, Text, WholeCorpus
from dagster_divorder.settings import Settings
from dagster_divorder.stages.corpus.fields import load_fields
from dagster_divorder.stages.mix.repeats import TrainingStream, item_records, load_stream, run_counter
from dagster_divorder.stages.order.packed_sequences import load_bounds, load_packed
from dagster_divorder.stages.order.sequence_order import load_sequence_order, vectors_are_balanced
from dagster_divorder.stages.topics.components import chosen_kind, kinds_of, load_space, space_reads
from dagster_divorder.store.stages import Space
from dagster_divorder.store.state import Receipt

TOKENS = 1 << 26
SEQUENCES = 1 << 14
WORD_BITS = 12
"""Words are 2**WORD_BITS buckets of token ids."""
FIT_ROWS, FIT_NUMBERS = 1 << 12, 1 << 21
"""Most vectors, and most numbers in them, to which clusters of another seed are fitted."""
OTHER_CLUSTERS = 64


def load_stationarity(run: Run) -> Stationarity:
    """The result of the last run.

    Raises:
        MissingStageError: there is no result under these settings.
    """
    return Stationarity.from_dict(orjson.loads(run.read("stationarity", "found")))


def remedy(settings: Settings) -> str:
    """What to change if something drifts."""
    if settings.sequence.strategy != "balanced":
        return f"sequence.strategy is {settings.sequence.strategy!r}; 'balanced' also keeps other features steady"
    return (
        "if a field of the input drifts, add it to order.traits; with sequence.strategy = 'random' nothing drifts more "
        "than in shuffles"
    )


def load_sample(run: Run, stream: TrainingStream) -> tuple[SequenceRuns, np.ndarray, np.ndarray]:
    """(the sampled sequences; the stretch and the section of each, int64, rising)."""
    settings, packed = run.settings, load_packed(run)
    batch, at_most = settings.sequence.batch, min(SEQUENCES, TOKENS // settings.sequence.length)
    order = load_sequence_order(run)[0]
    if settings.packing.method in FILLED and len(packed) and packed.padding[-1]:
        order = order[order != len(packed) - 1]
    section, stretch = (np.searchsorted(bounds[1:], order, side="right") for bounds in load_bounds(run))
    by_section = np.argsort(section, kind="stable")
    order, section, stretch = order[by_section], section[by_section], stretch[by_section]
    bounds = np.flatnonzero(np.diff(stretch, prepend=-1, append=-1))
    sampled = sampled_places(len(order), batch, at_most, bounds if len(bounds) > 2 else None)
    counter = run_counter(run, stream.record_of)
    sample = SequenceRuns.of(packed, order[sampled], stream.traits.tokens, counter)
    return sample, stretch[sampled], section[sampled]


def features(run: Run, traits: Traits, sample: SequenceRuns) -> Generator[Feature, None, None]:
    """Features that must not depend on a sequence's place; one at a time, to save memory. Mixes are of what the order
    did not balance: traits, the source, or else clusters of another seed."""
    settings, record_of = run.settings, item_records(run)
    balanced, source = set(settings.order.traits), settings.input.source_field
    unseen = any(trait not in balanced for trait in traits.codes)
    yield from sequence_features(sample, traits.codes, balanced)
    if source and source not in traits.codes:
        unseen = True
        coded = column_codes(load_fields(run, source).column(source), bins=1, name=f"field {source!r}").codes
        # There may be as many sources as documents; the sample has fewer.
        _, codes = np.unique(coded[record_of[sample.document]], return_inverse=True)
        yield Feature(source, "mix", sample.mix(codes))
    yield Feature("words", "mix", _words(run, sample))
    for kind in kinds_of(settings):
        space, chosen = load_space(run, kind), kind == chosen_kind(run)
        clusters = None
        if chosen and not unseen:
            # Clusters with another seed and another number.
            rows = record_of[distinct_values(sample.document)]
            k = min(2 * run.receipt("centroids").facts["k"], OTHER_CLUSTERS)
            count = min(len(rows), max(4 * k, min(FIT_ROWS, FIT_NUMBERS // space.dims(run.view))))
            rows = rows[np.random.default_rng(settings.seed).choice(len(rows), count, replace=False)]
            clusters = fit(space.rows(run.view, rows), k, seed=settings.seed + 1, centre=space.centre)
        means, codes = _vectors(run, sample, space, clusters)
        yield Feature(f"{kind} vectors", "vector", means, seen=chosen and vectors_are_balanced(settings))
        if clusters:
            yield Feature("clusters of another seed", "mix", sample.mix(codes))


def _words(run: Run, sample: SequenceRuns) -> np.ndarray:
    """Counts of the buckets of token ids in each sequence, int32 (S, 2**WORD_BITS)."""
    from dagster_divorder.core.kernels.measures import count_buckets

    counts = np.zeros((len(sample), 1 << WORD_BITS), np.int32)
    files, record_of = run.files("token_counts"), item_records(run)
    for runs, rows, arrays in files.at(run.view.fragments, record_of[sample.document]):
        lengths = arrays["lengths"]
        first = (np.cumsum(lengths) - lengths)[rows] + sample.start[runs]
        count_buckets(arrays["ids"], first, sample.length[runs], sample.sequence[runs], counts)
    return counts


def _vectors(
    run: Run, sample: SequenceRuns, space: Space, clusters: ClusterFit | None
) -> tuple[np.ndarray, np.ndarray]:
    """(the mean vector of each sequence's counted tokens, float32 (S, D); the cluster of each run's document, int32
    (Q,), zeros without `clusters`)."""
    from scipy.sparse import csr_matrix

    sums = np.zeros((len(sample), space.dims(run.view)), np.float32)
    codes, record_of = np.zeros(len(sample.document), np.int32), item_records(run)
    for runs, rows, arrays in space.files.at(run.view.fragments, record_of[sample.document]):
        unique, place = np.unique(rows, return_inverse=True)
        vectors = arrays["vectors"][unique]
        sequences, at = np.unique(sample.sequence[runs], return_inverse=True)
        tokens = sample.counted[runs].astype(np.float32)
        sums[sequences] += csr_matrix((tokens, (at, place)), shape=(len(sequences), len(unique))) @ vectors
        if clusters:
            codes[runs] = assign(vectors, clusters)[0][place]
    return sums / sample.tokens[:, np.newaxis], codes


def _measure_stationarity(run: Run) -> Made:
    stream = load_stream(run)
    sample, stretch, section = load_sample(run, stream)
    looked_at = ahead(features(run, stream.traits, sample))
    drift = stationarity(
        counted(run.progress, "looking at features", looked_at, None, "features"),
        len(sample),
        batch=run.settings.sequence.batch,
        seed=run.settings.seed,
        stretch=stretch,
        section=section,
    )
    return Made({"found": File(orjson.dumps(drift), "json")}, figures={"claim": drift.claim()})


def _show_stationarity(run: Run, receipt: Receipt) -> Shown:
    from dagster_divorder.view.charts import drift

    measured = load_stationarity(run)
    return {"claim": Text(measured.claim()), "tenths": drift(measured), "features": Table(measured.rows())}


def _stationarity_reads(settings: Settings) -> tuple[str, ...]:
    fields = ["fields"] if settings.input.source_field else []
    return (
        *("raw_docs", "token_counts", *space_reads(settings), *fields),
        *("centroids", "traits", "repeats"),
        *("packed_sequences", "sequence_order"),
    )


STATIONARITY = WholeCorpus(
    name="stationarity",
    version=7,
    asset=False,
    description="Whether anything drifts along the sequences.",
    reads=_stationarity_reads,
    settings=("input", "chats", "order.traits", "sequence", "seed"),
    doing="looking for drift",
    compute=_measure_stationarity,
    show=_show_stationarity,
)
