"""Windows of whole documents against topics inside sequences, by `within`, beside shuffling; and what drifts.

    python benchmarks/ordering/corpora.py newsgroups.jsonl.gz newsgroups.npz --label label --tokens words
    python benchmarks/ordering/within.py newsgroups.npz [--traits label cluster length] [--seeds 3]

By trait: total variation from the corpus in windows of 128 documents, by tokens and by documents; in windows of 262,144
tokens; values in 2,048 and in 8,192 tokens. Log lengths: farthest tenth and mean batch of 128 documents as multiples of
shuffles'; mean of the first and the last 128 documents in standard errors. Drift: features of the documents that are
clearly worse than shuffled, in any seed (docs/decisions/stationarity.md).
"""

import argparse
import time

import numpy as np
from scipy.sparse import csr_matrix

from dagster_divorder.core.measure import Feature, Stationarity, measure, packed_counts, stationarity
from dagster_divorder.core.measure.windows import Laid
from dagster_divorder.core.order import order
from dagster_divorder.core.order.items import document_items
from dagster_divorder.core.order.traits import bin_codes, quantile_edges
from dagster_divorder.core.packing import Pieces, pack

BATCH, BATCH_TOKENS, SEQUENCES = 128, 262_144, (2_048, 8_192)
LONG = 0.999
"""Lengths beyond this quantile count as it, so that a few documents do not decide what drifts."""


def packed(order: np.ndarray, tokens: np.ndarray, codes: np.ndarray, length: int) -> Laid:
    """Documents in an order, packed into sequences."""
    plan = pack(Pieces(order, np.zeros_like(order), tokens[order]), sequence_length=length)
    counts = packed_counts(plan, {"": codes}, {"": int(codes.max()) + 1})[""]
    return Laid.of(counts, np.flatnonzero(plan.padding == 0))


def distinct_values(order: np.ndarray, tokens: np.ndarray, codes: np.ndarray, length: int) -> float:
    counts = packed(order, tokens, codes, length).counts
    return measure({"": counts}, np.arange(len(counts.indptr) - 1), batch=1).figures["distinct"][""]["mean"]


class Corpus:
    def __init__(self, path: str) -> None:
        with np.load(path) as arrays:
            self.tokens, self.vectors = arrays["tokens"], arrays["vectors"]
            self.codes = {name: arrays[name] for name in ("label", "cluster", "other")}
            words = [arrays[f"word_{name}"] for name in ("data", "indices", "indptr")]
        self.codes["length"] = bin_codes(self.tokens, quantile_edges(self.tokens, 100))
        self.words = csr_matrix(tuple(words))

    def windows(self, order: np.ndarray, trait: str) -> list[float]:
        """TV in BATCH documents, by tokens and by documents, and in BATCH_TOKENS; values in each of SEQUENCES."""
        codes, tokens = self.codes[trait], self.tokens
        values, mean = int(codes.max()) + 1, []
        whole = order[: len(order) // BATCH * BATCH]
        batch = np.arange(len(whole)) // BATCH
        for amounts in (tokens, np.ones_like(tokens)):
            counts = np.bincount(batch * values + codes[whole], amounts[whole]).astype(float)
            counts.resize(len(whole) // BATCH, values)
            share = np.bincount(codes, amounts) / amounts.sum()
            sums = np.maximum(counts.sum(axis=1, keepdims=True), 1)
            mean.append(0.5 * np.abs(counts / sums - share).sum(axis=1).mean())
        mean.append(packed(order, tokens, codes, BATCH_TOKENS).sliding(1).tv.mean())
        return mean + [distinct_values(order, tokens, codes, length) for length in SEQUENCES]

    def drift(self, order: np.ndarray, seed: int) -> Stationarity:
        documents = np.arange(len(order) + 1)
        one = np.ones(len(order), np.int32)
        features = [
            Feature("log length", "vector", np.log1p(self.tokens)[order, np.newaxis]),
            *(
                Feature(name, "mix", csr_matrix((one, self.codes[name][order], documents)))
                for name in ("label", "cluster", "other")
            ),
            Feature("vectors", "vector", self.vectors[order]),
            Feature("words", "mix", self.words[order]),
        ]
        return stationarity(features, len(order), batch=BATCH, seed=seed)

    def ends(self, order: np.ndarray) -> list[float]:
        logs = np.log1p(self.tokens)
        score = ((logs - logs.mean()) / logs.std())[order]
        return [part.mean() * BATCH**0.5 for part in (score[:BATCH], score[-BATCH:])]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("arrays")
    parser.add_argument("--traits", nargs="+", default=["label"])
    parser.add_argument("--within", nargs="+", type=float, default=[0.0, 0.25, 0.5, 0.75, 1.0])
    parser.add_argument("--seeds", type=int, default=3)
    options = parser.parse_args()
    corpus = Corpus(options.arrays)
    codes = {name: corpus.codes[name] for name in options.traits}
    columns = [f"{name}: 128 | in documents | 262,144 | in 2,048 | in 8,192" for name in codes]
    print(f"| order | {' | '.join(columns)} | tenth | batch | first | last | drift | seconds |")
    print(f"|---|{'--:|' * (5 * len(codes) + 4)}---|--:|")
    rows = [
        ("random", 1.0),
        *(("balanced", within) for within in options.within),
        ("token_share_greedy", 1.0),
    ]
    for strategy, within in rows:
        measured, drifting, seconds = [], set(), 0.0
        for seed in range(options.seeds):
            begin = time.perf_counter()
            items = document_items(corpus.tokens, codes, within=within)
            result = order(items, strategy=strategy, seed=seed)
            seconds += (time.perf_counter() - begin) / options.seeds
            drift = corpus.drift(result, seed)
            length = drift.features[0].measures
            drifting |= {feature.feature for feature in drift.drifting}
            measured.append(
                [
                    *(value for name in codes for value in corpus.windows(result, name)),
                    *(length[name].value / length[name].shuffled for name in ("tenths", "batch")),
                    *corpus.ends(result),
                ]
            )
        formats = ["{:.3f}", "{:.3f}", "{:.4f}", "{:.2f}", "{:.2f}"] * len(codes)
        formats += ["{:.2f}", "{:.2f}", "{:+.1f}", "{:+.1f}"]
        cells = [form.format(value) for form, value in zip(formats, np.mean(measured, axis=0), strict=True)]
        name = f"balanced, within = {within:g}" if strategy == "balanced" else strategy
        drifts = ", ".join(sorted(drifting)) or "–"
        print(f"| {name} | {' | '.join(cells)} | {drifts} | {seconds:.2f} |", flush=True)


if __name__ == "__main__":
    main()
