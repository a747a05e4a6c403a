"""How long ranks wait for the slowest: rows of global batches as they come, and dealt (`core.ranks`).

    python benchmarks/ranks.py newsgroups.jsonl.gz

Documents in random order, a token for four characters, cut into rows; or one document a row, cut to 2,048 tokens.
"""

from __future__ import annotations

import gzip
import json
import sys
import time

import numpy as np

from dagster_divorder.core.packing import Pieces, pack
from dagster_divorder.core.ranks import deal_to_ranks, slowest_rank


def dealt(costs: np.ndarray, batch: int, ranks: int, micro: int, *, padded: bool = False) -> np.ndarray:
    """Costs in the order in which dealt rows are read."""
    rows = costs.reshape(-1, batch)
    return np.concatenate([row[deal_to_ranks(row, ranks, micro, padded=padded)].ravel() for row in rows])


def padding(lengths: np.ndarray, micro: int) -> float:
    """Padding over tokens where every b rows, in reading order, are padded to their longest. lengths: int (n,)."""
    batches = lengths[: len(lengths) // micro * micro].reshape(-1, micro)
    tokens = int(batches.sum())
    return float(batches.max(1).sum() * micro / tokens - 1) if tokens else 0.0


def main(path: str) -> None:
    with gzip.open(path) as file:
        lengths = np.array([len(json.loads(line)["text"]) // 4 + 1 for line in file], np.int64)
    lengths = np.random.default_rng(0).permutation(lengths)
    print("slowest rank over mean rank: as rows come, dealt; microseconds a row")
    for length, batch, ranks, micro in (
        (8192, 256, 8, 2),
        (2048, 256, 8, 2),
        (2048, 512, 16, 8),
        (8192, 512, 64, 1),
    ):
        pieces = Pieces(np.arange(len(lengths)), np.zeros_like(lengths), lengths)
        plan = pack(pieces, sequence_length=length)
        costs = np.add.reduceat(plan.length.astype(float) ** 2, plan.indptr[:-1])
        costs = costs[: len(costs) // batch * batch]
        started = time.perf_counter()
        after = dealt(costs, batch, ranks, micro)
        seconds = time.perf_counter() - started
        print(
            f"{length:,} tokens, batches of {batch}, {ranks} ranks x {micro}: {slowest_rank(costs, ranks, micro):.3f}, "
            f"{slowest_rank(after, ranks, micro):.3f}; {1e6 * seconds / len(costs):.2f}"
        )
    rows = np.minimum(lengths, 2048)[: len(lengths) // 256 * 256]
    after = dealt(rows, 256, 8, 2, padded=True)
    print(
        f"one document a row, batches of 256, 8 ranks x 2: {slowest_rank(rows, 8, 2, padded=True):.3f}, "
        f"{slowest_rank(after, 8, 2, padded=True):.3f}; padding {padding(rows, 2):.3f}, {padding(after, 2):.3f}"
    )


if __name__ == "__main__":
    main(sys.argv[1])
