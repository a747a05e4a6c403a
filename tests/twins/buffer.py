"""Slow, obvious twin of `order_baselines.through_buffer`. For tests only."""

from collections.abc import Sequence


def through_buffer(draws: Sequence[float], size: int) -> list[int]:
    stream = list(range(len(draws)))
    held, stream = stream[:size], stream[size:]
    out = []
    for draw in draws:
        i = int(draw * len(held))
        out.append(held[i])
        if stream:
            held[i] = stream.pop(0)
        else:
            last = held.pop()
            if i < len(held):
                held[i] = last
    return out
