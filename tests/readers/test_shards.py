"""Shards that are read from their beginning go on inside the one that was interrupted, without opening those before."""

from __future__ import annotations

import gzip
import json
from itertools import islice
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dagster_divorder.errors import InputError
from dagster_divorder.torch import ShardStream
from tests.conftest import examples


@settings(max_examples=examples(100))
@given(
    sizes=st.lists(st.integers(0, 4), min_size=1, max_size=5), epochs=st.integers(1, 3), part=st.floats(0, 1)
)
def test_a_stream_of_shards_goes_on_where_it_stopped(sizes: list[int], epochs: int, part: float) -> None:
    names = [f"shard-{number}" for number in range(len(sizes))]
    held = {name: [f"{name}:{item}" for item in range(size)] for name, size in zip(names, sizes, strict=True)}
    whole = [item for _ in range(epochs) for name in names for item in held[name]]
    stop = int(part * len(whole))
    first = ShardStream(names, held.__getitem__, epochs=epochs)
    begun = list(islice(first, stop))
    opened: list[str] = []

    def open_shard(name: str) -> list[str]:
        opened.append(name)
        return held[name]

    second = ShardStream(names, open_shard, epochs=epochs)
    second.load_state_dict(json.loads(json.dumps(first.state_dict())))
    assert begun + list(second) == whole
    # Shards that were read to their end are not opened again in this epoch.
    passed = first.state_dict()["passed"]
    assert opened == [names[number % len(names)] for number in range(passed, epochs * len(names))]


def test_compressed_lines_are_read_on(tmp_path: Path) -> None:
    def lines(name: str):  # type: ignore[no-untyped-def]
        with gzip.open(tmp_path / name, "rt") as file:
            yield from map(json.loads, file)

    for name, numbers in (("a", range(3)), ("b", range(3, 5))):
        with gzip.open(tmp_path / name, "wt") as file:
            file.writelines(f"{number}\n" for number in numbers)
    stream = ShardStream(["a", "b"], lines)
    assert list(islice(stream, 4)) == [0, 1, 2, 3]
    assert stream.state_dict() == {"shard": "b", "passed": 1, "offset": 1}
    assert list(stream) == [4]
    assert list(stream) == []


def test_other_shards_are_refused() -> None:
    stream = ShardStream(["a", "b"], {"a": [1], "b": [2]}.__getitem__)
    with pytest.raises(InputError, match="the state is inside c, and b is in its place"):
        stream.load_state_dict({"shard": "c", "passed": 1, "offset": 0})
    stream.load_state_dict({"shard": "b", "passed": 1, "offset": 2})
    with pytest.raises(InputError, match="b holds 1 items, and the state says that 2 of it were read"):
        next(iter(stream))
