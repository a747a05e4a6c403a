"""The balanced buffer: each item once, the best of those that are held, none for ever, and nothing that drifts."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.sparse import csr_matrix

from dagster_divorder.core.kernels.order_buffer import MOST_WAIT, NORM_CLASSES, empty_buffer, pass_through
from tests.conftest import examples
from tests.twins.balanced_buffer import largest_regret

laws = settings(max_examples=examples(25), deadline=None)


def with_norms(rows: np.ndarray, groups: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Rows and groups with the values of norms, which come first and are the last group."""
    norms = np.full(NORM_CLASSES, groups.max(initial=-1) + 1)
    return np.hstack([np.zeros((len(rows), NORM_CLASSES)), rows]), np.concatenate([norms, groups])


def through(
    rows: np.ndarray, groups: np.ndarray, weights: np.ndarray, capacity: int, parts: int = 1
) -> list[int]:
    """Dense rows, without norms, through the kernel, in so many calls. weights: of groups, norms' included."""

    rows, groups = with_norms(rows, groups)
    buffer, room = empty_buffer(capacity, weights.tolist(), 7), (capacity, rows.shape[1] + 1)
    buffer = buffer._replace(
        groups=groups.astype(np.int32),
        **{name: np.zeros(len(groups)) for name in ("deviation", "seen", "held")},
        value=np.zeros(room, np.int32),
        amount=np.zeros(room),
    )
    made: list[int] = []
    for at, part in enumerate(np.array_split(np.arange(len(rows)), parts)):
        counts, out = csr_matrix(rows[part]), np.empty(len(part) + capacity, np.int64)
        ended = at == parts - 1
        going = pass_through(counts.indptr.astype(np.int64), counts.indices, counts.data, buffer, ended, out)
        made += out[:going].tolist()
    return made


@laws
@given(data=st.data())
def test_what_goes_is_the_best_of_what_is_held(data: st.DataObject) -> None:
    random = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    items, capacity = data.draw(st.integers(1, 60)), data.draw(st.integers(1, 20))
    sizes = data.draw(st.lists(st.integers(1, 4), min_size=1, max_size=3))
    groups = np.repeat(np.arange(len(sizes)), sizes)
    weights = np.append(random.uniform(0.5, 2, len(sizes)), 0.3)
    rows = random.integers(0, 5, (items, len(groups))) * (random.random((items, len(groups))) < 0.5)
    if data.draw(st.booleans()):
        # One value of each group, as labels are.
        rows = np.zeros_like(rows)
        for group in range(len(sizes)):
            chosen = random.choice(np.flatnonzero(groups == group), items)
            rows[np.arange(items), chosen] = random.integers(0, 9, items)
    rows = rows.astype(float)
    made = through(rows, groups, weights, capacity)
    assert sorted(made) == list(range(items))
    assert largest_regret(made, *with_norms(rows, groups), weights, capacity) < 1e-9
    place = np.argsort(made)
    assert (place - np.arange(items) <= MOST_WAIT * capacity).all()
    assert made == through(rows, groups, weights, capacity, data.draw(st.integers(1, 7)))


def test_parts_change_nothing_where_scores_are_equal_but_for_rounding() -> None:
    random = np.random.default_rng(0)
    weights = np.append(random.uniform(0.5, 2, 1), 0.3)
    rows = (random.integers(0, 5, (58, 2)) * (random.random((58, 2)) < 0.5)).astype(float)
    whole = through(rows, np.zeros(2, int), weights, 2)
    for parts in range(2, 30):
        assert whole == through(rows, np.zeros(2, int), weights, 2, parts)
