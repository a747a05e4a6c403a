"""Names, units and rounding of measures that people read."""

from __future__ import annotations

import pytest

from dagster_divorder.core.measure import measure
from dagster_divorder.view.measures import SUMMARY, TRAIT, measures, summary_row


def test_every_trait_has_a_measure_whatever_it_is_called() -> None:
    row = {
        "order": "sequences",
        "batch TV, clusters": 0.1,
        "batch TV of clusters": 0.2,
        "batch TV of a\n b": None,
    }
    assert [(name, known.label, known.show(row[name])) for name, known in measures(row).items()] == [
        ("batch TV, clusters", "batch TV, mean, %", "10.00"),
        ("batch TV of clusters", "batch TV of clusters, mean, %", "20.00"),
        ("batch TV of a\n b", "batch TV of a b, mean, %", "–"),
    ]


@pytest.mark.parametrize("batch", [2, 100])
def test_the_summary_has_every_measure_and_none_of_batches_where_there_is_less_than_one(batch: int) -> None:
    traits = {"cluster": [0, 1, 0, 1], "of batches": [0, 0, 1, 1]}
    diversity = measure(range(4), [10] * 4, traits, dict.fromkeys(traits, 2), sequence_length=10, batch=batch)
    row = summary_row("original", diversity)
    assert row == summary_row("original", diversity.to_dict())
    assert list(row) == ["order", *(name.replace(TRAIT, "of batches") for name in SUMMARY)]
    assert row["distinct clusters a sequence"] == 1.0
    assert row["batch TV, clusters"] == (0.0 if batch == 2 else None)
    assert row["batch TV of of batches"] == (0.5 if batch == 2 else None)
    assert row["every cluster seen after"] == 11 / 40
