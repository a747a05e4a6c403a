"""balance for `datasets`: what `IterableDataset.shuffle` gives, with the balanced buffer in place of the random one.

The shards are shuffled, and several are read at a time, as `shuffle` does it. Imported only where the stream is one of
`datasets`, so that nothing else needs that package.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator
from itertools import islice
from typing import Any

import numpy as np
from datasets import Features, IterableDataset
from datasets.formatting import PythonFormatter
from datasets.iterable_dataset import _BaseExamplesIterable

from dagster_divorder.core.order.strategy import nearest
from dagster_divorder.errors import InputError
from dagster_divorder.streams.arguments import Field
from dagster_divorder.streams.balancing import BLOCK, Reading, Recipe, shifted


def balance_dataset(stream: IterableDataset, recipe: Recipe) -> IterableDataset:
    """
    Raises:
        InputError: `by` or `tokens` names no column.
    """
    if stream.column_names is not None:
        recipe = _with_columns(recipe, stream.column_names)
    shuffled = stream.shuffle(seed=recipe.seed, buffer_size=recipe.buffer)
    return IterableDataset(
        BalancedExamples(shuffled._ex_iterable.ex_iterable, recipe),
        info=shuffled._info,
        split=shuffled._split,
        formatting=shuffled._formatting,
        distributed=shuffled._distributed,
        token_per_repo_id=shuffled._token_per_repo_id,
    )


def _with_columns(recipe: Recipe, columns: Collection[str]) -> Recipe:
    """Fields are columns; where an example lacks one it is None, as in the datasets' own rows."""

    def known(read: Any) -> Any:
        if not isinstance(read, Field):
            return read
        if read.name not in columns and read.way[0] not in columns:
            raise InputError(
                f"the dataset has no column {read.name!r}; it has {', '.join(map(repr, list(columns)[:20]))}"
                f"{nearest(read.name, list(columns))}"
            )
        return Field(read.name, columns)

    traits = tuple(trait._replace(read=known(trait.read)) for trait in recipe.traits)
    return recipe._replace(traits=traits, tokens=known(recipe.tokens))


class BalancedExamples(_BaseExamplesIterable):
    """The examples of an iterable in the order of a balanced buffer.

    The state holds a state of the reading, as text, since it is copied more often than it changes, and the number of
    examples that have gone since. It changes every C examples; a resumed reading goes through those once more.
    """

    def __init__(self, ex_iterable: _BaseExamplesIterable, recipe: Recipe) -> None:
        super().__init__()
        self.ex_iterable, self.recipe = ex_iterable, recipe

    def _init_state_dict(self) -> dict[str, Any]:
        self.ex_iterable._init_state_dict()
        self._state_dict = {"reading": None, "source": None, "gone": 0, "type": type(self).__name__}
        return self._state_dict

    def __iter__(self) -> Iterator[tuple[int, dict[str, Any]]]:
        state = self._state_dict or self._init_state_dict()
        saved = state["reading"] and {**json.loads(state["reading"]), "source": state["source"]}
        reading = Reading(_Examples(self.ex_iterable), self.recipe, saved)
        every = max(BLOCK, self.recipe.buffer)
        for key, example in enumerate(islice(reading, state["gone"], None)):
            state["gone"] += 1
            if state["gone"] >= every:
                now = reading.state()
                state.update(source=now.pop("source"), reading=json.dumps(now), gone=0)
            yield key, example

    @property
    def is_typed(self) -> bool:
        return bool(self.ex_iterable.is_typed)

    @property
    def features(self) -> Features | None:
        return self.ex_iterable.features

    @property
    def num_shards(self) -> int:
        return int(self.ex_iterable.num_shards)

    def shift_rngs(self, value: int) -> BalancedExamples:
        return BalancedExamples(self.ex_iterable, shifted(self.recipe, value))

    def shuffle_data_sources(self, generator: np.random.Generator) -> BalancedExamples:
        return BalancedExamples(self.ex_iterable.shuffle_data_sources(generator), self.recipe)

    def shard_data_sources(self, num_shards: int, index: int, contiguous: bool = True) -> BalancedExamples:
        part = self.ex_iterable.shard_data_sources(num_shards, index, contiguous=contiguous)
        return BalancedExamples(part, self.recipe)

    def reshard_data_sources(self) -> BalancedExamples:
        return BalancedExamples(self.ex_iterable.reshard_data_sources(), self.recipe)


class _Examples:
    """The examples of an iterable without their keys. Tables are read whole: the state is the one before the last table,
    and how many of its rows have come."""

    def __init__(self, ex_iterable: _BaseExamplesIterable) -> None:
        self.ex_iterable = ex_iterable
        self.before: Any = None
        self.rows = 0

    def __iter__(self) -> Iterator[dict[str, Any]]:
        if not self.ex_iterable.iter_arrow:
            for _, example in self.ex_iterable:
                yield example
            return
        formatter = PythonFormatter()
        self.before = self.ex_iterable.state_dict()
        skipped = self.rows
        for _, table in self.ex_iterable.iter_arrow():
            columns = formatter.format_batch(table)
            rows = zip(*columns.values(), strict=False)
            for self.rows, row in enumerate(islice(rows, skipped, None), skipped + 1):
                yield dict(zip(columns, row, strict=False))
            skipped = self.rows = 0
            self.before = self.ex_iterable.state_dict()

    def state_dict(self) -> dict[str, Any]:
        return {"examples": self.before or self.ex_iterable.state_dict(), "rows": self.rows}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.ex_iterable.load_state_dict(state["examples"])
        self.rows = state["rows"]
