"""ari_comparison: whether a second space shows other structure than the first.

The spaces are `Embedding.compared`: shallow and deep; or, with `embedding.path`, external and one of the two. Both are
clustered into the same number of clusters, as `clusters` would. The rule comes from Diversity-Ordered Training: an
adjusted Rand index (ARI) below 0.3 means that the second space shows other structure and is likely worth using;
`embedding.kind = "auto"` takes it then. Noise would be other structure too, so a note says how well words tell the
clusters of both spaces.

The result is a pinned fit. It is kept while the vectors have the same keys and at most a fifth of the documents have
changed, so an append does not change the space. Measured: docs/decisions/ari-comparison.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import orjson

from dagster_divorder.core.topics.agreement import DIFFERENT, SAME, match, overlap, told_by_words
from dagster_divorder.core.topics.cluster import assign, fit, most_points
from dagster_divorder.core.topics.terms import characteristic_terms, count_words, short_names
from dagster_divorder.corpus.sample import beginnings, first_lines
from dagster_divorder.pipeline.drift import has_changed
from dagster_divorder.pipeline.fit import SKETCH, PinnedFit
from dagster_divorder.pipeline.run import Run
from dagster_divorder.pipeline.stage import Picture, Shown, Table, Text
from dagster_divorder.settings import Settings
from dagster_divorder.stages.mix.heldout import fit_inputs, fit_reads, fit_rows
from dagster_divorder.stages.topics.centroids import SAMPLE_BYTES
from dagster_divorder.stages.topics.cluster_names import CHARACTERS, sample_size
from dagster_divorder.stages.topics.components import load_space, space_key, space_reads
from dagster_divorder.store.arrays import pack_rows, unpack_rows
from dagster_divorder.store.base import Store
from dagster_divorder.store.space import Space
from dagster_divorder.store.state import Receipt

USUAL = 30
"""Clusters of each space if `clusters.k` is not a number: the recommended one depends on the space."""
MATCHED = 1_000
"""Clusters of each space that are matched: the first, which are the largest of the fit."""
DISAGREEMENTS, EXAMPLES = 20, 2
TOLD_SHARE = 0.5
NOISE = "words tell the clusters of {1} vectors far less well ({3:.2f}) than those of {0} ones ({2:.2f})"
"""The note if words tell the second space's clusters less than TOLD_SHARE as well as the first one's."""
COSINES = 10_000
"""Documents whose two vectors are compared."""

INFO = "ari_comparison.json"
PAIRS = "pairs.parquet"
DISAGREE = "disagreements.parquet"
HEATMAP = "contingency.png"


def load_rows(store: Store, fit: str, name: str) -> list[dict[str, Any]]:
    """A table. PAIRS: the matched clusters, pairs with most common documents first; DISAGREE: the unmatched pairs of
    clusters that share most documents, with examples near both centroids. fit: folder of the fit, from the receipt.
    Empty if `divorder prune` has removed the table because it quoted deleted documents."""
    return unpack_rows(store.read(f"{fit}/{name}")) if store.exists(f"{fit}/{name}") else []


def conclude(ari: float, first: str, second: str) -> tuple[str, str]:
    """(the space to take, why, in a sentence), of the names of two spaces."""
    if ari < DIFFERENT:
        return second, (
            f"ARI {ari:.3f}, under {DIFFERENT}: the {second} space shows other structure than the {first} one and is "
            "likely worth using."
        )
    if ari > SAME:
        return first, (
            f"ARI {ari:.3f}, over {SAME}: the {second} space shows much the same structure as the {first} one, "
            "at a higher cost."
        )
    return first, (
        f"ARI {ari:.3f}, from {DIFFERENT} to {SAME}: the {second} space shows some structure that the "
        f"{first} one does not; only training can tell whether it is worth its cost."
    )


@dataclass(frozen=True, slots=True)
class _Clustered:
    """A clustered space: labels int32 and distances float32 of the compared documents, and names of the K clusters."""

    kind: str
    labels: np.ndarray
    distances: np.ndarray
    names: list[str]


def _compare_clusterings(run: Run) -> Mapping[str, bytes]:
    from sklearn.metrics import adjusted_rand_score, normalized_mutual_info_score

    from dagster_divorder.view.pictures import contingency

    kinds, k = run.settings.embedding.compared, _count(run.settings)
    spaces = [load_space(run, kind) for kind in kinds]
    # A random sample of the documents.
    rows = fit_rows(run, "ari_comparison", min(space.most_rows(run.view, SAMPLE_BYTES) for space in spaces))
    sampled = rows[: sample_size(k)]
    words = count_words(beginnings(run.records, run.view, sampled, CHARACTERS))
    both, told = [], {}
    for kind, space in zip(kinds, spaces, strict=True):
        vectors = space.rows(run.view, rows)
        fitted = fit(vectors[: most_points(k)], k, seed=run.settings.seed, centre=space.centre)
        labels, distances = assign(vectors, fitted)
        terms = characteristic_terms(words, labels[: len(sampled)], len(fitted.centroids))
        both.append(_Clustered(kind, labels, distances, short_names(terms)))
        told[kind] = told_by_words(words.counts, labels[: len(sampled)])
    first, second = both

    ari = float(adjusted_rand_score(first.labels, second.labels))
    chosen, why = conclude(ari, *kinds)
    table = np.zeros([min(len(each.names), MATCHED) for each in both], np.int64)
    inside = (first.labels < len(table)) & (second.labels < table.shape[1])
    np.add.at(table, (first.labels[inside], second.labels[inside]), 1)
    pairs = match(table)
    info = {
        "spaces": kinds,
        "chosen": chosen,
        "conclusion": why,
        "overlap": overlap(ari),
        "k": k,
        "ari": ari,
        "nmi": float(normalized_mutual_info_score(first.labels, second.labels)),
        "document_cosine": _document_cosine(run, rows, *spaces),
        "told_by_words": told,
        "matched_documents": float(table[pairs].sum() / len(rows)),
        "measured_documents": len(rows),
        "note": NOISE.format(*told, *told.values())
        if chosen == second.kind and told[second.kind] < TOLD_SHARE * told[first.kind]
        else None,
    }
    sizes = [np.bincount(each.labels, minlength=len(each.names)).clip(min=1) for each in both]
    matched = [
        {
            first.kind: first.names[a],
            second.kind: second.names[b],
            "documents": int(table[a, b]),
            f"of the {first.kind} one": float(table[a, b] / sizes[0][a]),
            f"of the {second.kind} one": float(table[a, b] / sizes[1][b]),
        }
        for a, b in zip(*pairs, strict=True)
    ]
    return {
        INFO: orjson.dumps(info),
        PAIRS: pack_rows(matched),
        DISAGREE: pack_rows(_disagreements(run, rows, table, pairs, first, second)),
        HEATMAP: contingency(
            table[np.ix_(*pairs)],
            [first.names[a] for a in pairs[0]],
            [second.names[b] for b in pairs[1]],
            why,
            kinds,
        ),
    }


def _document_cosine(run: Run, rows: np.ndarray, first: Space, second: Space) -> dict[str, float] | None:
    """Cosines of the two stored vectors of each document; None if their dims differ."""
    from sklearn.metrics.pairwise import paired_cosine_distances

    one, other = (replace(space, components=None).rows(run.view, rows[:COSINES]) for space in (first, second))
    if one.shape != other.shape:
        return None
    cosines = 1 - paired_cosine_distances(one, other)
    return {name: float(getattr(cosines, name)()) for name in ("mean", "std", "min", "max")}


def _disagreements(
    run: Run,
    rows: np.ndarray,
    table: np.ndarray,
    pairs: tuple[np.ndarray, np.ndarray],
    first: _Clustered,
    second: _Clustered,
) -> list[dict[str, Any]]:
    """The largest unmatched cells of the table. The examples are the documents nearest to both centroids, so neither
    space is in doubt about them."""
    unmatched = table.copy()
    unmatched[pairs] = 0
    partner = dict(zip(pairs[0].tolist(), pairs[1].tolist(), strict=True))
    cells = []
    for cell in np.argsort(-unmatched, axis=None, kind="stable")[:DISAGREEMENTS]:
        a, b = map(int, np.unravel_index(cell, unmatched.shape))
        if not unmatched[a, b]:
            break
        inside = np.flatnonzero((first.labels == a) & (second.labels == b))
        nearest = np.argsort((first.distances + second.distances)[inside], kind="stable")[:EXAMPLES]
        cells.append(
            {
                first.kind: first.names[a],
                second.kind: second.names[b],
                "documents": int(unmatched[a, b]),
                f"the {first.kind} one's match": second.names[partner[a]] if a in partner else None,
                "examples": first_lines(run.records, run.view, rows[inside[nearest]]),
            }
        )
    return cells


def _count(settings: Settings) -> int:
    return settings.clusters.number or USUAL


def _ari_comparison_figures(run: Run, receipt: Receipt) -> dict[str, Any]:
    return {
        name: value for name, value in receipt.facts.items() if name not in ("judged", "reason", "documents")
    }


def _show_ari_comparison(run: Run, receipt: Receipt) -> Shown:
    store, fit = run.store, receipt.files["fit"]
    disagreements = [
        {**row, "examples": " … ".join(row["examples"])} for row in load_rows(store, fit, DISAGREE)
    ]
    shown: dict[str, Table | Picture | Text | float] = {
        "conclusion": Text(receipt.figures["conclusion"]),
        "ari": receipt.figures["ari"],
        "matched_clusters": Table(load_rows(store, fit, PAIRS)[:200]),
        "disagreements": Table(disagreements),
    }
    if store.exists(f"{fit}/{HEATMAP}"):
        shown["contingency"] = Picture(
            store.local(f"{fit}/{HEATMAP}"), "clusters of one space against clusters of the other"
        )
    return shown


ARI_COMPARISON = PinnedFit(
    name="ari_comparison",
    version=10,
    description="Whether deep vectors, or your own, are worth using instead of shallow ones. Both are clustered with "
    'the same number of clusters, and the clusterings compared. With `embedding.kind = "auto"` it picks the vectors.',
    reads=lambda settings: (
        *("raw_docs", *space_reads(settings, *settings.embedding.compared)),
        *fit_reads(settings, "ari_comparison"),
    ),
    settings=("embedding", "clusters", "seed"),
    decided_by=lambda run: {
        **{kind: space_key(run, kind) for kind in run.settings.embedding.compared},
        "seed": run.settings.seed,
        "k": _count(run.settings),
        **fit_inputs(run, "ari_comparison"),
    },
    quotes=True,
    doing="comparing the spaces",
    compute=_compare_clusterings,
    refit="ari_comparison",
    drift=has_changed,
    plain=(INFO, SKETCH),
    facts=lambda run, fitted: orjson.loads(fitted.files[INFO]),
    figures=_ari_comparison_figures,
    show=_show_ari_comparison,
)
