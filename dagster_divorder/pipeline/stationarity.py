"""Whether anything drifts along the sequences as a trainer reads them in the first epoch: part of diversity_metrics.

Letters: S sequences that are looked at, Q runs of tokens in them, D dims.

Looked at are whole batches evenly spaced along the order, at most TOKENS and SEQUENCES of them (but twenty batches);
a last sequence that is not full stays out, and so do those that a trainer has consumed. Features come from the plan,
the traits, the token ids and the vectors of every stage that has a result; files are read fragment by fragment.
Cost: bounded but for one walk over the files that hold the documents; docs/decisions/stationarity.md has times.
Memory: 2 bytes a token, the entries of the words, and S x D of one kind of vectors.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import orjson

from dagster_divorder.core.cluster import ClusterFit, assign, fit
from dagster_divorder.core.metrics.sequence_features import DOCUMENTS, Runs, sequence_features
from dagster_divorder.core.metrics.stationarity import (
    Feature,
    Stationarity,
    sampled_places,
    stationarity,
)
from dagster_divorder.core.traits import column_codes
from dagster_divorder.pipeline.graph import upstream
from dagster_divorder.pipeline.packed_sequences import load_packed
from dagster_divorder.pipeline.raw_docs import load_view
from dagster_divorder.pipeline.run import Run, content_hash
from dagster_divorder.pipeline.sequence_coordinates import are_balanced
from dagster_divorder.pipeline.sequence_order import load_sequence_order
from dagster_divorder.pipeline.space import STAGE_OF, Space, chosen_kind, is_centred
from dagster_divorder.pipeline.token_counts import token_files
from dagster_divorder.pipeline.traits import Traits, load_columns
from dagster_divorder.settings import Settings
from dagster_divorder.store.receipts import Receipt
from dagster_divorder.store.stages import StageFiles
from dagster_divorder.store.view import View

if TYPE_CHECKING:
    from scipy.sparse import csr_matrix

CODE_VERSION = 1
TOKENS = 1 << 26
SEQUENCES = 1 << 14
WORD_BITS = 12
"""Words are 2**12 buckets of token ids."""
FIT_ROWS, FIT_NUMBERS = 1 << 12, 1 << 21
"""Clusters of another seed are fitted to so many vectors at most, and numbers."""
OTHER_CLUSTERS = 64


@dataclass(frozen=True, eq=False)
class Sample(Runs):
    """The sequences that are looked at, in the order of training."""

    view: View


def evidence(run: Run) -> dict[str, Receipt]:
    """The stages of vectors that have a result for these settings, by kind."""
    stages = upstream(run.settings)
    return {
        kind: run.receipt(stage) for kind, stage in STAGE_OF.items() if stage in stages and run.fits(stage)
    }


def seal_stationarity(run: Run, traits: Traits, folder: str) -> tuple[str, Stationarity]:
    """(the file of what is found along the first epoch, in a folder of the store, and what is found); it is measured
    where it is not there yet, for these vectors."""
    versions = {kind: receipt.version for kind, receipt in evidence(run).items()}
    name = f"stationarity-{content_hash(CODE_VERSION, run.settings.input.source_field, versions)}"
    file = run.store.sealed(folder).get(name)
    if file is None:
        run.progress.note("looking for drift")
        sample = load_sample(run, traits)
        made = stationarity(
            features(run, traits, sample),
            np.arange(len(sample)),
            batch=run.settings.sequence.batch,
            seed=run.settings.seed,
        )
        file = run.store.seal(folder, name, orjson.dumps(made.to_dict()), "json")
    return file, _judged(run, file)


def load_stationarity(run: Run) -> Stationarity:
    """What the last run of diversity_metrics found.

    Raises:
        MissingStageError: it has no result under these settings.
    """
    return _judged(run, run.receipt("diversity_metrics").files["stationarity"])


def _judged(run: Run, file: str) -> Stationarity:
    found = Stationarity.from_dict(orjson.loads(run.store.unseal(file)))
    if run.settings.order.targets:
        return replace(found, unjudged="order.targets asks for a mix that moves")
    if run.receipt("packed_sequences").report["frozen_sequences"]:
        return replace(
            found, unjudged="the order makes up for what a trainer has consumed (order.frozen_tokens)"
        )
    return found


def remedy(settings: Settings) -> str:
    """What to change where something drifts."""
    if settings.sequence.strategy != "balanced":
        return (
            f"sequence.strategy is {settings.sequence.strategy!r}; 'balanced' keeps still what no trait names"
        )
    return (
        "balance what drifts, if it is a field of the input, by naming it in order.traits; sequence.strategy = "
        "'random' keeps everything as still as shuffling does"
    )


def load_sample(run: Run, traits: Traits) -> Sample:
    """The sequences that are looked at."""
    packed, order = load_packed(run), load_sequence_order(run)[0]
    full = np.ones(len(packed), bool)
    full[: run.receipt("packed_sequences").report["frozen_sequences"]] = False
    if run.settings.packing.method != "best_fit" and len(packed):
        full[-1] &= packed.padding[-1] == 0
    order = order[full[order]]
    sequence = run.settings.sequence
    at_most = min(SEQUENCES, TOKENS // sequence.length)
    some = order[sampled_places(len(order), sequence.batch, at_most)]
    runs = Runs.of(packed, some, traits.tokens)
    return Sample(runs.document, runs.start, runs.length, runs.indptr, load_view(run))


def features(run: Run, traits: Traits, sample: Sample) -> Iterator[Feature]:
    """What should not depend on where a sequence stands; one at a time, so that no other is in memory meanwhile."""
    balanced = set(run.settings.order.traits)
    if are_balanced(run.settings):
        balanced |= {DOCUMENTS, f"{chosen_kind(run)} vectors"}
    yield from sequence_features(sample, traits.codes, traits.tokens, balanced)
    source = run.settings.input.source_field
    if source and source not in traits.codes:
        columns = load_columns(run.store, sample.view, traits.columns_folder, (source,))
        coded = column_codes(columns.column(source), bins=1, name=f"field {source!r}").codes
        # Sources may be as many as documents.
        _, codes = np.unique(coded[sample.document], return_inverse=True)
        yield Feature(source, "mix", sample.mix(codes))
    yield Feature("words", "mix", _words(run, sample))
    for kind, receipt in evidence(run).items():
        files = StageFiles(run.store, receipt.stage, receipt.key)
        space = Space(receipt.stage, files, receipt.version, is_centred(run.settings, kind))
        clusters = _other_clusters(run, sample, space) if kind == chosen_kind(run) else None
        means, codes = _vectors(sample, space, clusters)
        yield Feature(f"{kind} vectors", "vector", means, seen=f"{kind} vectors" in balanced)
        outlying = np.linalg.norm(means - means.mean(axis=0), axis=1)
        yield Feature(f"distance of {kind} vectors", "number", outlying)
        if clusters:
            yield Feature("clusters of another seed", "mix", sample.mix(codes))


def _words(run: Run, sample: Sample) -> csr_matrix:
    """How often each sequence has each bucket of token ids, CSR int32 (S, 2**WORD_BITS)."""
    from scipy.sparse import csr_matrix

    from dagster_divorder.core.kernels.stationarity import copy_buckets, count_buckets

    ends = np.concatenate([[0], np.cumsum(sample.length)])
    buckets = np.empty(ends[-1], np.uint16)
    files = token_files(run)
    parts = list(sample.view.by_fragment(sample.document))
    for (_, runs, rows), (_, arrays) in zip(
        parts, files.each([fragment for fragment, _, _ in parts]), strict=True
    ):
        lengths = arrays["lengths"]
        first = (np.cumsum(lengths) - lengths)[rows] + sample.start[runs]
        copy_buckets(arrays["ids"], first, sample.length[runs], ends[runs], WORD_BITS, buckets)
    indptr, indices, data = count_buckets(buckets, ends[sample.indptr], 1 << WORD_BITS)
    return csr_matrix((data, indices, indptr), shape=(len(sample), 1 << WORD_BITS))


def _other_clusters(run: Run, sample: Sample, space: Space) -> ClusterFit:
    """Clusters of another seed, and of another number."""
    rows = sample.view.document_row[sample.documents[0]]
    k = min(2 * run.receipt("clusters").report["k"], OTHER_CLUSTERS)
    width = space.rows(sample.view, rows[:1]).shape[1]
    count = min(len(rows), max(4 * k, min(FIT_ROWS, FIT_NUMBERS // width)))
    chosen = np.random.default_rng(run.settings.seed).choice(len(rows), count, replace=False)
    vectors = space.rows(sample.view, rows[chosen])
    return fit(vectors, k, seed=run.settings.seed + 1, centre=space.centre, overwrite=True)


def _vectors(sample: Sample, space: Space, clusters: ClusterFit | None) -> tuple[np.ndarray, np.ndarray]:
    """(the mean vector of each sequence's tokens, float32 (S, D); the cluster of each run's document, if there are any,
    int32 (Q,))."""
    from scipy.sparse import csr_matrix

    sums = np.zeros((len(sample), 0), np.float32)
    codes = np.zeros(len(sample.document), np.int32)
    parts = list(sample.view.by_fragment(sample.document))
    fragments = [fragment for fragment, _, _ in parts]
    for (_, runs, rows), (_, arrays) in zip(parts, space.files.each(fragments), strict=True):
        unique, of = np.unique(rows, return_inverse=True)
        vectors = space.see(arrays["vectors"][unique])
        if not sums.size:
            sums = np.zeros((len(sample), vectors.shape[1]), np.float32)
        sequences, at = np.unique(sample.sequence[runs], return_inverse=True)
        tokens = sample.length[runs].astype(np.float32)
        sums[sequences] += csr_matrix((tokens, (at, of)), shape=(len(sequences), len(unique))) @ vectors
        if clusters:
            codes[runs] = assign(vectors, clusters)[0][of]
    return sums / sample.tokens[:, np.newaxis], codes
