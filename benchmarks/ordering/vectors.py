"""What an order should see of a column of vectors: clusters, coordinates, both; judged on what it did not see.

Vectors are TF-IDF of words seen along 128 singular vectors. What no order sees: labels and sources, clusters of
another number and seed, clusters and mean vectors of character trigrams, 4,096 hashed words. Windows of 128 rows and of
262,144 tokens (characters / 4). Lower is better, but for labels in 2,048 tokens.

python benchmarks/ordering/vectors.py FILE.jsonl.gz [--most 30000] [--seeds 5]
"""

from __future__ import annotations

import argparse
import gzip
from pathlib import Path
from typing import Any

import numpy as np
import orjson
from scipy.sparse import csr_matrix, issparse
from within import distinct_values, packed

from dagster_divorder.core.measure import Feature, stationarity
from dagster_divorder.core.order import order
from dagster_divorder.core.order.items import document_items
from dagster_divorder.core.packing.coordinates import VECTOR_SHARE, with_blocks
from dagster_divorder.core.topics.cluster import assign, fit
from dagster_divorder.core.vectors.pca import fit as components
from dagster_divorder.core.vectors.pca import project

ROWS, TOKENS = 128, 262_144
WAYS = {
    "shuffled": (0, 0, 0.0),
    "30 clusters": (30, 0, 0.0),
    "100 clusters": (100, 0, 0.0),
    "64 coordinates": (1, 64, VECTOR_SHARE),
    "30 clusters, 64 coordinates": (30, 64, VECTOR_SHARE),
    "30 clusters, 128 coordinates": (30, 128, VECTOR_SHARE),
    "30 clusters, 32 coordinates": (30, 32, VECTOR_SHARE),
    "30 clusters, 64 coordinates, share 1": (30, 64, 1.0),
}
"""Clusters, coordinates, and the coordinates' share of the heaviest trait's variance."""


def views(records: list[dict[str, Any]]) -> tuple[np.ndarray, np.ndarray, csr_matrix]:
    """(vectors of words, of character trigrams, counts of hashed words)."""
    from sklearn.decomposition import TruncatedSVD
    from sklearn.feature_extraction.text import HashingVectorizer, TfidfVectorizer

    texts = [record["text"][:6000] for record in records]
    words = TfidfVectorizer(sublinear_tf=True, min_df=5, max_df=0.3, max_features=60_000).fit_transform(texts)
    trigrams = TfidfVectorizer(
        analyzer="char_wb", ngram_range=(3, 3), sublinear_tf=True, min_df=20, max_features=20_000
    ).fit_transform([text[:2000] for text in texts])
    hashed = HashingVectorizer(n_features=4096, alternate_sign=False, norm=None).transform(texts)
    return (
        TruncatedSVD(128, random_state=0).fit_transform(words).astype(np.float32),
        TruncatedSVD(64, random_state=1).fit_transform(trigrams).astype(np.float32),
        hashed.tocsr(),
    )


def ordered(way: str, vectors: np.ndarray, tokens: np.ndarray, seed: int) -> np.ndarray:
    clusters, dims, share = WAYS[way]
    if not clusters:
        return np.random.default_rng(seed).permutation(len(tokens))
    labels = assign(vectors, fit(vectors, clusters, seed=seed))[0]
    items = document_items(tokens, {"cluster": labels})
    if dims:
        items = with_blocks(items, [(project(vectors, components(vectors, dims)), share)])
    return order(items, seed=seed)


def batch_means(made: np.ndarray, values: Any) -> np.ndarray:
    """Means of whole windows of ROWS rows, (windows, D), less those of all."""
    whole = len(made) // ROWS
    take = made[: whole * ROWS]
    if issparse(values):
        into = csr_matrix((np.ones(len(take)), (np.arange(len(take)) // ROWS, take)), (whole, len(made)))
        sums, total = (into @ values).toarray(), np.asarray(values.sum(axis=0)).ravel()
        return sums / np.maximum(sums.sum(axis=1, keepdims=True), 1) - total / total.sum()
    return values[take].reshape(whole, ROWS, -1).mean(axis=1) - values.mean(axis=0)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("file", type=Path)
    parser.add_argument("--most", type=int, default=30_000, help="documents, drawn at random")
    parser.add_argument("--seeds", type=int, default=5)
    options = parser.parse_args()
    with gzip.open(options.file) as file:
        records = [orjson.loads(line) for line in file]
    drawn = np.random.default_rng(0).permutation(len(records))[: options.most]
    records = [records[at] for at in np.sort(drawn)]
    vectors, trigrams, hashed = views(records)
    tokens = np.array([max(1, len(record["text"]) // 4) for record in records])
    unseen = {
        name: np.unique([record.get(name) or "" for record in records], return_inverse=True)[1]
        for name in ("label", "source")
    }
    unseen = {name: codes for name, codes in unseen.items() if codes.max()}
    unseen["100 clusters"] = assign(vectors, fit(vectors, 100, seed=10_007))[0]
    unseen["trigrams"] = assign(trigrams, fit(trigrams, 100, seed=10_005))[0]
    lengths = np.linalg.norm(trigrams - trigrams.mean(axis=0), axis=1, keepdims=True)
    directions = (trigrams - trigrams.mean(axis=0)) / np.maximum(lengths, 1e-9)

    def measures(made: np.ndarray) -> dict[str, float]:
        found: dict[str, float] = {}
        for name, codes in unseen.items():
            one_hot = np.eye(codes.max() + 1, dtype=np.float32)[codes]
            found[f"{name}, rows"] = float(np.abs(batch_means(made, one_hot)).sum(axis=1).mean() / 2)
            found[f"{name}, tokens"] = float(packed(made, tokens, codes, TOKENS).sliding(1).tv.mean())
        found["words, rows"] = float(np.abs(batch_means(made, hashed)).sum(axis=1).mean() / 2)
        found["mean trigrams"] = float(np.linalg.norm(batch_means(made, directions), axis=1).mean())
        first = next(iter(unseen))
        found[f"{first}s in 2,048 tokens"] = distinct_values(made, tokens, unseen[first], 2048)
        mixes = {name: np.eye(codes.max() + 1)[codes[made]] for name, codes in unseen.items()}
        drift = stationarity(
            [
                *(Feature(name, "mix", csr_matrix(mix)) for name, mix in mixes.items()),
                Feature("length", "vector", np.log1p(tokens[made])[:, np.newaxis]),
                Feature("trigrams", "vector", directions[made].astype(np.float64)),
            ],
            len(made),
            batch=ROWS,
        )
        found["features that drift"] = float(len(drift.drifting))
        return found

    lines = []
    for way in WAYS:
        found = [measures(ordered(way, vectors, tokens, seed)) for seed in range(options.seeds)]
        if not lines:
            lines = [f"| {options.file.name}, {len(records):,} | " + " | ".join(found[0]) + " |"]
            lines += ["|---|" + "--:|" * len(found[0])]
            print(*lines, sep="\n", flush=True)
        means = [f"{np.mean([of[name] for of in found]):.4g}" for name in found[0]]
        print(f"| {way} | " + " | ".join(means) + " |", flush=True)


if __name__ == "__main__":
    main()
