"""Durations and sizes are in units that fit, and round so that they never claim less space than is needed."""

from __future__ import annotations

import pytest

from dagster_divorder.units import byte_size, duration


@pytest.mark.parametrize(
    ("seconds", "said"),
    [
        (0, "0 s"),
        (1e-9, "0 s"),
        (0.04, "0.04 s"),
        (1.5, "1.5 s"),
        (9.96, "10 s"),
        (59.4, "59 s"),
        (59.6, "1 min 0 s"),
        (3599.7, "1 h 0 min"),
        (170_000, "47 h 13 min"),
        (172_799, "2 days 0 h"),
        (1e9, "11,574 days 2 h"),
    ],
)
def test_durations(seconds: float, said: str) -> None:
    assert duration(seconds) == said


@pytest.mark.parametrize(
    ("size", "said"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (1000, "1.00 kB"),
        (12_345_678, "12.4 MB"),
        (123_000_001, "124 MB"),
        (2.5e9, "2.50 GB"),
        (3e15, "3,000 TB"),
    ],
)
def test_sizes(size: float, said: str) -> None:
    assert byte_size(size) == said
