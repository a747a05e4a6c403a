"""Where new documents come to lie on a map, ours beside UMAP.transform, and what each way costs.

    PYTHONPATH=. .venv/bin/python benchmarks/cluster_map/places.py ../shared/data/newsgroups.jsonl.gz

A map is fitted to some of the documents, and others are placed on it: by `place`, by UMAP.transform one at a time, all
together and in two halves, and by scikit-learn's KNeighborsRegressor, the mean of their neighbours. Distances are in
shares of the map's extent; purity is the share of a document's ten nearest on the map that are of its own cluster, kept
that of those that are among its fifty nearest in the space of the vectors; off is the distance to the nearest place on
the map. Seconds are processor seconds.
"""

from __future__ import annotations

import argparse
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np

from dagster_divorder import Settings, load_results, run_all
from dagster_divorder.core.topics.cluster_map import COMPONENTS, NEIGHBOURS, MapFit, fit, place
from dagster_divorder.core.vectors import pca
from dagster_divorder.stages import GRAPH


def timed(function: Callable[[], np.ndarray]) -> tuple[np.ndarray, float]:
    start = time.process_time()
    return function(), time.process_time() - start


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("corpus", type=Path)
    # Below 4,096 umap-learn searches neighbours exactly, as we do.
    parser.add_argument("--documents", type=int, default=4000)
    parser.add_argument("--new", type=int, default=1000)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        settings = Settings(
            input={"paths": [str(options.corpus)]}, store={"path": folder}, clusters={"k": 20}
        )
        run_all(settings, None, GRAPH.needed(settings, "greedy_order"))
        results = load_results(folder)
        vectors, labels = np.array(results.embeddings), results.documents["cluster"].to_numpy()
    shuffled = np.random.default_rng(0).permutation(len(vectors))
    old, new = shuffled[: options.documents], shuffled[options.documents :][: options.new]

    print(f"importing umap-learn: {timed(_import)[1]:.1f} s")
    for _ in range(2):
        _, seconds = timed(lambda: fit(vectors[shuffled], 0).xy)
        print(f"fit of all {len(vectors):,}: {seconds:.1f} s")

    import umap
    from sklearn.neighbors import KNeighborsRegressor, NearestNeighbors

    warnings.simplefilter("ignore")
    projection = pca.fit(vectors[old], COMPONENTS)
    points, queries = pca.project(vectors[old], projection), pca.project(vectors[new], projection)
    model = umap.UMAP(n_neighbors=NEIGHBOURS, random_state=0).fit(points)
    on = MapFit(pca=projection, points=points, xy=np.ascontiguousarray(model.embedding_))
    place(vectors[new[:1]], on)
    print(f"UMAP.transform, the first call: {timed(lambda: model.transform(queries[:1]))[1]:.1f} s")

    def alone() -> np.ndarray:
        return np.concatenate([model.transform(query[None]) for query in queries])

    def halves() -> np.ndarray:
        return np.concatenate([model.transform(half) for half in np.array_split(queries, 2)])

    def mean(neighbours: int) -> np.ndarray:
        return KNeighborsRegressor(neighbours, weights="distance").fit(points, on.xy).predict(queries)

    ways = {
        "UMAP.transform, one at a time": alone,
        "ours": lambda: place(vectors[new], on),
        "UMAP.transform, all together": lambda: model.transform(queries),
        "UMAP.transform, in two halves": halves,
        "mean of 15 neighbours": lambda: mean(NEIGHBOURS),
        "mean of 5 neighbours": lambda: mean(5),
        "the nearest neighbour": lambda: mean(1),
    }
    print(
        f"{'':30}{'seconds':>9}{'purity':>8}{'kept':>8}{'apart: median':>15}{'p90':>8}{'p99':>8}{'off: p99':>10}"
    )
    found = {name: timed(way) for name, way in ways.items()}
    true, extent = found["UMAP.transform, one at a time"][0], np.ptp(on.xy, axis=0).max()
    alike = NearestNeighbors(n_neighbors=50).fit(points).kneighbors(queries)[1]
    for name, (xy, seconds) in found.items():
        apart = np.linalg.norm(xy - true, axis=1) / extent
        away = np.linalg.norm(xy[:, None] - on.xy[None], axis=2)
        near = away.argsort(axis=1)[:, :10]
        purity = (labels[old][near] == labels[new][:, None]).mean()
        kept = np.mean([np.isin(ten, fifty).mean() for ten, fifty in zip(near, alike, strict=True)])
        p50, p90, p99 = np.quantile(apart, (0.5, 0.9, 0.99))
        off = np.quantile(away.min(axis=1) / extent, 0.99)
        print(f"{name:30}{seconds:9.2f}{purity:8.3f}{kept:8.3f}{p50:15.4f}{p90:8.4f}{p99:8.4f}{off:10.4f}")


def _import() -> np.ndarray:
    import umap

    return np.array(umap.__version__)


if __name__ == "__main__":
    main()
