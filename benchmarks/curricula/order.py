"""How near do orders along a score keep the mix? Every shape with windows balanced, beside the papers' window shuffle.

    python benchmarks/ordering/corpora.py mixture.jsonl.gz mixture.npz
    python benchmarks/curricula/order.py mixture.jsonl.gz mixture.npz [--shapes saw] [--windows 0 0.03125] [--along]
    python benchmarks/curricula/order.py newsgroups.jsonl.gz newsgroups.npz --length 1024 --batch 64
    python benchmarks/curricula/order.py --four-million

Scores: compression (compressed bytes of zlib / bytes) and surprisal (bits of a document's 1,024 hashed words under
their frequencies). Documents are ordered along the shape, packed, and the sequences ordered along it by their mean
rank. Window shuffle: documents shuffled in their windows and packed, as the papers do. Balanced: both balanced in their
windows, by clusters, lengths, sources and 64 coordinates of the mean vector. Deviation: mean distance of a token's rank
from the asked one. TV: total variation between a batch and the mix of the plain order around the same point, in as wide
a window (or `--width`, a share of training), mean over batches; `other` (60 clusters) and words are in no order.
`--windows` are shares of training; 0 is the pipeline's default. `--four-million`: seconds of 4,000,000 sequences.
"""

from __future__ import annotations

import argparse
import gzip
import json
import time
import zlib
from typing import Any, NamedTuple

import numpy as np
from scipy.sparse import csr_matrix

from dagster_divorder.core.order import order
from dagster_divorder.core.order.curricula import SHAPES, pieces_of, window_share
from dagster_divorder.core.order.items import Items, document_items
from dagster_divorder.core.order.schedule import asked_rank, token_ranks
from dagster_divorder.core.order.traits import bin_codes, quantile_edges
from dagster_divorder.core.packing import PackedSequences, Pieces, pack, sequence_counts
from dagster_divorder.core.packing.coordinates import add_directions, with_coordinates

BALANCED = ("cluster", "length", "label")
FEATURES = (*BALANCED, "other", "words")
NAMED = ("rise", "fold", "zigzag", "stair", "saw", "segment")
TENTHS = 10


class Read(NamedTuple):
    """packed: a plan; order: its sequences, int64 (S,)."""

    packed: PackedSequences
    order: np.ndarray


class Corpus:
    """Documents with their traits, words, vectors and scores."""

    def __init__(self, source: str, arrays: str, length: int, batch: int) -> None:
        self.length, self.batch = length, batch
        with np.load(arrays) as stored:
            self.tokens = stored["tokens"]
            self.codes = {name: stored[name] for name in ("cluster", "label", "other")}
            words = csr_matrix(tuple(stored[f"word_{name}"] for name in ("data", "indices", "indptr")))
            self.vectors = stored["vectors"]
        self.codes["length"] = bin_codes(self.tokens, quantile_edges(self.tokens, 100))
        self.values = {name: int(codes.max()) + 1 for name, codes in self.codes.items()}
        one = np.arange(len(self.tokens) + 1)
        self.features = {
            name: csr_matrix((self.tokens.astype(float), codes, one)) for name, codes in self.codes.items()
        } | {"words": words.astype(float)}
        frequency = np.asarray(words.sum(axis=0)).ravel() + 1.0
        bits = -np.log2(frequency / frequency.sum())
        self.scores = {
            "compression": compression(source),
            "surprisal": (words @ bits) / np.maximum(np.asarray(words.sum(axis=1)).ravel(), 1),
        }

    @property
    def batches(self) -> float:
        return float(self.tokens.sum()) / (self.length * self.batch)

    def read(self, score: np.ndarray, inside: str, *, balance: bool, **arguments: Any) -> Read:
        """Documents in order, packed, and their sequences in order. balance: order the sequences, too."""
        codes = {name: self.codes[name] for name in BALANCED}
        items = document_items(self.tokens, codes)
        given = {"inside": inside, "scores": score, "batch": self.batch, **arguments}
        documents = order(items.counts, items.groups, weights=items.weights, **given)
        packed = pack(
            Pieces(documents, np.zeros_like(documents), self.tokens[documents]),
            method="concat",
            sequence_length=self.length,
        )
        full = len(packed) - bool(packed.padding[-1])
        packed = packed.part(0, full)
        if not balance:
            return Read(packed, np.arange(full))
        counts, groups = sequence_counts(packed, codes, self.values)
        sequences = Items(counts, groups, np.ones(len(codes)))
        sums = np.zeros((full, self.vectors.shape[1]), np.int64)
        sequence = np.repeat(np.arange(full, dtype=np.int32), np.diff(packed.indptr))
        add_directions(sums, sequence, packed.length, packed.document, self.vectors)
        sequences = with_coordinates(sequences, packed, sums)
        total = np.bincount(sequence, packed.length, full)
        given["scores"] = np.bincount(sequence, packed.length * score[packed.document], full) / total
        given["coordinates"] = sequences.coordinates
        return Read(packed, order(counts, groups, weights=sequences.weights, **given))

    def contents(self, read: Read, rows: int) -> csr_matrix:
        """The share of each document in each of `rows` consecutive sequences of an order, CSR (S // rows, N)."""
        packed = read.packed
        parts = packed.length / np.maximum(1, self.tokens[packed.document])
        each = csr_matrix((parts, packed.document, packed.indptr), (len(packed), len(self.tokens)))[
            read.order
        ]
        whole = len(packed) // rows
        sums = csr_matrix(
            (np.ones(whole * rows), np.arange(whole * rows), np.arange(whole + 1) * rows),
            (whole, len(packed)),
        )
        return sums @ each

    def deviation(self, read: Read, rank: np.ndarray, pieces: np.ndarray) -> float:
        each = np.repeat(read.order, np.diff(read.packed.indptr)[read.order])
        first = read.packed.indptr[:-1][each]
        runs = (
            first
            + np.arange(len(each))
            - np.flatnonzero(np.diff(each, prepend=-1))[np.cumsum(np.diff(each, prepend=-1) != 0) - 1]
        )
        tokens = read.packed.length[runs]
        progress = (np.cumsum(tokens) - 0.5 * tokens) / tokens.sum()
        off = np.abs(rank[read.packed.document[runs]] - asked_rank(pieces, progress))
        return float((off * tokens).sum() / tokens.sum())


def compression(source: str) -> np.ndarray:
    """Compressed bytes / bytes of each text, float64 (N,)."""
    with gzip.open(source, "rt", encoding="utf-8") as lines:
        texts = (json.loads(line)["text"].encode() for line in lines)
        return np.array([len(zlib.compress(text, 6)) / max(1, len(text)) for text in texts])


def distances(corpus: Corpus, read: Read, plain: Read, width: float) -> dict[str, np.ndarray]:
    """Total variation of each batch from the mix of the plain order around it, by feature, float64 (B,)."""
    batches, sequences = corpus.contents(read, corpus.batch), corpus.contents(plain, 1)
    middles = (np.arange(batches.shape[0]) + 0.5) * corpus.batch
    half = 0.5 * width * len(plain.order)
    first = np.clip(middles - half, 0, max(0, len(plain.order) - 2 * half))
    edges = [first, np.minimum(first + 2 * half, len(plain.order))]
    low, high = (np.rint(edge).astype(int) for edge in edges)
    out = {}
    for name, feature in corpus.features.items():
        along = np.concatenate(
            [np.zeros((1, feature.shape[1])), np.cumsum((sequences @ feature).toarray(), axis=0)]
        )
        there, here = along[high] - along[low], (batches @ feature).toarray()
        shares = [amounts / amounts.sum(axis=1, keepdims=True) for amounts in (there, here)]
        out[name] = 0.5 * np.abs(shares[0] - shares[1]).sum(axis=1)
    return out


def table(corpus: Corpus, options: argparse.Namespace) -> None:
    print(
        f"{len(corpus.tokens):,} documents, {corpus.batches:.1f} batches of {corpus.batch} x {corpus.length}"
    )
    heads = [f"TV {name}" for name in FEATURES]
    print(f"| score | shape | window | order | deviation | {' | '.join(heads)} |")
    print(f"|---|---|--:|---|--:|{'--:|' * len(FEATURES)}")
    for score in options.scores:
        rank = token_ranks(corpus.scores[score], corpus.tokens)
        for shape in options.shapes:
            pieces = pieces_of(shape, SHAPES[shape]().model_dump())
            plain = corpus.read(rank, "original", balance=False, strategy=shape, seed=0)
            for share in options.windows:
                window = share or window_share(None, 1 / corpus.batches)
                ratios = []
                for name, inside, balance in (
                    ("window shuffle", "random", False),
                    ("balanced", "balanced", True),
                ):
                    deviations, measured = [], []
                    for seed in range(options.seeds):
                        read = corpus.read(
                            rank, inside, balance=balance, strategy=shape, window=window, seed=seed
                        )
                        deviations.append(corpus.deviation(read, rank, pieces))
                        measured.append(distances(corpus, read, plain, options.width or window))
                    means = {
                        feature: np.mean([one[feature] for one in measured], axis=0) for feature in FEATURES
                    }
                    ratios.append([float(means[feature].mean()) for feature in FEATURES])
                    cells = " | ".join(f"{value:.4f}" for value in ratios[-1])
                    print(
                        f"| {score} | {shape} | {window:.4f} | {name} | {np.mean(deviations):.4f} | {cells} |",
                        flush=True,
                    )
                    if options.along:
                        for feature in FEATURES:
                            tenths = [
                                part.mean() for part in np.array_split(means[feature], TENTHS) if len(part)
                            ]
                            print(f"  {feature}: {' '.join(f'{value:.4f}' for value in tenths)}")
                cells = " | ".join(f"{ours / theirs:.2f}" for theirs, ours in zip(*ratios, strict=True))
                print(f"| {score} | {shape} | {window:.4f} | *ratio* | | {cells} |", flush=True)


def four_million(sequences: int, inside: str) -> None:
    """Sequences over 30 clusters, which go with the score, and 100 lengths, each of one source of 16."""
    random = np.random.default_rng(0)
    scores = random.random(sequences)
    runs = np.empty((sequences, 16), np.int32)
    runs[:, :15] = np.minimum(29, random.geometric(0.15, (sequences, 15)) + (scores * 8).astype(int)[:, None])
    runs[:, 5:15] = 30 + random.integers(0, 100, (sequences, 10))
    runs[:, 15] = 130 + random.integers(0, 16, sequences)
    tokens = np.tile(np.array([1638] * 5 + [819] * 10 + [8190], np.int32), sequences)
    counts = csr_matrix((tokens, runs.ravel(), np.arange(sequences + 1) * 16), (sequences, 146))
    counts.sum_duplicates()
    groups = np.repeat([0, 1, 2], [30, 100, 16])
    arguments = {"inside": inside, "window": window_share(None, 256 / sequences), "strategy": "saw"}
    order(counts[:9_000], groups, scores=scores[:9_000], **arguments)
    for shape in ("rise", "saw"):
        begin, cpu = time.perf_counter(), time.process_time()
        order(counts, groups, scores=scores, **{**arguments, "strategy": shape})
        print(
            f"{sequences:,} sequences, {shape}, {inside}: {time.perf_counter() - begin:.1f} s, "
            f"{time.process_time() - cpu:.1f} CPU s",
            flush=True,
        )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("source", nargs="?", help="the texts, JSON lines, gzipped")
    parser.add_argument("arrays", nargs="?", help="what corpora.py makes of them")
    parser.add_argument("--scores", nargs="+", default=["compression", "surprisal"])
    parser.add_argument("--shapes", nargs="+", default=list(NAMED))
    parser.add_argument("--windows", nargs="+", type=float, default=[0.0])
    parser.add_argument("--width", type=float, default=0.0)
    parser.add_argument("--length", type=int, default=8_192)
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--along", action="store_true")
    parser.add_argument("--four-million", action="store_true")
    parser.add_argument("--sequences", type=int, default=4_000_000)
    options = parser.parse_args()
    if options.four_million:
        four_million(options.sequences, "balanced")
        return
    table(Corpus(options.source, options.arrays, options.length, options.batch), options)


if __name__ == "__main__":
    main()
