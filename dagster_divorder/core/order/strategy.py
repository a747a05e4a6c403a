"""Strategies: functions from a problem to a permutation, with their options and properties."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, get_args

from pydantic import BaseModel, ConfigDict, ValidationError, ValidationInfo, field_validator

from dagster_divorder.core.order.problem import Order, Problem
from dagster_divorder.errors import InputError


class Checked(BaseModel):
    """Base of models whose numbers take no booleans, at any depth: pydantic takes these for 0 and 1."""

    @field_validator("*", mode="before")
    @classmethod
    def _no_boolean_for_a_number(cls, value: Any, info: ValidationInfo) -> Any:
        kinds = list(_inside(cls.model_fields[str(info.field_name)].annotation))
        number = (int in kinds or float in kinds) and bool not in kinds
        if number and any(isinstance(each, bool) for each in _inside(value)):
            raise ValueError("expected a number, not true or false")
        return value


def _inside(value: Any) -> Iterator[Any]:
    """A value or an annotation, and everything inside it."""
    yield value
    inner = [*value.values()] if isinstance(value, Mapping) else value
    for each in inner if isinstance(inner, list | tuple) else get_args(value):
        yield from _inside(each)


class StrategyOptions(Checked):
    """Base of the options that strategies declare; itself the options of a strategy that has none."""

    model_config = ConfigDict(frozen=True, extra="forbid")


@dataclass(frozen=True)
class Strategy:
    """function: (problem, **options) -> permutation, int64 (M,). Options: the model of its options, with defaults.

    takes_coordinates: it uses dense coordinates. balances_norms: its problem has one more group, the norms of whole
    rows (`Problem.with_norms`). sees_traits: its order depends on the items' traits. options: the values that
    `with_options` sets.
    """

    name: str
    function: Callable[..., Order]
    Options: type[StrategyOptions] = StrategyOptions
    takes_coordinates: bool = False
    balances_norms: bool = False
    sees_traits: bool = True
    options: Mapping[str, Any] = field(default_factory=dict)

    def permute(self, problem: Problem) -> Order:
        """Permutation of the problem's items, int64 (M,)."""
        return self.function(problem, **self.options)

    def with_options(self, **given: Any) -> Strategy:
        """The strategy with these options, the others at their defaults.

        Raises:
            InputError: it has no such option, or a value cannot be used.
        """
        names = list(self.Options.model_fields)
        for unknown in given.keys() - set(names):
            own = f"its options are {', '.join(names)}{nearest(unknown, names)}" if names else "it has none"
            raise InputError(f"strategy {self.name!r} has no option {unknown!r}; {own}")
        return replace(self, options=_checked(self.Options, given).model_dump())


def _checked(model: type[StrategyOptions], given: Mapping[str, Any]) -> StrategyOptions:
    """InputError if a value cannot be used; the message names the value and what is expected."""
    try:
        return model(**given)
    except ValidationError as error:
        problem = error.errors()[0]
        expected = problem["msg"].removeprefix("Value error, ").replace("Input should be", "expected", 1)
        raise InputError(f"{problem['loc'][0]} is {problem['input']!r}; {expected}") from None


def nearest(name: str, known: Iterable[str]) -> str:
    """`; did you mean 'x'?` with the nearest of `known`, or an empty string."""
    near = difflib.get_close_matches(str(name), list(known), n=1)
    return f"; did you mean {near[0]!r}?" if near else ""


def one_of(name: str, value: str, known: Iterable[str]) -> str:
    """`value`, if it is one of `known`.

    Raises:
        InputError: it is not; the message names the nearest one.
    """
    if value not in (names := list(known)):
        raise InputError(f"{name} is {value!r}; expected one of {', '.join(names)}{nearest(value, names)}")
    return value
