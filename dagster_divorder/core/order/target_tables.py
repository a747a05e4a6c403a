"""Tables of targets as people write them: for each trait, `progress` and the shares of values at each point of
progress."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from itertools import pairwise

from dagster_divorder.errors import InputError

Tables = Mapping[str, Mapping[str, Sequence[float]]]

MIN_STEP = 1e-9
"""Least progress between two points of a table, so that slopes stay finite: a thousand tokens of a trillion."""


def check_tables(tables: Tables, traits: Collection[str]) -> None:
    """InputError if a table names no trait, has no progress that rises from 0 to 1, or has too few or many shares."""
    for trait, table in tables.items():
        if trait not in traits:
            raise InputError(f"targets names {trait!r}, which is not one of traits: {sorted(traits)}")
        if "progress" not in table or len(table) < 2:
            raise InputError(f"targets.{trait} needs `progress` and the shares of at least one value")
        for name, column in table.items():
            if len(column) != len(table["progress"]):
                raise InputError(
                    f"targets.{trait}.{name} has {len(column)} numbers; progress has {len(table['progress'])}"
                )
            if not all(0.0 <= number <= 1.0 for number in column):
                raise InputError(f"targets.{trait}.{name} is {list(column)}; expected numbers from 0 to 1")
        points = table["progress"]
        rises = all(b - a >= MIN_STEP for a, b in pairwise(points))
        if not points or points[0] != 0 or points[-1] != 1 or not rises:
            raise InputError(
                f"targets.{trait}.progress is {list(points)}; expected numbers that rise from 0 to 1, each by "
                f"{MIN_STEP:g} or more"
            )
