"""Slow, obvious version of core/kernels/token_runs.py."""

import numpy as np


def copy_runs(
    ids: np.ndarray, source: np.ndarray, length: np.ndarray, own: np.ndarray, end: int
) -> list[int]:
    found: list[int] = []
    for first, count, held in zip(source.tolist(), length.tolist(), own.tolist(), strict=True):
        found += ids[first : first + held].tolist() + [end] * (count - held)
    return found
