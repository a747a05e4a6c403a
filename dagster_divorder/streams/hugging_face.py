"""balance for `datasets`: like `IterableDataset.shuffle`, with a balanced buffer instead of a random one.

Shards come in random order, several at a time, as in `shuffle`. Only streams of `datasets` import this module, so no
other stream needs that package.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import islice
from typing import Any

import numpy as np
from datasets import Dataset, Features, IterableDataset
from datasets.features.features import require_decoding
from datasets.formatting import PythonFormatter
from datasets.iterable_dataset import (
    BufferShuffledExamplesIterable,
    DataSourcesShufflingDisallowed,
    FormattedExamplesIterable,
    _BaseExamplesIterable,
)

from dagster_divorder.core.fields import columns_of
from dagster_divorder.core.order.strategy import nearest
from dagster_divorder.errors import InputError
from dagster_divorder.streams.arguments import Field
from dagster_divorder.streams.balancing import BLOCK, Recipe, StreamPass, shifted

OPEN_SHARDS = 10
"""Most shards that are read in turn, as in `shuffle`."""

ROWS = 256
"""Rows of a table that become Python objects in one batch."""


def balance_dataset(stream: Dataset | IterableDataset, recipe: Recipe) -> IterableDataset:
    """`balance` of a dataset.

    Raises:
        InputError: `by` or `tokens` names a column that does not exist.
    """
    if isinstance(stream, Dataset):
        empty = not len(stream)  # to_iterable_dataset refuses an empty one
        columns = stream.features
        stream = (
            IterableDataset.from_generator(list, features=columns) if empty else stream.to_iterable_dataset()
        )
    features, examples, open_shards = stream.features, stream._ex_iterable, OPEN_SHARDS
    for read in (*(trait.read for trait in recipe.traits), recipe.tokens):
        if features is not None and isinstance(read, Field) and not columns_of([read.name], list(features)):
            raise InputError(
                f"the dataset has no column {read.name!r}; it has {', '.join(map(repr, list(features)[:20]))}"
                f"{nearest(read.name, list(features))}"
            )
    try:
        examples = examples.shuffle_data_sources(np.random.default_rng(recipe.seed))
    except DataSourcesShufflingDisallowed:  # after take and skip
        open_shards = 1
    typed = features is not None and not any(map(require_decoding, features.values()))
    if typed and not (examples.is_typed and examples.features == features):
        # Every row gets all columns; the buffer holds pictures as they are stored.
        examples = FormattedExamplesIterable(examples, None, features, stream._token_per_repo_id)
    return IterableDataset(
        BalancedExamples(examples, recipe, open_shards, features if typed else None),
        info=stream._info,
        split=stream._split,
        formatting=stream._formatting,
        distributed=stream._distributed,
        token_per_repo_id=stream._token_per_repo_id,
    )


class BalancedExamples(_BaseExamplesIterable):
    """The examples of an iterable in the order of a balanced buffer.

    The state holds the reader's state and the number of examples since. It changes every C examples; a resumed reader
    reads those again. The reader's state is stored as text, because it is copied more often than it changes.
    """

    def __init__(
        self,
        ex_iterable: _BaseExamplesIterable,
        recipe: Recipe,
        open_shards: int,
        features: Features | None,
    ) -> None:
        super().__init__()
        self.ex_iterable, self.recipe, self.open_shards = ex_iterable, recipe, open_shards
        self._features = features

    def _init_state_dict(self) -> dict[str, Any]:
        state: dict[str, Any] = {"reading": None, "source": None, "gone": 0, "type": type(self).__name__}
        self._state_dict = state
        return state

    def __iter__(self) -> Iterator[tuple[int, dict[str, Any]]]:
        state: dict[str, Any] = self._state_dict or self._init_state_dict()
        saved = state["reading"] and {**json.loads(state["reading"]), "source": state["source"]}
        reading = StreamPass(_Shards(self.ex_iterable, self.open_shards), self.recipe, saved)
        every = max(BLOCK, self.recipe.buffer)
        for key, example in enumerate(islice(reading, state["gone"], None)):
            state["gone"] += 1
            if state["gone"] >= every:
                now = reading.state()
                state.update(source=now.pop("source"), reading=json.dumps(now), gone=0)
            yield key, example

    @property
    def is_typed(self) -> bool:
        return self._features is not None

    @property
    def features(self) -> Features | None:
        return self._features

    @property
    def num_shards(self) -> int:
        return int(self.ex_iterable.num_shards)

    def _over(self, ex_iterable: _BaseExamplesIterable) -> BalancedExamples:
        return BalancedExamples(ex_iterable, self.recipe, self.open_shards, self._features)

    def shift_rngs(self, value: int) -> BalancedExamples:
        recipe = shifted(self.recipe, value)
        return BalancedExamples(self.ex_iterable, recipe, self.open_shards, self._features)

    def shuffle_data_sources(self, generator: np.random.Generator) -> BalancedExamples:
        return self._over(self.ex_iterable.shuffle_data_sources(generator))

    def shard_data_sources(self, num_shards: int, index: int, contiguous: bool = True) -> BalancedExamples:
        return self._over(self.ex_iterable.shard_data_sources(num_shards, index, contiguous=contiguous))

    def reshard_data_sources(self) -> BalancedExamples:
        return self._over(self.ex_iterable.reshard_data_sources())


class _Shards:
    """Examples of an iterable, without keys, from up to `most` groups of its shards in turn."""

    def __init__(self, ex_iterable: _BaseExamplesIterable, most: int) -> None:
        count = min(most, ex_iterable.num_shards)
        self.groups = [
            _ShardGroup(ex_iterable.shard_data_sources(count, at) if count > 1 else ex_iterable)
            for at in range(max(1, count))
        ]
        self.turn = 0

    def __iter__(self) -> Iterator[dict[str, Any]]:
        if len(self.groups) == 1:
            yield from self.groups[0]
            return
        readers = dict(enumerate(map(iter, self.groups)))
        while readers:
            for at in [at for at in readers if at >= self.turn]:
                self.turn = at + 1
                if (example := next(readers[at], None)) is None:
                    del readers[at]
                else:
                    yield example
            self.turn = 0

    def state_dict(self) -> dict[str, Any] | None:
        """None if the state of `datasets` is not exact; resuming then counts examples from the beginning."""
        if any(_is_shuffled(group.ex_iterable) for group in self.groups):
            return None
        return {"parts": [group.state_dict() for group in self.groups], "turn": self.turn}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        for group, group_state in zip(self.groups, state["parts"], strict=True):
            group.load_state_dict(group_state)
        self.turn = state["turn"]


def _is_shuffled(ex_iterable: _BaseExamplesIterable) -> bool:
    """Whether examples pass a shuffle buffer; its state lacks the examples that it holds."""
    below = getattr(ex_iterable, "ex_iterables", None) or [getattr(ex_iterable, "ex_iterable", None)]
    return isinstance(ex_iterable, BufferShuffledExamplesIterable) or any(
        map(_is_shuffled, filter(None, below))
    )


class _ShardGroup:
    """Examples of some shards. For shards of tables, the state is the one before the current table, plus the number of
    its rows already read."""

    def __init__(self, ex_iterable: _BaseExamplesIterable) -> None:
        self.ex_iterable = ex_iterable
        self.before = ex_iterable._init_state_dict()
        self.rows = 0

    def __iter__(self) -> Iterator[dict[str, Any]]:
        if not self.ex_iterable.iter_arrow:
            for _, example in self.ex_iterable:
                yield example
            return
        formatter = PythonFormatter()
        self.before = self.ex_iterable.state_dict()
        for _, table in self.ex_iterable.iter_arrow():
            for batch in table.slice(self.rows).to_reader(max_chunksize=ROWS):
                columns = formatter.format_batch(batch)
                for row in zip(*columns.values(), strict=True):
                    self.rows += 1
                    yield dict(zip(columns, row, strict=True))
            self.rows, self.before = 0, self.ex_iterable.state_dict()

    def state_dict(self) -> dict[str, Any]:
        return {
            "examples": self.before if self.ex_iterable.iter_arrow else self.ex_iterable.state_dict(),
            "rows": self.rows,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.ex_iterable.load_state_dict(state["examples"])
        self.before, self.rows = state["examples"], state["rows"]
