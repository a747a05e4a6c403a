"""Pools mixed by quotas: every beginning of the stream has them within one row, and the position is one number."""

from __future__ import annotations

import itertools
import pickle
from math import gcd
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dagster_divorder.errors import InputError
from dagster_divorder.readers.mixture import PERIOD, quotas
from dagster_divorder.torch import Mixture, SequenceStream
from tests.conftest import examples
from tests.readers.made import write_export

POOLS: dict[str, dict[str, Any]] = {
    "code": {"lengths": [8] * 5, "seed": 1},
    "prose": {"lengths": [5, 3, 6] * 4, "seed": 2, "epochs": 2},
    "books": {"lengths": [21, 2], "seed": 3, "method": "best_fit"},
}


@pytest.fixture(scope="module")
def pools(tmp_path_factory: pytest.TempPathFactory) -> dict[Path, list[Any]]:
    """Exports, and of each row in the order of the plan its documents' ids."""
    folder = tmp_path_factory.mktemp("pools")
    orders_of = {}
    for name, corpus in POOLS.items():
        own = {"length": 8, "end_of_text": False, "vocabulary": 1000, **corpus}
        orders_of[folder / name] = write_export(folder / name, "parquet", own, batch=4, plan=name)
    return orders_of


@settings(max_examples=examples(40), deadline=None)
@given(parts=st.lists(st.integers(1, 200), min_size=1, max_size=12))
def test_every_beginning_has_the_quotas_within_one(parts: list[int]) -> None:
    pools, period = np.array(quotas(parts)), sum(parts)
    counts = np.cumsum(pools[:, None] == np.arange(len(parts)), axis=0)
    ahead = counts * period - np.arange(1, period + 1)[:, None] * np.array(parts)
    assert np.abs(ahead).max() < period
    # The next period begins with nothing ahead or behind.
    assert counts[-1].tolist() == parts


@settings(max_examples=examples(15), deadline=None)
@given(
    weights=st.lists(st.integers(1, 12), min_size=3, max_size=3),
    sequences=st.integers(4, 80),
    ranks=st.sampled_from([1, 2, 4]),
    part=st.floats(0, 1),
)
def test_the_stream_takes_each_pool_in_its_own_order_and_goes_on_anywhere(
    pools: dict[Path, list[Any]], weights: list[int], sequences: int, ranks: int, part: float
) -> None:
    # Weights are proportions, whatever they sum to.
    mixture = Mixture({path: w / 4 for path, w in zip(pools, weights, strict=True)}, sequences=sequences)
    turns = itertools.cycle(quotas([weight // gcd(*weights) for weight in weights]))
    rows = [itertools.cycle(rows) for rows in pools.values()]
    expected = [next(rows[pool]) for pool in itertools.islice(turns, sequences)]
    assert documents(mixture, range(sequences)) == expected
    sample = np.random.default_rng(0).permutation(sequences)[:5].tolist()
    assert documents(pickle.loads(pickle.dumps(mixture)), sample) == [expected[at] for at in sample]
    stop = int(part * (sequences // 4)) * 4
    streams = [SequenceStream(mixture, rank=rank, world_size=ranks) for rank in range(ranks)]
    for stream in streams:
        stream.load_state_dict({"samples": stop, "plan": mixture.plan})
    for batches in zip(*streams, strict=True):
        read = [row for batch in batches for row in batch["input_ids"].tolist()]
        assert read == mixture.block(range(stop, stop + 4)).ids.tolist()
        stop += 4
    assert streams[0].state_dict() == {"samples": sequences // 4 * 4, "plan": mixture.plan}


def documents(mixture: Mixture, rows: Any) -> list[list[list[int]]]:
    """Of each row its documents' ids."""
    block = mixture.block(rows)
    lengths, counts = block.documents
    return [
        [part.tolist() for part in np.split(ids[: row_lengths.sum()], np.cumsum(row_lengths)[:-1])]
        for ids, row_lengths in zip(block.ids, np.split(lengths, np.cumsum(counts)[:-1]), strict=True)
    ]


def test_a_longer_stream_takes_the_states_of_a_shorter_one(pools: dict[Path, list[Any]]) -> None:
    code, prose, _ = pools
    mixture = Mixture({code: 0.9, prose: 0.1}, sequences=100)
    state = SequenceStream(mixture, rank=0, world_size=1).state_dict()
    SequenceStream(Mixture({code: 9, prose: 1}, sequences=200), rank=0, world_size=1).load_state_dict(state)
    other = SequenceStream(Mixture({code: 8, prose: 1}, sequences=200), rank=0, world_size=1)
    with pytest.raises(InputError, match="the state belongs to the plan"):
        other.load_state_dict(state)


def test_weights_of_a_large_denominator_are_rounded(pools: dict[Path, list[Any]]) -> None:
    weights = [12_345_679, 3, 87_654_321.5]
    with pytest.raises(InputError, match="prose is less than 1 / 100,000 of their sum"):
        Mixture(dict(zip(pools, weights, strict=True)), sequences=1)
    weights[1] = 2_000
    shares = Mixture(dict(zip(pools, weights, strict=True)), sequences=1).shares.values()
    assert sum(shares) == 1
    exact = [weight / sum(weights) for weight in weights]
    assert max(abs(float(share) - wanted) for share, wanted in zip(shares, exact, strict=True)) <= 1 / PERIOD
    assert [str(share) for share in Mixture(dict.fromkeys(pools, 0.1), sequences=1).shares.values()] == [
        "1/3"
    ] * 3


def test_pools_that_do_not_fit_are_refused(pools: dict[Path, list[Any]], tmp_path: Path) -> None:
    (code, *_), corpus = pools, POOLS["code"]
    write_export(tmp_path / "long", "parquet", corpus | {"length": 16})
    with pytest.raises(InputError, match="differ in tokens of a sequence: 8 and 16"):
        Mixture({code: 1, tmp_path / "long": 1}, sequences=1)
    own = {"vocabulary": 1000, "padding": 1, "xxh3_128": "ab"}
    write_export(tmp_path / "other", "parquet", corpus | {"length": 8}, tokenizer=own)
    with pytest.raises(InputError, match="differ in the tokenizer: None and ab"):
        Mixture({code: 1, tmp_path / "other": 1}, sequences=1)
    for weight in (0, -1.0, float("nan"), float("inf")):
        with pytest.raises(InputError, match="expected numbers above 0"):
            Mixture({code: weight}, sequences=1)
    with pytest.raises(InputError, match="a mixture of 0 pools"):
        Mixture({}, sequences=1)
    with pytest.raises(IndexError, match="has rows 0 to 2"):
        Mixture({code: 1}, sequences=3).block([3])
