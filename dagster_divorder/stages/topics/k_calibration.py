"""k_calibration: recommends the number of clusters, by silhouettes, as Diversity-Ordered Training does.

Each number is fitted as `clusters` would fit it. `clusters.k = "auto"` takes the recommended number. Table and
recommendation are a pinned fit.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import orjson

from dagster_divorder.core.topics.cluster import assign, fit, most_points
from dagster_divorder.core.topics.k_calibration import SAMPLE, recommended, silhouette
from dagster_divorder.core.vectors.unit import unit_rows
from dagster_divorder.corpus.stored import records_by_text
from dagster_divorder.engine.progress import counted
from dagster_divorder.pipeline.fit import PinnedFit, has_changed
from dagster_divorder.pipeline.run import Run
from dagster_divorder.pipeline.stage import Table
from dagster_divorder.stages.topics.components import chosen_vectors, load_space, space_reads
from dagster_divorder.view.charts import calibration

NEAR_ZERO = 0.02
"""Clusters with a smaller silhouette are hardly separated."""

INFO = "k_calibration.json"


def _calibrate_k(run: Run) -> Mapping[str, bytes]:
    space, tried = load_space(run), run.settings.clusters.tried
    documents = int(run.receipt("raw_docs").facts["texts"])
    values = [k for k in tried if k <= documents] or [documents]
    most = min(max(SAMPLE, most_points(values[-1])), space.most_rows(run.view))
    vectors = space.rows(run.view, records_by_text(run.records, run.view, most))
    sample = vectors[:SAMPLE]
    directions = unit_rows(sample - sample.mean(axis=0) if space.centre else sample)
    rows: list[dict[str, Any]] = []
    notes: list[str] = []
    if above := [k for k in tried if k > documents]:
        notes.append(f"{', '.join(map(str, above))} not tried: there are only {documents:,} different texts")
    for k in counted(run.progress, "fitting clusters", values, len(values), "numbers of clusters"):
        fitted = fit(vectors[: most_points(k)], k, seed=run.settings.seed, centre=space.centre)
        if rows and len(fitted.centroids) == rows[-1]["clusters"]:
            notes.append(f"{k} left out: it gives no more clusters than a smaller number")
            continue
        labels, _ = assign(sample, fitted)
        sizes = np.bincount(labels, minlength=len(fitted.centroids))
        rows.append(
            {
                "k": k,
                "silhouette": silhouette(directions, labels),
                "clusters": len(sizes),
                "smallest": int(sizes.min()),
                "median": float(np.median(sizes)),
                "largest": int(sizes.max()),
            }
        )
    means = [row["silhouette"] for row in rows]
    chosen = recommended(means)
    for at, row in enumerate(rows):
        row["recommended"] = at == chosen
    if max(means) < NEAR_ZERO:
        notes.append(f"the best silhouette is {max(means):.3f}: clusters hardly separate")
    if rows[chosen]["k"] == tried[-1]:
        notes.append(f"{tried[-1]:,} is the largest number tried: larger ones may do better")
    facts = {
        "recommended": rows[chosen]["k"],
        "best_silhouette": max(means),
        "measured_documents": len(sample),
        "notes": notes,
    }
    return {INFO: orjson.dumps({**facts, "rows": rows})}


K_CALIBRATION = PinnedFit(
    name="k_calibration",
    version=11,
    description="How many clusters to make: the highest number whose silhouette is within 5 % of the best. "
    '`clusters.k = "auto"` takes it. Measured again once enough documents have changed; `fitted` says why.',
    reads=lambda settings: ("raw_docs", *space_reads(settings)),
    settings=("clusters", "seed"),
    decided_by=lambda run: {
        "space": chosen_vectors(run).key,
        "tried": run.settings.clusters.tried,
        "seed": run.settings.seed,
    },
    doing="calibrating the number of clusters",
    compute=_calibrate_k,
    refit="k_calibration",
    drift=has_changed,
    facts=lambda run, fitted: orjson.loads(fitted.files[INFO]),
    figures=lambda run, receipt: {
        **{
            name: receipt.facts[name]
            for name in ("recommended", "best_silhouette", "measured_documents", "notes")
        },
        "vectors": chosen_vectors(run).stage,
    },
    show=lambda run, receipt: {
        "silhouettes": calibration(receipt.facts["rows"]),
        "calibration": Table(receipt.facts["rows"]),
    },
)
