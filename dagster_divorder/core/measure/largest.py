"""The largest values of a trait, with all others merged, for tables and pictures."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray


@dataclass(frozen=True, eq=False)
class Largest:
    """values: int64 (n,), the kept values by falling tokens. tokens: int64 (n,), of each. codes: int32 (N,), the index
    of each document's value in `values`; n for the others. others: number of merged values."""

    values: NDArray[np.int64]
    tokens: NDArray[np.int64]
    codes: NDArray[np.int32]
    others: int
    other_tokens: int

    @property
    def count(self) -> int:
        """Number of codes: the kept values, and one for the others if there are any."""
        return len(self.values) + (self.others > 0)


def largest(tokens: ArrayLike, codes: ArrayLike, n_values: int, keep: int) -> Largest:
    """The `keep` values with the most tokens, ties by number. Values without tokens are not counted as others.

    tokens, codes: (N,) by document; codes in [0, n_values). O(N + J log J).
    """
    lengths, code = np.asarray(tokens, np.int64), np.asarray(codes)
    # np.bincount sums floats, which are exact only up to 2**53 tokens.
    sizes = np.zeros(n_values, np.int64)
    np.add.at(sizes, code, lengths)
    ranked = np.argsort(-sizes, kind="stable")
    in_use = int((sizes > 0).sum())
    kept = ranked[: min(keep, in_use)]
    place = np.full(n_values, len(kept), np.int32)
    place[kept] = np.arange(len(kept))
    others = in_use - len(kept)
    if others == 0 and len(kept):
        # Values without tokens are not drawn, so any code will do.
        place[place == len(kept)] = 0
    return Largest(kept, sizes[kept], place[code], others, int(sizes.sum() - sizes[kept].sum()))
