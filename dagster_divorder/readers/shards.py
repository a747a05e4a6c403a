"""Shards that can only be read from their beginning, such as compressed text, and going on inside one of them.

The way of TokenShard (On Shuffling Tokens): the list of shards is turned round to begin with the one
that was interrupted, so that only what was read of that one is skipped. Small shards make the skipping short.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import Any, Generic, TypeVar

from dagster_divorder.errors import InputError

Item = TypeVar("Item")


class ShardStream(Generic[Item]):
    """What is in shards, one after another, again for each epoch; `open_shard` gives what is in one, from its start.

    An iteration begins where the last one, or a state that was loaded, left off: {"shard": the shard's name, "passed":
    shards read to their end before it, "offset": items of it that were yielded}.
    """

    def __init__(
        self, shards: Sequence[str], open_shard: Callable[[str], Iterable[Item]], *, epochs: int = 1
    ) -> None:
        self._shards, self._open, self._epochs = list(shards), open_shard, epochs
        self._passed = self._offset = 0

    def __iter__(self) -> Iterator[Item]:
        turn, before = self._passed % len(self._shards), self._passed
        rotated = self._shards[turn:] + self._shards[:turn]
        for passed in range(before, self._epochs * len(self._shards)):
            items = iter(self._open(rotated[(passed - before) % len(rotated)]))
            skipped = sum(1 for _ in islice(items, self._offset))
            if skipped < self._offset:
                raise InputError(
                    f"{self._shards[passed % len(rotated)]} holds {skipped} items, and the state says that "
                    f"{self._offset} of it were read; resume with the shards that the state was saved with"
                )
            for item in items:
                self._offset += 1
                yield item
            self._passed, self._offset = passed + 1, 0

    def state_dict(self) -> dict[str, Any]:
        """Where the iteration is."""
        name = self._shards[self._passed % len(self._shards)]
        return {"shard": name, "passed": self._passed, "offset": self._offset}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on there. Raises InputError if that shard is not where it was in the list."""
        here = self._shards[state["passed"] % len(self._shards)]
        if here != state["shard"]:
            raise InputError(
                f"the state is inside {state['shard']}, and {here} is in its place; resume with the same list of shards"
            )
        self._passed, self._offset = state["passed"], state["offset"]
