"""Checks of the arguments of `balance`: `by`, `tokens`, `target` and the numbers."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from dagster_divorder.core.checks import whole_number
from dagster_divorder.core.fields import value_at, ways
from dagster_divorder.core.order.strategy import nearest
from dagster_divorder.errors import InputError
from dagster_divorder.streams.balancing import Recipe, Trait, label_of

By = str | Callable[[Any], Any] | Sequence[str] | Mapping[str, Any]
Target = str | Path | Mapping[str, Any]

LARGEST_BUFFER = 1 << 20
SUM_TOLERANCE = 0.01
_LACKING = object()


def make_recipe(
    by: By, tokens: str | Callable[[Any], int] | None, buffer: int, target: Target, seed: int
) -> Recipe:
    """Everything that decides the order, from the arguments of `balance`.

    Raises:
        InputError: an argument cannot be used.
    """
    buffer = whole_number("buffer", buffer, 1, LARGEST_BUFFER)
    seed = whole_number("seed", seed, 0, (1 << 63) - 1)
    readers = _readers(by)
    targets = _targets(target, list(readers))
    traits = tuple(Trait(name, read, weight, targets.get(name)) for name, (read, weight) in readers.items())
    return Recipe(traits, count_of(tokens), buffer, seed)


def count_of(tokens: str | Callable[[Any], int] | None) -> Callable[[Any], int] | None:
    """A function from an example to its tokens, or None if examples are counted."""
    if tokens is not None and not isinstance(tokens, str) and not callable(tokens):
        raise InputError(
            f"tokens is {tokens!r}; expected the name of a field with the number of tokens, or a function of an example"
        )
    return Field(tokens) if isinstance(tokens, str) else tokens


def _readers(by: By) -> dict[str, tuple[Callable[[Any], Any], float]]:
    """Trait -> (function that reads its value from an example, weight)."""
    if callable(by):
        return {getattr(by, "__name__", "by"): (by, 1.0)}
    by_name = by if isinstance(by, Mapping) else dict.fromkeys([by] if isinstance(by, str) else by, 1.0)
    if not by_name:
        raise InputError(
            "by is empty; expected a field of the examples, such as 'source', or a function of an example"
        )
    readers = {}
    for name, entry in by_name.items():
        if not isinstance(name, str):
            raise InputError(f"by names {name!r}; expected the name of a field")
        read, weight = entry if isinstance(entry, tuple) and len(entry) == 2 else (entry, 1.0)
        if not callable(read):
            read, weight = Field(name), read
        if isinstance(weight, bool) or not isinstance(weight, int | float) or not 0 < weight < math.inf:
            raise InputError(
                f"by[{name!r}] is {entry!r}; expected a weight above 0, a function of an example, or a pair of both"
            )
        readers[name] = (read, float(weight))
    return readers


class Field:
    """Reads a field of an example, named as in `core.fields`; None if a parent is null."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __call__(self, example: Any) -> Any:
        try:
            return example[self.name]
        except (KeyError, TypeError, IndexError):
            if not isinstance(example, Mapping):
                raise InputError(
                    f"an example is of type {type(example).__name__}, which has no field {self.name!r}; expected a "
                    f"dict, or give a function of an example: by={{{self.name!r}: lambda example: ...}}"
                ) from None
        value = value_at(example, self.name, _LACKING)
        if value is not _LACKING:
            return value
        if any(value_at(example, parent, _LACKING) is None for parent, _ in ways(self.name)):
            return None
        keys = [str(key) for key in example]
        raise InputError(
            f"an example has no field {self.name!r}; it has {', '.join(map(repr, keys[:20])) or 'none'}"
            f"{nearest(self.name, keys)}. If only some examples have it, give a function of an example that covers all"
        )


def _targets(target: Target, names: list[str]) -> dict[str, dict[str, float]]:
    """Target shares of the traits that have them; the shares of other traits are estimated."""
    if isinstance(target, str) and target == "estimate":
        return {}
    if isinstance(target, str | Path):
        target = of_manifest(Path(target))
    if not isinstance(target, Mapping):
        raise InputError(
            f"target is {target!r}; expected 'estimate', shares such as {{'web': 0.7, 'code': 0.3}}, or a "
            "curated_meta.json"
        )
    by_trait = dict(target)
    if by_trait and not any(isinstance(shares, Mapping) for shares in by_trait.values()):
        if len(names) > 1:
            raise InputError(
                f"target names shares of values, and by names {len(names)} traits; name the trait of the shares, such "
                f"as target={{{names[0]!r}: {{...}}}}"
            )
        by_trait = {names[0]: by_trait}
    for trait in by_trait:
        if trait not in names:
            raise InputError(
                f"target names {trait!r}, which by does not; it names {', '.join(names)}{nearest(str(trait), names)}"
            )
    return {trait: shares_of(trait, shares) for trait, shares in by_trait.items()}


def shares_of(trait: str, shares: Any) -> dict[str, float]:
    """Shares of a trait's values by label, scaled to sum to exactly 1. InputError if they are not shares."""
    if not isinstance(shares, Mapping) or not shares:
        raise InputError(f"the target of {trait!r} is {shares!r}; expected a share for each value")
    for value, share in shares.items():
        if isinstance(share, bool) or not isinstance(share, int | float) or not 0 <= share < math.inf:
            raise InputError(
                f"the target of {trait!r} gives {value!r} the share {share!r}; expected a number from 0 to 1"
            )
    total = math.fsum(shares.values())
    if abs(total - 1) > SUM_TOLERANCE:
        raise InputError(f"the shares of {trait!r} sum to {total:g}; expected 1")
    return {label_of(trait, value): share / total for value, share in shares.items()}


def of_manifest(path: Path) -> dict[str, dict[str, float]]:
    """Shares of a run's mix by trait, from its curated_meta.json. InputError if the file has none."""
    try:
        mixing = json.loads(path.read_bytes()).get("mixing")
    except (OSError, ValueError, AttributeError) as error:
        raise InputError(f"target is {str(path)!r}; expected a curated_meta.json: {error}") from None
    if not mixing:
        raise InputError(
            f"{path} has no shares, since mixing.weights was not set in its run; give shares, or target='estimate'"
        )
    return {mixing["trait"]: {str(row["value"]): float(row["share"]) for row in mixing["values"]}}
