"""Agreement of the clusters with the 20 true labels of 20 Newsgroups (NMI), through the pipeline itself.

python benchmarks/clustering/newsgroups.py ../shared/data/newsgroups.jsonl.gz --seeds 0 1 2
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

from sklearn.metrics import adjusted_rand_score, normalized_mutual_info_score

from dagster_divorder import Settings, load_results, run_stage
from dagster_divorder.stages import GRAPH


def clustering(corpus: Path, folder: Path, seed: int, pooling: str) -> tuple[float, float]:
    """NMI and ARI of clusters and labels."""
    settings = Settings(
        input={"paths": [str(corpus)], "source_field": "label"},
        store={"path": folder},
        output={"plot": False},
        embedding={"pooling": pooling},
        clusters={"k": 20},
        seed=seed,
    )
    for stage in GRAPH.needed(settings, "greedy_order"):
        run_stage(stage, settings)
    documents = load_results(folder).documents
    labels, clusters = documents["source"], documents["cluster"]
    return normalized_mutual_info_score(labels, clusters), adjusted_rand_score(labels, clusters)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("corpus", type=Path)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    options = parser.parse_args()
    print(f"{'pooling':8} {'seed':>4} {'NMI':>6} {'ARI':>6}")
    for pooling in ("idf", "mean"):
        for seed in options.seeds:
            with tempfile.TemporaryDirectory() as folder:
                nmi, ari = clustering(options.corpus, Path(folder), seed, pooling)
            print(f"{pooling:8} {seed:4} {nmi:6.3f} {ari:6.3f}", flush=True)


if __name__ == "__main__":
    main()
