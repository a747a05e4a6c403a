"""Measures of how well an order keeps every window of training at the corpus's mix: one set (`order`), beside shuffles
(`shuffling_check`), and what drifts along it (`stationarity`).

Letters: N documents, K clusters, J trait values, L tokens a sequence, S sequences, W windows.

An order is a list of sequences, and a sequence holds counted tokens of each value of a trait (`windows.Counts`).
Windows are successive sequences; shares are of the counted tokens in them.
"""

from dagster_divorder.core.measure.along import cluster_mix
from dagster_divorder.core.measure.order import (
    WINDOWS,
    Measures,
    average,
    compare_errors,
    error_curves,
    measure,
    packed_counts,
)
from dagster_divorder.core.measure.shuffling_check import ShufflingCheck, beats_shuffling
from dagster_divorder.core.measure.stationarity import Feature, Stationarity, stationarity

__all__ = [
    "WINDOWS",
    "Feature",
    "Measures",
    "ShufflingCheck",
    "Stationarity",
    "average",
    "beats_shuffling",
    "cluster_mix",
    "compare_errors",
    "error_curves",
    "measure",
    "packed_counts",
    "stationarity",
]
