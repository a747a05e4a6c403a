"""ari_comparison: whether one space holds other structure than another, and whether that is worth using.

The spaces are `Embedding.compared`: the shallow and the deep one, or, with `embedding.path`, the external one beside
one of them; the second is held against the first.

Both spaces are clustered anew at the same number of clusters, as `clusters` would. What comes of it (figures, tables,
pictures, and the space that `embedding.kind = "auto"` takes) is a pinned fit, kept while the vectors have the same keys
and no more than a fifth of the documents have changed: an append does not change the space.

The rule is that of Diversity-Ordered Training: an adjusted Rand index (ARI) over SAME says that both show the same
structure, one under DIFFERENT that the second holds other structure. So does a space of noise, or of the lengths of
texts. Vectors of the second are therefore worth using only where their clusters also tell of the documents' words
(`core.topics.word_bits`) at least MIN_SHARE_OF_BITS as those of the first do. Of spaces that have the same dims the
cosines of each document's two vectors, as they are stored, are told too, as it tells them; they say something only
where the dims mean the same. Measured: docs/decisions/ari-comparison.md.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import orjson

from dagster_divorder.core.topics.agreement import Agreement, agreement, contingency, match, paired_cosines
from dagster_divorder.core.topics.cluster import ClusterFit, assign, fit, most_points
from dagster_divorder.core.topics.k_calibration import USUAL
from dagster_divorder.core.topics.silhouette import Silhouette, silhouette
from dagster_divorder.core.topics.terms import characteristic_terms, count_words, short_names, without_markup
from dagster_divorder.core.topics.word_bits import word_bits
from dagster_divorder.engine.progress import counted
from dagster_divorder.pipeline.drift import has_changed
from dagster_divorder.pipeline.run import Run
from dagster_divorder.pipeline.stage import Picture, PinnedFit, Shown, Table
from dagster_divorder.settings import Settings
from dagster_divorder.stages.mix.heldout import fit_inputs, fit_reads, fit_rows
from dagster_divorder.stages.topics.centroids import SAMPLE_BYTES, library
from dagster_divorder.stages.topics.cluster_names import CHARACTERS, sample_size
from dagster_divorder.stages.topics.components import load_space, space_key, space_reads
from dagster_divorder.store.arrays import pack_rows, unpack_rows
from dagster_divorder.store.base import Store
from dagster_divorder.store.sample import beginnings, first_lines
from dagster_divorder.store.space import Space
from dagster_divorder.store.state import Receipt
from dagster_divorder.store.view import View, offsets

DIFFERENT, SAME = 0.3, 0.7
MIN_SHARE_OF_BITS = 0.8
MIN_BITS = 0.01
"""Bits a word; clusters that tell less tell nothing."""

MATCHED = 1_000
"""Clusters of either space that are matched, the first ones, which were the largest when they were fitted."""
DISAGREEMENTS = 20
EXAMPLES = 2
MAPPED = 2_500

INFO = "ari_comparison.json"
PAIRS = "pairs.parquet"
DISAGREE = "disagreements.parquet"
HEATMAP = "contingency.png"
MAPS = "maps.png"


def load_pairs(store: Store, fit: str) -> list[dict[str, Any]]:
    """The matched clusters, a row a pair, that with the most common documents first; `fit` is the fit's folder in the
    receipt. None where `divorder prune` has taken them, as they had words of deleted documents."""
    return _rows(store, f"{fit}/{PAIRS}")


def load_disagreements(store: Store, fit: str) -> list[dict[str, Any]]:
    """Where the spaces disagree about most documents, a row a pair of clusters that are not matched: documents that the
    one space puts into this cluster and the other into that, with examples that both are sure of. None as above."""
    return _rows(store, f"{fit}/{DISAGREE}")


def _rows(store: Store, file: str) -> list[dict[str, Any]]:
    return unpack_rows(store.read(file)) if store.exists(file) else []


def load_picture(store: Store, fit: str, name: str) -> bytes | None:
    """A picture, HEATMAP or MAPS, as a PNG file's bytes; None where it could not be drawn (`note` says why)."""
    return store.read(f"{fit}/{name}") if store.exists(f"{fit}/{name}") else None


def overlap(ari: float) -> str:
    """How much two spaces show the same structure, in the words of Diversity-Ordered Training: "high", "moderate" or
    "low"."""
    return "high" if ari > SAME else "low" if ari < DIFFERENT else "moderate"


def conclude(found: Agreement, bits: Mapping[Any, float]) -> tuple[str, str]:
    """The space to take and why, in a sentence. bits: of the first and of the second, see `core.topics.word_bits`."""
    (first, theirs), (second, ours) = bits.items()
    if found.ari > SAME:
        return first, (
            f"ARI {found.ari:.3f}, over {SAME}: the {second} space shows much the same structure as the {first} one, "
            "at a higher cost."
        )
    if not found.ari < DIFFERENT:
        return first, (
            f"ARI {found.ari:.3f}, from {DIFFERENT} to {SAME}: the {second} space shows some structure that the "
            f"{first} one does not; only training can tell whether it is worth its cost."
        )
    different = f"ARI {found.ari:.3f}, under {DIFFERENT}: the {second} space holds different structure"
    told = f"its clusters tell {ours:.3f} bits a word of their documents, the {first} ones {theirs:.3f}"
    if ours >= max(MIN_BITS, MIN_SHARE_OF_BITS * theirs):
        return second, f"{different}, and {told}: it is worth using."
    return first, (
        f"{different}, but {told}; less than {MIN_SHARE_OF_BITS:.0%} of these says that the difference has too little "
        "to do with what the documents are about to be worth using."
    )


@dataclass(frozen=True, slots=True)
class _Clustered:
    """One space, clustered: labels int32 and distances float32 of the used documents by rising id."""

    space: Space
    fit: ClusterFit
    labels: np.ndarray
    distances: np.ndarray
    silhouette: Silhouette

    @property
    def clusters(self) -> int:
        return len(self.fit.centroids)


def _compare_clusterings(run: Run) -> Mapping[str, bytes]:
    settings, view = run.settings, run.view
    kinds = settings.embedding.compared
    spaces = [load_space(run, kind) for kind in kinds]
    k = _count(settings)
    rows = fit_rows(run, "ari_comparison")
    first, second = (_cluster(run, view, space, rows, k) for space in spaces)

    sampled = rows[: sample_size(k)]
    words = count_words(without_markup(beginnings(run.store, view, sampled, CHARACTERS)))
    names, bits = [], {}
    for kind, of in zip(kinds, (first, second), strict=True):
        labels = of.labels[: len(sampled)]
        names.append(short_names(characteristic_terms(words, labels, of.clusters)))
        bits[kind] = word_bits(words.counts, labels, of.clusters)
    both = _Both(kinds, (first, second), (names[0], names[1]))

    found = agreement(first.labels, second.labels)
    shown = min(first.clusters, MATCHED), min(second.clusters, MATCHED)
    inside = (first.labels < shown[0]) & (second.labels < shown[1])
    table = contingency(first.labels[inside], second.labels[inside], shown).toarray()
    pairs = match(table)
    chosen, why = conclude(found, bits)
    maps, note = _maps(run, view, rows, both, pairs)
    info = {
        "spaces": kinds,
        "chosen": chosen,
        "conclusion": why,
        "overlap": overlap(found.ari),
        "k": k,
        "ari": found.ari,
        "ami": found.ami,
        "nmi": found.nmi,
        "document_cosine": _document_cosine(view, *spaces),
        "silhouettes": {kind: of.silhouette.mean for kind, of in zip(kinds, (first, second), strict=True)},
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
    """Cosines of the two vectors of each document, as they are stored; None where they have not the same dims."""
    used, start = view.used_documents(), offsets(view.documents)
    cosines = []
    stored = (space.files.each(view.documents) for space in (first, second))
    for at, ((_, one), (_, other)) in enumerate(zip(*stored, strict=True)):
        a, b = one["vectors"], other["vectors"]
        if a.shape != b.shape:
            return None
        cosines.append(paired_cosines(a, b)[used[start[at] : start[at + 1]]])
    of_all = np.concatenate(cosines)
    return {name: float(getattr(of_all, name)()) for name in ("mean", "std", "min", "max")}


def _cluster(run: Run, view: View, space: Space, rows: np.ndarray, k: int) -> _Clustered:
    settings = run.settings
    width = space.dims(view)
    made = fit(
        space.rows(
            view,
            rows[: min(most_points(k, settings.clusters.algorithm), max(1, SAMPLE_BYTES // (4 * width)))],
        ),
        k,
        algorithm=settings.clusters.algorithm,
        metric=settings.clusters.metric,
        seed=settings.seed,
        centre=space.centre,
    )
    labels = np.empty(view.document_rows, np.int32)
    distances = np.empty(view.document_rows, np.float32)
    start = offsets(view.documents)

    def each(what: str) -> Iterator[tuple[slice, np.ndarray]]:
        vectors = counted(run.progress, what, space.each(view.documents), len(view.documents), "fragments")
        return ((slice(start[at], start[at + 1]), of) for at, (_, of) in enumerate(vectors))

    for part, vectors in each("assigning"):
        labels[part], distances[part] = assign(vectors, made)
    measured = np.zeros(view.document_rows, bool)
    measured[rows[: settings.advanced.silhouette_documents or len(rows)]] = True

    def passes() -> Iterator[tuple[np.ndarray, np.ndarray]]:
        for part, vectors in each("silhouettes"):
            yield vectors[measured[part]], labels[part][measured[part]]

    found = silhouette(passes, len(made.centroids), made.centre)
    return _Clustered(space, made, labels[rows], distances[rows], found)


Pairs = tuple[np.ndarray, np.ndarray]


@dataclass(frozen=True, slots=True)
class _Both:
    """Two clustered spaces, what kinds of vectors they are, and the names of their clusters."""

    kinds: tuple[str, str]
    spaces: tuple[_Clustered, _Clustered]
    names: tuple[list[str], list[str]]


def _pairs(table: np.ndarray, pairs: Pairs, both: _Both) -> list[dict[str, Any]]:
    first, second = both.kinds
    sizes = [np.bincount(of.labels, minlength=of.clusters) for of in both.spaces]
    silhouettes = [of.silhouette.by_cluster for of in both.spaces]
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
    """The largest cells of the table beside the matched ones. Their examples are the documents nearest to both
    centroids: neither space is in doubt about them."""
    (one, other), (first, second) = both.spaces, both.kinds
    off = table.copy()
    off[pairs] = 0
    largest = np.argsort(-off, axis=None, kind="stable")[:DISAGREEMENTS]
    partner = dict(zip(*(of.tolist() for of in pairs), strict=True))
    distances = one.distances + other.distances
    cells, examples = [], []
    for a, b in zip(*(of.tolist() for of in np.unravel_index(largest, off.shape)), strict=True):
        if not off[a, b]:
            break
        inside = np.flatnonzero((one.labels == a) & (other.labels == b))
        examples.append(rows[inside[np.argsort(distances[inside], kind="stable")[:EXAMPLES]]])
        cells.append(
            {
                first: both.names[0][a],
                second: both.names[1][b],
                "documents": int(off[a, b]),
                f"the {first} one's match": both.names[1][partner[a]] if a in partner else None,
            }
        )
    texts = iter(first_lines(run.store, view, np.concatenate([rows[:0], *examples])))
    return [{**cell, "examples": [next(texts) for _ in of]} for cell, of in zip(cells, examples, strict=True)]


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
    """Both spaces' maps of the same documents, matched clusters in the same colour; or why there are none."""
    from dagster_divorder.core.topics import cluster_map

    if missing := cluster_map.why_no_map():
        run.progress.note(missing)
        return None, missing
    from dagster_divorder.view.pictures import cluster_maps

    mapped = rows[:MAPPED]
    first, second = both.spaces
    # Clusters of the second in the places, and so colours, of those they are matched with.
    place = np.full(second.clusters, -1)
    place[pairs[1]] = pairs[0]
    free = np.setdiff1d(np.arange(first.clusters + second.clusters), pairs[0])
    place[place < 0] = free[: int((place < 0).sum())]
    placed = [""] * max(int(place.max()) + 1, first.clusters)
    for at, name in zip(place.tolist(), both.names[1], strict=True):
        placed[at] = name
    panels = []
    for kind, of, labels, own in (
        (both.kinds[0], first, first.labels, both.names[0] + [""] * (len(placed) - first.clusters)),
        (both.kinds[1], second, place[second.labels], placed),
    ):
        xy = cluster_map.fit(of.space.rows(view, mapped), run.settings.seed).xy
        panels.append((kind.capitalize(), xy, labels[: len(mapped)], own))
    note = f"{len(mapped):,} documents; clusters that are matched have the same colour"
    return cluster_maps(panels, "The same documents in both spaces", note), None


def _count(settings: Settings) -> int:
    """Clusters of either space; "auto" asks for the space first."""
    return settings.clusters.number or USUAL


def _ari_comparison_settings(settings: Settings) -> dict[str, Any]:
    return {
        "spaces": settings.embedding.compared,
        "sample": settings.advanced.silhouette_documents,
        "k": _count(settings),
        "algorithm": settings.clusters.algorithm,
        "metric": settings.clusters.metric,
        "seed": settings.seed,
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
    shown: dict[str, Table | Picture] = {
        "matched_clusters": Table(load_pairs(store, fit)[:200]),
        "disagreements": Table(disagreements),
    }
    for name, what in (
        (HEATMAP, "clusters of the one space against those of the other"),
        (MAPS, "the maps of both spaces"),
    ):
        if store.exists(f"{fit}/{name}"):
            shown[name.removesuffix(".png")] = Picture(store.local(f"{fit}/{name}"), what)
    return shown


ARI_COMPARISON = PinnedFit(
    name="ari_comparison",
    version=8,
    kinds=lambda settings: {library(settings), "scikitlearn"},
    description="Whether deep vectors (or those of `embedding.path`) show other structure than shallow ones "
    "(the first) and are worth using: both are clustered at the same number of clusters and compared. With "
    '`embedding.kind = "auto"` it picks the vectors.',
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
    # The limit may have been lowered.
    checked_once_per_corpus=False,
    kept_by_outcome=True,
    facts=lambda run, fitted: {
        **orjson.loads(fitted.files[INFO]),
        "documents": fitted.documents,
    },
    figures=_ari_comparison_figures,
    show=_show_ari_comparison,
)
