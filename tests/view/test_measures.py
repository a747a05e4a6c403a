"""Names, units and rounding of measures that people read."""

from __future__ import annotations

import numpy as np
import pytest

from dagster_divorder.core.measure import measure
from dagster_divorder.core.measure.windows import Counts
from dagster_divorder.view.measures import (
    SUMMARY,
    beside_shuffled,
    definitions,
    in_short,
    measures,
    summary_row,
)


def test_every_trait_has_a_measure_whatever_it_is_called() -> None:
    row = {
        "order": "sequences",
        "batch TV of cluster": 0.1,
        "worst share of clusters": 0.2,
        "batch TV of a\n b": None,
    }
    assert [(name, known.label, known.show(row[name])) for name, known in measures(row).items()] == [
        ("batch TV of cluster", "batch TV of cluster, mean, %", "10.00"),
        ("worst share of clusters", "share error of clusters, worst batch, points", "20.00"),
        ("batch TV of a\n b", "batch TV of a b, mean, %", "–"),
    ]


@pytest.mark.parametrize("batches", [10, 9])
def test_the_summary_has_the_traits_in_their_order_and_no_batches_where_they_are_too_few(
    batches: int,
) -> None:
    traits = {"cluster": [0, 1, 0, 1] * 5, "of batches": [0, 0, 1, 1] * 5}
    counts = {
        name: Counts.of(np.arange(2 * batches + 1), codes[: 2 * batches], [10] * 2 * batches, 2)
        for name, codes in traits.items()
    }
    figures = measure(counts, range(2 * batches), batch=2).figures
    shown = ["of batches", "cluster"]
    row = summary_row("original", figures, shown)
    of_traits = [f"{measure} of {trait}" for trait in shown for measure in ("batch TV", "worst share")]
    assert list(row) == ["order", *of_traits, *SUMMARY]
    assert row["distinct clusters a sequence"] == 1.0
    known = batches == 10
    assert row["batch TV of cluster"] == (0.0 if known else None)
    assert row["batch TV of of batches"] == (0.5 if known else None)
    first = in_short(beside_shuffled(row, row))
    assert [beside.measure.name for beside in first] == [
        *(
            [
                "batch TV of of batches, mean",
                "share error of of batches, worst batch",
                "batch TV of cluster, mean",
            ]
            if known
            else []
        ),
        "clusters in a sequence, mean",
        "prefix deviation, mean",
    ]
    assert (
        definitions(first)[-1]
        == "prefix deviation, mean: distance of everything read so far from the corpus's mix"
    )
    assert all(len(line) <= 100 for line in definitions(beside_shuffled(row, row)))
