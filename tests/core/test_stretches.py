"""Windows, prefixes and seams compared with the mix of their stretch, token by token; distances to a schedule."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dagster_divorder.core import measure
from dagster_divorder.core.measure.stretches import off_schedule, shuffled_inside
from tests.conftest import examples
from tests.twins.metrics import stretch_gaps

LENGTH, BATCH = 3, 2
WINDOW = LENGTH * BATCH

documents = st.lists(
    st.tuples(st.integers(0, 12), st.integers(0, 2), st.integers(0, 2)), min_size=1, max_size=15
)


@given(rows=documents, epochs=st.integers(1, 3))
@settings(max_examples=examples(60), deadline=None)
def test_all_measures_equal_their_twin(rows, epochs):
    """Also those of one stretch, which is compared with the mix of the whole."""
    tokens, codes, stretch = np.array(sorted(rows, key=lambda row: row[2]), np.int64).T
    random = np.random.default_rng(len(rows))
    orders = [shuffled_inside(stretch, random) for _ in range(epochs)]
    found = measure.measure(
        orders[0],
        tokens,
        {"cluster": codes},
        {"cluster": 3},
        sequence_length=LENGTH,
        batch=BATCH,
        next_epochs=orders[1:],
        stretch=stretch,
    )
    first, *_ = each = [
        stretch_gaps(tokens[order], codes[order].astype(np.int32), stretch[order], 3) for order in orders
    ]
    total = len(first)
    assert found.tokens == total
    batches = [np.abs(first[at : at + WINDOW].sum(axis=0)).sum() / 2 for at in range(0, total, WINDOW)]
    assert found.batch_tv["cluster"] == pytest.approx(np.array(batches)[: total // WINDOW] / WINDOW)
    off = [np.linalg.norm(first[:end].sum(axis=0)) for end in [*range(LENGTH, total, LENGTH), total]]
    assert found.prefix.max == pytest.approx(max(off) if total else 0.0, abs=1e-6)

    def worst(gaps: np.ndarray, size: int) -> float:
        return (
            max(np.abs(gaps[at : at + size].sum(axis=0)).max() for at in range(len(gaps) - size + 1)) / size
        )

    history = np.concatenate(each)
    for name, size in (("sequence", LENGTH), ("batch", WINDOW)):
        if len(history) > size:
            reached = found.windows[name]["cluster"]
            assert reached.worst == pytest.approx(worst(history, size), abs=1e-9)
            assert reached.worst * size == pytest.approx(
                np.abs(history[reached.worst_start : reached.worst_start + size].sum(axis=0)).max(), abs=1e-9
            )
    if total <= WINDOW:
        return
    seams = [
        np.concatenate([one[-WINDOW:], next_[:WINDOW]])
        for one, next_ in zip(each, [*each[1:], first], strict=True)
    ]
    across = found.seam["cluster"]
    assert across.worst == pytest.approx(max(worst(gaps, WINDOW) for gaps in seams), abs=1e-9)
    apart = [np.abs(gaps[WINDOW:].sum(axis=0) - gaps[:WINDOW].sum(axis=0)).sum() / 2 for gaps in seams]
    assert across.head_tail == pytest.approx(np.mean(apart) / WINDOW, abs=1e-9)


def test_shuffles_stay_inside_their_stretch():
    stretch = np.repeat([0, 1, 2], [5, 1, 300])
    made = shuffled_inside(stretch, np.random.default_rng(0))
    assert sorted(made) == list(range(306)) and (stretch[made] == stretch).all()
    assert abs(np.corrcoef(made[6:], np.arange(300))[0, 1]) < 0.2


def test_the_distance_to_a_schedule_is_that_of_the_batches_means_by_token():
    rank, tokens = np.array([0.1, 0.3, np.nan, 0.9, np.nan]), np.array([1, 3, 50, 2, 7])
    # Means 0.25 and 0.9, of 4 and 2 tokens; the last batch has no rank.
    off = off_schedule(rank, tokens, np.array([0.2, 0.6, 0.9]), np.array([0, 2, 4, 5]))
    assert off == pytest.approx((0.05 * 4 + 0.3 * 2) / 6)
