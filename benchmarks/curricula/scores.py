"""What the scores cost, how they hang together, and how far they tell the length of a document.

    python benchmarks/curricula/scores.py ../shared/data/mixture.jsonl.gz ../shared/data/newsgroups.jsonl.gz

Rank correlations (Spearman) over documents that have both scores. `equal length`: the mean over 30 bins of length.
"""

from __future__ import annotations

import argparse
import gzip
import time
import zlib
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import numpy as np
import orjson
import pyarrow as pa
from numpy.typing import NDArray
from scipy.stats import spearmanr

from dagster_divorder.core.arrow import text_array
from dagster_divorder.core.text.difficulty import Counts, bits_a_token
from dagster_divorder.core.text.statistics import compression_ratio, lexical_diversity

BINS = 30
CUTS = (200, 400, 800, 1600, 3200)
"""Bytes of the beginnings of long texts, whose mean scores show what length alone does."""

Score = Callable[[pa.Array], NDArray[np.float64]]


def difficulty(texts: pa.Array) -> NDArray[np.float64]:
    """With words of `core.text.minhash` as tokens: a tokenizer is another matter."""
    from dagster_divorder.core.kernels.minhash import KINDS, word_hashes
    from dagster_divorder.core.text.minhash import text_bytes

    data, ends = text_bytes(texts)
    hashes, lengths = np.empty(len(data) // 2 + 1, np.uint64), np.zeros(len(texts), np.int64)
    parts = []
    for at, (first, last) in enumerate(pairwise(ends)):
        lengths[at] = word_hashes(data[first:last], KINDS, hashes)
        parts.append(hashes[: lengths[at]] % np.uint64(1 << 16))
    ids = np.concatenate(parts).astype(np.uint32)
    counts = Counts.none(1 << 16)
    counts.add(ids, lengths, lengths)
    return bits_a_token(ids, lengths, lengths, counts)


def deflate(texts: pa.Array) -> NDArray[np.float64]:
    """Raw deflate at level 6: what the compression ratio is compared with."""
    raw = [text.encode() for text in texts.to_pylist()]
    return np.array([len(text) / max(1, len(zlib.compress(text, 6, -15))) for text in raw])


SCORES: dict[str, Score] = {
    "compression": compression_ratio,
    "lexical_diversity": lexical_diversity,
    "difficulty of words": difficulty,
    "deflate": deflate,
}


def correlation(one: NDArray[np.float64], other: NDArray[np.float64]) -> float:
    both = np.isfinite(one) & np.isfinite(other)
    return float(spearmanr(one[both], other[both])[0])


def at_equal_length(
    one: NDArray[np.float64], other: NDArray[np.float64], sizes: NDArray[np.float64]
) -> float:
    bins = np.searchsorted(np.quantile(sizes, np.arange(1, BINS) / BINS), sizes)
    return float(np.mean([correlation(one[bins == at], other[bins == at]) for at in range(BINS)]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "corpora", nargs="+", type=Path, help="JSONL, compressed by gzip, with the field `text`"
    )
    parser.add_argument("--share", type=float, default=1.0, help="of the documents, drawn at random")
    options = parser.parse_args()
    for corpus in options.corpora:
        with gzip.open(corpus) as lines:
            texts = [orjson.loads(line)["text"] for line in lines]
        drawn = np.random.default_rng(0).random(len(texts)) < options.share
        texts = [text for text, kept in zip(texts, drawn, strict=True) if kept]
        column = text_array(texts)
        sizes = np.array([len(text.encode()) for text in texts], np.float64)
        values, seconds = {}, {}
        for name, score in SCORES.items():
            score(column.slice(0, 10))  # compiles
            start = time.process_time()
            values[name] = score(column)
            seconds[name] = time.process_time() - start
        print(f"\n{corpus.name}: {len(texts):,} documents, {sizes.sum() / 1e6:.0f} MB")
        print("| score | CPU s | none | length | length from 1 KB | " + " | ".join(SCORES) + " |")
        for name, score in values.items():
            large = np.where(sizes > 1024, sizes, np.nan)
            row = [np.isnan(score).mean(), correlation(score, sizes), correlation(score, large)]
            row += [correlation(score, other) for other in values.values()]
            print(f"| {name} | {seconds[name]:.1f} | " + " | ".join(f"{value:.3f}" for value in row) + " |")
        equal = at_equal_length(values["compression"], values["deflate"], sizes)
        print(f"compression and deflate at equal length: {equal:.3f}")
        long = [text for text in texts if len(text) >= 2 * CUTS[-1]][:1000]
        for cut in CUTS:
            begin = text_array([text[1000 : 1000 + cut] for text in long])
            means = {
                name: f"{np.nanmean(SCORES[name](begin)):.3f}" for name in SCORES if "difficulty" not in name
            }
            print(f"first {cut:,} characters: {means}")


if __name__ == "__main__":
    main()
