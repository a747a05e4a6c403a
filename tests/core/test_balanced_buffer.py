"""The balanced buffer: each item once, the best of those that are held, none for ever, and nothing that drifts."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dagster_divorder.core.kernels import order_buffer
from dagster_divorder.core.kernels.order_baselines import through_buffer
from dagster_divorder.core.kernels.order_buffer import (
    MOST,
    MOST_WAIT,
    NORM_CLASSES,
    SELF_WEIGHT,
    BufferMix,
    pass_through,
)
from dagster_divorder.core.order import order
from dagster_divorder.core.order.balanced_buffer import empty_slots, empty_sums, keep
from dagster_divorder.core.order.items import document_items
from tests.conftest import examples
from tests.twins.balanced_buffer import largest_regret

laws = settings(max_examples=examples(25), deadline=None)


def through(
    rows: np.ndarray,
    groups: np.ndarray,
    weights: np.ndarray,
    target: np.ndarray,
    capacity: int,
    *,
    dense: np.ndarray | None = None,
    norm: int = -1,
    parts: int = 1,
) -> list[int]:
    """Dense rows through the kernel, in so many calls."""
    from scipy.sparse import csr_matrix

    counts = csr_matrix(rows)
    dense = np.zeros((len(rows), 0)) if dense is None else dense
    slots = empty_slots(capacity, rows.shape[1] + 1, len(weights), dense.shape[1])
    sums = empty_sums(len(groups), dense.shape[1])
    mix = BufferMix(groups.astype(np.int32), weights, target, norm, keep(capacity), 7)
    made: list[int] = []
    for at, queue in enumerate(np.array_split(np.arange(len(rows)), parts)):
        out = np.empty(len(queue) + capacity, np.int64)
        matrix = counts.indptr.astype(np.int64), counts.indices, counts.data
        going = pass_through(queue, *matrix, dense, mix, slots, sums, at == parts - 1, out)
        made += out[:going].tolist()
    return made


@laws
@given(data=st.data())
def test_what_goes_is_the_best_of_what_is_held(data: st.DataObject) -> None:
    random = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    items, capacity = data.draw(st.integers(1, 60)), data.draw(st.integers(1, 20))
    sizes = data.draw(st.lists(st.integers(1, 4), min_size=1, max_size=3))
    groups = np.repeat(np.arange(len(sizes)), sizes)
    weights = random.uniform(0.5, 2, len(sizes))
    rows = random.integers(0, 5, (items, len(groups))) * (random.random((items, len(groups))) < 0.5)
    if data.draw(st.booleans()):
        # One value of each group, as labels are.
        rows = np.zeros_like(rows)
        for group in range(len(sizes)):
            chosen = random.choice(np.flatnonzero(groups == group), items)
            rows[np.arange(items), chosen] = random.integers(0, 9, items)
    rows = rows.astype(float)
    target = np.full(len(groups), np.nan)
    known = random.random(len(sizes)) < 0.5
    for group in np.flatnonzero(known):
        target[groups == group] = random.dirichlet(np.ones(sizes[group]))
    dense = random.normal(size=(items, data.draw(st.integers(0, 2))))
    norms = None
    if data.draw(st.booleans()):
        norms = (len(groups), NORM_CLASSES)
        groups = np.append(groups, np.full(NORM_CLASSES, len(sizes)))
        weights, target = np.append(weights, 0.3), np.append(target, np.full(NORM_CLASSES, np.nan))
        rows = np.hstack([rows, np.zeros((items, NORM_CLASSES))])
    norm = -1 if norms is None else norms[0]
    made = through(rows, groups, weights, target, capacity, dense=dense, norm=norm)
    assert sorted(made) == list(range(items))
    regret = largest_regret(
        made, rows, groups, weights, target, capacity=capacity, keep=keep(capacity), most_wait=MOST_WAIT, most=MOST,
        self_weight=SELF_WEIGHT, norms=norms, dense=dense,
    )  # fmt: skip
    assert regret < 1e-9
    place = np.argsort(made)
    assert (place - np.arange(items) <= MOST_WAIT * capacity).all()
    parts = data.draw(st.integers(1, 7))
    assert made == through(rows, groups, weights, target, capacity, dense=dense, norm=norm, parts=parts)


def test_the_twin_sees_another_choice() -> None:
    rows = np.eye(2)[np.random.default_rng(0).integers(0, 2, 60)]
    given = {"capacity": 10, "keep": keep(10), "most_wait": 8, "most": MOST, "self_weight": SELF_WEIGHT}
    groups, weights, target = np.zeros(2, int), np.ones(1), np.array([0.5, 0.5])
    made = through(rows, groups, weights, target, 10)
    assert largest_regret(made, rows, groups, weights, target, **given) < 1e-9
    first_in_first_out = list(range(60))
    assert largest_regret(first_in_first_out, rows, groups, weights, target, **given) > 0.1
    # One that nobody wants has to go in the end.
    rows = np.eye(3)[np.append(2, np.zeros(60, int))]
    arguments = (rows, np.zeros(3, int), np.ones(1), np.array([1.0, 0, 0]))
    made = through(*arguments, 4)
    assert made.index(0) == MOST_WAIT * 4 == 32
    assert largest_regret(made, *arguments, **given | {"capacity": 4, "keep": keep(4)}) < 1e-9
    late = [*made[:32], *made[33:40], 0, *made[40:]]
    assert largest_regret(late, *arguments, **given | {"capacity": 4, "keep": keep(4)}) == np.inf


def batches_stray(made: np.ndarray, labels: np.ndarray, batch: int = 256) -> np.ndarray:
    """Total variation of each batch's labels from the whole's."""
    values = int(labels.max()) + 1
    whole = np.bincount(labels, minlength=values) / len(labels)
    parts = labels[made][: len(made) // batch * batch].reshape(-1, batch)
    shares = np.stack([np.bincount(part, minlength=values) for part in parts]) / batch
    return 0.5 * np.abs(shares - whole).sum(axis=1)


def labels_of(stream: str, items: int = 20_000, values: int = 30) -> np.ndarray:
    random = np.random.default_rng(3)
    share = 1 / np.arange(1, values + 1)
    drawn = random.choice(values, items, p=share / share.sum())
    if stream == "in blocks":
        return drawn[: items // 16].repeat(16)
    return np.sort(drawn) if stream == "sorted" else drawn


@pytest.mark.parametrize(("stream", "at_most"), [("shuffled", 0.4), ("in blocks", 0.8), ("sorted", 1.01)])
def test_batches_stray_less_than_behind_a_shuffle_buffer(stream: str, at_most: float) -> None:
    labels = labels_of(stream)
    shuffled = through_buffer(np.random.default_rng(0).random(len(labels)), 1024)
    rows = np.eye(labels.max() + 1)[labels]
    made = through(rows, np.zeros(rows.shape[1], int), np.ones(1), np.full(rows.shape[1], np.nan), 1024)
    ours, theirs = batches_stray(np.array(made), labels), batches_stray(shuffled, labels)
    assert ours.mean() < at_most * theirs.mean()
    # The end of the stream is no heap of leftovers.
    assert ours[-4:].max() < 1.1 * theirs.max()


def test_a_debt_that_cannot_be_paid_is_forgotten() -> None:
    """A value that was missing for long does not come in a clump once it is there."""
    labels = np.concatenate([np.zeros(4000, int), np.tile([0, 1], 2000)])
    rows = np.eye(2)[labels]
    made = np.array(through(rows, np.zeros(2, int), np.ones(1), np.array([0.5, 0.5]), 200))
    share = np.convolve(labels[made], np.ones(50) / 50, "valid")
    assert share.max() < 0.75


@pytest.mark.slow
def test_the_strategy_drifts_in_no_length_and_keeps_the_mix() -> None:
    random = np.random.default_rng(0)
    tokens = np.rint(random.lognormal(5, 1.0, 6000)).astype(int) + 1
    topic = random.integers(0, 12, 6000)
    items = document_items(tokens, {"topic": topic})
    made = order(items.counts, items.groups, weights=items.weights, strategy="balanced_buffer", buffer=512)
    shuffled = random.permutation(6000)
    of_tenths = tokens[made].reshape(10, -1).mean(axis=1)
    assert np.ptp(of_tenths) < 1.5 * np.ptp(tokens[shuffled].reshape(10, -1).mean(axis=1))
    assert batches_stray(made, topic, 64).mean() < 0.6 * batches_stray(shuffled, topic, 64).mean()


def test_lots_differ_by_seed_and_item() -> None:
    lots = {int(order_buffer._lot(seed, number)) for seed in range(20) for number in range(200)}
    assert len(lots) == 4000


def test_parts_change_nothing_where_scores_are_equal_but_for_rounding() -> None:
    random = np.random.default_rng(0)
    weights = np.append(random.uniform(0.5, 2, 1), 0.3)
    rows = random.integers(0, 5, (58, 2)) * (random.random((58, 2)) < 0.5)
    groups = np.append([0, 0], np.ones(NORM_CLASSES, np.int64))
    rows = np.hstack([rows.astype(float), np.zeros((58, NORM_CLASSES))])
    random.random(1)
    random.normal(size=(58, 0))
    for target in (np.full(len(groups), np.nan), np.append([0.3, 0.7], np.full(NORM_CLASSES, np.nan))):
        dense = np.zeros((58, 0))
        whole = through(rows, groups, weights, target, 2, dense=dense, norm=2)
        for parts in range(2, 30):
            assert whole == through(rows, groups, weights, target, 2, dense=dense, norm=2, parts=parts)
