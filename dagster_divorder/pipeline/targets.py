"""`order.targets`: a mix that moves, from a trait's table in the settings to shares for every group of the items."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from dagster_divorder.core.items import Items
from dagster_divorder.core.order import Targets
from dagster_divorder.core.order.targets import SUM_TOLERANCE
from dagster_divorder.errors import InputError
from dagster_divorder.pipeline.traits import Traits

Tables = Mapping[str, Mapping[str, Sequence[float]]]


def document_targets(tables: Tables, traits: Traits, names: Sequence[str], items: Items) -> Targets | None:
    """Targets for `core.items.document_items`, whose groups are the traits in tokens, the same in documents, and coarse
    lengths; None without a table. A trait moves alike in tokens and in documents.

    Raises:
        InputError: a table names a value that the trait has not, its numbers are no shares, or its progress does not
            rise from 0 to 1.
    """
    return _targets(tables, traits, [*names, *names, None], items) if tables else None


def sequence_targets(tables: Tables, traits: Traits, names: Sequence[str], items: Items) -> Targets | None:
    """Targets for sequences, whose groups are the traits in tokens; None without a table. Raises as above."""
    return _targets(tables, traits, names, items) if tables else None


def _targets(tables: Tables, traits: Traits, group_traits: Sequence[str | None], items: Items) -> Targets:
    progress = np.unique(np.concatenate([np.asarray(table["progress"]) for table in tables.values()]))
    shares = np.empty((len(progress), len(items.groups)))
    sums = np.asarray(items.counts.sum(axis=0), np.float64).ravel()
    for group, trait in enumerate(group_traits):
        columns = items.groups == group
        own = sums[columns] / max(sums[columns].sum(), 1.0)
        if trait is None or trait not in tables:
            shares[:, columns] = own
            continue
        by_tokens = np.bincount(traits.codes[trait], weights=traits.tokens, minlength=len(own))
        factor = _factors(trait, tables[trait], traits.names[trait], by_tokens / max(by_tokens.sum(), 1.0))
        wanted = own * np.array([np.interp(progress, tables[trait]["progress"], of) for of in factor.T]).T
        shares[:, columns] = wanted / wanted.sum(axis=1, keepdims=True)
    return Targets(progress=progress, shares=shares)


def _factors(
    trait: str, table: Mapping[str, Sequence[float]], names: Sequence[str], own: np.ndarray
) -> np.ndarray:
    """How many times its own share each value is to have, float64 (P, J), at the table's points of progress.

    Values that the table does not name divide the rest as they do in the corpus.
    """
    named = np.zeros(len(own), bool)
    wanted = np.zeros((len(table["progress"]), len(own)))
    for name, column in table.items():
        if name == "progress":
            continue
        if name not in names or names.index(name) >= len(own) or not own[names.index(name)]:
            raise InputError(
                f"order.targets.{trait} names {name!r}, which no document has; the values are {', '.join(names[:20])}"
            )
        named[names.index(name)] = True
        wanted[:, names.index(name)] = column
    rest = 1.0 - wanted.sum(axis=1)
    if (rest < -SUM_TOLERANCE).any():
        raise InputError(
            f"the shares of order.targets.{trait} sum to {1 - rest.min():.6g}; expected at most 1 at every point of "
            "progress"
        )
    others = own * ~named
    if others.sum() > 0:
        wanted += rest.clip(0)[:, None] * others / others.sum()
    elif (rest > SUM_TOLERANCE).any():
        raise InputError(
            f"order.targets.{trait} names every value, and their shares sum to {1 - rest.max():.6g}; expected 1 at "
            "every point of progress, or a value less, which then gets the rest"
        )
    return np.divide(wanted, own, out=np.zeros_like(wanted), where=own > 0)
