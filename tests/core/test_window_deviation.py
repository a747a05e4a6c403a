"""The certificate: worst and mean deviation over every window position, against exact fractions and by hand."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose
from scipy.sparse import csr_array, csr_matrix

from dagster_divorder.core import metrics
from dagster_divorder.core.items import document_items
from dagster_divorder.core.metrics.window_deviation import windows_in_stream
from dagster_divorder.errors import InputError
from tests.twins import metrics as slow

laws = settings(max_examples=150, deadline=None)


@st.composite
def item_rows(draw, in_tokens=True):
    """(counts (items, J), groups (J,), an order that may repeat and leave out items), group 0 in tokens."""
    sizes = draw(st.lists(st.integers(1, 4), min_size=1, max_size=3))
    items = draw(st.integers(1, 8))
    rows = []
    for _ in range(items):
        first = draw(st.lists(st.sampled_from([0, 0, 1, 2, 7, 40]), min_size=sizes[0], max_size=sizes[0]))
        row = [*first]
        for size in sizes[1:]:
            if in_tokens:  # the same tokens, cut at other places
                cuts = sorted(
                    draw(st.lists(st.integers(0, sum(first)), min_size=size - 1, max_size=size - 1))
                )
                row += np.diff([0, *cuts, sum(first)]).tolist()
            else:
                row += draw(st.lists(st.integers(0, 3), min_size=size, max_size=size))
        rows.append(row)
    columns = draw(st.permutations(range(sum(sizes))))
    groups = np.repeat(np.arange(len(sizes)), sizes)[columns]
    order = draw(st.lists(st.integers(0, items - 1), max_size=14))
    return np.array(rows)[:, columns], groups, np.array(order, np.int64)


window_sizes = st.one_of(st.integers(1, 12), st.sampled_from([40, 80, 200]))


def check(corpus, window):
    counts, groups, order = corpus
    lengths = counts[:, groups == 0].sum(axis=1)
    found = metrics.window_deviation(order, csr_matrix(counts), groups, window)
    assert len(found) == groups.max() + 1
    total = int(lengths[order].sum())
    if total <= window:
        assert {(one.worst, one.mean, one.worst_tv, one.mean_tv) for one in found} == {(0, 0, 0, 0)}
        assert {one.partial for one in found} == {0 < total < window}
        return
    starts, twins = slow.sliding_windows(order.tolist(), counts.tolist(), groups.tolist(), window)
    at = np.array(starts, float)
    for one, (worst, tv) in zip(found, twins, strict=True):
        assert one.positions == total - window + 1 and not one.partial
        worst, tv = np.array(worst, float), np.array(tv, float)
        assert_allclose([one.worst, one.worst_tv], [worst.max(), tv.max()], atol=1e-12)
        means = [np.trapezoid(values, at) / at[-1] for values in (worst, tv)]
        assert_allclose([one.mean, one.mean_tv], means, atol=1e-12)
        assert_allclose(worst[starts.index(one.worst_start)], worst.max(), atol=1e-12)


@laws
@given(item_rows(), window_sizes)
def test_it_equals_its_twin(corpus, window):
    check(corpus, window)


@laws
@given(item_rows(in_tokens=False), window_sizes)
def test_groups_in_other_units_equal_their_twin(corpus, window):
    check(corpus, window)


documents = st.lists(
    st.tuples(st.integers(0, 30), st.integers(0, 3), st.integers(0, 2)), min_size=1, max_size=20
)


@laws
@given(documents, st.integers(1, 40))
def test_no_window_of_single_tokens_strays_further(rows, window):
    """Every token written out, every window looked at: the worst is attained, and the mean bounded from above."""
    tokens, labels, _ = (np.array(column, np.int64) for column in zip(*rows, strict=True))
    stream = np.repeat(labels, tokens)
    if len(stream) <= window:
        return
    before = np.cumsum(np.vstack([np.zeros(4), np.eye(4)[stream]]), axis=0)
    gaps = np.abs((before[window:] - before[:-window]) / window - before[-1] / len(stream))
    found = windows_in_stream(tokens, labels.astype(np.int32), 4, window)
    assert found.positions == len(gaps)
    assert_allclose(found.worst, gaps.max(), atol=1e-12)
    assert_allclose(found.worst_tv, gaps.sum(axis=1).max() / 2, atol=1e-12)
    assert_allclose(found.worst, gaps[found.worst_start].max(), atol=1e-12)
    # Trapezoid sums of the same convex pieces: finer ones are lower.
    for mean, values in ((found.mean, gaps.max(axis=1)), (found.mean_tv, gaps.sum(axis=1) / 2)):
        assert mean >= np.trapezoid(values) / (len(gaps) - 1) - 1e-12


@laws
@given(documents, st.integers(1, 40))
def test_documents_are_items_of_one_value(rows, window):
    tokens, labels, lengths = (np.array(column, np.int64) for column in zip(*rows, strict=True))
    n = len(rows)
    of = csr_matrix(
        (tokens.repeat(2), np.stack([labels, 4 + lengths], axis=1).ravel(), np.arange(n + 1) * 2), (n, 7)
    )
    one, two = metrics.window_deviation(np.arange(n), of, np.repeat([0, 1], [4, 3]), window)
    for found, codes, j in ((one, labels, 4), (two, lengths, 3)):
        fast = vars(windows_in_stream(tokens, codes.astype(np.int32), j, window))
        start, slow_start = fast.pop("worst_start"), found.worst_start
        assert fast == pytest.approx({name: vars(found)[name] for name in fast}, abs=1e-12)
        # Ties within rounding may fall either way.
        assert start == slow_start or found.worst > 0


@laws
@given(documents, st.integers(1, 40))
def test_aligned_windows_are_among_all_windows(rows, window):
    tokens, labels, lengths = (np.array(column, np.int64) for column in zip(*rows, strict=True))
    for codes, j in ((labels, 4), (lengths, 3)):
        one = windows_in_stream(tokens, codes.astype(np.int32), j, window)
        aligned = metrics.share_deviation(np.arange(len(rows)), tokens, codes, j, window)
        assert aligned.max_worst <= one.worst + 1e-12 and aligned.max_tv <= one.worst_tv + 1e-12
        assert aligned.partial == one.partial


def test_by_hand():
    # Tokens 0 0 0 1 1 2 2 2 2 0 with shares 0.4, 0.2, 0.4; windows of five start at 0..5. Worst deviations: 0.4 (no 2),
    # 0.2, then, from the third token on, at most 0.4 again: 2 2 2 2 0 and 1 2 2 2 2 hold four of five.
    counts = csr_matrix([[3, 0, 0], [0, 2, 0], [0, 0, 4], [1, 0, 0]])
    (found,) = metrics.window_deviation([0, 1, 2, 3], counts, [0, 0, 0], 5)
    assert (found.positions, found.worst_start, found.partial) == (6, 0, False)
    assert_allclose([found.worst, found.worst_tv], 0.4)
    # Breakpoints 0, 3, 4, 5: 0.4, 0.4, 0.4, 0.4.
    assert_allclose(found.mean, 0.4)


def test_the_worst_window_lies_between_the_aligned_ones():
    # 0 1 1 0 repeated: aligned pairs are all mixed, the pairs across are 1 1 and 0 0.
    codes = np.tile(np.array([0, 1, 1, 0], np.int32), 5)
    tokens = np.ones(20, np.int64)
    assert metrics.share_deviation(np.arange(20), tokens, codes, 2, 2).max_worst == 0.0
    found = windows_in_stream(tokens, codes, 2, 2)
    assert (found.worst, found.worst_start, found.mean) == (0.5, 1, 0.25)


def test_windows_run_across_the_seam_of_epochs():
    counts = csr_matrix(np.eye(2, dtype=np.int64)[[0, 1, 0, 1]])
    good, turned = [0, 1, 2, 3], [1, 0, 3, 2]
    (once,) = metrics.window_deviation(good, counts, [0, 0], 2)
    (again,) = metrics.window_deviation(good + good, counts, [0, 0], 2)
    (seam,) = metrics.window_deviation(good + turned, counts, [0, 0], 2)
    assert (once.worst, once.positions) == (0.0, 3)
    assert (again.worst, again.positions) == (0.0, 7)
    assert (seam.worst, seam.worst_start) == (0.5, 3)


@pytest.mark.parametrize("factor", [10**3, 10**12])
def test_trillions_of_tokens_are_counted_exactly(factor):
    rng = np.random.default_rng(0)
    tokens, codes = rng.integers(1, 50, 200), rng.integers(0, 5, 200).astype(np.int32)
    one = windows_in_stream(tokens, codes, 5, 333)
    many = windows_in_stream(tokens * factor, codes, 5, 333 * factor)
    assert many.positions == (one.positions - 1) * factor + 1
    assert many.worst_start == one.worst_start * factor
    for name in ("worst", "mean", "worst_tv", "mean_tv"):
        assert_allclose(getattr(many, name), getattr(one, name), rtol=1e-12)


def test_total_variation_does_not_drift_over_many_steps():
    rng = np.random.default_rng(1)
    codes = rng.permutation(np.arange(200_000, dtype=np.int32) % 7)
    found = windows_in_stream(np.full(200_000, 3), codes, 7, 30)
    blocks = np.cumsum(np.vstack([np.zeros(7), np.eye(7)[codes]]), axis=0)
    tv = np.abs((blocks[10:] - blocks[:-10]) / 10 - 1 / 7 - (blocks[-1] / 200_000 - 1 / 7)).sum(axis=1) / 2
    assert_allclose(found.mean_tv, np.trapezoid(tv) / (len(tv) - 1), atol=1e-13)
    assert_allclose(found.worst_tv, tv.max(), atol=1e-13)


def test_the_arguments_of_order_serve_here_too():
    """Documents as `order` takes them, in tokens and in documents, measured group by group."""
    rng = np.random.default_rng(2)
    tokens, labels = rng.integers(0, 90, 400), np.sort(rng.integers(0, 6, 400))
    items = document_items(tokens, {"cluster": labels})
    shuffle = rng.permutation(400)
    before = metrics.window_deviation(np.arange(400), items.counts, items.groups, 500)
    after = metrics.window_deviation(shuffle, items.counts, items.groups, 500)
    assert len(before) == len(items.weights)
    in_tokens, in_documents = before[0], before[1]
    assert in_tokens.worst > 0.7 and in_documents.worst > 0.7
    assert after[0].mean < in_tokens.mean / 2 and after[1].mean < in_documents.mean / 2


@pytest.mark.parametrize("window", [10, 11], ids=["exactly one window", "shorter than a window"])
def test_a_whole_of_one_window_deviates_by_nothing(window):
    (found,) = metrics.window_deviation([0, 1], csr_matrix([[4, 0], [0, 6]]), [0, 0], window)
    assert (found.positions, found.worst, found.mean, found.worst_start) == (1, 0.0, 0.0, 0)
    assert found.partial == (window == 11)


@pytest.mark.parametrize("counts", [np.zeros((0, 2)), np.zeros((3, 2))], ids=["no item", "no token"])
def test_nothing_to_measure_gives_zeros(counts):
    (found,) = metrics.window_deviation(np.arange(len(counts)), csr_matrix(counts.astype(int)), [0, 0], 4)
    assert (found.positions, found.worst, found.worst_start, found.partial) == (0, 0.0, -1, False)
    assert metrics.window_deviation([], csr_matrix((0, 0), dtype=np.int64), np.zeros(0, int), 4) == ()


def test_every_kind_of_sparse_row_gives_the_same():
    dense = np.array([[3, 0, 1], [0, 2, 0], [5, 0, 0]])
    order, groups = [2, 0, 1, 1], [0, 0, 0]
    expected = metrics.window_deviation(order, csr_matrix(dense), groups, 4)
    doubled = csr_matrix(([1, 2, 1, 2, 5], ([0, 0, 0, 1, 2], [0, 0, 2, 1, 0])))
    for counts in (csr_array(dense), csr_matrix(dense.astype(np.uint8)), csr_matrix(dense * 1.0), doubled):
        assert metrics.window_deviation(order, counts, groups, 4) == expected


def test_the_ideal_of_shuffled_tokens():
    rng = np.random.default_rng(3)
    p, n = np.array([0.5, 0.3, 0.2]), 1000
    drawn = rng.multinomial(n, p, 20_000) / n - p
    largest, tv = metrics.shuffled_tokens(p, n)
    assert_allclose(np.abs(drawn).mean(axis=0).max(), largest, rtol=0.02)
    assert_allclose(np.abs(drawn).sum(axis=1).mean() / 2, tv, rtol=0.02)
    assert np.abs(drawn).max(axis=1).mean() >= largest
    assert metrics.shuffled_tokens([1.0], n) == (0.0, 0.0)


EYE = csr_matrix(np.eye(2, dtype=np.int64))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: metrics.window_deviation([2], EYE, [0, 0], 1), "names item 2; there are 2"),
        (lambda: metrics.window_deviation([-1], EYE, [0, 0], 1), "names item -1"),
        (lambda: metrics.window_deviation([0], EYE, [0, 0], 0), "window_tokens is 0"),
        (lambda: metrics.window_deviation([0], np.eye(2), [0, 0], 1), "SciPy CSR"),
        (lambda: metrics.window_deviation([0], EYE * 0.5, [0, 0], 1), "holds fractions"),
        (lambda: metrics.window_deviation([0], EYE * np.inf, [0, 0], 1), "inf"),
        (lambda: metrics.window_deviation([0], -EYE, [0, 0], 1), "from -1 to -1"),
        (lambda: metrics.window_deviation([0], EYE * 2**61, [0, 0], 1), r"less than 2\*\*62"),
        (lambda: metrics.window_deviation([0], EYE, [0], 1), r"shape \(1,\)"),
        (lambda: metrics.window_deviation([0], EYE, [0, 2], 1), "every number"),
        (lambda: metrics.window_deviation([0], EYE, [0.0, 0.0], 1), "float64"),
    ],
)
def test_input_that_cannot_be_measured_is_refused_by_name(call, message):
    with pytest.raises(InputError, match=message):
        call()
