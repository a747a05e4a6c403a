"""`order.targets`, a mix that moves: turns the settings' table of a trait into shares for every group of the items, and
reports how an order follows them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from dagster_divorder.core.measure import track
from dagster_divorder.core.order import Targets
from dagster_divorder.core.order.items import Items
from dagster_divorder.core.order.target_tables import Tables
from dagster_divorder.core.order.targets import SUM_TOLERANCE
from dagster_divorder.core.order.traits import Traits
from dagster_divorder.errors import InputError

UNMET = 0.01
"""A run warns if the achievable share differs from the asked share by more than this."""


def document_targets(tables: Tables, traits: Traits, names: Sequence[str], items: Items) -> Targets | None:
    """Targets for `core.order.items.document_items`; None without a table. Its groups are the traits in tokens, the
    traits in documents, coarse lengths, and, with `within` below 1, the traits in square roots of tokens. All groups of
    a trait move alike.

    Raises:
        InputError: a table names a value that its trait lacks, its numbers are not shares, or its progress does not
            rise from 0 to 1.
    """
    group_traits = [*names, *names, None, *names][: len(items.weights)]
    return _targets(tables, traits, group_traits, items) if tables else None


def sequence_targets(tables: Tables, traits: Traits, names: Sequence[str], items: Items) -> Targets | None:
    """Targets for sequences; None without a table. Groups are the traits in the tokens that shares count, then, if
    these are others, in all tokens. Raises as above."""
    group_traits = [*names, *names][: len(items.weights)]
    return _targets(tables, traits, group_traits, items) if tables else None


def trait_targets(tables: Tables, traits: Traits) -> dict[str, Targets]:
    """By trait, the targets that its table asks for, over the trait's own values. Raises as above."""
    progress = _progress(tables)
    targets_of = {}
    for trait, table in tables.items():
        own = np.bincount(traits.codes[trait], traits.counted, len(traits.names[trait]))
        shares = _shares(trait, table, traits, own / max(own.sum(), 1.0), progress)
        targets_of[trait] = Targets(progress=progress, shares=shares)
    return targets_of


def followed(
    tables: Tables,
    traits: Traits,
    epochs: Sequence[tuple[np.ndarray, np.ndarray]],
    batch_tokens: int,
) -> tuple[dict[str, Any], dict[str, Any]]:
    """(figures, curves) that say how an order follows its targets, by trait; ready for JSON.

    epochs: for each, the documents (n,) in order and their tokens there (n,).
    figures: `values`, the names in the table; `batch` and `hundredth`, see `core.measure.Tracking.to_dict`; `unmet`, by
    value: the point where asked and achievable shares differ most.
    curves, by hundredth: `asked` and `achievable`, a list for each; and `achieved`, the same for each epoch.
    """
    figures, curves = {}, {}
    for trait, targets in trait_targets(tables, traits).items():
        codes, names = traits.codes[trait], traits.names[trait]
        values = [names.index(name) for name in tables[trait] if name != "progress"]
        streams = [(tokens, codes[documents]) for documents, tokens in epochs]
        batches, slices = track(streams, len(names), targets, values, batch_tokens)
        figures[trait] = {
            "values": [names[value] for value in values],
            "batch": batches.to_dict(),
            "hundredth": slices.to_dict(),
            "unmet": [_unmet(slices.asked[:, at], slices.achievable[:, at]) for at in range(len(values))],
        }
        curves[trait] = {name: array.tolist() for name, array in vars(slices).items()}
    return figures, curves


def _unmet(asked: np.ndarray, achievable: np.ndarray) -> dict[str, float]:
    """The progress and both shares where they differ most, and the mean of each; all 0 if there are no tokens."""
    if not len(asked):
        return dict.fromkeys(("progress", "asked", "achievable", "mean_asked", "mean_achievable"), 0.0)
    at = int(np.abs(asked - achievable).argmax())
    return {
        "progress": (at + 0.5) / len(asked),
        "asked": float(asked[at]),
        "achievable": float(achievable[at]),
        "mean_asked": float(asked.mean()),
        "mean_achievable": float(achievable.mean()),
    }


def warnings_of(figures: Mapping[str, Any]) -> list[str]:
    """A sentence for every value whose asked and achievable shares differ by more than a percentage point.

    figures: by trait, as `followed` gives them.
    """
    return [
        f"order.targets.{trait} asks for {gap['asked']:.1%} of {value!r} after {gap['progress']:.1%} of the tokens, "
        f"but {gap['achievable']:.1%} is achievable there. {_why(gap)}"
        for trait, figure in figures.items()
        for value, gap in zip(figure["values"], figure["unmet"], strict=True)
        if abs(gap["asked"] - gap["achievable"]) > UNMET
    ]


def _why(gap: Mapping[str, float]) -> str:
    if abs(gap["mean_asked"] - gap["mean_achievable"]) <= UNMET:
        return "Other values need the room: for each value, ask on average for its share of the corpus"
    return (
        f"Every token is placed once, so its shares average its share of the corpus, {gap['mean_achievable']:.1%}, and "
        f"the asked shares average {gap['mean_asked']:.1%}: ask for shares that average the first, or change the input"
    )


def _targets(tables: Tables, traits: Traits, group_traits: Sequence[str | None], items: Items) -> Targets:
    progress = _progress(tables)
    shares = np.empty((len(progress), len(items.groups)))
    sums = np.asarray(items.counts.sum(axis=0), np.float64).ravel()
    for group, trait in enumerate(group_traits):
        columns = items.groups == group
        own = sums[columns] / max(sums[columns].sum(), 1.0)
        if trait is None or trait not in tables:
            shares[:, columns] = own
        else:
            shares[:, columns] = _shares(trait, tables[trait], traits, own, progress)
    return Targets(progress=progress, shares=shares)


def _progress(tables: Tables) -> np.ndarray:
    """The points of progress of all tables, rising."""
    return np.unique(np.concatenate([[0.0, 1.0], *(table["progress"] for table in tables.values())]))


def _shares(
    trait: str, table: Mapping[str, Sequence[float]], traits: Traits, own: np.ndarray, progress: np.ndarray
) -> np.ndarray:
    """The asked shares at `progress`, float64 (P, J). own: (J,), each value's share of the whole."""
    by_tokens = np.bincount(traits.codes[trait], weights=traits.counted, minlength=len(own))
    factor = _factors(trait, table, traits.names[trait], by_tokens / max(by_tokens.sum(), 1.0))
    wanted = own * np.array([np.interp(progress, table["progress"], column) for column in factor.T]).T
    return wanted / wanted.sum(axis=1, keepdims=True)


def _factors(
    trait: str, table: Mapping[str, Sequence[float]], names: Sequence[str], own: np.ndarray
) -> np.ndarray:
    """The asked share of each value over its own share, float64 (P, J), at the table's points of progress.

    Values that the table does not name share the rest as in the corpus.
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
