"""What a map costs and shows, by how its neighbours are found and where it starts.

    .venv/bin/python benchmarks/cluster_map/fits.py ../shared/data/newsgroups.jsonl.gz

Purity is the share of a document's ten nearest on the map that are of its own cluster; kept the share of them that are
among its fifty nearest in the space of the vectors. Seconds are processor seconds, compiling apart, which a small map
before has done.
"""

from __future__ import annotations

import argparse
import tempfile
import time
import warnings
from pathlib import Path
from typing import Any

import faiss
import numpy as np
import umap

from dagster_divorder import Settings, load_results, run_all
from dagster_divorder.core.topics.cluster_map import COMPONENTS, NEIGHBOURS
from dagster_divorder.core.vectors import pca
from dagster_divorder.stages import GRAPH


def nearest(vectors: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
    index = faiss.IndexFlatL2(vectors.shape[1])
    index.add(vectors)
    squares, near = index.search(vectors, k)
    return near, np.sqrt(np.maximum(squares, 0))


def map_of(points: np.ndarray, *, k: int = NEIGHBOURS, exact: bool = True, **options: Any) -> np.ndarray:
    if exact:
        options["precomputed_knn"] = nearest(points, k)
    return umap.UMAP(n_neighbors=k, random_state=0, **options).fit(points).embedding_


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("corpus", type=Path)
    corpus = parser.parse_args().corpus
    with tempfile.TemporaryDirectory() as folder:
        settings = Settings(input={"paths": [str(corpus)]}, store={"path": folder}, clusters={"k": 20})
        run_all(settings, None, GRAPH.needed(settings, "greedy_order"))
        results = load_results(folder)
        vectors, labels = np.array(results.embeddings), results.documents["cluster"].to_numpy()

    warnings.simplefilter("ignore")
    faiss.omp_set_num_threads(1)
    projection = pca.fit(vectors[::4], COMPONENTS)
    unit = pca.project(vectors, projection)
    long = ((vectors - projection.mean) @ projection.axes).astype(np.float32)
    start = unit[:, :2] + np.random.default_rng(0).normal(scale=1e-4, size=(len(unit), 2))
    ways: dict[str, tuple[np.ndarray, dict[str, Any]]] = {
        "as it is: exact neighbours, components": (unit, {"init": start}),
        "spectral start": (unit, {}),
        "spectral start, not to unit length": (long, {}),
        "30 neighbours": (unit, {"init": start, "k": 30}),
        "500 epochs": (unit, {"init": start, "n_epochs": 500}),
        "umap-learn's own neighbours": (unit, {"init": start, "exact": False}),
    }
    # Searched by umap-learn from 4,096 points on.
    map_of(unit[:4200], exact=False, n_epochs=10)
    map_of(unit[:100])
    centred = vectors - vectors.mean(axis=0)
    centred /= np.maximum(np.linalg.norm(centred, axis=1, keepdims=True), 1e-12)
    true = nearest(centred, 51)[0][:, 1:]
    print(f"{len(vectors):,} documents\n{'':42}{'seconds':>8}{'purity':>8}{'kept':>8}")
    for name, (points, options) in ways.items():
        begin = time.process_time()
        xy = map_of(points, **options)
        seconds = time.process_time() - begin
        near = nearest(np.ascontiguousarray(xy), 11)[0][:, 1:]
        purity = (labels[near] == labels[:, None]).mean()
        kept = (near[:, :, None] == true[:, None, :]).any(axis=2).mean()
        print(f"{name:42}{seconds:8.1f}{purity:8.3f}{kept:8.3f}", flush=True)


if __name__ == "__main__":
    main()
