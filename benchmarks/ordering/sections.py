"""What do sections cost? Records dealt to parts, phases, and windows of a score, each ordered apart, beside one order
and shuffles.

    python benchmarks/ordering/sections.py newsgroups.jsonl.gz [--seeds 2]

A record needs `text` and `label`. Documents are balanced by label and 20 length bins, packed into sequences of 1,024
tokens (characters / 4), and the sequences ordered; batches of 32. `sections` is what the stage of this name does, in
core functions alone.
"""

import argparse
import gzip
import json
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from dagster_divorder.core.order import Items, order
from dagster_divorder.core.order.deal import deal
from dagster_divorder.core.order.items import document_items
from dagster_divorder.core.order.schedule import SHAPES, asked_rank, token_ranks, windows_of
from dagster_divorder.core.order.sections import FEWEST_SEQUENCES, section_seed, spans_of_values
from dagster_divorder.core.order.traits import Traits, bin_codes, quantile_edges
from dagster_divorder.core.packing import PackedSequences, Pieces, pack, sequence_counts

LENGTH, BATCH = 1_024, 32
WEIGHTS = {"label": 1.0, "length": 1.0}
SHARES = ([0.5, 0.5], [0.7, 0.3], [0.2, 0.8], [0.1, 0.2, 0.3, 0.4], [1 / 8] * 8, [1 / 32] * 32)


class Trained(NamedTuple):
    """rows, lengths: tokens of each label and length bin in each sequence as trained, (S, K). section, scores: of each
    sequence."""

    rows: np.ndarray
    lengths: np.ndarray
    section: np.ndarray
    scores: np.ndarray


def read(path: Path) -> tuple[Traits, np.ndarray]:
    """(the records, a score of each: the mean length of its words)."""
    with gzip.open(path, "rt") as file:
        records = [json.loads(line) for line in file]
    tokens = np.array([len(record["text"]) // 4 + 1 for record in records], np.int64)
    names, labels = np.unique([record["label"] for record in records], return_inverse=True)
    bins = bin_codes(tokens, quantile_edges(tokens, 20))
    codes = {"label": labels.astype(np.int32), "length": bins}
    score = np.array([len(record["text"]) / max(1, len(record["text"].split())) for record in records])
    return Traits(tokens, tokens, codes, {"label": tuple(names), "length": tuple(map(str, range(21)))}), score


def train(
    traits: Traits,
    sections: Sequence[np.ndarray],
    ranks: np.ndarray,
    *,
    strategy: str = "balanced",
    seed: int = 0,
) -> Trained:
    """Orders, packs and orders every section apart; what does not fill its last sequence opens the next one."""
    carried = Pieces(*(np.zeros(0, np.int64) for _ in range(3)))
    rows, lengths, numbers, scores = [], [], [], []
    for number, records in enumerate(sections):
        own, of_section = section_seed(seed, number), traits.take(records)
        items = document_items(of_section.tokens, of_section.codes, WEIGHTS)
        documents = records[
            order(
                items,
                strategy=strategy,
                seed=own,
                sequence_length=LENGTH,
            )
        ]
        plan = pack(
            carried.followed_by(Pieces(documents, np.zeros_like(documents), traits.tokens[documents])),
            sequence_length=LENGTH,
        )
        full = len(plan) - bool(number < len(sections) - 1 and plan.padding[-1])
        last = plan.part(full, len(plan))
        carried = Pieces(last.document, last.start, last.length)
        plan = plan.part(0, full)
        counts, groups = sequence_counts(plan, traits.codes, traits.sizes())
        in_order = order(Items(counts, groups, np.ones(2)), strategy=strategy, seed=own, batch=BATCH)
        labels = traits.sizes()["label"]
        rows.append(counts.toarray()[in_order][:, :labels])
        lengths.append(counts.toarray()[in_order][:, labels:])
        numbers.append(np.full(full, number))
        scores.append(_mean_ranks(plan, ranks)[in_order])
    return Trained(*(np.concatenate(column) for column in (rows, lengths, numbers, scores)))


def _mean_ranks(plan: PackedSequences, ranks: np.ndarray) -> np.ndarray:
    sequence = np.repeat(np.arange(len(plan)), np.diff(plan.indptr))
    return np.bincount(sequence, plan.length * ranks[plan.document], len(plan)) / plan.tokens


def prefix(rows: np.ndarray) -> float:
    """Mean L2 deviation of prefixes from the whole's mix, in tokens."""
    reached = np.cumsum(rows, axis=0)
    mix = rows.sum(axis=0) / rows.sum()
    return float(np.linalg.norm(reached - reached.sum(axis=1)[:, np.newaxis] * mix, axis=1).mean())


def batch_tv(trained: Trained, stretch: np.ndarray) -> float:
    """Mean total variation between a batch and the mix of its stretch, of batches inside one. stretch: by section."""
    of_rows, values = stretch[trained.section], []
    for number in np.unique(of_rows):
        rows = trained.rows[of_rows == number]
        batches = rows[: len(rows) // BATCH * BATCH].reshape(-1, BATCH, rows.shape[1]).sum(axis=1)
        mix = rows.sum(axis=0) / rows.sum()
        values += (np.abs(batches / batches.sum(axis=1, keepdims=True) - mix).sum(axis=1) / 2).tolist()
    return float(np.mean(values))


def off(trained: Trained, pieces: np.ndarray) -> float:
    """Mean distance between the rank of a batch and the asked one."""
    whole = len(trained.scores) // BATCH * BATCH
    means = trained.scores[:whole].reshape(-1, BATCH).mean(axis=1)
    return float(
        np.abs(means - asked_rank(pieces, (np.arange(len(means)) + 0.5) * BATCH / len(trained.scores))).mean()
    )


def parts(number: np.ndarray) -> list[np.ndarray]:
    return [np.flatnonzero(number == part) for part in range(int(number.max()) + 1)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("corpus", type=Path)
    parser.add_argument("--seeds", type=int, default=1)
    options = parser.parse_args()
    traits, score = read(options.corpus)
    ranks, whole, one = token_ranks(score, traits.tokens), [np.arange(len(score))], np.zeros(99, np.int64)
    for seed in range(options.seeds):
        print(f"seed {seed}: mean prefix L2, tokens; batch TV")
        alone, shuffled = (
            train(traits, whole, ranks, strategy=name, seed=seed) for name in ("balanced", "random")
        )
        for name, trained in (("one section", alone), ("shuffled", shuffled)):
            print(f"  {name:24s} {prefix(trained.rows):9,.0f} {batch_tv(trained, one):.4f}")
        for shares in SHARES:
            dealt = parts(deal(traits, WEIGHTS, shares, seed=seed))
            trained = train(traits, dealt, ranks, seed=seed)
            got = [float(traits.tokens[part].sum() / traits.tokens.sum()) for part in dealt]
            name = f"{len(shares)} parts" if len(shares) > 4 else " / ".join(f"{share:.4f}" for share in got)
            print(f"  {name:24s} {prefix(trained.rows):9,.0f} {batch_tv(trained, one):.4f}")
        # Two phases: the first four labels have 0.2 of their tokens in the first one, the others more.
        quotas = np.bincount(traits.codes["label"], traits.tokens)[:, np.newaxis] * [[0.85, 0.15]]
        quotas[:4] *= np.array([0.5, 0.5]) / [0.85, 0.15]
        span = spans_of_values(
            traits, WEIGHTS, traits.codes["label"], np.zeros(len(score), np.int64), quotas, seed=seed
        )
        bins, share = traits.codes["length"], np.where(traits.codes["label"] < 4, 0.5, 0.85)
        border = np.linalg.norm(np.bincount(bins, traits.tokens * ((span == 0) - share)))
        phases = np.arange(2)
        ours, other = (
            train(traits, parts(span), ranks, strategy=name, seed=seed) for name in ("balanced", "random")
        )
        print(
            f"  two phases: batch TV to the phase's mix {batch_tv(ours, phases):.4f}, shuffled inside "
            f"{batch_tv(other, phases):.4f} ({batch_tv(ours, phases) / batch_tv(other, phases):.2f} times); lengths, "
            f"which are not mixed: {border:,.0f} tokens off at the border, one section {prefix(alone.lengths):,.0f} "
            "anywhere"
        )
        for shape in ("rise", "fold", "zigzag"):
            pieces = SHAPES[shape]
            sequence = LENGTH / traits.tokens.sum()
            for window in (4, 8):
                share = max(window * BATCH, FEWEST_SEQUENCES) * sequence
                windows = parts(windows_of(ranks, traits.tokens, pieces, share, seed=seed))
                each = np.arange(len(windows))
                ours, other = (
                    train(traits, windows, ranks, strategy=name, seed=seed) for name in ("balanced", "random")
                )
                print(
                    f"  {shape}, windows of {window} batches: off the schedule {off(ours, pieces):.4f}, window shuffle "
                    f"{off(other, pieces):.4f}; batch TV {batch_tv(ours, each):.4f}, {batch_tv(other, each):.4f} "
                    f"({batch_tv(ours, each) / batch_tv(other, each):.2f} times)"
                )


if __name__ == "__main__":
    main()
