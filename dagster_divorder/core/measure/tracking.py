"""How well an order follows its targets: asked, achievable and achieved shares.

Letters: N documents, J trait values, P points of progress, V tracked values, C slices, E epochs.

Asked: the table as given. Achievable: the table scaled to the corpus. Every token is placed in the end, so a value with
30 % of the tokens averages 30 % over progress, whatever is asked. Achieved: counted in the order's tokens.
Known weakness: the achievable shares ignore frozen items, after which less is achievable.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dagster_divorder.core.measure.moving import achievable_mix, moving_mix, wanted_between
from dagster_divorder.core.measure.seam import ValuedTokens
from dagster_divorder.core.measure.stream import token_shares
from dagster_divorder.core.order import Targets

SLICES = 100
"""Slices of the stream that are measured, besides batches."""


@dataclass(frozen=True, eq=False)
class Tracking:
    """Shares of the V values in C equal slices of an order: asked, achievable float64 (C, V); achieved float64
    (E, C, V), epoch by epoch."""

    asked: NDArray[np.float64]
    achievable: NDArray[np.float64]
    achieved: NDArray[np.float64]

    def to_dict(self) -> dict[str, Any]:
        """slices: C. off_asked, off_achievable: largest and mean |asked - achieved| and |achievable - achieved| over
        slices and epochs, a list of V each, in shares; None without a slice. Ready for JSON."""

        def off(wanted: NDArray[np.float64]) -> dict[str, list[float]] | None:
            if not len(wanted):
                return None
            gaps = np.abs(self.achieved - wanted)
            return {"largest": gaps.max(axis=(0, 1)).tolist(), "mean": gaps.mean(axis=(0, 1)).tolist()}

        return {
            "slices": len(self.asked),
            "off_asked": off(self.asked),
            "off_achievable": off(self.achievable),
        }


def track(
    epochs: Sequence[ValuedTokens], n_values: int, targets: Targets, values: Sequence[int], batch_tokens: int
) -> tuple[Tracking, Tracking]:
    """(Tracking in full batches of `batch_tokens` tokens, Tracking in SLICES slices) of the epochs of an order.

    targets: asked shares (P, J). values: the V tracked ones of the J values.
    """
    from dagster_divorder.core.kernels.windows import window_counts

    total = int(epochs[0][0].sum())
    share = token_shares(*epochs[0], n_values)
    columns = np.asarray(values, np.int64)
    asked = moving_mix(targets.progress, targets.shares[:, columns], total)
    achievable = achievable_mix(targets, share, total)
    place = np.full(n_values, len(columns), np.int32)
    place[columns] = np.arange(len(columns))

    def sliced(count: int, width: int, unit: int) -> Tracking:
        """`count` slices of `width` units, with `unit` units in a token."""
        edges = np.arange(count + 1, dtype=np.float64) * (width / unit)
        achieved = [
            window_counts(tokens * unit, place[codes], len(columns) + 1, max(1, width))[:count, :-1]
            / max(1, width)
            for tokens, codes in epochs
        ]
        return Tracking(
            asked=wanted_between(asked, edges),
            achievable=wanted_between(achievable, edges)[:, columns],
            achieved=np.stack(achieved),
        )

    slices = min(SLICES, total)
    return sliced(total // batch_tokens, batch_tokens, 1), sliced(slices, total, max(1, slices))
