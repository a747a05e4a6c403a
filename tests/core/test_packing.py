"""Packing: no token lost or doubled, whatever the method; fast methods, reports and spans of positions against slow
twins; edge cases."""

from __future__ import annotations

import itertools
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_array_equal

from dagster_divorder.core.kernels import packing as fast
from dagster_divorder.core.packing import (
    METHODS,
    PackedSequences,
    Pieces,
    cluster_packed,
    cut,
    pack,
    packing_report,
    remaining,
    sequence_counts,
)
from dagster_divorder.core.packing.report import coverage, sequence_spacing
from dagster_divorder.core.spans import Spans
from dagster_divorder.errors import InputError
from tests.conftest import examples
from tests.twins import packing as slow

Runs = list[tuple[int, int, int]]

every_method = pytest.mark.parametrize("method", METHODS)
laws = settings(max_examples=examples(60), deadline=None)
runs_of = st.lists(
    st.tuples(st.integers(0, 3), st.one_of(st.integers(0, 5), st.integers(0, 60), st.sampled_from([8, 16]))),
    max_size=25,
).map(lambda pairs: [(document, start, length) for document, (start, length) in enumerate(pairs)])
lengths_of = st.one_of(st.integers(1, 12), st.sampled_from([8, 50, 1000]))


def pieces_of(runs: Runs) -> Pieces:
    document, start, length = np.array(runs, np.int64).reshape(-1, 3).T
    return Pieces(document, start, length)


def packed_by(
    method: str, runs: Runs, sequence_length: int, seed: int = 0, copies: list[int] | None = None
) -> PackedSequences:
    random = np.random.default_rng(len(runs))
    return pack(
        pieces_of(runs),
        method=method,
        sequence_length=sequence_length,
        seed=seed,
        labels=random.integers(0, 3, len(runs)),
        vectors=random.standard_normal((len(runs), 4)).astype(np.float32).__getitem__,
        copies=copies,
    )


def rows_of(runs: Pieces | PackedSequences) -> Runs:
    return list(zip(runs.document.tolist(), runs.start.tolist(), runs.length.tolist(), strict=True))


def runs_in(packed: PackedSequences) -> list[Runs]:
    rows = rows_of(packed)
    return [rows[a:b] for a, b in itertools.pairwise(packed.indptr.tolist())]


def tokens_in(packed: PackedSequences) -> list[list[slow.Token]]:
    return [slow.tokens_of(runs) for runs in runs_in(packed)]


@every_method
@given(runs=runs_of, sequence_length=lengths_of, seed=st.integers(0, 3))
@laws
def test_no_token_is_lost_or_doubled(method, runs, sequence_length, seed):
    packed = packed_by(method, runs, sequence_length, seed)
    sequences = tokens_in(packed)
    assert sorted(itertools.chain(*sequences)) == sorted(slow.tokens_of(runs))
    assert all(0 < len(tokens) <= sequence_length for tokens in sequences)
    assert packed.tokens.tolist() == [len(tokens) for tokens in sequences]
    assert packed.padding.tolist() == [sequence_length - len(tokens) for tokens in sequences]
    assert packed.without_tokens == sum(length == 0 for _, _, length in runs)


@given(runs=runs_of, sequence_length=lengths_of)
@laws
def test_concat_equals_its_twin(runs, sequence_length):
    assert tokens_in(packed_by("concat", runs, sequence_length)) == slow.concat(runs, sequence_length)


@given(runs=runs_of, sequence_length=lengths_of)
@laws
def test_none_has_a_sequence_for_every_piece(runs, sequence_length):
    expected = [[piece] for piece in slow.cut([run for run in runs if run[2]], sequence_length)]
    assert runs_in(packed_by("none", runs, sequence_length)) == expected


@given(
    runs=runs_of,
    sequence_length=lengths_of,
    seed=st.integers(0, 3),
    copies=st.none() | st.lists(st.integers(0, 4), min_size=25, max_size=25),
)
@laws
def test_best_fit_equals_its_twin_and_keeps_copies_apart(runs, sequence_length, seed, copies):
    pieces = slow.cut([run for run in runs if run[2]], sequence_length)
    text = list(range(len(runs))) if copies is None else copies[: len(runs)]
    of_run = [text[document] for document, _, _ in pieces]
    turns = slow.in_turn(pieces, sequence_length, text)
    expected = slow.best_fit(pieces, turns, sequence_length, of_run)
    found = runs_in(packed_by("best_fit", runs, sequence_length, seed, copies=text))
    shuffled = np.random.default_rng(seed).permutation(len(expected))
    assert [found[s] for s in shuffled] == [
        [pieces[run] for run in sorted(sequence)] for sequence in expected
    ]
    assert all(len({text[run[0]] for run in of}) == len(of) for of in found)


@given(runs=runs_of, piece_tokens=st.integers(1, 20))
@laws
def test_cut_equals_its_twin_and_keeps_pieces_without_tokens(runs, piece_tokens):
    found = cut(pieces_of(runs), piece_tokens)
    assert rows_of(found) == slow.cut(runs, piece_tokens)


@given(
    runs=st.lists(st.tuples(st.integers(0, 3), st.integers(0, 6), st.integers(0, 3)), max_size=8),
    consumed=st.lists(st.tuples(st.integers(0, 4), st.integers(0, 6), st.integers(1, 3)), max_size=6),
)
@laws
def test_what_remains_of_pieces_is_their_tokens_but_the_consumed_ones(runs, consumed):
    """Pieces need neither begin at token 0 nor hold what was consumed."""

    def disjoint(every: Runs) -> Runs:
        kept: Runs = []
        for run in every:
            if not {*slow.tokens_of([run])} & {*slow.tokens_of(kept)}:
                kept.append(run)
        return kept

    own = disjoint([run for run in runs if run[2]])
    gone = disjoint(consumed)
    left = rows_of(remaining(pieces_of(own), pieces_of(gone)))
    assert slow.tokens_of(left) == [
        token for token in slow.tokens_of(own) if token not in {*slow.tokens_of(gone)}
    ]
    assert all(length for _, _, length in left)


@given(runs=runs_of, sequence_length=lengths_of, values=st.integers(1, 9), seed=st.integers(0, 99))
@laws
def test_sequence_counts_equal_their_twin(runs, sequence_length, values, seed):
    """Of all tokens, and of those inside spans of a document, in whatever sequence they lie."""
    packed, random = packed_by("best_fit", runs, sequence_length), np.random.default_rng(seed)
    sizes = {"cluster": values, "length": 4}
    codes = {name: random.integers(0, size, len(runs)) for name, size in sizes.items()}
    ends = np.sort(random.choice(140, 2 * random.integers(0, 20), replace=False))
    spans = Spans(ends[::2], ends[1::2])
    inside = {at for first, last in zip(spans.first, spans.last, strict=True) for at in range(first, last)}
    whole, groups = sequence_counts(packed, codes, sizes)
    some, _ = sequence_counts(packed, codes, sizes, spans.within(packed.start, packed.length))
    for counts, counted in ((whole, range(140)), (some, inside)):
        tokens = [[token for token in sequence if token[1] in counted] for sequence in tokens_in(packed)]
        expected = [
            np.reshape(slow.counts(tokens, codes[name], size), (-1, size)) for name, size in sizes.items()
        ]
        assert_array_equal(counts.toarray(), np.hstack(expected))
        assert counts.dtype == np.int32 and counts.has_canonical_format
    assert groups.tolist() == [0] * values + [1] * 4
    # A sequence without a counted token keeps its values.
    assert (whole.data > 0).all() and some.indices.tolist() == whole.indices.tolist()


@given(data=st.data(), points=st.integers(0, 12))
@laws
def test_the_path_equals_its_twin(data, points):
    cosines = np.array(
        [[data.draw(st.sampled_from([0.1, 0.5, 0.9])) for _ in range(points)] for _ in range(points)],
        np.float32,
    ).reshape(points, points)
    width = data.draw(st.integers(1, 4))
    neighbours = np.argsort(-cosines, axis=1, kind="stable")[:, :width]
    found = fast.nearest_first_path(neighbours, np.take_along_axis(cosines, neighbours, axis=1))
    assert found.tolist() == slow.nearest_first_path(cosines.tolist(), neighbours.tolist())


@pytest.mark.parametrize("block", [cluster_packed.BLOCK, 64])
def test_cluster_packed_walks_from_neighbour_to_neighbour(monkeypatch, block):
    """Points on a circle, in random order, in two clusters: the path follows the circle."""
    monkeypatch.setattr(cluster_packed, "BLOCK", block)
    random = np.random.default_rng(0)
    angles = random.permutation(600) * (2 * np.pi / 600)
    vectors = np.stack([np.cos(angles), np.sin(angles)], axis=1).astype(np.float32)
    labels = random.integers(0, 2, 600)
    asked = []

    def of(pieces: np.ndarray) -> np.ndarray:
        asked.append(pieces)
        return vectors[pieces]

    packed = pack(
        pieces_of([(document, 0, 2) for document in range(600)]),
        method="cluster_packed",
        sequence_length=8,
        labels=labels,
        vectors=of,
    )
    document = packed.document[packed.start == 0]
    assert (np.diff(labels[document]) >= 0).all()
    assert [labels[pieces].tolist() for pieces in asked] == [
        [0] * (labels == 0).sum(),
        [1] * (labels == 1).sum(),
    ]
    near = (vectors[document[1:]] * vectors[document[:-1]]).sum(axis=1)
    assert np.mean(near > np.cos(0.1)) > 0.94


def test_the_report_counts_what_packing_did():
    # Sequences of 10: [a a a a a b b b b b] [b b c c c c c c d e], padding 0; f is empty.
    runs, labels = (
        [(0, 0, 5), (1, 0, 7), (2, 0, 6), (3, 4, 1), (4, 0, 1), (5, 0, 0)],
        np.array([0, 0, 1, 2, 2, 2]),
    )
    assert packing_report(packed_by("concat", runs, 10), labels) == {
        "sequences": 2,
        "packed_documents": 5,
        "tokens": 20,
        "without_tokens": 1,
        "padding": 0,
        "padding_share": 0.0,
        # Document 1 is cut by the packing, and document 3 had been before.
        "cut_documents": 2,
        "cut_share": 2 / 5,
        "documents_per_sequence": {"mean": 3.0, "min": 2, "max": 4},
        "clusters_per_sequence": {"mean": 2.0, "min": 1, "max": 3},
    }
    best = packing_report(packed_by("best_fit", runs, 10), labels)
    assert (best["sequences"], best["padding"], best["cut_documents"]) == (3, 10, 1)
    # Pieces of a document in one sequence are no cut.
    packed = pack(cut(pieces_of([(0, 0, 9), (1, 0, 9)]), 3), method="concat", sequence_length=10)
    assert packing_report(packed, labels)["cut_documents"] == 1


def test_vectors_that_are_not_finite_are_refused():
    with pytest.raises(InputError, match="NaN"):
        pack(
            pieces_of([(0, 0, 4), (1, 0, 4)]),
            method="cluster_packed",
            sequence_length=4,
            labels=np.zeros(2, int),
            vectors=np.full((2, 3), np.nan, np.float32).__getitem__,
        )


LENGTHS = st.lists(st.integers(0, 9), min_size=1, max_size=6)
RUNS = st.lists(st.tuples(st.integers(0, 7), st.integers(0, 10), st.integers(1, 8)), max_size=12)


@given(LENGTHS, RUNS)
def test_it_counts_what_counting_every_token_does(lengths: list[int], runs: Runs) -> None:
    laid = Counter(slow.tokens_of(runs))
    real = {(document, at) for document, length in enumerate(lengths) for at in range(length)}
    extra = laid.total() - len(real & set(laid))
    plan = PackedSequences(**vars(pieces_of(runs)), indptr=np.arange(len(runs) + 1), sequence_length=100)
    assert coverage(plan, np.array(lengths)) == (sum(lengths), len(real - set(laid)), extra)


@given(
    texts=st.lists(st.integers(0, 5), max_size=30).map(lambda texts: np.array(texts, np.int64)),
    length=st.integers(1, 30),
    epochs=st.integers(1, 2),
    seed=st.integers(0, 3),
)
@settings(max_examples=examples(40), deadline=None)
def test_spacing_of_copies_equals_its_twin(texts: np.ndarray, length: int, epochs: int, seed: int) -> None:
    random = np.random.default_rng(seed)
    lengths = random.integers(0, 41, 6)[texts]
    packed = pack(Pieces(np.arange(len(texts)), np.zeros_like(texts), lengths), sequence_length=length)
    orders = np.stack([random.permutation(len(packed)) for _ in range(epochs)])
    copies = np.bincount(texts[np.unique(packed.document)], minlength=6)
    last: dict[int, int] = {}
    distances, shares = [], []
    for place, sequence in enumerate(orders.ravel()):
        for run in range(packed.indptr[sequence], packed.indptr[sequence + 1]):
            text = int(texts[packed.document[run]])
            if packed.start[run] == 0 and packed.length[run] and copies[text] > 1:
                if text in last:
                    distances.append(place - last[text])
                    shares.append(distances[-1] * copies[text] / len(packed))
                last[text] = place
    found = sequence_spacing(packed, orders, texts)
    assert found["copies"] == (copies[copies > 1] - 1).sum()
    assert found["together"] == distances.count(0)
    if distances:
        assert (found["smallest"], found["median"]) == (min(distances), np.median(distances))
        assert found["median_share"] == pytest.approx(np.median(shares))
    else:
        assert {*found.values()} <= {0, None, found["copies"]}


@st.composite
def spans_and_runs(draw: st.DrawFn) -> tuple[Spans, list[tuple[int, int]]]:
    """Spans, of which some touch, and runs (first, length), of which some are empty."""
    steps = draw(st.lists(st.tuples(st.integers(0, 3), st.integers(1, 4)), max_size=8))
    edges = np.cumsum(np.array(steps, np.int64).reshape(-1))
    runs = draw(st.lists(st.tuples(st.integers(0, 40), st.integers(0, 12)), max_size=6))
    return Spans(edges[::2], edges[1::2]), runs


@given(drawn=spans_and_runs())
def test_runs_are_counted_cut_and_marked_position_by_position(
    drawn: tuple[Spans, list[tuple[int, int]]],
) -> None:
    spans, runs = drawn
    inside = {at for first, last in zip(spans.first, spans.last, strict=True) for at in range(first, last)}
    marks = [[at in inside for at in range(first, first + length)] for first, length in runs]
    first, length = np.array(runs, np.int64).reshape(-1, 2).T
    assert spans.marked(first, length).tolist() == [mark for run in marks for mark in run]
    assert spans.within(first, length).tolist() == [sum(run) for run in marks]
    cut = {
        (run, at) for run, low, high in zip(*spans.cut(first, length), strict=True) for at in range(low, high)
    }
    assert cut == {
        (run, at) for run, mark in enumerate(marks) for at, is_inside in enumerate(mark) if is_inside
    }


@given(drawn=spans_and_runs(), cuts=st.tuples(st.integers(0, 20), st.integers(0, 20)))
def test_shifted_spans_are_those_that_begin_between(
    drawn: tuple[Spans, list[tuple[int, int]]], cuts: tuple[int, int]
) -> None:
    spans, (low, high) = drawn[0], sorted(cuts)
    shifted = spans.shifted(low, high)
    kept = [
        (first - low, last - low)
        for first, last in zip(spans.first, spans.last, strict=True)
        if low <= first < high
    ]
    assert list(zip(shifted.first, shifted.last, strict=True)) == kept
