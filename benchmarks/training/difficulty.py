"""Does `difficulty` rank documents as a trained model does? Rank correlations with their loss under a small decoder.

    python benchmarks/training/difficulty.py
    python benchmarks/training/difficulty.py --corpus ../shared/data/newsgroups.jsonl.gz --source-field label

The decoder of tiny.py is trained once on shuffled sequences of the drawn documents; each document of 32 tokens or more
is then read by itself, in windows of 256. Beside it: bits by how frequent each token is (unigram), and the correlation
within clusters (means of a cluster taken off both), which balanced clusters leave to be balanced.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

import numpy as np
from corpus import draw, order, run_of, settings_of
from model import Decoder, evaluate, train
from numpy.typing import NDArray
from scipy.stats import spearmanr
from tiny import DATA, both

from dagster_divorder import run_all
from dagster_divorder.engine.progress import Silent
from dagster_divorder.stages import GRAPH

LENGTH, BATCH, SHORTEST = 256, 16, 32


def losses(model: Decoder, ids: NDArray[np.integer], lengths: NDArray[np.int64]) -> NDArray[np.float64]:
    """Nats a token of each document, float64 (N,), in windows of LENGTH; NaN of one token or none."""
    starts = np.cumsum(lengths) - lengths
    total, read = np.zeros(len(lengths)), np.zeros(len(lengths))
    windows = [
        (document, first, min(LENGTH, length - first))
        for document, length in enumerate(lengths.tolist())
        for first in range(0, length, LENGTH)
        if length - first > 1
    ]
    by_length: dict[int, list[tuple[int, int]]] = {}
    for document, first, held in windows:
        by_length.setdefault(held, []).append((document, first))
    for held, ones in by_length.items():
        documents, firsts = np.array(ones).T
        found = evaluate(model, ids[(starts[documents] + firsts)[:, None] + np.arange(held)])
        np.add.at(total, documents, found * (held - 1))
        np.add.at(read, documents, held - 1)
    return np.divide(total, read, out=np.full(len(total), np.nan), where=read > 0)


def within(values: NDArray[np.float64], labels: NDArray[np.integer]) -> NDArray[np.float64]:
    """Less the mean of each cluster."""
    return values - (np.bincount(labels, values) / np.maximum(1, np.bincount(labels)))[labels]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--corpus", type=Path, default=DATA / "mixture.jsonl.gz")
    parser.add_argument("--source-field", default="source")
    parser.add_argument("--tokens", type=int, default=1_000_000)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as work:
        draw(options.corpus, options.tokens, options.source_field, Path(work) / "corpus.jsonl")
        settings = settings_of(Path(work), 0, LENGTH, BATCH, both("random"))
        shuffled = order(settings)
        model, _ = train(shuffled.epochs[0], shuffled.vocabulary, BATCH, seed=0)
        run_all(settings, Silent(), GRAPH.needed(settings, "difficulty"))
        run = run_of(settings)
        view, tokens = run.view, run.files("token_counts")
        ids, lengths = tokens.column(view.documents, "ids"), tokens.column(view.documents, "lengths")
        labels = run.column("clusters", "labels")
        counts = np.bincount(ids, minlength=shuffled.vocabulary)
        document = np.repeat(np.arange(len(lengths)), lengths)
        unigram = np.bincount(document, -np.log2(counts[ids] / len(ids)), len(lengths)) / np.maximum(
            1, lengths
        )
        measures = {"unigram": unigram, "difficulty": run.column("difficulty", "bits")}
    loss = losses(model, ids, lengths)
    long = lengths >= SHORTEST
    print(f"{options.corpus.name}: {long.sum():,} documents, {len(ids):,} tokens")
    print("| measure | rank correlation with the loss | within clusters |\n|---|--:|--:|")
    for name, bits in measures.items():
        overall = spearmanr(bits[long], loss[long]).statistic
        inside = spearmanr(within(bits[long], labels[long]), within(loss[long], labels[long])).statistic
        print(f"| {name} | {overall:.3f} | {inside:.3f} |")


if __name__ == "__main__":
    main()
