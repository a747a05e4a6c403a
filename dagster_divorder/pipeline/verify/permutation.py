"""What the two checks of orders share: does an order name each of n items once?"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from dagster_divorder.pipeline.verify import Finding


def look_at(orders: np.ndarray, items: int, what: str, stage: str, folder: Path) -> Finding:
    """orders: int64 (E, M), which should each name the numbers below `items` once; kept in `folder`."""
    times = np.zeros((len(orders), items), np.int64)
    inside = (orders >= 0) & (orders < items)
    for row, (order, known) in enumerate(zip(orders, inside, strict=True)):
        times[row] = np.bincount(order[known], minlength=items)
    left_out, doubled = int((times == 0).sum()), int((times > 1).sum())
    unknown = int((~inside).sum())
    found = f"{left_out:,} left out, {doubled:,} named more than once, {unknown:,} that do not exist"
    passed = not (left_out or doubled or unknown)
    return Finding(
        passed=passed,
        text=f"{items:,} {what}, each exactly once." if passed else f"Of {items:,} {what}: {found}.",
        remedy=f"delete the folder {folder} and materialise {stage} again, which makes the order anew; do not train on "
        "an output of this one",
        figures={
            "items": items,
            "orders": len(orders),
            "left_out": left_out,
            "doubled": doubled,
            "unknown": unknown,
        },
    )
