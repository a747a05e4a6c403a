"""Slow, obvious twins of schedules: the papers' orders. For tests only."""

from __future__ import annotations


def fold(ranked: list[float], folds: int, *, turning: bool) -> list[float]:
    layers = [ranked[number::folds] for number in range(folds)]
    return [item for number, of in enumerate(layers) for item in (of[::-1] if turning and number % 2 else of)]


def sections(ranked: list[float], number: int, ratio: float, folds: int, *, turning: bool) -> list[float]:
    """The ranks around the borders of equal sections are folded. Item i of n has the rank (i + 1/2) / n."""
    out, at = [], 0.0

    def between(low: float, high: float) -> list[float]:
        middles = [(place + 0.5) / len(ranked) + 1e-9 for place in range(len(ranked))]
        return [item for item, middle in zip(ranked, middles, strict=True) if low <= middle < high]

    for border in range(1, number):
        low, high = max(at, border / number - ratio), min(1.0, border / number + ratio)
        out += between(at, low) + fold(between(low, high), folds, turning=turning)
        at = high
    return out + between(at, 2.0)
