"""What drifts is found, whether the order saw it or not; what a shuffle does is no drift."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy.sparse import csr_matrix

from dagster_divorder.core.measure import Feature, Stationarity, stationarity
from dagster_divorder.core.measure.stationarity import (
    SHUFFLES,
    Drift,
    DriftMeasure,
    drift_of,
    sampled_places,
)
from dagster_divorder.core.measure.windows import shuffled_inside
from tests.conftest import examples

SEQUENCES, BATCH = 1000, 32


def corpus() -> list[Feature]:
    """Sequences of documents, in the order of the input: blocks of a source, long documents over many sequences, every
    third one pure, a hidden vector that hangs on the source, and lengths."""
    random = np.random.default_rng(0)
    source = np.sort(random.integers(0, 5, SEQUENCES))
    pure = random.random(SEQUENCES) < 0.3
    topics = random.multinomial(40, np.full(12, 1 / 12), SEQUENCES)
    topics[pure] = 0
    topics[pure, random.integers(0, 12, int(pure.sum()))] = 40
    words = np.array([random.multinomial(300, _words(of)) for of in source])
    long = np.repeat(np.arange(SEQUENCES // 20), 20) * (np.arange(SEQUENCES) % 20 < 12)
    held = csr_matrix((np.ones(SEQUENCES, int), (np.arange(SEQUENCES), long)))[:, 1:]
    vectors = random.normal(size=(SEQUENCES, 16)) + 1.5 * np.eye(16)[source]
    lengths = np.argsort(np.argsort(random.lognormal(3, 1, SEQUENCES))) // 125
    return [
        Feature("topics", "mix", csr_matrix(topics), seen=True),
        Feature("pure", "occurrences", csr_matrix(pure[:, None].astype(int))),
        Feature("source", "mix", csr_matrix(40 * np.eye(5, dtype=int)[source])),
        Feature("words", "mix", csr_matrix(words)),
        Feature("vectors", "vector", vectors),
        Feature("length", "mix", csr_matrix(np.eye(8, dtype=int)[lengths])),
        Feature("long documents", "occurrences", held),
    ]


def _words(source: int) -> NDArray[np.float64]:
    shares = 1 / np.arange(1, 101)
    shares[source::5] *= 1.5
    return shares / shares.sum()


def rows_of(name: str) -> Any:
    return next(feature.values for feature in corpus() if feature.name == name)


def value(name: str) -> NDArray[np.float64]:
    """One number a sequence: of a mix the place of its first value."""
    rows = rows_of(name).toarray()
    return np.asarray(rows[:, 0] if rows.shape[1] == 1 else rows.argmax(axis=1), np.float64)


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
    return np.argsort(value("length") + 16 * np.random.default_rng(3).random(SEQUENCES))


def clumps(begin: int = 0, end: int = SEQUENCES) -> NDArray[np.int64]:
    """Sequences of a source side by side, a batch each, and the batches shuffled: no slow drift."""
    inside, whole = np.arange(begin, end), (end - begin) // BATCH * BATCH
    batches = np.random.default_rng(4).permutation(inside[:whole].reshape(-1, BATCH))
    return np.append(batches.ravel(), inside[whole:])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("bad", "caught"),
    [
        (sorted_by("length"), "length"),
        (lambda: np.arange(SEQUENCES), "source"),
        (sorted_by("pure"), "pure"),
        (blocks_of_input, "words"),
        (runs_of_a_document, "long documents"),
        (slow_drift, "length"),
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
    features, one = corpus(), np.zeros(SEQUENCES, np.int64)
    orders = np.stack([random.permutation(SEQUENCES) for _ in range(500)])
    draws = random.integers(0, 500, (2000, 1 + SHUFFLES))
    alarms = np.zeros(len(draws), bool)
    for feature in features:
        each = [drift_of(feature, orders[[at, at, at]], BATCH, one).measures for at in range(len(orders))]
        for name in each[0]:
            values = np.array([measures[name].value for measures in each])
            alarms |= [DriftMeasure.of(values[draw]).drifts for draw in draws]
    assert alarms.mean() < 0.01


@given(
    counts=st.sampled_from([5, 255, 1 << 16]).flatmap(
        lambda most: st.lists(
            st.lists(st.integers(0, most), min_size=4, max_size=4), min_size=50, max_size=60
        )
    ),
    batch=st.integers(1, 40),
    seed=st.integers(0, 5),
    kind=st.sampled_from([csr_matrix, np.asarray]),
)
@settings(max_examples=examples(15), deadline=None)
def test_distances_of_mixes_are_as_they_are_defined(
    counts: list[list[int]], batch: int, seed: int, kind: Callable[[Any], Any]
) -> None:
    """By numpy alone, of counts of any type, also above 16 bits; a group without counts has distance 0."""
    dense = np.array(counts, np.int64)
    order = np.random.default_rng(seed).permutation(len(dense))
    values = kind(dense.astype(np.min_scalar_type(dense.max())))
    found = drift_of(Feature("mix", "mix", values), np.stack([order, order, order]), batch, 0 * order)

    def distances(edges: NDArray[np.int64]) -> list[float]:
        sums = [dense[order[begin:end]].sum(axis=0) for begin, end in pairwise(edges)]
        whole = dense.sum(axis=0) / max(dense.sum(), 1)
        return [float(np.abs(of / of.sum() - whole).sum() / 2) if of.sum() else 0.0 for of in sums]

    assert found.along == pytest.approx(distances(np.arange(11) * len(dense) // 10))
    if len(dense) // batch > 1:
        batches = distances(np.arange(len(dense) // batch + 1) * batch)
        assert found.measures["batch"].value == pytest.approx(np.mean(batches))


def test_what_never_varies_does_not_drift() -> None:
    features = [
        Feature("mix", "mix", csr_matrix(np.ones((100, 3), int))),
        Feature("nothing", "mix", csr_matrix((100, 3), dtype=int)),
        Feature("vector", "vector", np.ones((100, 4))),
        Feature("none", "occurrences", csr_matrix((100, 2), dtype=int)),
    ]
    for found in stationarity(features, 100, batch=10).features:
        assert not found.drifts
        assert all(measure.value == pytest.approx(0) for measure in found.measures.values()), found


def test_too_few_sequences_tell_nothing_and_one_batch_has_no_batches() -> None:
    few = stationarity([Feature("vector", "vector", np.eye(49))], 49, batch=4)
    assert not few.features and few.passed and "49 sequences" in few.claim()
    (found,) = stationarity([Feature("vector", "vector", np.eye(60))], 60, batch=31).features
    assert set(found.measures) == {"tenths"}


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


def in_halves(order: NDArray[np.int64], name: str, kind: str) -> Drift:
    """A feature of the corpus along an order of two stretches and two sections, its halves."""
    feature = Feature(name, kind, rows_of(name)[order])
    return stationarity([feature], SEQUENCES, batch=BATCH, stretch=HALVES, section=HALVES).features[0]


@pytest.mark.parametrize(("name", "kind"), [("source", "mix"), ("vectors", "vector")])
def test_what_differs_between_stretches_is_no_drift_and_what_drifts_inside_one_is(
    name: str, kind: str
) -> None:
    """The input order has other sources in its halves, whose sequences are shuffled, or clumped in batches."""
    inside = shuffled_inside(HALVES, np.random.default_rng(3))
    assert not in_halves(inside, name, kind).drifts
    assert name in drifting(inside)
    clumped = np.append(clumps(0, SEQUENCES // 2), clumps(SEQUENCES // 2, SEQUENCES))
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


def test_what_is_said_names_what_drifts_by_how_much_and_repeats() -> None:
    shuffled = np.random.default_rng(1).permutation(SEQUENCES)
    still, found = along(shuffled), along(sorted_by("pure")())
    assert along(shuffled) == still != along(shuffled, seed=1)
    assert Stationarity.from_dict(orjson.loads(orjson.dumps(still))) == still
    assert still.passed
    assert still.claim().startswith("Nothing drifts: of 7 features of 1,000 sequences, 6 of them unseen")
    assert not found.passed and found.drifting[0].feature == "pure"
    assert "drift along the order inside its 3 stretches" in replace(found, stretches=3).claim()
    first = found.rows()[0]
    assert (first["feature"], first["drifts"], first["balanced"]) == ("pure", "yes", "no")
    assert first["measure"] == "farthest tenth" and len(found.rows()) == 7
