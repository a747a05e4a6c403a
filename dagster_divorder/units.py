"""Readable durations and numbers of bytes, the time after which a file's times tell every write, and the batches that
an order needs to be judged."""

from __future__ import annotations

import math

BYTES = {"B": 1, "kB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}
BATCHES = 10
"""Fewest batches in which an order is compared with shuffles."""
SETTLED_NS = 2_000_000_000
"""The coarsest clock of the file systems in use."""


def duration(seconds: float) -> str:
    """A duration, such as `0.24 s`, `12 s`, `3 min 5 s`, `2 h 10 min` or `4 days 3 h`."""
    whole, minutes, hours = round(seconds), round(seconds / 60), round(seconds / 3600)
    if whole < 60:
        return f"{round(seconds, 2):.2g} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    if hours < 48:
        return f"{minutes // 60} h {minutes % 60} min"
    return f"{hours // 24:,} days {hours % 24} h"


def batch_advice(sequences: int) -> str:
    """A sentence: the batch size, a power of two, with which sequences make BATCHES batches or more."""
    if sequences < BATCHES:
        return f"No batch size makes {BATCHES}: order more documents, or set a shorter sequence.length."
    batch = 1 << (sequences // BATCHES).bit_length() - 1
    return f"sequence.batch = {batch} makes {sequences // batch:,}."


def byte_size(size: float) -> str:
    """A number of bytes, such as `512 B`, `20.5 kB`, `1.35 MB` or `4,096 TB`: three digits, rounded up, so that this
    much space suffices."""
    unit = next((unit for unit, unit_size in BYTES.items() if size < 1000 * unit_size), "TB")
    value = size / BYTES[unit]
    decimals = 0 if unit == "B" or value >= 100 else 1 if value >= 10 else 2
    return f"{math.ceil(value * 10**decimals) / 10**decimals:,.{decimals}f} {unit}"
