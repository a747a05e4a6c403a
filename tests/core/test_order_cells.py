"""Items moved between cells: the sum of squares as defined, each item where it is least, and nothing out of range."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.sparse import csr_matrix

from dagster_divorder.core.kernels.order_cells import move_to_mix
from dagster_divorder.core.kernels.order_greedy import SparseItems
from tests.conftest import examples


@given(
    seed=st.integers(0, 10_000),
    items=st.integers(0, 25),
    cells=st.integers(1, 5),
    dims=st.integers(0, 2),
    rounds=st.integers(1, 3),
)
@settings(max_examples=examples(25), deadline=None)
def test_moving_equals_trying_every_cell(seed, items, cells, dims, rounds):
    random = np.random.default_rng(seed)
    rows = random.integers(0, 9, (items, 4)) * (random.random((items, 4)) < 0.6) * 1.0
    dense = random.standard_normal((items, dims)).astype(np.float32)
    weights = random.random(4) + 0.1
    wanted = np.cumsum(random.random((4, cells)), axis=1) * rows.sum(axis=0)[:, np.newaxis]
    first = random.integers(0, cells, items)
    end = random.integers(first, cells) + 1
    cell = random.integers(first, end)
    queue = random.permutation(items)

    def beyond(cell: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        inside = (cell[:, np.newaxis] <= np.arange(cells)).astype(float)
        return rows.T @ inside - wanted, dense.astype(float).T @ inside

    def squares(cell: np.ndarray) -> float:
        values, coordinates = beyond(cell)
        return float((weights @ values**2).sum() + (coordinates**2).sum())

    slow = cell.copy()
    for item in np.tile(queue, rounds):
        tried = {}
        for to in range(first[item], end[item]):
            there = slow.copy()
            there[item] = to
            tried[to] = squares(there)
        slow[item] = min(tried, key=lambda to: (round(tried[to], 6), to != slow[item]))

    matrix, fast, kept = csr_matrix(rows), cell.copy(), beyond(cell)
    move_to_mix(
        queue,
        fast,
        np.stack([first, end], axis=1),
        SparseItems(
            matrix.indptr.astype(np.int64),
            matrix.indices,
            matrix.data,
            np.arange(4, dtype=np.int32),
            weights,
            dense,
        ),
        *(np.ascontiguousarray(part) for part in kept),
        rounds,
    )
    assert (first <= fast).all()
    assert (fast < end).all()
    # Of equal cells either may be taken.
    assert squares(fast) <= squares(cell) + 1e-6
    if dims:
        assert fast.tolist() == slow.tolist()
