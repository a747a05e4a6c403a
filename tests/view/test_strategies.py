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


def test_the_best_and_the_worst_pair_are_named_with_what_drifts() -> None:
    rows = [
        pair("original", "original", 1.7, 0.83, 3),
        pair("balanced", "original", 3.1, 0.158),
        pair("original", "balanced", 1.7, 0.073),
        pair("balanced", "balanced", 3.1, 0.053),
    ]
    assert conclusions(rows) == [
        "Batches are nearest the mix of clusters with balanced + balanced, batch TV 5.30 %, and farthest with "
        "original + original, 83.00 %.",
        "A sequence holds most clusters, 3.10 on average, with documents in balanced order, and fewest, 1.70, in "
        "original order.",
        "Features drift, more than in any shuffle, with original + original.",
    ]
    assert by_batches(rows) == rows[::-1]
    assert conclusions(rows[1:2])[1:] == [
        "A sequence holds 3.10 clusters on average, whatever orders the documents.",
        "Nothing drifts in any of these orders.",
    ]


def test_too_few_batches_are_not_compared() -> None:
    rows = [pair("a", "x", 2.0, None, None), pair("b", "x", 3.0, None, None)]
    assert conclusions(rows)[0].startswith("Too few batches to compare")
    assert len(conclusions(rows)) == 2
    assert [row["documents"] for row in by_batches(rows)] == ["b", "a"]
