"""Packed arrays come back whole or one by one, and a damaged one is noticed. Ids: order, distinct ones, and their
places among others."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from dagster_divorder.core.arrow import number_array, text_array
from dagster_divorder.errors import DamagedFileError
from dagster_divorder.store.arrays import pack, pack_rows, unpack, unpack_some
from dagster_divorder.store.ids import distinct, hash_all, places, to_bytes, words
from dagster_divorder.store.local import LocalStore
from dagster_divorder.store.stages import StageFiles
from dagster_divorder.store.view import Fragment
from tests.conftest import examples

dtypes = st.sampled_from([np.int32, np.int64, np.uint16, np.uint32, np.uint64, np.float32])
shapes = arrays.array_shapes(min_dims=1, max_dims=2, min_side=0, max_side=5)
packed_arrays = st.dictionaries(
    st.sampled_from(["ids", "lengths", "vectors"]), arrays.arrays(dtypes, shapes), min_size=1
)


@settings(deadline=None)
@given(packed_arrays)
def test_arrays_come_back_whole_and_one_by_one(packed: dict[str, np.ndarray]) -> None:
    data = pack(packed)
    whole = unpack(data)
    for name, array in packed.items():
        (alone,) = unpack_some(io.BytesIO(data), [name])
        for unpacked in (whole[name], alone):
            assert unpacked.dtype == array.dtype
            np.testing.assert_array_equal(unpacked, array)


@settings(deadline=None)
@given(st.data())
def test_an_array_with_any_byte_altered_is_refused(data: st.DataObject) -> None:
    lengths = np.arange(6).reshape(3, 2)
    packed = bytearray(pack({"lengths": lengths, "ids": lengths[::-1]}, "owner"))
    at = data.draw(st.integers(0, len(packed) - 1))
    packed[at] ^= data.draw(st.integers(1, 255))
    try:
        (unpacked,) = unpack_some(io.BytesIO(packed), ["lengths"], "owner")
    except ValueError:
        return
    # What does not matter for the array, such as a space of the header, may differ.
    assert unpacked.dtype == lengths.dtype
    np.testing.assert_array_equal(unpacked, lengths)


def test_arrays_of_another_owner_are_refused() -> None:
    packed = pack({"ids": np.arange(3)}, "stages/x/one")
    assert unpack_some(io.BytesIO(packed), ["ids"], "stages/x/one")[0].tolist() == [0, 1, 2]
    with pytest.raises(ValueError, match="ids has another hash"):
        unpack_some(io.BytesIO(packed), ["ids"], "stages/x/two")


@given(
    st.lists(st.none() | st.floats()),
    st.lists(st.none() | st.integers(-(2**63), 2**63 - 1)),
    st.lists(st.none() | st.text(max_size=3)),
)
@example([-0.0, None], [0, None], ["", None])
def test_numbers_and_texts_are_what_pyarrow_makes_of_them(
    numbers: list[float | None], whole: list[int | None], texts: list[str | None]
) -> None:
    for ours, expected in (
        (number_array(numbers, np.float64), pa.array(numbers, pa.float64())),
        (number_array(whole, np.int64), pa.array(whole, pa.int64())),
        (text_array(texts), pa.array(texts, pa.large_string())),
    ):
        ours.validate(full=True)
        assert (ours.type, ours.null_count) == (expected.type, expected.null_count)
        # NaN differs from itself, and -0.0 does not from 0.0.
        assert list(map(repr, ours.to_pylist())) == list(map(repr, expected.to_pylist()))


columns = st.sampled_from([st.text(max_size=3), st.floats(), st.integers(-9, 9), st.booleans()]).flatmap(
    lambda values: st.lists(values | st.none(), min_size=3, max_size=3)
)


@settings(deadline=None, max_examples=examples(20))
@given(st.dictionaries(st.sampled_from("abcd"), columns, min_size=1))
def test_rows_are_the_bytes_that_arrow_makes_of_them(values_of: dict[str, list[Any]]) -> None:
    rows = [dict(zip(values_of, row, strict=True)) for row in zip(*values_of.values(), strict=True)]
    expected = io.BytesIO()
    pq.write_table(pa.Table.from_pylist(rows), expected)
    assert pack_rows(rows) == expected.getvalue()


def test_mapped_arrays_outlive_their_files_and_a_short_file_is_noticed(tmp_path: Path) -> None:
    store = LocalStore(tmp_path / "store").open()
    files, one = StageFiles(store, "token_counts", "key"), Fragment("one", "", 3)
    ids = np.arange(3000, dtype=np.uint16)
    files.put("one", {"lengths": np.array([1000] * 3), "ids": ids})
    mapped = list(files.mapped([one], "ids"))
    path = store.local(files.present()["one"])
    data = path.read_bytes()
    path.unlink()
    np.testing.assert_array_equal(mapped, [ids])
    for short in (data[:-1], data[:20], b""):
        path.write_bytes(short)
        with pytest.raises(DamagedFileError, match=r"one\..* is damaged"):
            list(files.mapped([one], "ids"))


# Few distinct words, so that ids collide in one word or both.
ids = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), max_size=12)


def test_words_keep_byte_order_and_round_trip() -> None:
    digests = hash_all([b"a", b"b", b"", b"a"])
    pairs = words(digests)
    assert to_bytes(pairs) == digests
    assert (pairs[0] == pairs[3]).all()
    by_words = np.lexsort((pairs[:, 1], pairs[:, 0])).tolist()
    by_bytes = sorted(range(4), key=lambda at: digests[16 * at : 16 * at + 16])
    assert by_words == by_bytes


@given(pairs=ids)
def test_distinct_ids_come_in_the_order_of_their_first_occurrence(pairs: list[tuple[int, int]]) -> None:
    result = distinct(np.array(pairs, np.uint64).reshape(-1, 2))
    assert [pairs[at] for at in result.first] == list(dict.fromkeys(pairs))
    assert result.first.tolist() == sorted(result.first.tolist())
    assert [pairs[result.first[at]] for at in result.inverse] == pairs


HALVES = st.sampled_from([0, 1, 1 << 62, (1 << 63) - 1, 1 << 63, (1 << 64) - 1])


@given(
    st.lists(st.tuples(HALVES, HALVES), unique=True), st.lists(st.tuples(HALVES, HALVES)), st.integers(0, 99)
)
def test_places_are_those_of_a_dict(
    known: list[tuple[int, int]], wanted: list[tuple[int, int]], others: int
) -> None:
    ids = np.array(known, np.uint64).reshape(-1, 2)
    ids = np.concatenate([ids, words(hash_all([b"%d" % number for number in range(others)]))])
    queries = np.concatenate([np.array(wanted, np.uint64).reshape(-1, 2), ids[::-2]])
    twin = {tuple(pair): at for at, pair in enumerate(ids.tolist())}
    assert places(queries, ids).tolist() == [twin.get(tuple(pair), -1) for pair in queries.tolist()]
