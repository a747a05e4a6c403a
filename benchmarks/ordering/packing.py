"""Packing methods: speed, padding and cuts on synthetic lengths, and what sequences hold on a real corpus.

    python benchmarks/ordering/packing.py [--documents 9100000]
    python benchmarks/ordering/packing.py --arrays CORPUS.npz     with `tokens`, `cluster` and `vectors` by document
    python benchmarks/ordering/packing.py --turns                 padding of best fit by the order in which it packs

Synthetic: log-normal lengths (mean 900, sigma 1.1) in sequences of 2048 tokens. Prints sequences, padding and cut
documents in percent, documents and clusters a sequence, CPU seconds of packing and of the sequences' trait rows (1000
clusters and 100 length bins). A real corpus is first ordered by `balanced`; `cluster_packed` needs vectors, and its
rows have the mean cosine of documents that stand next to each other.
"""

import argparse
import time
from pathlib import Path

import numpy as np

from dagster_divorder.core.kernels.packing import best_fit
from dagster_divorder.core.order import order
from dagster_divorder.core.order.items import document_items
from dagster_divorder.core.packing import METHODS, Pieces, pack, packing_report, sequence_counts

MEAN, SIGMA = 900, 1.1


def synthetic(documents: int) -> dict[str, np.ndarray]:
    random = np.random.default_rng(0)
    lengths = np.ceil(random.lognormal(np.log(MEAN) - SIGMA**2 / 2, SIGMA, documents)).astype(np.int64)
    return {"tokens": lengths, "cluster": random.integers(0, 1000, documents).astype(np.int32)}


def rows(corpus: dict[str, np.ndarray], made: np.ndarray, sequence_length: int) -> None:
    length = np.argsort(np.argsort(corpus["tokens"], kind="stable")) * 100 // len(made)
    codes = {"cluster": corpus["cluster"], "length": length.astype(np.int32)}
    pieces = Pieces(made, np.zeros_like(made), corpus["tokens"][made])
    for method in METHODS:
        vectors = corpus.get("vectors")
        if method == "cluster_packed" and vectors is None:
            continue
        begin = time.process_time()
        packed = pack(
            pieces,
            method=method,
            sequence_length=sequence_length,
            labels=corpus["cluster"][made],
            vectors=None if vectors is None else vectors[made],
        )
        packing = time.process_time() - begin
        sequence_counts(packed, codes, {name: int(values.max()) + 1 for name, values in codes.items()})
        counting = time.process_time() - begin - packing
        report = packing_report(packed, corpus["cluster"])
        padding, cuts = 100 * report["padding_share"], 100 * report["cut_share"]
        documents, clusters = (report[f"{of}_per_sequence"]["mean"] for of in ("documents", "clusters"))
        print(
            f"| {method} | {report['sequences']:,} | {padding:.3f} | {cuts:.1f} | {documents:.2f} | {clusters:.2f} "
            f"| {cosine(packed.document, vectors)} | {packing:.2f} | {counting:.2f} |",
            flush=True,
        )


def turns(sequence_length: int = 2048, documents: int = 200_000) -> None:
    """Padding in percent: the longest first; in order; those of more than half a sequence first (`best_fit`)."""
    random = np.random.default_rng(0)

    def log_normal(mean: int, sigma: float) -> np.ndarray:
        return np.ceil(random.lognormal(np.log(mean) - sigma**2 / 2, sigma, documents)).astype(np.int64)

    lengths = {
        f"log-normal, mean {mean}, sigma {sigma}": log_normal(mean, sigma)
        for mean, sigma in ((900, 1.1), (300, 1.5), (1500, 0.5), (1000, 0.3), (700, 0.3))
    } | {
        f"uniform, {least} to {most - 1}": random.integers(least, most, documents)
        for least, most in ((205, 1843), (614, 1229))
    }
    print("| lengths | longest first | in order | half a sequence first |\n|---|--:|--:|--:|")
    for name, drawn in lengths.items():
        whole = np.full((drawn // sequence_length).sum(), sequence_length)
        run = np.concatenate([drawn % sequence_length, whole])
        run = random.permutation(run[run > 0])
        every = np.arange(len(run))
        opened = [
            best_fit(run, np.argsort(key, kind="stable"), every, sequence_length)[1] for key in (-run, every)
        ]
        pieces = Pieces(every, np.zeros_like(every), run)
        opened.append(len(pack(pieces, method="best_fit", sequence_length=sequence_length)))
        cells = [f"{100 * (1 - run.sum() / (each * sequence_length)):.2f}" for each in opened]
        print(f"| {name} | {' | '.join(cells)} |")


def cosine(document: np.ndarray, vectors: np.ndarray | None) -> str:
    if vectors is None:
        return "-"
    units = vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-9)
    one, next_ = document[:-1], document[1:]
    other = one != next_
    return f"{np.einsum('ij,ij->i', units[one[other]], units[next_[other]]).mean():.3f}"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--documents", type=int, default=9_100_000)
    parser.add_argument("--arrays", type=Path)
    parser.add_argument("--sequence-length", type=int)
    parser.add_argument("--turns", action="store_true")
    options = parser.parse_args()
    if options.turns:
        return turns()
    for method in ("concat", "best_fit"):  # compiled before the clock runs
        one = pack(Pieces(*np.array([[0], [0], [1]])), method=method, sequence_length=1)
        sequence_counts(one, {"cluster": np.zeros(1, np.int32)}, {"cluster": 1})
    print(
        "| method | sequences | padding % | cut % | documents | clusters | cosine | seconds | rows |\n"
        "|---|--:|--:|--:|--:|--:|--:|--:|--:|"
    )
    if options.arrays:
        with np.load(options.arrays) as arrays:
            corpus = {name: arrays[name] for name in ("tokens", "cluster", "vectors")}
        items = document_items(corpus["tokens"], {"cluster": corpus["cluster"]})
        made = order(items)
        rows(corpus, made, options.sequence_length or 8192)
    else:
        corpus = synthetic(options.documents)
        rows(corpus, np.arange(options.documents), options.sequence_length or 2048)


if __name__ == "__main__":
    main()
