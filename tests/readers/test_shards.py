"""Shards that are read from their beginning go on inside the one that was interrupted, without opening those before."""

from __future__ import annotations

import json
import re
from itertools import islice

import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dagster_divorder.errors import InputError
from dagster_divorder.torch import ShardStream, rotate_shards
from dagster_divorder.write.exports import FORMATS
from tests.conftest import examples
from tests.readers.made import exported


@settings(max_examples=examples(40))
@given(
    sizes=st.lists(st.integers(0, 4), min_size=1, max_size=5), epochs=st.integers(1, 3), part=st.floats(0, 1)
)
def test_a_stream_of_shards_goes_on_where_it_stopped(sizes: list[int], epochs: int, part: float) -> None:
    names = [f"shard-{number}" for number in range(len(sizes))]
    items_of = {
        name: [f"{name}:{item}" for item in range(size)] for name, size in zip(names, sizes, strict=True)
    }
    whole = [item for _ in range(epochs) for name in names for item in items_of[name]]
    stop = int(part * len(whole))
    first = ShardStream(names, items_of.__getitem__, epochs=epochs)
    begun = list(islice(first, stop))
    opened: list[str] = []

    def open_shard(name: str) -> list[str]:
        opened.append(name)
        return items_of[name]

    second = ShardStream(names, open_shard, epochs=epochs)
    second.load_state_dict(json.loads(json.dumps(first.state_dict())))
    assert begun + list(second) == whole
    # Shards that were read to their end are not opened again in this epoch.
    passed = first.state_dict()["passed"]
    assert opened == [names[number % len(names)] for number in range(passed, epochs * len(names))]


def test_other_shards_are_refused() -> None:
    stream = ShardStream(["a", "b"], {"a": [1], "b": [2]}.__getitem__)
    with pytest.raises(InputError, match="the state is inside c, but b is at its place"):
        stream.load_state_dict({"shard": "c", "passed": 1, "offset": 0})
    stream.load_state_dict({"shard": "b", "passed": 1, "offset": 2})
    with pytest.raises(InputError, match="b holds 1 items, and the state counts 2 read"):
        next(iter(stream))


EXPORTED = {"lengths": [8] * 11, "length": 8, "end_of_text": False}


@settings(max_examples=examples(15), deadline=None)
@given(samples=st.integers(0, 60), shard_bytes=st.sampled_from([32, 64, 100, 1000]), epochs=st.integers(1, 2))
def test_an_export_is_read_on_in_rotated_files(samples: int, shard_bytes: int, epochs: int) -> None:
    with exported("parquet", EXPORTED | {"epochs": epochs}, shard_bytes=shard_bytes) as (path, stream):
        rotated = rotate_shards(path, samples)
        rows = [ids for file in rotated.files for ids in pq.read_table(file)["input_ids"].to_pylist()]
        at = samples % len(stream)
        assert rotated.passed == samples // len(stream)
        assert rows[rotated.offset :][: len(stream) - at] == [row[0] for row in stream[at:]]
        assert sorted(rotated.files) == sorted(path.glob("train-*.parquet"))


@pytest.mark.parametrize("name", FORMATS)
def test_the_files_of_every_format_are_known(name: str) -> None:
    with exported(name, EXPORTED, shard_bytes=1) as (path, stream):
        first = rotate_shards(path, 0)
        # A sequence a file; Megatron has one file.
        assert len(first.files) == (1 if name == "megatron" else len(stream))
        numbers = [[int(number) for number in re.findall(r"\d+", file.name)] for file in first.files]
        assert numbers == sorted(numbers)
        at = len(stream) - 1
        assert rotate_shards(path, at)[:2] == (
            [first.files[-1], *first.files[:-1]],
            at * (name == "megatron"),
        )
        assert rotate_shards(path, len(stream)) == first._replace(passed=1)


def test_what_cannot_be_read_on_is_refused() -> None:
    with (
        exported("parquet", EXPORTED) as (path, _),
        pytest.raises(InputError, match="-1 sequences were read"),
    ):
        rotate_shards(path, -1)
    layout = {"world_size": 2, "micro_batch": 1, "workers": 1}
    with (
        exported("parquet", EXPORTED, layout=layout) as (path, _),
        pytest.raises(InputError, match="laid out for 2"),
    ):
        rotate_shards(path, 0)
