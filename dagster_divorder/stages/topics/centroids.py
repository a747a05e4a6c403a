"""centroids: the centroids of the clusters, fitted to a sample of the vectors.

With `refit.clusters = "auto"` they are fitted again if the corpus has doubled, if hardly any of its documents are left,
or if new documents lie too far from them, by more than chance. New documents are the ids in the corpus's sketch that
the fit's sketch lacks: a random sample, whatever the number of runs that added them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import numpy as np
import orjson

from dagster_divorder.core.sketch import SIZE, sketch
from dagster_divorder.core.topics.cluster import DRIFT, ClusterFit, assign, fit, most_points
from dagster_divorder.pipeline.fit import Fitted, PinnedFit, has_doubled
from dagster_divorder.pipeline.run import Run
from dagster_divorder.stages.mix.heldout import fit_inputs, fit_reads, fit_rows
from dagster_divorder.stages.topics.components import load_space, space_key, space_reads
from dagster_divorder.store.arrays import pack, unpack

SAMPLE_BYTES = 1 << 30
MIN_NEW = 32
"""With fewer new documents in the sketch there is no test."""

ARRAYS, INFO = "centroids.safetensors", "clusters.json"


def _count(run: Run) -> int:
    """The number of clusters: `clusters.k`, or for "auto" the number that k_calibration recommends."""
    return run.settings.clusters.number or int(run.receipt("k_calibration").facts["recommended"])


def _fit_centroids(run: Run) -> Mapping[str, bytes]:
    k, space = _count(run), load_space(run)
    rows = fit_rows(run, "centroids", min(most_points(k), space.most_rows(run.view, SAMPLE_BYTES)))
    fitted = asdict(fit(space.rows(run.view, rows), k, seed=run.settings.seed, centre=space.centre))
    arrays = {name: fitted.pop(name) for name in ("centre", "centroids", "sizes")}
    return {ARRAYS: pack(arrays), INFO: orjson.dumps({"asked": k, **fitted})}


def _clusters(files: Mapping[str, bytes]) -> ClusterFit:
    info = orjson.loads(files[INFO])
    return ClusterFit(**unpack(files[ARRAYS]), mean_distance=info["mean_distance"], note=info["note"])


def load_clusters(run: Run) -> ClusterFit:
    """The current clusters."""
    return _clusters(run.fit("centroids"))


def _centroids_drift(run: Run, fitted: Fitted) -> str | None:
    why = has_doubled(run, fitted)
    if why or run.planning:
        return why
    now = sketch(run.corpus.ids())
    covered = now <= fitted.sketch[-1] if len(fitted.sketch) == SIZE else np.ones(len(now), bool)
    new = now[covered & ~np.isin(now, fitted.sketch)]
    if len(new) < MIN_NEW:
        return None
    ids = run.records.text_ids(run.view.fragments)
    rows = np.flatnonzero(np.isin(ids[:, 0], new) & run.are_first)
    clusters = _clusters(fitted.files)
    _, distances = assign(load_space(run).rows(run.view, rows), clusters)
    mean = float(distances.mean(dtype=np.float64))
    # A few documents may lie far out by chance, and a new fit makes all later results again.
    chance = 2 * float(distances.std(dtype=np.float64, ddof=1)) / len(distances) ** 0.5
    if mean - chance <= DRIFT * clusters.mean_distance:
        return None
    return f"new documents lie {mean:.3f} from their centroids, documents of the fit {clusters.mean_distance:.3f}"


def _centroids_facts(run: Run, fitted: Fitted) -> dict[str, Any]:
    clusters, asked = _clusters(fitted.files), orjson.loads(fitted.files[INFO])["asked"]
    notes, points = [clusters.note], int(clusters.sizes.sum())
    if asked > fitted.documents:
        notes.append(f"{asked:,} clusters are asked for, but there were only {fitted.documents:,} documents")
    elif points < most_points(asked):
        notes.append(
            f"fitted to {points:,} documents, {points / asked:.3g} a cluster; the further below {most_points(1)}, "
            "the more the centroids depend on the sample"
        )
    k, dims = clusters.centroids.shape
    note = "; ".join(filter(None, notes))
    return {"k": k, "dims": dims, "mean_distance": clusters.mean_distance, "note": note}


CENTROIDS = PinnedFit(
    name="centroids",
    version=4,
    asset=False,
    description="Centroids of the clusters.",
    reads=lambda settings: (
        "raw_docs",
        *space_reads(settings),
        *([] if settings.clusters.number else ["k_calibration"]),
        *fit_reads(settings, "centroids"),
    ),
    settings=("clusters", "seed"),
    decided_by=lambda run: {
        "space": space_key(run),
        "k": _count(run),
        "seed": run.settings.seed,
        **fit_inputs(run, "centroids"),
    },
    doing="fitting clusters",
    compute=_fit_centroids,
    refit="clusters",
    drift=_centroids_drift,
    tentative="new documents lie too far from the centroids",
    facts=_centroids_facts,
)
