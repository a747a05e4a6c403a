"""What the report is drawn from. Letters: C slices of the dataset, J values of a trait, K clusters, N documents."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dagster_divorder.core.measure.along import Binned
from dagster_divorder.core.measure.stationarity import Stationarity
from dagster_divorder.settings import Settings
from dagster_divorder.view.drawing import OTHERS, by_place, cluster_colours
from dagster_divorder.view.verdict import Verdict

LENGTH_QUANTILES = (0.1, 0.25, 0.5, 0.75, 0.9)


@dataclass(frozen=True, eq=False)
class TraitAlong:
    """A trait along the dataset. names: of the J values shown, the largest first. share: float (J,), of the corpus's
    tokens. mixes: by order, shares in C slices of the dataset, float (C, J) (`cluster_mix`)."""

    trait: str
    names: Sequence[str]
    share: NDArray[np.float64]
    mixes: Mapping[str, NDArray[np.float32]]


class Card(NamedTuple):
    """A window or a cell of a comparison, with documents that are in it: what is known of each, and its text as it is
    in the corpus; the page shows its beginning, escaped."""

    title: str
    says: str
    documents: Sequence[tuple[str, str]]


@dataclass(frozen=True, eq=False)
class MapPoints:
    """Documents on the map, in a random order: xy float (N, 2); rows int (N,), the row of each one's cluster in the
    table of clusters. documents: of the corpus."""

    xy: NDArray[np.floating]
    rows: NDArray[np.integer]
    documents: int


class Agreement(NamedTuple):
    """Of ari_comparison: what its receipt reports, its tables, and its pictures, PNG: the heat map and the maps."""

    report: Mapping[str, Any]
    pairs: Sequence[Mapping[str, Any]]
    disagreements: Sequence[Mapping[str, Any]]
    pictures: Sequence[bytes | None]


class Evidence(NamedTuple):
    """Evidence without a section of its own: its stage, `title` and `description`, what it shows by name: figures and
    tables, and pictures, PNG, by what they show."""

    stage: str
    title: str
    description: str
    figures: Mapping[str, Any]
    tables: Mapping[str, Sequence[Mapping[str, Any]]]
    pictures: Mapping[str, bytes]


class StageRun(NamedTuple):
    """A stage in its last run: its documents, of which it computed so many, in so many seconds; when its result was
    made, in words. part: it belongs to the asset before it."""

    stage: str
    part: bool
    documents: int
    computed: int
    seconds: float
    made: str


@dataclass(frozen=True, kw_only=True, eq=False)
class Numbers:
    """All that the report shows. Orders are called as in `diversity_metrics`.

    manifest: of the output. tokens: of all its records. space: the kind of vectors that were clustered. warnings: what
    cannot be had of what was asked. distinct: by order, of the sequences. lengths: by order, the LENGTH_QUANTILES of
    the documents' lengths in slices, float (C, 5). clusters: the largest, cluster_numbers int (n,): which these are,
    and cluster_documents how many documents each has; other_clusters: how many share the last value, 0 for none. worst:
    batches and sequences; alone: sequences of one document. strategies, calibration (its table and notes), agreement,
    map, trained (the summary of training_evidence), diversity (tables of set_diversity, by name), copies (figures and
    tables of near_duplicates), proxies (figures and table of gradient_proxy), others: evidence, where it is there;
    chosen: tables of the selection, by name; missing: stage -> what it would show, and why it is not there.
    """

    settings: Settings
    manifest: Mapping[str, Any]
    tokens: int
    space: str
    check: Verdict
    drift: Stationarity
    warnings: Sequence[str]
    distinct: Mapping[str, Binned]
    lengths: Mapping[str, NDArray[np.float64]]
    clusters: TraitAlong
    cluster_numbers: NDArray[np.int64]
    cluster_documents: Sequence[int]
    other_clusters: int
    categories: Sequence[TraitAlong]
    worst: Sequence[Card]
    alone: int
    strategies: Sequence[Mapping[str, Any]] | None
    calibration: tuple[Sequence[Mapping[str, Any]], Sequence[str]] | None
    agreement: Agreement | None
    map: MapPoints | None
    trained: Mapping[str, Any] | None
    chosen: Mapping[str, Sequence[Mapping[str, Any]]]
    diversity: Mapping[str, Sequence[Mapping[str, Any]]]
    copies: tuple[Mapping[str, Any], Mapping[str, Sequence[Mapping[str, Any]]]] | None
    proxies: tuple[Mapping[str, Any], Sequence[Mapping[str, Any]]] | None
    others: Sequence[Evidence]
    runs: Sequence[StageRun]
    missing: Mapping[str, tuple[str, str]]

    @cached_property
    def stacking(self) -> NDArray[np.int64]:
        """The values of `clusters` in the order in which bars are stacked, (J,)."""
        return by_place(self.clusters.mixes["original"])

    @cached_property
    def colours(self) -> NDArray[np.float64]:
        """The colour of each value of `clusters`, RGB in [0, 1] (J, 3)."""
        own = cluster_colours(self.manifest["k"])[self.cluster_numbers]
        return np.concatenate([own, [OTHERS]])[: len(self.stacking)]
