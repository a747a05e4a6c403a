"""Agreement of the clusters with true labels (NMI), side by side: shallow vectors, by inverse document frequency and by
a plain mean, those of the bootstrap decoder, and of any other model, through the pipeline itself.

python benchmarks/clustering/deep.py ../shared/data/newsgroups.jsonl.gz --labels label --k 20 --seeds 0 1 2
python benchmarks/clustering/deep.py ../shared/data/mixture.jsonl.gz --labels source --k 16 --seeds 0 1 2
    --model DIRECTORY [--max-tokens 128] adds another model
    --kinds shallow "shallow mean" leaves out the decoder

`uncentred` is the same clustering without taking the documents' mean away first; `with shallow` is the adjusted Rand
index of the clusters and those of the shallow vectors.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.metrics import adjusted_rand_score, normalized_mutual_info_score

from dagster_divorder import Settings, load_results, run_all
from dagster_divorder.core.topics.cluster import POINTS_PER_CENTROID, assign, fit
from dagster_divorder.corpus.stored import records_by_text
from dagster_divorder.stages import GRAPH, open_run
from dagster_divorder.stages.topics.components import load_space

KINDS = ("shallow", "shallow mean", "deep bootstrap")


def cluster(settings: Settings) -> tuple[np.ndarray, np.ndarray, np.ndarray, float]:
    """Labels, clusters, and clusters of the uncentred vectors, by record; seconds of the stage of vectors."""
    seconds = 0.0
    for stage in GRAPH.needed(settings, "greedy_order"):
        start = time.perf_counter()
        run_all(settings, stages=[stage])
        if stage == f"{settings.embedding.kind}_embeddings":
            seconds = time.perf_counter() - start
    documents = load_results(settings.store.path).documents
    return documents["source"], documents["cluster"], uncentred(settings), seconds


def uncentred(settings: Settings) -> np.ndarray:
    """What the stage `clusters` does, without a centre."""
    run = open_run(settings)
    view, space, k = run.view, load_space(run), settings.clusters.k
    assert isinstance(k, int)
    sample = space.rows(view, records_by_text(run.records, view, POINTS_PER_CENTROID * k))
    found = fit(sample, k, seed=settings.seed, centre=False)
    return assign(space.rows(view, np.arange(len(view))), found)[0]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("corpus", type=Path)
    parser.add_argument("--labels", default="label", help="field of the true labels")
    parser.add_argument("--k", type=int, default=20)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--model", help="directory or id of another model, beside the bootstrap's")
    parser.add_argument("--max-tokens", type=int, default=0)
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=KINDS)
    options = parser.parse_args()

    kinds: dict[str, dict[str, Any]] = {
        "shallow": {"embedding": {"kind": "shallow"}},
        "shallow mean": {"embedding": {"kind": "shallow", "pooling": "mean"}},
        "deep bootstrap": {"embedding": {"kind": "deep"}},
    }
    kinds = {name: kinds[name] for name in options.kinds}
    if options.model:
        name = Path(options.model).name
        deep = {"model": options.model, "max_tokens": options.max_tokens}
        kinds[name] = {"embedding": {"kind": "deep"}, "deep": deep}
    print(
        f"{'vectors':16} {'seed':>4} {'NMI':>6} {'ARI':>6} {'uncentred':>9} {'with shallow':>12} {'seconds':>8}"
    )
    for seed in options.seeds:
        with tempfile.TemporaryDirectory() as folder:
            shallow = None
            for name, sections in kinds.items():
                settings = Settings(
                    input={"paths": [str(options.corpus)], "source_field": options.labels},
                    store={"path": folder},
                    output={"sidecars": ()},
                    clusters={"k": options.k},
                    seed=seed,
                    **sections,
                )
                labels, clusters, plain, seconds = cluster(settings)
                shallow = clusters if shallow is None else shallow
                print(
                    f"{name:16} {seed:4} {normalized_mutual_info_score(labels, clusters):6.3f} "
                    f"{adjusted_rand_score(labels, clusters):6.3f} "
                    f"{normalized_mutual_info_score(labels, plain):9.3f} "
                    f"{adjusted_rand_score(shallow, clusters):12.3f} {seconds:8.1f}",
                    flush=True,
                )


if __name__ == "__main__":
    main()
