"""ari_comparison: whether a second space shows other structure than the first, and whether it is worth using.

The spaces are `Embedding.compared`: shallow and deep; or, with `embedding.path`, external and one of the two. The
second is compared with the first.

Both spaces are clustered into the same number of clusters, as `clusters` would. The result (figures, tables, pictures,
and the space that `embedding.kind = "auto"` takes) is a pinned fit. It is kept while the vectors have the same keys and
at most a fifth of the documents have changed, so an append does not change the space.

The rule comes from Diversity-Ordered Training: an adjusted Rand index (ARI) over SAME means that both spaces show the
same structure; an ARI under DIFFERENT means that the second shows other structure. Noise, or the lengths of texts,
would be other structure too. So the second space is worth using only if its clusters tell at least MIN_SHARE_OF_BITS as
much about the documents' words (`core.topics.word_bits`) as the clusters of the first. For spaces with equal dims the
figures include the cosines of each document's two stored vectors, which are meaningful only if the dims mean the same.
Measured: docs/decisions/ari-comparison.md.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import orjson

from dagster_divorder.core.topics.agreement import agreement, contingency, match, paired_cosines
from dagster_divorder.core.topics.cluster import ClusterFit, assign, fit, most_points
from dagster_divorder.core.topics.k_calibration import USUAL
from dagster_divorder.core.topics.silhouette import Silhouette, silhouette
from dagster_divorder.core.topics.terms import characteristic_terms, count_words, short_names, without_markup
from dagster_divorder.core.topics.word_bits import word_bits
from dagster_divorder.engine.progress import counted
from dagster_divorder.pipeline.drift import has_changed
from dagster_divorder.pipeline.run import Run
from dagster_divorder.pipeline.stage import Picture, PinnedFit, Shown, Table, Text
from dagster_divorder.settings import Settings
from dagster_divorder.stages.mix.heldout import fit_inputs, fit_reads, fit_rows
from dagster_divorder.stages.topics.centroids import SAMPLE_BYTES, fit_settings, library
from dagster_divorder.stages.topics.cluster_names import CHARACTERS, sample_size
from dagster_divorder.stages.topics.components import load_space, space_key, space_reads
from dagster_divorder.store.arrays import pack_rows, unpack_rows
from dagster_divorder.store.base import Store
from dagster_divorder.store.sample import beginnings, first_lines
from dagster_divorder.store.space import Space
from dagster_divorder.store.state import Receipt
from dagster_divorder.store.view import View

DIFFERENT, SAME = 0.3, 0.7
MIN_SHARE_OF_BITS = 0.8
MIN_BITS = 0.01
"""Bits a word; clusters with less tell nothing about the words."""

MATCHED = 1_000
"""Clusters of each space that are matched: the first, which are the largest of the fit."""
DISAGREEMENTS = 20
EXAMPLES = 2
MAPPED = 2_500

INFO = "ari_comparison.json"
PAIRS = "pairs.parquet"
DISAGREE = "disagreements.parquet"
HEATMAP = "contingency.png"
MAPS = "maps.png"


def load_pairs(store: Store, fit: str) -> list[dict[str, Any]]:
    """The matched clusters, a row a pair, pairs with most common documents first. fit: folder of the fit, from the
    receipt. Empty if `divorder prune` has removed the table because it quoted deleted documents."""
    return _rows(store, f"{fit}/{PAIRS}")


def load_disagreements(store: Store, fit: str) -> list[dict[str, Any]]:
    """The unmatched pairs of clusters that share most documents, a row a pair, with examples near both centroids. Empty
    as in `load_pairs`."""
    return _rows(store, f"{fit}/{DISAGREE}")


def _rows(store: Store, file: str) -> list[dict[str, Any]]:
    return unpack_rows(store.read(file)) if store.exists(file) else []


def load_picture(store: Store, fit: str, name: str) -> bytes | None:
    """A picture, HEATMAP or MAPS, as the bytes of a PNG file; None if it could not be drawn (`note` says why)."""
    return store.read(f"{fit}/{name}") if store.exists(f"{fit}/{name}") else None


def overlap(ari: float) -> str:
    """The overlap of two spaces' structure, as Diversity-Ordered Training calls it: "high", "moderate" or "low"."""
    return "high" if ari > SAME else "low" if ari < DIFFERENT else "moderate"


def conclude(ari: float, bits: Mapping[Any, float]) -> tuple[str, str]:
    """(the space to take, why, in a sentence). bits: `core.topics.word_bits` of the first and the second space."""
    (first, theirs), (second, ours) = bits.items()
    if ari > SAME:
        return first, (
            f"ARI {ari:.3f}, over {SAME}: the {second} space shows much the same structure as the {first} one, "
            "at a higher cost."
        )
    if not ari < DIFFERENT:
        return first, (
            f"ARI {ari:.3f}, from {DIFFERENT} to {SAME}: the {second} space shows some structure that the "
            f"{first} one does not; only training can tell whether it is worth its cost."
        )
    different = f"ARI {ari:.3f}, under {DIFFERENT}: the {second} space holds different structure"
    tells = f"its clusters tell {ours:.3f} bits a word of their documents, the {first} ones {theirs:.3f}"
    if ours >= max(MIN_BITS, MIN_SHARE_OF_BITS * theirs):
        return second, f"{different}, and {tells}: it is worth using."
    return first, (
        f"{different}, but {tells}; less than {MIN_SHARE_OF_BITS:.0%} of these says that the difference has too little "
        "to do with what the documents are about to be worth using."
    )


@dataclass(frozen=True, slots=True)
class _Clustered:
    """A clustered space: labels int32 and distances float32 of the used documents by rising id."""

    space: Space
    fit: ClusterFit
    labels: np.ndarray
    distances: np.ndarray
    silhouette: Silhouette

    @property
    def clusters(self) -> int:
        return len(self.fit.centroids)


def _compare_clusterings(run: Run) -> Mapping[str, bytes]:
    view, kinds, k = run.view, run.settings.embedding.compared, _count(run.settings)
    spaces = [load_space(run, kind) for kind in kinds]
    rows = fit_rows(run, "ari_comparison")
    first, second = (_cluster(run, view, space, rows, k) for space in spaces)

    sampled = rows[: sample_size(k)]
    words = count_words(without_markup(beginnings(run.store, view, sampled, CHARACTERS)))
    names, bits = [], {}
    for kind, clustered in zip(kinds, (first, second), strict=True):
        labels = clustered.labels[: len(sampled)]
        names.append(short_names(characteristic_terms(words, labels, clustered.clusters)))
        bits[kind] = word_bits(words.counts, labels, clustered.clusters)
    both = _Both(kinds, (first, second), (names[0], names[1]))

    agreed = agreement(first.labels, second.labels)
    shown = min(first.clusters, MATCHED), min(second.clusters, MATCHED)
    inside = (first.labels < shown[0]) & (second.labels < shown[1])
    table = contingency(first.labels[inside], second.labels[inside], shown).toarray()
    pairs = match(table)
    chosen, why = conclude(agreed.ari, bits)
    maps, note = _maps(run, view, rows, both, pairs)
    info = {
        "spaces": kinds,
        "chosen": chosen,
        "conclusion": why,
        "overlap": overlap(agreed.ari),
        "k": k,
        **{name: getattr(agreed, name) for name in ("ari", "ami", "nmi")},
        "document_cosine": _document_cosine(view, *spaces),
        "silhouettes": dict(zip(kinds, (first.silhouette.mean, second.silhouette.mean), strict=True)),
        "word_bits": bits,
        "matched_documents": float(table[pairs].sum() / len(rows)),
        "measured_documents": len(rows),
        "note": note,
    }
    return {
        INFO: orjson.dumps(info),
        PAIRS: pack_rows(_pairs(table, pairs, both)),
        DISAGREE: pack_rows(_disagreements(run, view, rows, table, pairs, both)),
        HEATMAP: _heatmap(table, pairs, both, why),
        **({MAPS: maps} if maps else {}),
    }


def _document_cosine(view: View, first: Space, second: Space) -> dict[str, float] | None:
    """Cosines of the two stored vectors of each document; None if their dims differ."""
    used, by_fragment = view.used_documents(), []
    stored = (space.files.each(view.documents) for space in (first, second))
    for (rows, one), (_, other) in zip(*stored, strict=True):
        if one["vectors"].shape != other["vectors"].shape:
            return None
        by_fragment.append(paired_cosines(one["vectors"], other["vectors"])[used[rows]])
    cosines = np.concatenate(by_fragment)
    return {name: float(getattr(cosines, name)()) for name in ("mean", "std", "min", "max")}


def _cluster(run: Run, view: View, space: Space, rows: np.ndarray, k: int) -> _Clustered:
    how = fit_settings(run.settings)
    points = rows[: min(most_points(k, how["algorithm"]), space.most_rows(view, SAMPLE_BYTES))]
    fitted = fit(space.rows(view, points), k, centre=space.centre, **how)
    labels = np.empty(view.document_rows, np.int32)
    distances = np.empty(view.document_rows, np.float32)

    def each(doing: str) -> Iterator[tuple[slice, np.ndarray]]:
        return counted(run.progress, doing, space.each(view.documents), len(view.documents), "fragments")

    for part, vectors in each("assigning"):
        labels[part], distances[part] = assign(vectors, fitted)
    measured = np.zeros(view.document_rows, bool)
    measured[rows[: run.settings.advanced.silhouette_documents or len(rows)]] = True

    def passes() -> Iterator[tuple[np.ndarray, np.ndarray]]:
        for part, vectors in each("silhouettes"):
            yield vectors[measured[part]], labels[part][measured[part]]

    silhouettes = silhouette(passes, len(fitted.centroids), fitted.centre)
    return _Clustered(space, fitted, labels[rows], distances[rows], silhouettes)


Pairs = tuple[np.ndarray, np.ndarray]


@dataclass(frozen=True, slots=True)
class _Both:
    """Two clustered spaces, their kinds of vectors, and the names of their clusters."""

    kinds: tuple[str, str]
    spaces: tuple[_Clustered, _Clustered]
    names: tuple[list[str], list[str]]


def _pairs(table: np.ndarray, pairs: Pairs, both: _Both) -> list[dict[str, Any]]:
    first, second = both.kinds
    sizes = [np.bincount(space.labels, minlength=space.clusters) for space in both.spaces]
    silhouettes = [space.silhouette.by_cluster for space in both.spaces]
    return [
        {
            first: both.names[0][a],
            second: both.names[1][b],
            "documents": int(table[a, b]),
            f"of the {first} one": float(table[a, b] / max(1, sizes[0][a])),
            f"of the {second} one": float(table[a, b] / max(1, sizes[1][b])),
            f"silhouette, {first}": float(silhouettes[0][a]),
            f"silhouette, {second}": float(silhouettes[1][b]),
        }
        for a, b in zip(*pairs, strict=True)
    ]


def _disagreements(
    run: Run, view: View, rows: np.ndarray, table: np.ndarray, pairs: Pairs, both: _Both
) -> list[dict[str, Any]]:
    """The largest unmatched cells of the table. The examples are the documents nearest to both centroids, so neither
    space is in doubt about them."""
    (first, second), kinds = both.spaces, both.kinds
    unmatched = table.copy()
    unmatched[pairs] = 0
    largest = np.argsort(-unmatched, axis=None, kind="stable")[:DISAGREEMENTS]
    partner = dict(np.stack(pairs, axis=1).tolist())
    distances = first.distances + second.distances
    cells, examples = [], []
    for a, b in np.stack(np.unravel_index(largest, unmatched.shape), axis=1).tolist():
        if not unmatched[a, b]:
            break
        inside = np.flatnonzero((first.labels == a) & (second.labels == b))
        examples.append(rows[inside[np.argsort(distances[inside], kind="stable")[:EXAMPLES]]])
        cells.append(
            {
                kinds[0]: both.names[0][a],
                kinds[1]: both.names[1][b],
                "documents": int(unmatched[a, b]),
                f"the {kinds[0]} one's match": both.names[1][partner[a]] if a in partner else None,
            }
        )
    texts = iter(first_lines(run.store, view, np.concatenate([rows[:0], *examples])))
    return [
        {**cell, "examples": [next(texts) for _ in shown]}
        for cell, shown in zip(cells, examples, strict=True)
    ]


def _heatmap(table: np.ndarray, pairs: Pairs, both: _Both, why: str) -> bytes:
    from dagster_divorder.view.pictures import contingency

    rows, columns = pairs
    return contingency(
        table[np.ix_(rows, columns)],
        [both.names[0][at] for at in rows],
        [both.names[1][at] for at in columns],
        why,
        both.kinds,
    )


def _maps(
    run: Run, view: View, rows: np.ndarray, both: _Both, pairs: Pairs
) -> tuple[bytes | None, str | None]:
    """(maps of the same documents in both spaces, with matched clusters in the same colour; why there are none)."""
    from dagster_divorder.core.topics import cluster_map
    from dagster_divorder.view.pictures import cluster_maps

    mapped = rows[:MAPPED]
    first, second = both.spaces
    # Clusters of the second space take the places, and with them the colours, of their partners.
    place = np.full(second.clusters, -1)
    place[pairs[1]] = pairs[0]
    free = np.setdiff1d(np.arange(first.clusters + second.clusters), pairs[0])
    place[place < 0] = free[: int((place < 0).sum())]
    placed = [""] * max(int(place.max()) + 1, first.clusters)
    for at, name in zip(place.tolist(), both.names[1], strict=True):
        placed[at] = name
    names = both.names[0] + [""] * (len(placed) - first.clusters), placed
    panels = []
    for at, labels in enumerate((first.labels, place[second.labels])):
        xy = cluster_map.fit(both.spaces[at].space.rows(view, mapped), run.settings.seed).xy
        panels.append((both.kinds[at].capitalize(), xy, labels[: len(mapped)], names[at]))
    note = f"{len(mapped):,} documents; clusters that are matched have the same colour"
    return cluster_maps(panels, note), None


def _count(settings: Settings) -> int:
    """Number of clusters of each space; `clusters.k = "auto"` is not known yet, since it depends on the space."""
    return settings.clusters.number or USUAL


def _ari_comparison_settings(settings: Settings) -> dict[str, Any]:
    return {
        "spaces": settings.embedding.compared,
        "sample": settings.advanced.silhouette_documents,
        "k": _count(settings),
        **fit_settings(settings),
    }


def _ari_comparison_figures(run: Run, receipt: Receipt) -> dict[str, Any]:
    return {
        name: value for name, value in receipt.facts.items() if name not in ("judged", "reason", "documents")
    }


def _show_ari_comparison(run: Run, receipt: Receipt) -> Shown:
    store, fit = run.store, receipt.files["fit"]
    disagreements = [
        {**row, "examples": " … ".join(row["examples"])} for row in load_disagreements(store, fit)
    ]
    shown: dict[str, Table | Picture | Text | float] = {
        "conclusion": Text(receipt.figures["conclusion"]),
        "ari": receipt.figures["ari"],
        "matched_clusters": Table(load_pairs(store, fit)[:200]),
        "disagreements": Table(disagreements),
    }
    for name, shows in (
        (HEATMAP, "clusters of one space against clusters of the other"),
        (MAPS, "the maps of both spaces"),
    ):
        if store.exists(f"{fit}/{name}"):
            shown[name.removesuffix(".png")] = Picture(store.local(f"{fit}/{name}"), shows)
    return shown


ARI_COMPARISON = PinnedFit(
    name="ari_comparison",
    version=8,
    kinds=lambda settings: {library(settings), "scikitlearn"},
    description="Whether deep vectors, or your own, are worth using instead of shallow ones. Both are clustered with "
    'the same number of clusters, and the clusterings compared. With `embedding.kind = "auto"` it picks the vectors.',
    evidence="whether two kinds of vectors see the same topics",
    reads=lambda settings: (
        *("raw_docs", *space_reads(settings, *settings.embedding.compared)),
        *fit_reads(settings, "ari_comparison"),
    ),
    settings=_ari_comparison_settings,
    inputs=lambda run: {
        **{kind: space_key(run, kind) for kind in run.settings.embedding.compared},
        **fit_inputs(run, "ari_comparison"),
    },
    quotes=(PAIRS, DISAGREE, HEATMAP, MAPS),
    doing="comparing the spaces",
    compute=_compare_clusterings,
    refit="ari_comparison",
    drift=has_changed,
    kept_by_outcome=True,
    facts=lambda run, fitted: orjson.loads(fitted.files[INFO]),
    figures=_ari_comparison_figures,
    show=_show_ari_comparison,
)
