"""Documents, then their packed sequences: the design's table "Two levels", all pairs of strategies on a real corpus.

    python benchmarks/ordering/two_levels.py --store STORE          a store that `clusters` has been materialised into
    python benchmarks/ordering/two_levels.py --arrays CORPUS.npz    or .parquet, with `tokens` and `cluster` by document

For 20 and for 100 length bins, means of several seeds: distinct clusters a sequence (mean, least, std), mean and worst
total variation between a batch and the corpus over the clusters, the worst deviation of a cluster's share in a batch
that starts anywhere, mean prefix L2 deviation over clusters and length bins in tokens, and seconds for documents and
for sequences. Then the ratios that the defaults (balanced, balanced) are to reach; exit status 1 if one is missed.
"""

import sys
from collections import defaultdict

import numpy as np
from documents import Corpus, arguments

from dagster_divorder.core.metrics import Diversity, average
from dagster_divorder.core.strategy_comparison import compare_strategies

DOCUMENTS = ("original", "random", "stratified", "balanced")
SEQUENCES = ("original", "random", "balanced")
HEADER = (
    "| length bins | documents | sequences | distinct | least | std | TV batch | worst TV | worst anywhere "
    "| mean prefix L2 | seconds |\n|--:|---|---|--:|--:|--:|--:|--:|--:|--:|--:|"
)

Pair = tuple[str, str]


def run(corpus: Corpus, seeds: int) -> dict[Pair, tuple[Diversity, float, float]]:
    """By pair of strategies: the mean over the seeds, and the mean seconds for documents and for sequences."""
    found: dict[Pair, list] = defaultdict(list)
    for seed in range(seeds):
        for one in compare_strategies(
            corpus.tokens,
            corpus.codes,
            corpus.n_values,
            documents=DOCUMENTS,
            sequences=SEQUENCES,
            sequence_length=corpus.options.sequence_length,
            batch=corpus.options.batch,
            seed=seed,
        ):
            found[one.documents, one.sequences].append(one)
    return {
        pair: (
            average([one.diversity for one in ones]),
            float(np.mean([one.document_cost.seconds for one in ones])),
            float(np.mean([one.sequence_cost.seconds for one in ones])),
        )
        for pair, ones in found.items()
    }


def row(length_bins: int, pair: Pair, diversity: Diversity, documents: float, sequences: float) -> str:
    batch, anywhere = diversity.batch_shares["cluster"], diversity.windows["batch"]["cluster"]
    then = "as packed" if pair[1] == "original" else pair[1]
    return (
        f"| {length_bins} | {pair[0]} | {then} | {diversity.split.mean:.2f} | {diversity.split.min:.3g} "
        f"| {diversity.split.std:.2f} | {batch.mean_tv:.4f} | {batch.max_tv:.4f} "
        f"| {anywhere.worst:.4f} | {diversity.prefix.mean:,.0f} | {documents:.2f} + {sequences:.2f} |"
    )


def ratios(found: dict[Pair, Diversity]) -> list[tuple[str, float, float]]:
    """(what, ratio, the most it may be)."""

    def tv(pair: Pair) -> float:
        return found[pair].batch_shares["cluster"].mean_tv

    best = max(diversity.split.mean for diversity in found.values())
    ours, alone, stratified = ("balanced", "balanced"), ("balanced", "original"), ("stratified", "original")
    return [
        ("best distinct clusters of all pairs / ours", best / found[ours].split.mean, 1 / 0.99),
        ("batch TV, ours / shuffled documents", tv(ours) / tv(("random", "original")), 0.2),
        ("batch TV, ours / stratified", tv(ours) / tv(stratified), 0.1),
        (
            "distinct clusters, stratified / balanced documents alone",
            found[stratified].split.mean / found[alone].split.mean,
            1.0,
        ),
        ("batch TV, balanced documents alone / stratified", tv(alone) / tv(stratified), 1.0),
        (
            "prefix L2, balanced documents alone / stratified",
            found[alone].prefix.mean / found[stratified].prefix.mean,
            1.0,
        ),
    ]


def main() -> None:
    options = arguments(__doc__).parse_args()
    print(HEADER)
    missed = False
    reached = []
    for length_bins in options.length_bins:
        found = run(Corpus(options, length_bins), options.seeds)
        for pair, figures in found.items():
            print(row(length_bins, pair, *figures), flush=True)
        for what, ratio, most in ratios({pair: figures[0] for pair, figures in found.items()}):
            missed |= ratio > most
            mark = "reached" if ratio <= most else "MISSED"
            reached.append(f"| {length_bins} | {what} | {ratio:.3f} | {most:.3f} | {mark} |")
    print("\n| length bins | ratio | is | at most | |\n|--:|---|--:|--:|---|", *reached, sep="\n")
    sys.exit(missed)


if __name__ == "__main__":
    main()
