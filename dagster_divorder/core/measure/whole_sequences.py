"""Windows of whole sequences, which hold different numbers of tokens, as records that are not packed do.

Letters: N runs in reading order, S sequences, J trait values, W sequences a window, E epochs.

A window is W successive sequences, and shares are of the tokens that count in it; padding does not count. A window
without such tokens deviates by 0.
Cost: O(N + S J) time for each window size, O(S) memory.
Known weakness: `ideal` and `window_tokens` are those of a window of mean size.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dagster_divorder.core.measure.seam import Seam, over_seams
from dagster_divorder.core.measure.stretches import asked_between
from dagster_divorder.core.measure.window_deviation import WindowDeviation, shuffled_tokens

if TYPE_CHECKING:
    from dagster_divorder.core.kernels.stretch_windows import AskedMix

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]


class LaidSequences(NamedTuple):
    """Runs in reading order: tokens int64 (N,), codes int32 (N,) in [0, J). bounds: int64 (S + 1,), tokens before each
    sequence, and in all."""

    tokens: Ints
    codes: NDArray[np.int32]
    bounds: Ints

    def part(self, begin: int, end: int) -> LaidSequences:
        """The sequences [begin, end)."""
        edges = np.concatenate([[0], np.cumsum(self.tokens)])
        runs = slice(*np.searchsorted(edges, self.bounds[[begin, end]]).tolist())
        return LaidSequences(
            self.tokens[runs], self.codes[runs], self.bounds[begin : end + 1] - self.bounds[begin]
        )


def laid_end_to_end(epochs: Sequence[LaidSequences]) -> LaidSequences:
    """The sequences of the epochs, one epoch after another."""
    if len(epochs) == 1:
        return epochs[0]
    sizes = np.concatenate([np.diff(epoch.bounds) for epoch in epochs])
    return LaidSequences(
        np.concatenate([epoch.tokens for epoch in epochs]),
        np.concatenate([epoch.codes for epoch in epochs]),
        np.concatenate([[0], np.cumsum(sizes)]),
    )


def aligned_sequences(laid: LaidSequences, size: int, mix: AskedMix) -> tuple[Floats, Floats, Floats, Ints]:
    """(worst, tv, l2, tokens) of each full window of `size` sequences, (windows,). See `core.measure.shares`."""
    last = (len(laid.bounds) - 1) // size * size
    edges = laid.bounds[: last + 1 : size]
    return (*_deviations(laid, mix, edges[:-1], edges[1:]), np.diff(edges))


def sliding_sequences(laid: LaidSequences, share: Floats, size: int, mix: AskedMix) -> WindowDeviation:
    """Worst and mean deviation of one trait over every first sequence of a window of `size` sequences. share: the
    trait's values' shares of all tokens, float64 (J,)."""
    sequences, total = len(laid.bounds) - 1, int(laid.bounds[-1])
    window = max(1, round(total / max(sequences, 1) * size))
    ideal = shuffled_tokens(share, window)
    if sequences <= size:
        start = 0 if total else -1
        return WindowDeviation(
            window, int(total > 0), 0.0, 0.0, 0.0, 0.0, start, 0 < sequences < size, *ideal
        )
    starts = laid.bounds[:-size]
    worst, tv, _ = _deviations(laid, mix, starts, laid.bounds[size:])
    return WindowDeviation(
        window,
        len(starts),
        float(worst.max()),
        float(worst.mean()),
        float(tv.max()),
        float(tv.mean()),
        int(starts[worst.argmax()]),
        False,
        *ideal,
    )


def sequence_seams(
    epochs: Sequence[LaidSequences], n_values: int, size: int, mix: AskedMix | None, constant: AskedMix
) -> Seam:
    """The seams of epochs of the same sequences, as in `core.measure.seam.seams`; a window may start at every sequence.

    mix: of each stretch, over at least two epochs, or None. constant: the mix of the whole."""
    sequences, total = len(epochs[0].bounds) - 1, int(epochs[0].bounds[-1])
    window = max(1, round(total / max(sequences, 1) * size))
    if sequences <= size:
        return Seam(window, 0.0, 0.0, 0.0, 0.0, 0.0)
    figures = []
    for before, after in zip(epochs, [*epochs[1:], epochs[0]], strict=True):
        tail, head = before.part(sequences - size, sequences), after.part(0, size)
        both, begin = laid_end_to_end([tail, head]), total - int(tail.bounds[-1])
        here = constant if mix is None else mix._replace(at=mix.at - begin)
        starts, ends = both.bounds[: size + 1], both.bounds[size:]
        worst, tv, _ = _deviations(both, here, starts, ends)
        step = _shares(head, n_values) - _shares(tail, n_values)
        if mix is not None:
            edges = both.bounds[[0, size, 2 * size]].astype(np.float64)
            if (np.diff(edges) > 0).all():
                step -= np.diff(asked_between(here, edges), axis=0)[0]
        figures.append((worst.max(), worst.mean(), tv.max(), tv.mean(), np.abs(step).sum() / 2))
    return over_seams(window, figures)


def _deviations(
    laid: LaidSequences, mix: AskedMix, starts: Ints, ends: Ints
) -> tuple[Floats, Floats, Floats]:
    """(worst, tv, l2) of the windows of tokens [starts, ends), (windows,) each; 0 without tokens."""
    from dagster_divorder.core.kernels.stretch_windows import deviations

    some = starts < ends
    worst, tv, l2 = (np.zeros(len(starts)) for _ in range(3))
    worst[some], tv[some], l2[some] = deviations(laid.tokens, laid.codes, mix, starts[some], ends[some])
    return worst, tv, l2


def _shares(laid: LaidSequences, n_values: int) -> Floats:
    return np.bincount(laid.codes, laid.tokens, n_values) / max(1, laid.tokens.sum())
