"""Several exports, or pools, read as one stream by exact quotas.

Letters: K pools, t a row of the stream, w_k a pool's part of the weights, P rows of a period.

Guarantee: each pool has w_k t of the first t rows, within one row, for every t. Nothing is random, so a window of any
length has its quotas within two rows. A pool's rows come in its own order, all epochs one after another, and then again
from its beginning. The order of the pools repeats after P rows, the common denominator of the weights. So a division
and a table of P entries give any row, and a reader's position is one number, as for one export. Source: Tijdeman 1980,
The chairman assignment problem, whose bound is 1 - 1 / (2 K - 2), by earliest deadlines. Known weakness: a period is at
most PERIOD rows; weights of a larger denominator are rounded to 1 / PERIOD of their sum.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from fractions import Fraction
from heapq import heappop, heappush
from math import lcm
from pathlib import Path

import numpy as np
import orjson

from dagster_divorder.errors import InputError
from dagster_divorder.readers.export import Block, Export, open_export

PERIOD = 100_000


class Mixture:
    """Several exports, read as one.

        SequenceStream(Mixture({"code": 0.25, "prose": 0.75}, sequences=1_000_000))

    pools: folder of an export -> weight above 0; weights need not sum to one. sequences: rows of the stream. shares:
    the exact parts of the pools. batch: the first pool's. A state is refused if the pools' plans or shares differ; the
    stream may become longer.

    Raises:
        InputError: see `open_export`; or pools differ in sequence length or tokenizer, there is none, or a weight is
            invalid or too small. StoreError: see `open_export`.
    """

    def __init__(self, pools: Mapping[str | Path, float], *, sequences: int) -> None:
        if not pools or sequences < 1:
            raise InputError(
                f"a mixture of {len(pools)} pools and {sequences} sequences; expected one or more"
            )
        self._exports = [open_export(path) for path in pools]
        first = self._exports[0]
        for other in self._exports:
            for name, ours, theirs in (
                ("tokens of a sequence", first.length, other.length),
                ("the tokenizer", *(each.manifest["tokenizer"].get("xxh3_128") for each in (first, other))),
            ):
                if ours != theirs:
                    raise InputError(
                        f"{first.path} and {other.path} differ in {name}: {ours} and {theirs}; export with the same "
                        "sequence.length and model.base to read both together"
                    )
        parts = _parts({str(path): weight for path, weight in pools.items()})
        self._parts = np.array(parts, np.int64)
        self._pool = np.array(quotas(parts), np.int32)
        self._rank = np.empty(len(self._pool), np.int64)
        for number, part in enumerate(parts):
            self._rank[self._pool == number] = np.arange(part)
        self.shares = {
            path: Fraction(part, sum(parts)) for path, part in zip(map(str, pools), parts, strict=True)
        }
        self.path = f"the mixture of {', '.join(self.shares)}"
        plans = [[export.plan, part] for export, part in zip(self._exports, parts, strict=True)]
        self.plan = hashlib.sha256(orjson.dumps(["mixture", plans])).hexdigest()[:32]
        self.length, self.batch = first.length, first.batch
        self.padded = any(export.padded for export in self._exports)
        self.masked = any(export.trained for export in self._exports)
        self._sequences = sequences

    def __len__(self) -> int:
        return self._sequences

    def block(self, rows: Sequence[int]) -> Block:
        """Rows of the stream, 0 <= row < sequences, else IndexError."""
        blocks = [(at, export.block(row.tolist())) for export, at, row in self._rows_of_pools(rows)]
        ids = np.empty((len(rows), self.length), np.int32)
        for at, block in blocks:
            ids[at] = block.ids

        def documents() -> tuple[np.ndarray, np.ndarray]:
            lengths, counts = zip(*(block.documents for _, block in blocks), strict=True)
            at, count = np.concatenate([at for at, _ in blocks]), np.concatenate(counts)
            return np.concatenate(lengths)[np.argsort(at.repeat(count), kind="stable")], count[np.argsort(at)]

        def trained() -> np.ndarray:
            mask = np.ones(ids.shape, bool)
            for at, block in blocks:
                if block.counted is not None:
                    mask[at] = block.counted
            return mask

        return Block(ids, self.padded, documents, trained if self.masked else None)

    def _rows_of_pools(self, rows: Sequence[int]) -> list[tuple[Export, np.ndarray, np.ndarray]]:
        """The places in `rows` of each pool's rows, and these rows' numbers in the pool."""
        wanted = np.asarray(rows, np.int64)
        if not len(wanted) or wanted.min() < 0 or wanted.max() >= len(self):
            raise IndexError(f"{self.path} has rows 0 to {len(self) - 1}, not {list(rows)[:8]}")
        period, place = np.divmod(wanted, len(self._pool))
        pool = self._pool[place]
        row = period * self._parts[pool] + self._rank[place]
        places = [np.flatnonzero(pool == number) for number in range(len(self._exports))]
        return [
            (export, at, row[at] % len(export))
            for at, export in zip(places, self._exports, strict=True)
            if len(at)
        ]

    @property
    def dealt(self) -> str:
        """As `Export.dealt`, of all pools."""
        dealt = [export.dealt for export in self._exports]
        return " and ".join(dealt) if any(dealt) else ""

    @property
    def packed(self) -> bool:
        """Whether a row may hold several records."""
        return any(export.packed for export in self._exports)

    def costs(self, rows: Sequence[int], *, padded: bool) -> np.ndarray:
        """As `Export.costs`."""
        costs = np.empty(len(rows))
        for export, at, row in self._rows_of_pools(rows):
            costs[at] = export.costs(row, padded=padded)
        return costs


def _parts(weights: Mapping[str, float]) -> list[int]:
    """Whole numbers in the weights' proportions, without a common divisor, with a sum up to PERIOD."""
    try:
        exact = [Fraction(str(weight)) for weight in weights.values()]
    except ValueError:
        exact = [Fraction(0)]
    if min(exact) <= 0:
        raise InputError(f"weights of a mixture are {dict(weights)}; expected numbers above 0")
    shares = [weight / sum(exact) for weight in exact]
    period = lcm(*(share.denominator for share in shares))
    if period <= PERIOD:
        return [int(share * period) for share in shares]
    parts = [int(share * PERIOD) for share in shares]
    most_lost = sorted(range(len(shares)), key=lambda number: parts[number] - shares[number] * PERIOD)
    for number in most_lost[: PERIOD - sum(parts)]:
        parts[number] += 1
    if not min(parts):
        raise InputError(
            f"the weight of {list(weights)[parts.index(0)]} is less than 1 / {PERIOD:,} of their sum; leave the pool "
            f"out, or raise its weight"
        )
    return parts


def quotas(parts: Sequence[int]) -> list[int]:
    """The pool of each row of a period of sum(parts) rows; pool k has parts[k] rows.

    With m = 2 K - 2, row n of pool k, both from 0, may be placed once the pool would otherwise be behind by 1 / m of a
    row or more, and must be placed before it would be behind by more than 1 - 1 / m; the two roundings below are these
    first and last places. Each place takes, of the rows that it may take, the one whose last place is nearest.
    """
    period, m = sum(parts), max(2 * len(parts) - 2, 1)
    coming: list[tuple[int, int, int]] = []
    waiting: list[tuple[int, int, int]] = []

    def enter(pool: int, row: int) -> None:
        first = -(-(m * row + 1) * period // (m * parts[pool]))
        heappush(coming, (first, pool, row))

    for pool in range(len(parts)):
        enter(pool, 0)
    pools = []
    for place in range(1, period + 1):
        while coming and coming[0][0] <= place:
            _, pool, row = heappop(coming)
            heappush(waiting, ((m * row + m - 1) * period // (m * parts[pool]), pool, row))
        _, pool, row = heappop(waiting)
        pools.append(pool)
        enter(pool, row + 1)
    return pools
