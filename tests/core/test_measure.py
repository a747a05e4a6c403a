"""Measures of an order: worked examples, laws, and inputs at the edges."""

import json
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal

from dagster_divorder.core import measure
from dagster_divorder.core.measure.prefix import POINTS, PrefixDeviation, prefix_of, squares_in_stream
from dagster_divorder.core.measure.shares import ShareDeviation
from dagster_divorder.core.packing import Pieces, pack, sequence_counts
from dagster_divorder.errors import InputError
from tests.conftest import examples
from tests.twins import metrics as slow

# Four documents of 3, 2, 4 and 1 tokens: clusters 0 0 0 1 | 1 2 2 2 | 2 0 in sequences of 4.
TOKENS = [3, 2, 4, 1]
LABELS = [0, 1, 2, 0]
ORDER = [0, 1, 2, 3]

documents = st.lists(
    st.tuples(st.integers(0, 30), st.integers(0, 3), st.integers(0, 2)), min_size=1, max_size=25
)
laws = settings(max_examples=examples(25), deadline=None)


def measured(order, tokens, labels, lengths=None, *, sequence_length=4, batch=2) -> measure.Diversity:
    traits = {"cluster": labels, "length": labels if lengths is None else lengths}
    sizes = {name: int(np.max(codes, initial=0)) + 1 for name, codes in traits.items()}
    return measure.measure(order, tokens, traits, sizes, sequence_length=sequence_length, batch=batch)


def shares(order, tokens, codes, values: int, window: int) -> ShareDeviation:
    """Of one trait in aligned windows."""
    found = measure.measure(
        order, tokens, {"cluster": codes}, {"cluster": values}, sequence_length=window, batch=1
    )
    return found.sequence_shares["cluster"]


def prefix(order, tokens, groups: list, length: int) -> PrefixDeviation:
    traits = dict(zip(("cluster", "length"), groups, strict=False))
    sizes = {name: int(np.max(codes)) + 1 for name, codes in traits.items()}
    return measure.measure(order, tokens, traits, sizes, sequence_length=length, batch=1).prefix


def random_corpus(n: int, k: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    return rng.integers(0, 40, n), rng.integers(0, k, n).astype(np.int32)


# ---- worked examples


def test_the_worst_window_is_named():
    tokens, labels = [1] * 12, [0, 1, 0, 1, 0, 0, 1, 1, 0, 1, 0, 1]
    found = shares(np.arange(12), tokens, labels, 2, 2)
    assert (found.worst_window, found.max_worst, found.windows) == (2, 0.5, 6)


def test_prefix_deviation_adds_the_groups_as_squares():
    one = prefix(ORDER, TOKENS, [LABELS], 4)
    two = prefix(ORDER, TOKENS, [LABELS, LABELS], 4)
    assert_allclose(two.l2, np.sqrt(2) * one.l2)


def test_cluster_mix_splits_tokens_between_columns():
    # 0 0 0 1 1 2 2 2 2 0 in three columns of 3 1/3 tokens.
    assert_allclose(
        measure.cluster_mix(ORDER, TOKENS, LABELS, 3, 3),
        [[0.9, 0.1, 0.0], [0.0, 0.5, 0.5], [0.3, 0.0, 0.7]],
        rtol=1e-6,
    )


def test_measure_collects_every_measure():
    found = measured(ORDER, TOKENS, LABELS, [1, 0, 1, 0], batch=1)
    assert (found.documents, found.tokens) == (4, 10)
    assert found.split == measure.Distinct(mean=2.0, min=2, max=2, std=0.0, count=3)
    assert found.flush == measure.Distinct(mean=1.0, min=1, max=1, std=0.0, count=4)
    assert found.sequence_shares["cluster"] == shares(ORDER, TOKENS, LABELS, 3, 4)
    assert found.batch_shares["length"] == shares(ORDER, TOKENS, [1, 0, 1, 0], 2, 4)
    assert found.prefix.mean == prefix(ORDER, TOKENS, [LABELS, [1, 0, 1, 0]], 4).mean
    assert found.coverage == 0.6


# ---- laws


@laws
@given(documents, st.integers(1, 20), st.randoms(use_true_random=False))
def test_coverage_equals_its_twin(rows, sequence_length, random):
    tokens, labels, _ = (np.array(column) for column in zip(*rows, strict=True))
    order = random.sample(range(len(rows)), len(rows))
    assert measured(order, tokens, labels).coverage == slow.coverage(
        tokens[order], labels[order].astype(np.int32)
    )


@laws
@given(documents, st.integers(1, 20))
def test_names_of_clusters_do_not_matter(rows, sequence_length):
    tokens, labels, lengths = (np.array(column) for column in zip(*rows, strict=True))
    order = np.arange(len(rows))[::-1]
    renamed = np.array([2, 0, 3, 1])[labels]
    one = measured(order, tokens, labels, lengths, sequence_length=sequence_length).to_dict()
    two = measured(order, tokens, renamed, lengths, sequence_length=sequence_length).to_dict()
    for name in ("split", "flush", "coverage"):
        assert one[name] == two[name]
    assert_allclose(one["prefix"]["l2"], two["prefix"]["l2"], atol=1e-9)
    for name in ("mean_worst", "max_worst", "mean_tv", "max_tv"):
        assert_allclose(
            one["batch_shares"]["cluster"][name], two["batch_shares"]["cluster"][name], atol=1e-12
        )


@laws
@given(documents, st.integers(1, 20))
def test_worst_value_is_at_most_the_total_variation(rows, window):
    tokens, labels, _ = (np.array(column) for column in zip(*rows, strict=True))
    found = shares(np.arange(len(rows)), tokens, labels, 4, window)
    assert 0 <= found.mean_worst <= found.max_worst <= found.max_tv + 1e-12 <= 1 + 2e-12
    assert found.mean_worst <= found.mean_tv + 1e-12


@laws
@given(documents, st.integers(1, 20))
def test_the_prefix_deviation_bounds_every_window(rows, length):
    tokens, labels, _ = (np.array(column) for column in zip(*rows, strict=True))
    order = np.arange(len(rows))
    aligned = shares(order, tokens, labels, 4, length)
    if not aligned.partial:
        assert aligned.max_worst * length <= 2 * prefix(order, tokens, [labels], length).max + 1e-9


@laws
@given(documents, st.integers(1, 40))
def test_cluster_mix_rows_sum_to_one_and_average_to_the_corpus(rows, columns):
    tokens, labels, _ = (np.array(column) for column in zip(*rows, strict=True))
    mix = measure.cluster_mix(np.arange(len(rows)), tokens, labels, 4, columns)
    assert mix.shape == (columns, 4) and mix.dtype == np.float32
    if tokens.sum():
        assert_allclose(mix.sum(axis=1), 1.0, rtol=1e-6)
        corpus = np.bincount(labels, tokens, 4) / tokens.sum()
        assert_allclose(mix.mean(axis=0, dtype=np.float64), corpus, atol=1e-6)
    else:
        assert not mix.any()


@pytest.mark.parametrize("factor", [10**3, 10**11])
def test_shares_do_not_change_with_the_unit_of_length(factor):
    """Trillions of tokens: all lengths, sequences included, times 100 billion."""
    tokens, labels = random_corpus(300, 7)
    order = np.random.default_rng(1).permutation(300)
    one = measured(order, tokens, labels, sequence_length=50, batch=3)
    many = measured(order, tokens * factor, labels, sequence_length=50 * factor, batch=3)
    assert many.tokens == factor * one.tokens
    assert (one.split, one.flush) == (many.split, many.flush)
    assert one.sequence_shares == many.sequence_shares and one.batch_shares == many.batch_shares
    assert_allclose(many.prefix.l2, factor * one.prefix.l2, rtol=1e-9, atol=1e-6 * factor)
    assert_array_equal(
        measure.cluster_mix(order, tokens, labels, 7, 64),
        measure.cluster_mix(order, tokens * factor, labels, 7, 64),
    )


def test_an_order_of_a_part_is_measured_against_that_part():
    tokens, labels = random_corpus(40, 3)
    part = np.arange(10, 30)
    whole = measured(np.arange(20), tokens[part], labels[part])
    assert measured(part, tokens, labels).to_dict() == whole.to_dict()


def test_a_balanced_order_measures_better_than_blocks():
    labels = np.repeat(np.arange(5, dtype=np.int32), 200)
    tokens = np.full(1000, 10)
    blocks = measured(np.arange(1000), tokens, labels, sequence_length=100, batch=4)
    riffled = measured(
        np.arange(1000).reshape(5, 200).T.ravel(), tokens, labels, sequence_length=100, batch=4
    )
    assert (blocks.split.mean, riffled.split.mean) == (1.0, 5.0)
    assert riffled.batch_shares["cluster"].max_tv == 0.0 < blocks.batch_shares["cluster"].mean_tv
    assert riffled.prefix.max < blocks.prefix.max / 50
    assert (blocks.coverage, riffled.coverage) == (0.8001, 0.0041)


# ---- edges


@pytest.mark.parametrize(
    ("tokens", "labels"), [([], []), ([0, 0, 0], [0, 1, 0])], ids=["no document", "no token"]
)
def test_nothing_to_measure_gives_zeros(tokens, labels):
    order = np.arange(len(tokens))
    found = measured(order, np.array(tokens, np.int64), np.array(labels, np.int32))
    assert found.split == measure.Distinct(0.0, 0, 0, 0.0, 0)
    assert found.batch_shares["cluster"].windows == 0
    assert (found.prefix.mean, found.prefix.max, len(found.prefix.l2), found.coverage) == (0.0, 0.0, 0, 0.0)
    json.dumps(found.to_dict(), allow_nan=False)


def test_one_document_in_one_sequence_longer_than_everything():
    found = measured([0], [5], [0], sequence_length=10**15, batch=1000)
    assert found.split == measure.Distinct(1.0, 1, 1, 0.0, 1)
    one = found.batch_shares["cluster"]
    assert (one.windows, one.partial, one.max_worst, one.worst_window) == (1, True, 0.0, 0)
    assert (found.prefix.max, found.coverage) == (0.0, 0.2)
    assert not shares([0], [5], [0], 1, 5).partial


def test_the_curve_is_thinned_and_ends_at_the_end():
    tokens, labels = random_corpus(5000, 4)
    squares, total = squares_in_stream(tokens, labels, 4, 10), int(tokens.sum())
    found = prefix_of(squares, total, 10)
    ends = np.minimum(np.arange(10, total + 10, 10), total) / total
    assert len(ends) == len(squares) > 9 * POINTS
    assert len(found.share) == POINTS and found.share[-1] == 1.0 and found.l2[-1] == 0.0
    assert np.isin(found.share, ends).all() and (np.diff(found.share) > 0).all()
    assert np.ptp(np.diff(found.share)) <= 2 * ends[0]
    assert (found.mean, found.max) == (np.sqrt(squares).mean(), np.sqrt(squares).max())
    short = prefix_of(squares[-7:], 65, 10)
    assert short.share.tolist() == (np.array([10, 20, 30, 40, 50, 60, 65]) / 65).tolist()


def test_rows_are_flat_and_to_dict_is_json():
    found = measured(ORDER, TOKENS, LABELS)
    rows = found.rows()
    assert {tuple(row) for row in rows} == {("trait", "window", "measure", "value")}
    values = {(row["trait"], row["window"], row["measure"]): row["value"] for row in rows}
    assert len(values) == len(rows)
    assert values["cluster", "sequence (flush)", "distinct_count"] == 4
    assert values["length", "batch", "mean_tv"] == found.batch_shares["length"].mean_tv
    assert values["all", "prefix", "l2_max"] == found.prefix.max
    assert values["cluster", "corpus", "coverage"] == 0.6
    assert json.loads(json.dumps(found.to_dict()))["prefix"]["share"] == [0.4, 0.8, 1.0]


def test_average_is_the_mean_of_every_number():
    tokens, labels = random_corpus(200, 5)
    orders = [np.random.default_rng(seed).permutation(200) for seed in range(3)]
    found = [measured(order, tokens, labels, sequence_length=30) for order in orders]
    mean = measure.average(found)
    assert mean.split.mean == np.mean([d.split.mean for d in found])
    assert mean.flush.count == np.mean([d.flush.count for d in found])
    assert mean.split.count == found[0].split.count and isinstance(mean.split.count, int)
    worst = [d.batch_shares["cluster"].max_tv for d in found]
    assert_allclose(mean.batch_shares["cluster"].max_tv, np.mean(worst))
    assert mean.batch_shares["cluster"].worst_window == -1
    assert_allclose(mean.prefix.l2, np.mean([d.prefix.l2 for d in found], axis=0))
    assert_allclose(mean.coverage, np.mean([d.coverage for d in found]))
    json.dumps(mean.to_dict())


def test_orders_that_are_packed_apart_may_differ_by_a_batch():
    tokens, labels = random_corpus(200, 5)
    long = measured(np.arange(200), tokens, labels, sequence_length=30)
    fewer = {trait: replace(errors, batch=errors.batch[:, :-1]) for trait, errors in long.errors.items()}
    mean = measure.average([long, replace(long, errors=fewer)])
    ours, theirs = long.errors["cluster"], mean.errors["cluster"]
    assert theirs.batch.shape == (2, ours.batch.shape[1] - 1)
    assert measure.compare_errors(ours, theirs)["batch"]["better"] == 0.0


def test_errors_are_counted_against_the_best_of_the_shuffles():
    codes = np.tile(np.arange(4, dtype=np.int32), 250)
    ones, random = np.ones(1000, np.int64), np.random.default_rng(0)
    ours, *shuffled = (
        measured(order, ones, codes, sequence_length=10, batch=5)
        for order in (np.arange(1000), *(random.permutation(1000) for _ in range(3)))
    )
    mine, theirs = ours.errors["cluster"], measure.average(shuffled).errors["cluster"]
    assert theirs.cumulative.shape == (3, 100) and theirs.batch.shape == (3, 20)
    # By hand: of the first 10 tokens 3, 3, 2 and 2 have each value, 2.5 are expected; of 50 tokens 13, 13, 12 and 12.
    assert mine.cumulative[0, 0] == pytest.approx(1.0)
    assert mine.batch[0] == pytest.approx(np.ones(20), abs=1e-5)
    told = measure.compare_errors(mine, theirs)
    compared = (mine.cumulative[0] > 0) | (theirs.cumulative > 0).all(axis=0)
    assert told["cumulative"]["steps"] == compared[:-1].sum() > 90
    assert told["batch"]["better"] == (mine.batch[0] < theirs.batch.min(axis=0)).mean()
    assert told["batch"]["worst"] <= told["batch"]["shuffled_mean"]
    curves = measure.error_curves(mine, theirs)
    assert len(curves["batch"]["shuffled"]) == 3 and len(curves["batch"]["ours"]) == 20
    nothing = measured(np.arange(100), ones[:100], 0 * codes[:100], sequence_length=10).errors["cluster"]
    told = measure.compare_errors(nothing, nothing)
    assert told["cumulative"]["better"] is None and told["batch"]["steps"] == 0


def test_average_of_one_order_is_that_order():
    found = measured(ORDER, TOKENS, LABELS)
    assert measure.average([found]).to_dict() == found.to_dict()
    assert measure.average([found, found, found]).to_dict() == found.to_dict()


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: measure.distinct_clusters([4], TOKENS, LABELS, 4), "names document 4; there are 4"),
        (lambda: measure.distinct_clusters([-1], TOKENS, LABELS, 4), "names document -1"),
        (lambda: measure.distinct_clusters(ORDER, [1, 2, -3, 4], LABELS, 4), "tokens holds -3"),
        (lambda: measure.distinct_clusters(ORDER, [1.5, 2, 3, 4], LABELS, 4), "float64"),
        (lambda: measure.distinct_clusters(ORDER, TOKENS, [0, 1], 4), "shape"),
        (lambda: measure.distinct_clusters(ORDER, TOKENS, [0, -1, 0, 0], 4), "codes holds -1"),
        (lambda: measure.distinct_clusters(ORDER, TOKENS, [0.0, 1, 1, 1], 4), "float64"),
        (lambda: measure.distinct_clusters(ORDER, TOKENS, LABELS, 0), "sequence_length is 0"),
        (lambda: measure.distinct_clusters(ORDER, TOKENS, LABELS, 4, packer="best"), "'best'"),
        (lambda: shares(ORDER, TOKENS, LABELS, 2, 4), r"codes holds 2; expected numbers in \[0, 2\)"),
        (lambda: shares(ORDER, TOKENS, [2**40] * 4, 3, 4), str(2**40)),
        (lambda: measure.cluster_mix(ORDER, TOKENS, LABELS, 3, 0), "columns is 0"),
        (lambda: measure.cluster_mix([0], [10**18], [0], 1, 100), "overflow"),
        (lambda: measure.measure(ORDER, TOKENS, {}, {}, sequence_length=4, batch=1), "'cluster' must be"),
        (
            lambda: measure.measure(ORDER, TOKENS, {"cluster": LABELS}, {}, sequence_length=4, batch=1),
            r"lacks \['cluster'\]",
        ),
        (lambda: measure.average([]), "no order"),
        (
            lambda: measure.average([measured(ORDER, TOKENS, LABELS), measured([0], TOKENS, LABELS)]),
            "2 different corpora",
        ),
    ],
)
def test_input_that_cannot_be_measured_is_refused_by_name(call, message):
    with pytest.raises(InputError, match=message):
        call()


# ---- packed sequences, epochs, batches


def packed_corpus(seed: int = 0):
    """Documents packed by concat into full sequences of 50, with the clusters of the documents."""
    rng = np.random.default_rng(seed)
    tokens, labels = rng.integers(0, 90, 120), rng.integers(0, 5, 120).astype(np.int32)
    tokens[-1] += 50 - tokens.sum() % 50
    order = rng.permutation(120)
    packed = pack(Pieces(order, np.zeros_like(order), tokens[order]), sequence_length=50)
    return tokens, labels, order, packed


def test_sequences_as_packed_measure_like_their_documents():
    tokens, labels, order, packed = packed_corpus()
    found = measure.measure_packed(
        packed, np.arange(len(packed)), {"cluster": labels}, {"cluster": 5}, batch=4
    ).to_dict()
    expected = measure.measure(
        order, tokens, {"cluster": labels}, {"cluster": 5}, sequence_length=50, batch=4
    ).to_dict()
    assert found.pop("documents") == np.count_nonzero(tokens) and expected.pop("documents") == 120
    assert found["split"] == found.pop("flush") == expected.pop("split")
    del expected["flush"], found["split"]
    assert found["prefix"] == expected["prefix"]
    for name in ("sequence_shares", "batch_shares"):
        assert found[name]["cluster"] == expected[name]["cluster"]
    for name, of_traits in found["windows"].items():
        ours, theirs = of_traits["cluster"], expected["windows"][name]["cluster"]
        # Cuts at sequence ends are breakpoints more: the trapezoids' bound on the mean comes nearer.
        for mean in ("mean", "mean_tv"):
            assert ours.pop(mean) <= theirs.pop(mean) + 1e-12
        assert ours == pytest.approx(theirs, abs=1e-12)


def test_sequences_in_another_order_are_windows_of_their_rows():
    _, labels, _, packed = packed_corpus()
    order = np.random.default_rng(1).permutation(len(packed))
    found = measure.measure_packed(packed, order, {"cluster": labels}, {"cluster": 5}, batch=1)
    counts, _ = sequence_counts(packed, {"cluster": labels}, {"cluster": 5})
    rows = counts.toarray()[order]
    assert found.split == measure.Distinct(
        (rows > 0).sum(axis=1).mean(),
        (rows > 0).sum(axis=1).min(),
        (rows > 0).sum(axis=1).max(),
        (rows > 0).sum(axis=1).std(),
        len(rows),
    )
    gaps = np.abs(rows / 50 - rows.sum(axis=0) / rows.sum())
    assert_allclose(found.sequence_shares["cluster"].mean_worst, gaps.max(axis=1).mean())
    # Windows anywhere see what aligned ones do, and more.
    assert gaps.max() <= found.windows["sequence"]["cluster"].worst + 1e-12


def test_padded_sequences_are_counted_as_they_are():
    """Best fit pads: token windows drift against the sequences, whose clusters are counted all the same."""
    tokens, labels = np.array([6, 6, 6]), np.array([0, 1, 2], np.int32)
    packed = pack(Pieces(np.arange(3), np.zeros(3, int), tokens), method="best_fit", sequence_length=8)
    found = measure.measure_packed(packed, [0, 1, 2], {"cluster": labels}, {"cluster": 3}, batch=1)
    assert found.split == measure.Distinct(1.0, 1, 1, 0.0, 3)
    assert measured([0, 1, 2], tokens, labels, sequence_length=8).split.mean > 1


def test_windows_run_on_into_the_next_epoch():
    labels = np.array([0, 1, 0, 1], np.int32)
    packed = pack(Pieces(np.arange(4), np.zeros(4, int), np.full(4, 2)), sequence_length=2)
    first, turned = [0, 1, 2, 3], [1, 0, 3, 2]
    traits, sizes = {"cluster": labels}, {"cluster": 2}
    once = measure.measure_packed(packed, first, traits, sizes, batch=2)
    twice = measure.measure_packed(packed, [first, turned], traits, sizes, batch=2)
    assert (once.windows["batch"]["cluster"].worst, twice.windows["batch"]["cluster"].worst) == (0.0, 0.5)
    assert twice.windows["batch"]["cluster"].worst_start == 6
    assert twice.batch_shares == once.batch_shares and twice.tokens == once.tokens == 8


def test_every_window_is_measured_and_named():
    tokens, labels = random_corpus(200, 4)
    found = measured(np.arange(200), tokens, labels, sequence_length=10, batch=3)
    sizes = [found.windows[name]["length"].window_tokens for name in measure.WINDOWS]
    assert sizes == [10, 30, 300]
    values = {(row["trait"], row["window"], row["measure"]): row["value"] for row in found.rows()}
    assert values["length", "10 batches (anywhere)", "worst"] == found.windows["10 batches"]["length"].worst
    assert values["cluster", "batch", "max_l2"] == found.batch_shares["cluster"].max_l2


def test_share_of_batches_that_are_worse_than_our_worst():
    labels = np.repeat(np.arange(4, dtype=np.int32), 25)
    tokens = np.full(100, 10)
    riffled = measured(np.arange(100).reshape(4, 25).T.ravel(), tokens, labels, sequence_length=40, batch=1)
    blocks = measured(np.arange(100), tokens, labels, sequence_length=40, batch=1)
    both = measure.average([blocks, riffled])
    assert measure.worse_batches(blocks, riffled) == {"cluster": 1.0, "length": 1.0}
    assert measure.worse_batches(riffled, blocks) == {"cluster": 0.0, "length": 0.0}
    assert measure.worse_batches(both, riffled)["cluster"] == 0.5
    none = measured(np.arange(100), tokens, labels, sequence_length=4000)
    assert measure.worse_batches(none, none) == {"cluster": 0.0, "length": 0.0}
