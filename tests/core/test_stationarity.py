"""What drifts is found, whether the order saw it or not; what a shuffle does is no drift."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy.sparse import csr_matrix

from dagster_divorder.core.kernels.stationarity import (
    add_columns,
    copy_buckets,
    count_buckets,
    share_moments,
)
from dagster_divorder.core.measure import Feature, Stationarity, stationarity
from dagster_divorder.core.measure.stationarity import (
    SHUFFLES,
    Drift,
    Orders,
    _Mix,
    against_shuffles,
    distances_from_whole,
    measures,
    sampled_places,
)
from dagster_divorder.core.measure.stretches import shuffled_inside
from dagster_divorder.errors import InputError
from tests.conftest import examples
from tests.twins import stationarity as twin

SEQUENCES, BATCH = 1000, 32


def corpus(seed: int = 0) -> list[Feature]:
    """Sequences of documents, in the order of the input: blocks of a source, long documents over many sequences, every
    third one pure, a hidden vector that hangs on the source, and lengths."""
    random = np.random.default_rng(seed)
    source = np.sort(random.integers(0, 5, SEQUENCES))
    pure = random.random(SEQUENCES) < 0.3
    topics = random.multinomial(40, np.full(12, 1 / 12), SEQUENCES)
    topics[pure] = 0
    topics[pure, random.integers(0, 12, int(pure.sum()))] = 40
    words = np.array([random.multinomial(300, _words(of)) for of in source])
    long = np.repeat(np.arange(SEQUENCES // 20), 20) * (np.arange(SEQUENCES) % 20 < 12)
    held = csr_matrix((np.ones(SEQUENCES, int), (np.arange(SEQUENCES), long)))[:, 1:]
    vectors = random.normal(size=(SEQUENCES, 16)) + 1.5 * np.eye(16)[source]
    outlier = random.random(SEQUENCES) < 0.05
    vectors[outlier] *= 5
    return [
        Feature("topics", "mix", csr_matrix(topics), seen=True),
        Feature("purity", "number", distances_from_whole(csr_matrix(topics))),
        Feature("pure", "occurrences", csr_matrix(pure[:, None].astype(int))),
        Feature("source", "mix", csr_matrix(40 * np.eye(5, dtype=int)[source])),
        Feature("words", "mix", csr_matrix(words)),
        Feature("vectors", "vector", vectors),
        Feature("outliers", "number", np.linalg.norm(vectors, axis=1)),
        Feature("documents", "number", random.poisson(6, SEQUENCES)),
        Feature("length", "number", random.lognormal(3, 1, SEQUENCES)),
        Feature("input position", "number", np.arange(SEQUENCES)),
        Feature("long documents", "occurrences", held),
        Feature("same document", "neighbours", held),
    ]


def _words(source: int) -> NDArray[np.float64]:
    shares = 1 / np.arange(1, 101)
    shares[source::5] *= 1.5
    return shares / shares.sum()


def rows_of(name: str) -> Any:
    return next(feature.values for feature in corpus() if feature.name == name)


def value(name: str) -> NDArray[np.float64]:
    return np.asarray(rows_of(name), np.float64)


def shuffled(seed: int = 1) -> NDArray[np.int64]:
    return np.random.default_rng(seed).permutation(SEQUENCES)


def along(order: NDArray[np.int64], seed: int = 0) -> Stationarity:
    """The corpus in an order."""
    features = [replace(feature, values=feature.values[order]) for feature in corpus()]
    return stationarity(features, len(order), batch=BATCH, seed=seed)


def drifting(order: NDArray[np.int64]) -> set[str]:
    return {of.feature for of in along(order).drifting}


def sorted_by(name: str) -> Callable[[], NDArray[np.int64]]:
    return lambda: np.argsort(value(name), kind="stable")


def blocks_of_input() -> NDArray[np.int64]:
    """Of ten interleaved streams each keeps the input's order, as equal rows do whose ties go to the first."""
    return np.argsort(np.arange(SEQUENCES) % 100 // 10, kind="stable").reshape(10, -1).T.ravel()


def runs_of_a_document() -> NDArray[np.int64]:
    """Runs of 20 stay together; they are shuffled."""
    return (20 * np.random.default_rng(2).permutation(SEQUENCES // 20)[:, None] + np.arange(20)).ravel()


def slow_drift() -> NDArray[np.int64]:
    """A hidden trait that rises a little, in an order that is random else."""
    return np.argsort(
        value("length").argsort().argsort() + 3 * SEQUENCES * np.random.default_rng(3).random(SEQUENCES)
    )


def outliers_last() -> NDArray[np.int64]:
    order = shuffled()
    last = value("outliers")[order] > np.quantile(value("outliers"), 0.96)
    return np.concatenate([order[~last], order[last]])


def outliers_in_the_middle() -> NDArray[np.int64]:
    """No rank correlation shows it."""
    return np.insert(outliers_last()[:-40], SEQUENCES // 2, outliers_last()[-40:])


def clumps() -> NDArray[np.int64]:
    """Sequences of a source side by side, a batch each, and the batches shuffled: no slow drift."""
    batches = np.arange(SEQUENCES // BATCH * BATCH).reshape(-1, BATCH)
    rest = np.arange(batches.size, SEQUENCES)
    return np.concatenate([np.random.default_rng(4).permutation(batches).ravel(), rest])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("bad", "caught"),
    [
        (sorted_by("length"), "length"),
        (sorted_by("input position"), "source"),
        (sorted_by("purity"), "pure"),
        (sorted_by("purity"), "purity"),
        (blocks_of_input, "input position"),
        (runs_of_a_document, "same document"),
        (runs_of_a_document, "long documents"),
        (slow_drift, "length"),
        (outliers_last, "outliers"),
        (outliers_in_the_middle, "outliers"),
        (clumps, "words"),
        (clumps, "vectors"),
    ],
    ids=lambda of: getattr(of, "__name__", of),
)
def test_a_bad_order_is_caught(bad: Callable[[], NDArray[np.int64]], caught: str) -> None:
    order = bad()
    assert (np.sort(order) == np.arange(SEQUENCES)).all()
    assert caught in drifting(order)


@pytest.mark.slow
def test_shuffles_do_not_drift() -> None:
    """Of 2,000 draws of a random order and its shuffles fewer than 1 % drift, over all features together."""
    random = np.random.default_rng(5)
    orders = Orders(np.stack([random.permutation(SEQUENCES) for _ in range(500)]), BATCH)
    draws = random.integers(0, 500, (2000, 1 + SHUFFLES))
    alarms = np.zeros(len(draws), bool)
    for feature in corpus():
        for values in measures(feature, orders)[0].values():
            alarms |= [against_shuffles(values[draw], feature).drifts for draw in draws]
    assert 0 < alarms.mean() < 0.01


@given(
    counts=st.lists(
        st.lists(st.integers(0, 5) | st.just(1 << 16), min_size=4, max_size=4), min_size=1, max_size=12
    ),
    cuts=st.lists(st.lists(st.integers(0, 12), max_size=4), min_size=1, max_size=2),
    seed=st.integers(0, 5),
)
@settings(max_examples=examples(25), deadline=None)
def test_distances_of_mixes_are_as_they_are_defined(
    counts: list[list[int]], cuts: list[list[int]], seed: int
) -> None:
    dense = np.array(counts, np.int64)
    whole = dense.sum(axis=0) / max(dense.sum(), 1)
    order = np.random.default_rng(seed).permutation(len(dense))
    # The last sequences may be in no group.
    groupings = [np.array(sorted({0, 1, *(cut for cut in of if cut <= len(dense))})) for of in cuts]
    found = _Mix(csr_matrix(dense)).distances(groupings)(order)
    for distances, edges in zip(found, groupings, strict=True):
        assert distances == pytest.approx(twin.mix_distances(dense, whole, order, edges))


@given(
    ids=st.lists(st.integers(0, 2**32 - 1), min_size=1, max_size=40),
    starts=st.lists(st.integers(0, 40), max_size=4),
)
@settings(max_examples=examples(25), deadline=None)
def test_tokens_fall_into_buckets_as_they_are_defined(ids: list[int], starts: list[int]) -> None:
    """Copied in two runs, the second before the first."""
    half = len(ids) // 2
    tokens, buckets = np.array(ids, np.uint32), np.zeros(len(ids), np.uint16)
    first, length = np.array([half, 0]), np.array([len(ids) - half, half])
    copy_buckets(tokens, first, length, np.array([0, len(ids) - half]), 12, buckets)
    laid = ids[half:] + ids[:half]
    assert buckets.tolist() == [twin.bucket(token, 12) for token in laid]
    cuts = np.array(sorted([0, len(ids), *(start for start in starts if start < len(ids))]))
    indptr, indices, data = count_buckets(buckets, cuts, 1 << 12)
    found = csr_matrix((data, indices, indptr), shape=(len(cuts) - 1, 1 << 12)).toarray()
    for row, begin, end in zip(found, cuts[:-1], cuts[1:], strict=True):
        assert (row == np.bincount(buckets[begin:end], minlength=1 << 12)).all()


@given(st.lists(st.lists(st.integers(0, 3), min_size=5, max_size=5), min_size=1, max_size=9))
@settings(max_examples=examples(25), deadline=None)
def test_shares_and_columns_of_a_mix_are_those_of_its_table(counts: list[list[int]]) -> None:
    dense, sparse = np.array(counts, np.int32), csr_matrix(np.array(counts, np.int32))
    totals, values, sums, squares = share_moments(*_Mix(sparse).entries, 5)
    shares = dense / np.maximum(dense.sum(axis=1, keepdims=True), 1)
    assert totals.tolist() == np.maximum(dense.sum(axis=1), 1).tolist()
    assert values.tolist() == dense.sum(axis=0).tolist()
    assert sums == pytest.approx(shares.sum(axis=0))
    assert squares == pytest.approx((shares**2).sum(axis=0))
    columns = np.zeros((2, len(dense)))
    add_columns(*_Mix(sparse).entries, np.int32([-1, 1, -1, 0, -1]), columns)
    assert columns.tolist() == dense[:, [3, 1]].T.tolist()


def test_measures_are_what_they_are_called() -> None:
    """By numpy alone, for a number and a mix."""
    length, words = value("length"), corpus()[4].values.toarray()
    order = sorted_by("length")()
    drifts = {of.feature: of for of in along(order).features}
    found = drifts["length"]
    assert found.measures["rank"].value == pytest.approx(1)
    in_deviations = (length[order] - length.mean()) / length.std()
    tenths = np.abs(in_deviations.reshape(10, -1).mean(axis=1))
    assert found.along == pytest.approx(tenths)
    assert found.measures["tenths"].value == pytest.approx(tenths.max())
    batches = in_deviations[: SEQUENCES // BATCH * BATCH].reshape(-1, BATCH).mean(axis=1)
    assert found.measures["batch"].value == pytest.approx(np.abs(batches).mean())
    sums = words[order].reshape(10, 100, -1).sum(axis=1)
    tv = np.abs(sums / sums.sum(axis=1, keepdims=True) - words.sum(axis=0) / words.sum()).sum(axis=1) / 2
    assert drifts["words"].along == pytest.approx(tv)
    assert set(drifts["same document"].measures) == {"neighbours"}
    assert set(drifts["pure"].measures) == {"tenths"}


def test_equal_values_share_their_rank() -> None:
    """A number with few values has no rank correlation with an order that mixes them evenly."""
    even = [Feature("even", "number", np.arange(1000) % 2)]
    (found,) = stationarity(even, 1000, batch=10).features
    assert found.measures["rank"].value == pytest.approx(np.sqrt(3) / 1000, rel=0.01)


def test_what_never_varies_does_not_drift() -> None:
    features = [
        Feature("number", "number", np.full(100, 0.1)),
        Feature("mix", "mix", csr_matrix(np.ones((100, 3), int))),
        Feature("nothing", "mix", csr_matrix((100, 3), dtype=int)),
        Feature("vector", "vector", np.ones((100, 4))),
        Feature("none", "occurrences", csr_matrix((100, 2), dtype=int)),
        Feature("no two", "neighbours", csr_matrix((100, 0), dtype=int)),
    ]
    for found in stationarity(features, 100, batch=10).features:
        assert not found.drifts
        assert all(measure.value == pytest.approx(0) for measure in found.measures.values()), found


def test_the_same_seed_gives_the_same_and_json_gives_it_back() -> None:
    first, again, other = (along(shuffled(), seed) for seed in (1, 1, 2))
    assert first == again != other
    assert Stationarity.from_dict(orjson.loads(orjson.dumps(first))) == first


def test_too_few_sequences_tell_nothing_and_one_batch_has_no_batches() -> None:
    number = [Feature("number", "number", np.arange(49))]
    few = stationarity(number, 49, batch=4)
    assert not few.features and few.passed and "49 sequences" in few.claim()
    (found,) = stationarity([Feature("number", "number", np.arange(60))], 60, batch=31).features
    assert set(found.measures) == {"rank", "tenths"}


def test_a_feature_of_other_sequences_is_refused() -> None:
    with pytest.raises(InputError, match="61 rows; expected one for each of the 60 sequences"):
        stationarity([Feature("number", "number", np.arange(61))], 60, batch=4)


@given(st.integers(0, 3000), st.integers(1, 400), st.integers(1, 3000))
@settings(deadline=None)
def test_a_sample_is_of_whole_batches_from_end_to_end(sequences: int, batch: int, at_most: int) -> None:
    places = sampled_places(sequences, batch, at_most)
    assert (np.diff(places) > 0).all()
    if len(places) == sequences:
        return
    assert places[-1] < sequences
    batches = places.reshape(-1, batch)
    assert (batches == batches[:, :1] + np.arange(batch)).all() and (batches[:, 0] % batch == 0).all()
    assert len(batches) == max(at_most // batch, 20)
    gaps = np.diff(batches[:, 0] // batch)
    assert gaps.max() - gaps.min() <= 1


HALVES = np.arange(SEQUENCES) // (SEQUENCES // 2)


def in_halves(order: NDArray[np.int64], name: str, kind: str, **of_feature: bool) -> Drift:
    """A feature of the corpus along an order of two stretches and two sections, its halves."""
    feature = Feature(name, kind, rows_of(name)[order], **of_feature)
    return stationarity([feature], SEQUENCES, batch=BATCH, stretch=HALVES, section=HALVES).features[0]


@pytest.mark.parametrize(
    ("name", "kind"), [("source", "mix"), ("vectors", "vector"), ("input position", "number")]
)
def test_what_differs_between_stretches_is_no_drift_and_what_drifts_inside_one_is(
    name: str, kind: str
) -> None:
    """The input order has other sources in its halves, whose sequences are shuffled, or clumped in batches."""
    inside = shuffled_inside(HALVES, np.random.default_rng(3))
    assert not in_halves(inside, name, kind).drifts
    assert name in drifting(inside)
    batches = SEQUENCES // 2 // BATCH * BATCH
    clumped = np.concatenate(
        [
            np.append(
                np.random.default_rng(4)
                .permutation(np.arange(begin, begin + batches).reshape(-1, BATCH))
                .ravel(),
                np.arange(begin + batches, begin + SEQUENCES // 2),
            )
            for begin in (0, SEQUENCES // 2)
        ]
    )
    assert in_halves(clumped, name, kind).measures["batch"].drifts


def test_documents_that_a_section_holds_whole_are_shuffled_inside_sections() -> None:
    order = shuffled_inside(HALVES, np.random.default_rng(5))
    feature = Feature("long documents", "occurrences", rows_of("long documents")[order])
    of_sections = [
        stationarity([replace(feature, inside=inside)], SEQUENCES, batch=BATCH, section=HALVES).features[0]
        for inside in (False, True)
    ]
    assert [of.drifts for of in of_sections] == [True, False]


@given(st.lists(st.integers(1, 2000), min_size=2, max_size=9), st.integers(1, 40), st.integers(1, 3000))
@settings(deadline=None)
def test_a_sample_of_stretches_has_whole_batches_of_one_stretch_each(
    sizes: list[int], batch: int, at_most: int
) -> None:
    bounds = np.cumsum([0, *sizes])
    places = sampled_places(int(bounds[-1]), batch, at_most, bounds)
    assert (np.diff(places) > 0).all()
    if len(places) < bounds[-1] and max(sizes) >= 2 * batch:
        of = np.searchsorted(bounds, places.reshape(-1, batch), side="right")
        assert (of == of[:, :1]).all()


def test_what_is_said_names_what_drifts_by_how_much() -> None:
    still = along(shuffled())
    assert still.passed and still.text() == still.claim()
    assert still.claim().startswith("Nothing drifts: of 12 features of 1,000 sequences, 11 of them unseen")
    found = along(sorted_by("purity")())
    assert not found.passed and found.drifting[0].feature == "pure"
    assert "- purity: rank correlation with position 1, shuffled 0.0" in found.text()
    assert "- pure: farthest tenth" in found.text()
    assert "drift along the order inside its 3 stretches" in replace(found, stretches=3).claim()
    by_name = {row["feature"]: row for row in found.rows()}
    assert by_name["purity"]["drifts"] == "yes" and by_name["topics"]["balanced"] == "yes"
    assert (by_name["pure"]["measure"], by_name["purity"]["measure"]) == (
        "farthest tenth",
        "rank correlation with position",
    )
    assert [row["feature"] for row in found.rows()] == [of.feature for of in found.by_excess]
    assert len({tuple(row) for row in found.rows()}) == 1


def test_of_no_sequence_there_is_no_distance() -> None:
    assert distances_from_whole(csr_matrix((0, 3), dtype=np.int32)).shape == (0,)
