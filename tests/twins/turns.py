"""The plain form of `dagster_divorder.core.kernels.turns`."""

from __future__ import annotations


def take_turns(sizes: list[float], share: list[float]) -> list[int]:
    half = 0.5 * (sum(sizes) / len(sizes))
    reached = [half / part for part in share]
    out = []
    for size in sizes:
        taker = min(range(len(share)), key=lambda number: (reached[number], number))
        reached[taker] += size / share[taker]
        out.append(taker)
    return out
