"""Shards that are read one after another, and how to resume inside one.

As in TokenShard (On Shuffling Tokens), the list of shards is rotated to begin with the interrupted shard, so that only
its read items are skipped. Small shards keep the skip short.
"""

from __future__ import annotations

import re
import reprlib
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import accumulate, islice
from numbers import Integral
from pathlib import Path
from typing import Any, Generic, NamedTuple, TypeVar

from dagster_divorder.errors import InputError
from dagster_divorder.readers.export import read_export_manifest

Item = TypeVar("Item")
DATA = re.compile(r"train-.*\.(parquet|npy|ds|bin)|shard\..*\.mds|chunk-.*\.bin|train\.bin")
"""Names of the files of sequences, of any format."""


class Rotated(NamedTuple):
    """files: all files of sequences of an export, beginning with the file in which training resumes. offset: sequences
    read from this file. passed: complete passes over all files."""

    files: list[Path]
    offset: int
    passed: int


def rotate_shards(export: str | Path, samples: int) -> Rotated:
    """Where a trainer that reads the files of an export in a row resumes after `samples` sequences. Reads only the
    manifest.

    Raises:
        InputError: see `open_export`; or `samples` is negative; or the export is text, or its rows are laid out for
            ranks that read parts of the files.
    """
    path = Path(export).absolute()
    manifest = read_export_manifest(path)
    if samples < 0:
        raise InputError(f"{samples} sequences were read; expected 0 or more")
    if "rows_of_files" not in manifest:
        raise InputError(
            f"{path} is an export in the format {manifest['format']}, which has no sequences to count; expected an "
            f"export of tokens"
        )
    if layout := manifest["layout"]:
        raise InputError(
            f"the rows of {path} are laid out for {layout['world_size']} ranks, which read parts of its files side "
            f"by side; export with exports.world_size = 1 for a trainer that reads files in a row"
        )
    # The manifest lists files in the order of writing, which is the order of their rows.
    files = [path / name for name in manifest["files"] if DATA.fullmatch(name)]
    ends = list(accumulate(manifest["rows_of_files"]))
    passed, at = divmod(samples, ends[-1])
    turn = bisect_right(ends, at)
    return Rotated(files[turn:] + files[:turn], at - (ends[turn - 1] if turn else 0), passed)


def check_state(state: Any, **types: type) -> None:
    """Checks that a state to resume from has values of these types, as a `state_dict` of this package does.

    Raises:
        InputError: a value is missing or of another type.
    """
    # NumPy's whole numbers are accepted, True is not.
    kinds = {name: Integral if kind is int else kind for name, kind in types.items()}
    if not isinstance(state, Mapping) or not all(
        isinstance(state.get(name), kind) and not isinstance(state[name], bool)
        for name, kind in kinds.items()
    ):
        expected = ", ".join(f"{name!r}: {kind.__name__}" for name, kind in types.items())
        raise InputError(
            f"the state to resume from is {reprlib.repr(state)}; expected {{{expected}}}, as state_dict() returns "
            f"it: load the saved state of this stream, not the checkpoint around it"
        )


class ShardStream(Generic[Item]):
    """Items of shards that can only be read from their beginning, such as compressed text, one shard after another,
    again for each epoch. open_shard: yields the items of a shard, from its start.

    An iteration resumes where the last one, or a loaded state, ended: {"shard": the shard's name, "passed": shards read
    to their end before it, "offset": items of it that were yielded}.
    """

    def __init__(
        self, shards: Sequence[str], open_shard: Callable[[str], Iterable[Item]], *, epochs: int = 1
    ) -> None:
        self._shards, self._open, self._epochs = list(shards), open_shard, epochs
        # Shards passed, and items yielded of the next one, of the iteration that was begun last.
        self._at = [0, 0]

    def __iter__(self) -> Iterator[Item]:
        self._at = [*self._at]
        return self._items(self._at)

    def _items(self, at: list[int]) -> Iterator[Item]:
        turn, before = at[0] % len(self._shards), at[0]
        rotated = self._shards[turn:] + self._shards[:turn]
        for passed in range(before, self._epochs * len(self._shards)):
            items = iter(self._open(rotated[(passed - before) % len(rotated)]))
            skipped = sum(1 for _ in islice(items, at[1]))
            if skipped < at[1]:
                raise InputError(
                    f"{self._shards[passed % len(rotated)]} holds {skipped} items, and the state counts "
                    f"{at[1]} read; resume with the shards that the state was saved with"
                )
            for item in items:
                at[1] += 1
                yield item
            at[:] = passed + 1, 0

    def state_dict(self) -> dict[str, Any]:
        """The position of the iteration."""
        passed, offset = self._at
        return {"shard": self._shards[passed % len(self._shards)], "passed": passed, "offset": offset}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Resumes at a state. Raises InputError if the state is invalid or the shard has another place in the list."""
        check_state(state, shard=str, passed=int, offset=int)
        if not 0 <= state["passed"] <= self._epochs * len(self._shards) or state["offset"] < 0:
            raise InputError(
                f"the state counts {state['passed']} shards and {state['offset']} items; with {len(self._shards)} "
                f"shards and {self._epochs} epochs expected 0 to {self._epochs * len(self._shards)} shards, and 0 or "
                f"more items: resume with the list that the state was saved with"
            )
        here = self._shards[state["passed"] % len(self._shards)]
        if here != state["shard"]:
            raise InputError(
                f"the state is inside {state['shard']}, but {here} is at its place in the list; resume with the same "
                f"list of shards"
            )
        self._at = [state["passed"], state["offset"]]
