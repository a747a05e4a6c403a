"""What is said of strategies side by side: which of the two orders does the work."""

from __future__ import annotations

from typing import Any

from dagster_divorder.view.strategies import by_batches, conclusions


def pair(
    documents: str, sequences: str, clusters: float, tv: float | None, drifting: int | None = 0
) -> dict[str, Any]:
    return {
        "documents": documents,
        "sequences": sequences,
        "distinct clusters a sequence": clusters,
        "batch TV of cluster": tv,
        "features that drift": drifting,
    }


def test_the_order_that_decides_batches_is_named_with_its_range() -> None:
    rows = [
        pair("original", "original", 1.7, 0.83, 3),
        pair("balanced", "original", 3.1, 0.158, 1),
        pair("original", "balanced", 1.7, 0.073),
        pair("balanced", "balanced", 3.1, 0.053),
    ]
    assert conclusions(rows) == [
        "The order of sequences decides: batches are 5.30 to 7.30 % off the mix of clusters with balanced, whatever "
        "orders the documents, and 15.80 to 83.00 % with original.",
        "The order of documents decides what a sequence holds: 3.10 clusters on average with balanced, 1.70 "
        "with original.",
        "Features drift, more than in any shuffle, with original.",
    ]
    assert [tuple(row.values())[:2] for row in by_batches(rows)] == [
        ("balanced", "balanced"),
        ("original", "balanced"),
        ("balanced", "original"),
        ("original", "original"),
    ]


def test_ranges_that_overlap_give_no_order_the_credit() -> None:
    rows = [
        pair("a", "x", 2.0, 0.1),
        pair("b", "x", 2.0, 0.5),
        pair("a", "y", 2.0, 0.2, 2),
        pair("b", "y", 2.0, 0.3),
    ]
    first, second, drift = conclusions(rows)
    assert (
        first
        == "Batches are nearest the mix of clusters, 10.00 % off, with documents in a and sequences in x order."
    )
    assert second == "A sequence holds 2.00 clusters on average, whatever orders the documents."
    assert drift == "Features drift, more than in any shuffle, with a + y."


def test_too_few_batches_are_not_compared() -> None:
    rows = [pair("a", "x", 2.0, None, None), pair("b", "x", 3.0, None, None)]
    assert conclusions(rows)[0].startswith("Too few batches to compare")
    assert len(conclusions(rows)) == 2
    assert [row["documents"] for row in by_batches(rows)] == ["b", "a"]
