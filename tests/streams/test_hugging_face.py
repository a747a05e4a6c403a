"""balance over `datasets`: it stays an IterableDataset, and resumes to the example."""

from __future__ import annotations

import datetime
import pickle
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import dagster_divorder as divorder
from dagster_divorder.errors import InputError
from tests.streams.resuming import resumes_exactly, resumes_twice

datasets = pytest.importorskip("datasets")
from datasets.distributed import split_dataset_by_node  # noqa: E402

FEW = settings(max_examples=4)
"""Each example reads a stream five times."""
SOURCES = "abc"
FEATURES = datasets.Features(
    {"id": datasets.Value("int32"), "source": datasets.Value("string"), "text": datasets.Value("string")}
)


def rows(shards: list[int]) -> Iterator[dict[str, Any]]:
    """Shards of unequal size, each of one source."""
    for shard in shards:
        for at in range(10 * (shard + 1) if shard < 3 else 30):
            yield {"id": 100 * shard + at, "source": SOURCES[shard % 3], "text": "word " * (at % 5)}


def generated(shards: int = 6, features: Any = None) -> Any:
    parts = {"shards": list(range(6))} if shards == 6 else {"shards": [list(range(6))]}
    read = rows if shards == 6 else lambda shards: rows(shards[0])
    return datasets.IterableDataset.from_generator(read, gen_kwargs=parts, features=features)


def in_tables(shards: int = 6) -> Any:
    return datasets.Dataset.from_list(list(rows(list(range(6)))), features=FEATURES).to_iterable_dataset(
        shards
    )


STREAMS: dict[str, Callable[[], Any]] = {
    "generated": generated,
    "generated, 1 shard": lambda: generated(1),
    "generated, typed": lambda: generated(6, FEATURES),
    "tables": in_tables,
    "tables, 1 shard": lambda: in_tables(1),
    "tables, filtered": lambda: in_tables(2).filter(lambda row: row["id"] % 3 != 0),
    "mapped": lambda: in_tables().map(lambda row: {"length": len(row["text"])}),
    "mapped in batches": lambda: in_tables().map(lambda rows: {"id": rows["id"]}, batched=True, batch_size=7),
    "arrow, mapped": lambda: in_tables(2).with_format("arrow").map(lambda t: t, batched=True, batch_size=9),
    "concatenated": lambda: datasets.concatenate_datasets([in_tables(2), in_tables(3)]),
    "after skip and take": lambda: in_tables().skip(5).take(100),
    "shuffled": lambda: in_tables().shuffle(seed=3, buffer_size=20),
    "none": lambda: in_tables().filter(lambda row: False),
}

CHAINS: dict[str, Callable[[Any], Any]] = {
    "itself": lambda data: data,
    "map": lambda data: data.map(lambda row: {"double": 2 * row["id"]}),
    "map in batches": lambda data: data.map(lambda rows: {"id": rows["id"]}, batched=True, batch_size=5),
    "filter": lambda data: data.filter(lambda row: row["id"] % 2 == 0),
    "batch": lambda data: data.batch(4),
    "take": lambda data: data.take(50),
    "skip": lambda data: data.skip(30),
    "repeat": lambda data: data.repeat(2),
    "torch": lambda data: data.with_format("torch"),
    "numpy": lambda data: data.with_format("numpy"),
    "arrow": lambda data: data.with_format("arrow"),
    "rename": lambda data: data.rename_column("id", "number"),
    "rank 1 of 2": lambda data: split_dataset_by_node(data, 1, 2),
    "rank 1 of 4": lambda data: split_dataset_by_node(data, 1, 4),
    "interleave": lambda data: datasets.interleave_datasets([data, data.skip(10)]),
    "interleave by chance": lambda data: datasets.interleave_datasets(
        [data, data.skip(10)], probabilities=[0.7, 0.3], seed=1, stopping_strategy="all_exhausted"
    ),
    "balance": lambda data: divorder.balance(data, by="text", buffer=8),
}


def balanced(data: Any, **options: Any) -> Any:
    return divorder.balance(data, **{"by": "source", "buffer": 16, **options})


def plain(examples: Any) -> list[Any]:
    """Examples of any format as Python objects."""
    out = []
    for example in examples:
        columns = example.to_pydict() if hasattr(example, "to_pydict") else example
        out.append(
            {
                name: column.tolist() if hasattr(column, "tolist") else column
                for name, column in columns.items()
            }
        )
    return out


@pytest.mark.parametrize("stream", STREAMS)
def test_each_example_comes_once_as_the_stream_itself_gives_it(stream: str) -> None:
    data = STREAMS[stream]()
    out = balanced(data)
    assert isinstance(out, datasets.IterableDataset)
    assert (out.features, out.column_names, out.num_shards) == (
        data.features,
        data.column_names,
        data.num_shards,
    )
    assert sorted(map(repr, plain(out))) == sorted(map(repr, plain(data)))
    assert plain(out) == plain(out) == plain(balanced(data))


@pytest.mark.slow
@pytest.mark.parametrize("stream", STREAMS)
@FEW
@given(stop=st.integers(0, 200), again=st.integers(1, 60))
def test_a_resumed_stream_goes_on_exactly(stream: str, stop: int, again: int) -> None:
    resumes_twice(lambda: balanced(STREAMS[stream]()), stop, again, plain)


@pytest.mark.slow
@pytest.mark.parametrize("chain", CHAINS)
@FEW
@given(stop=st.integers(0, 200), again=st.integers(1, 60), tables=st.booleans())
def test_a_stream_that_is_built_on_a_balanced_one_resumes_exactly(
    chain: str, stop: int, again: int, tables: bool
) -> None:
    resumes_twice(lambda: CHAINS[chain](balanced(in_tables() if tables else generated())), stop, again, plain)


def test_epochs_differ_and_are_the_same_each_time() -> None:
    data = balanced(generated(1), by={"source": 1})
    orders = []
    for epoch in (0, 1, 2, 1):
        data.set_epoch(epoch)
        orders.append([example["id"] for example in data])
    assert orders[1] == orders[3]
    assert len(set(map(tuple, orders))) == 3
    assert {tuple(sorted(order)) for order in orders} == {tuple(sorted(orders[0]))}


def test_a_resumed_epoch_is_that_epoch() -> None:
    def second_epoch() -> Any:
        data = balanced(in_tables())
        data.set_epoch(2)
        return data

    resumes_exactly(second_epoch, [133])


def test_shards_of_one_source_are_read_side_by_side() -> None:
    """A buffer that is smaller than a shard would otherwise hold one source alone."""
    order = [example["source"] for example in balanced(generated(), buffer=8)]
    assert max(Counter(order[at : at + 12]).most_common(1)[0][1] for at in range(0, 120, 12)) <= 6


@pytest.mark.parametrize("world_size", [2, 3, 4])
def test_ranks_share_the_examples(world_size: int) -> None:
    data = balanced(in_tables())
    parts = [
        [row["id"] for row in split_dataset_by_node(data, rank, world_size)] for rank in range(world_size)
    ]
    assert sorted(number for part in parts for number in part) == sorted(row["id"] for row in data)
    if 6 % world_size:  # by examples: rank r has every W-th of one balanced stream
        order = [row["id"] for row in data]
        assert parts == [order[rank::world_size] for rank in range(world_size)]


@pytest.mark.slow
@pytest.mark.parametrize("workers", [0, 1, 2])
@pytest.mark.parametrize("form", ["generated", "tables"])
def test_workers_of_a_loader_share_the_examples_and_resume(form: str, workers: int) -> None:
    torch_data = pytest.importorskip("torch.utils.data")
    stateful = pytest.importorskip("torchdata.stateful_dataloader")

    def loader(class_: Any) -> Any:
        return class_(balanced(STREAMS[form]()), batch_size=8, num_workers=workers, collate_fn=list)

    batches = list(loader(torch_data.DataLoader))
    assert sorted(row["id"] for batch in batches for row in batch) == sorted(row["id"] for row in in_tables())
    assert resumes_exactly(lambda: loader(stateful.StatefulDataLoader), (0, 11)) == batches


def test_a_table_becomes_a_stream() -> None:
    table = datasets.Dataset.from_list(list(rows(list(range(6)))))
    out = balanced(table.with_format("torch"))
    assert isinstance(out, datasets.IterableDataset)
    assert sorted(int(row["id"]) for row in out) == sorted(table["id"])
    assert all(hasattr(row["id"], "dtype") for row in out.take(3))


def test_rows_keep_their_types() -> None:
    features = datasets.Features(
        {
            "label": datasets.ClassLabel(names=["no", "yes"]),
            "at": datasets.Value("timestamp[s]"),
            "grid": datasets.Array2D((2, 2), "int32"),
            "tags": datasets.List(datasets.Value("string")),
            "meta": {"lang": datasets.Value("string"), "n": datasets.Value("int8")},
            "raw": datasets.Value("binary"),
        }
    )
    examples = [
        {
            "label": at % 2,
            "at": datetime.datetime(2026, 1, 1 + at),
            "grid": [[at, 1], [2, 3]],
            "tags": ["x"] * (at % 3),
            "meta": None if at == 4 else {"lang": "de" if at % 3 else None, "n": at},
            "raw": bytes([at]),
        }
        for at in range(20)
    ]
    table = datasets.Dataset.from_list(examples, features=features)
    for by in ("label", "tags", ["label", "tags"]):
        out = balanced(table, by=by, buffer=4)
        assert sorted(map(repr, out)) == sorted(map(repr, table))
        assert pyarrow_types(out.with_format("arrow")) == pyarrow_types(
            table.to_iterable_dataset().with_format("arrow")
        )


def pyarrow_types(tables: Any) -> set[str]:
    return {str(table.schema.remove_metadata()) for table in tables}


def test_pictures_are_held_as_they_are_stored_and_come_decoded() -> None:
    image = pytest.importorskip("PIL.Image")
    pictures = [image.new("L", (2, 2), at) for at in range(6)]
    table = datasets.Dataset.from_dict({"image": pictures, "label": [0, 1] * 3}).cast_column(
        "image", datasets.Image()
    )
    held: list[Any] = []

    def label(row: Any) -> Any:
        held.append(row["image"])
        return row["label"]

    out = list(balanced(table, by=label, buffer=2))
    assert sorted(row["image"].getpixel((0, 0)) for row in out) == list(range(6))
    assert all(set(row) == {"bytes", "path"} for row in held)


def test_a_column_that_a_part_lacks_is_missing_there() -> None:
    left = datasets.Dataset.from_dict({"id": [1, 2], "lang": ["de", "en"]}).to_iterable_dataset()
    right = datasets.Dataset.from_dict({"id": [3, 4]}).to_iterable_dataset()
    both = datasets.concatenate_datasets([left, right])
    out = list(divorder.balance(both, by="lang", buffer=4))
    assert sorted(out, key=lambda row: row["id"]) == list(both)


def test_a_column_that_is_not_there_is_said_at_once() -> None:
    with pytest.raises(InputError, match=r"no column 'sorce'.*'source'"):
        balanced(in_tables(), by="sorce")
    with pytest.raises(InputError, match="no column 'length'"):
        balanced(in_tables(), tokens="length")
    with pytest.raises(InputError, match="no field 'sorce'"):
        list(balanced(generated(), by="sorce"))


def test_splits_are_not_a_stream() -> None:
    splits = datasets.IterableDatasetDict({"train": in_tables()})
    with pytest.raises(InputError, match=r"one stream, and there are 1: 'train'"):
        balanced(splits)


def test_a_pickled_stream_gives_the_same() -> None:
    data = balanced(in_tables())
    assert list(pickle.loads(pickle.dumps(data))) == list(data)


def test_an_empty_table_is_an_empty_stream() -> None:
    table = datasets.Dataset.from_dict(
        {"source": []}, features=datasets.Features({"source": datasets.Value("string")})
    )
    out = balanced(table)
    assert list(out) == []
    assert out.column_names == ["source"]


def test_every_worker_has_shards_and_workers_that_stay_are_told_the_epoch() -> None:
    loaders = pytest.importorskip("torch.utils.data")
    data = balanced(generated())
    loader = loaders.DataLoader(data, batch_size=None, num_workers=3, persistent_workers=True)
    orders = []
    for epoch in range(3):
        data.set_epoch(epoch)
        orders.append([row["id"] for row in loader])
    assert len(set(map(tuple, orders))) == 3
    assert {tuple(sorted(order)) for order in orders} == {tuple(sorted(row["id"] for row in data))}


def test_files_of_several_row_groups_are_read_a_shard_each(tmp_path: Any) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    pyarrow = pytest.importorskip("pyarrow")
    for number, source in enumerate(SOURCES):
        rows = {
            "id": range(100 * number, 100 * number + 100),
            "source": [source] * 100,
            "größe": [None, 0.5] * 50,
        }
        parquet.write_table(pyarrow.table(rows), tmp_path / f"{source}.parquet", row_group_size=30)
    data = datasets.load_dataset(
        "parquet", data_files=f"{tmp_path}/*.parquet", streaming=True, split="train", cache_dir=str(tmp_path)
    )
    out = [row["id"] for row in balanced(data)]
    assert sorted(out) == list(range(300))
    assert {identity // 100 for identity in out[:6]} == {0, 1, 2}
    resumes_exactly(lambda: balanced(data), [201])
    assert sorted(row["id"] for row in balanced(data).reshard()) == list(range(300))
