"""Names, units and rounding of measures that people read."""

from __future__ import annotations

from dagster_divorder.view.measures import measures


def test_every_trait_has_a_measure_whatever_it_is_called() -> None:
    row = {
        "order": "sequences",
        "batch TV, clusters": 0.1,
        "batch TV of clusters": 0.2,
        "batch TV of a\n b": None,
    }
    assert [(name, of.label, of.show(row[name])) for name, of in measures(row).items()] == [
        ("batch TV, clusters", "batch TV, mean, %", "10.00"),
        ("batch TV of clusters", "batch TV of clusters, mean, %", "20.00"),
        ("batch TV of a\n b", "batch TV of a b, mean, %", "–"),
    ]
