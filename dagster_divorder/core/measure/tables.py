"""The figures of diversity_metrics as people read them: a table of all figures, a short table, and sentences."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from dagster_divorder.core.measure import Diversity
from dagster_divorder.core.measure.shuffling_check import SEAM
from dagster_divorder.core.measure.stationarity import Stationarity

SHUFFLED = {"curated": "random", "sequences": "sequences_random"}
"""The shuffled order that each of our orders is compared with."""
ORDERS = ("original", "random", "curated", "sequences_random", "sequences")

Metrics = Mapping[str, Mapping[str, Any]]
"""By order; see `stages.measure.diversity_metrics.load_metrics`."""


def table_rows(measured: Mapping[str, Diversity], metrics: Metrics) -> list[dict[str, Any]]:
    """One row a measure (trait, window, measure), one column an order; None if an order lacks the measure."""
    rows: list[dict[str, Any]] = []
    for of_orders in zip(*(measured[name].rows() for name in ORDERS), strict=True):
        values = {name: float(row["value"]) for name, row in zip(ORDERS, of_orders, strict=True)}
        rows.append({name: of_orders[0][name] for name in ("trait", "window", "measure")} | values)

    def add_ours(trait: str, window: str, measure: str, *path: str | int) -> None:
        columns = {name: _at(metrics[name], path) if name in SHUFFLED else None for name in ORDERS}
        rows.append({"trait": trait, "window": window, "measure": measure, **columns})

    for trait in measured["curated"].batch_tv:
        add_ours(trait, "batch", "shuffled_batches_worse", "shuffled_batches_worse", trait)
        for window, name in (("prefix", "cumulative"), ("batch", "batch")):
            for measure in ("mean", "worst", "shuffled_mean", "shuffled_least", "better"):
                add_ours(trait, window, f"error_{measure}", "trait_errors", trait, name, measure)
    return rows


def _at(figures: Any, path: tuple[str | int, ...]) -> Any:
    for key in path:
        figures = figures[key]
    return figures


def findings(metrics: Metrics, traits: Sequence[str]) -> list[str]:
    """Sentences that a summary adds: errors of each of some traits, the seam, the distance from a schedule."""
    ours, shuffled = metrics["sequences"], metrics["sequences_random"]
    sentences = []
    for trait in traits:
        figures = ours["trait_errors"][trait]
        closer = [
            f"{_share(one)} {one['steps']:,} {unit}"
            for one, unit in ((figures["cumulative"], "steps"), (figures["batch"], "batches"))
            if one["steps"]
        ]
        if closer:
            sentences.append(
                f"{trait}: closer to the mix than the best of three shuffles at {' and '.join(closer)}"
            )
    for trait in traits:
        figures = ours["seam"][trait]
        if ours["tokens"] > figures["window_tokens"]:
            worst, other = (100 * one["worst"] for one in (figures, shuffled["seam"][trait]))
            sentences.append(f"{SEAM}: {trait} {worst:.2f} points off at worst, {other:.2f} shuffled")
    if (mixes := ours.get("mixes")) and "next" in mixes:
        shares = (
            f"{value} {100 * share:.1f} %"
            for value, share in zip(mixes["values"], mixes["next"], strict=True)
        )
        sentences.append(f"the first batch behind what stays has, by {mixes['trait']}: {', '.join(shares)}")
    if off := ours.get("off_schedule"):
        sentences.append(
            f"the mean rank of a batch is {off['achieved']:.3f} off the schedule, {off['shuffled']:.3f} shuffled"
        )
    return sentences


def _share(compared: Mapping[str, Any]) -> str:
    return "all" if compared["always"] else f"{compared['better']:.1%} of"


def drift_columns(drift: Stationarity | None) -> dict[str, Any]:
    """Number of drifting features, and, as multiples of shuffling's, the largest rank correlation, the largest distance
    of a tenth and the mean distance of a batch, over the features that have them. None below FEWEST sequences."""
    features = drift.features if drift else ()
    measures = [drifting.measures for drifting in features]

    def times(name: str) -> list[float]:
        with_name = [measured[name] for measured in measures if name in measured]
        return [measure.value / measure.shuffled for measure in with_name if measure.shuffled]

    ranks = [measured["rank"].value for measured in measures if "rank" in measured]
    tenths, batches = times("tenths"), times("batch")
    return {
        "features that drift": sum(drifting.drifts for drifting in features) if features else None,
        "rank correlation, largest": max(ranks, default=None),
        "farthest tenth, times shuffled": max(tenths, default=None),
        "mean batch, times shuffled": sum(batches) / len(batches) if batches else None,
    }
