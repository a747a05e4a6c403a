"""Copies in packed sequences: never in one of them, far apart in the stream of every epoch, and truly measured."""

import itertools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from numpy.testing import assert_array_equal

from dagster_divorder.core.kernels import packing as fast
from dagster_divorder.core.mix.mixing import even_order, plan_mix, times_of
from dagster_divorder.core.order import spread
from dagster_divorder.core.order.epochs import epoch_orders
from dagster_divorder.core.order.items import document_items
from dagster_divorder.core.order.spread import spread_order
from dagster_divorder.core.packing import (
    METHODS,
    PackedSequences,
    Pieces,
    cut,
    join,
    pack,
    remaining,
    sequence_counts,
)
from dagster_divorder.core.packing.copies import sequence_spacing, sequence_times
from dagster_divorder.errors import InputError
from tests.conftest import examples
from tests.twins import packing as slow

every_method = pytest.mark.parametrize("method", METHODS)
laws = settings(max_examples=examples(40), deadline=None)
texts_of = st.lists(st.tuples(st.integers(0, 5), st.integers(0, 40)), max_size=30)
LENGTH = 64


def documents_of(tokens: list[tuple[int, int]]) -> tuple[np.ndarray, np.ndarray]:
    """(text, tokens) of documents: those of one text are equally long."""
    text = np.array([text for text, _ in tokens], np.int64)
    longest = np.zeros(6, np.int64)
    for number, length in tokens:
        longest[number] = max(longest[number], length)
    return text, longest[text]


def packed_by(
    method: str, text: np.ndarray, tokens: np.ndarray, length: int, **options: object
) -> PackedSequences:
    return pack(
        Pieces(np.arange(len(text)), np.zeros_like(text), tokens),
        method=method,
        sequence_length=length,
        labels=text % 3,
        vectors=np.random.default_rng(0).standard_normal((6, 4)).astype(np.float32)[text % 6],
        **options,  # type: ignore[arg-type]
    )


def shared(packed: PackedSequences, text: np.ndarray) -> int:
    """Runs that an earlier run of their sequence equals."""
    return sum(
        len(runs) - len(set(runs))
        for runs in (
            list(zip(text[packed.document[a:b]].tolist(), packed.start[a:b].tolist(), strict=True))
            for a, b in itertools.pairwise(packed.indptr)
        )
    )


@given(tokens=texts_of, length=st.integers(1, 50))
@laws
def test_best_fit_that_keeps_copies_apart_equals_its_twin(tokens, length):
    text, lengths = documents_of(tokens)
    runs = [(number, 0, min(int(size), length)) for number, size in enumerate(lengths) if size]
    copies = [int(text[number]) for number, _, _ in runs]
    run_lengths = np.array([size for _, _, size in runs], np.int64)
    first = np.array([copies.index(copy) for copy in copies], np.int64)
    turns = np.lexsort((first, -run_lengths))
    sequence, opened = fast.best_fit(run_lengths, turns, np.array(copies, np.int64), length)
    expected = slow.best_fit(runs, turns.tolist(), length, copies)
    found = [[run for run in turns if sequence[run] == number] for number in range(opened)]
    assert found == expected


@every_method
@given(tokens=texts_of, length=st.integers(1, 50), consumed=st.lists(st.integers(0, 5), max_size=5))
@laws
def test_every_token_is_packed_once_whatever_the_copies(method, tokens, length, consumed):
    text, lengths = documents_of(tokens)
    packed, again = (
        packed_by(method, text, lengths, length, copies=text, consumed=consumed) for _ in range(2)
    )
    runs = zip(packed.document.tolist(), packed.start.tolist(), packed.length.tolist(), strict=True)
    laid = sorted(itertools.chain(*(slow.tokens_of([run]) for run in runs)))
    assert laid == slow.tokens_of([(number, 0, int(size)) for number, size in enumerate(lengths)])
    assert (packed.tokens <= length).all()
    assert (packed.tokens > 0).all()
    for name in ("document", "start", "length", "indptr", "parts"):
        assert_array_equal(getattr(packed, name), getattr(again, name))
    assert (np.diff(packed.parts) >= 0).all()
    if method == "best_fit":
        assert shared(packed, text) == 0


@every_method
@given(tokens=texts_of, length=st.integers(1, 50))
@laws
def test_without_copies_nothing_changes(method, tokens, length):
    text, lengths = documents_of(tokens)
    plain = packed_by(method, text, lengths, length)
    told = packed_by(method, text, lengths, length, copies=np.arange(len(text))[::-1], consumed=[99])
    for name in ("document", "start", "length", "indptr", "parts"):
        assert_array_equal(getattr(plain, name), getattr(told, name))


def corpus(seed: int = 0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(text, tokens, cluster) of 1390 documents: 150 texts occur twice, 5 nine times; three are long."""
    random = np.random.default_rng(seed)
    texts = np.concatenate([np.arange(1200), np.arange(150), np.arange(150, 155).repeat(8)])
    tokens = np.ceil(random.lognormal(3.2, 1.0, 1200)).astype(np.int64)
    tokens[[0, 300, 301]] = 40 * LENGTH
    text = random.permutation(texts)
    return text, tokens[text], (np.arange(1200) % 5)[text]


def vectors_of(text: np.ndarray, cluster: np.ndarray) -> np.ndarray:
    """Unit vectors around those of the clusters; equal for equal texts."""
    rows = np.random.default_rng(1).standard_normal((1200, 8))[text] + 4 * np.eye(8)[cluster]
    return (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32)


def test_related_documents_share_sequences_and_equal_ones_do_not():
    text, tokens, cluster = corpus()
    vectors = vectors_of(text, cluster)
    pieces = Pieces(np.arange(len(text)), np.zeros_like(text), tokens)
    options = {"method": "related", "sequence_length": 4 * LENGTH, "labels": cluster, "vectors": vectors}
    blind, packed = pack(pieces, **options), pack(pieces, copies=text, **options)
    assert shared(blind, text) > 100
    assert shared(packed, text) == 0
    one, next_ = packed.document[:-1], packed.document[1:]
    assert (text[one] != text[next_])[one != next_].all()
    assert np.mean(cluster[one] == cluster[next_]) > 0.5


def read(
    method: str,
    *,
    apart: bool,
    piece: int = 0,
    frozen: int = 0,
    epochs: int = 1,
    strategy: str = "balanced",
    seed: int = 0,
) -> tuple[PackedSequences, np.ndarray, np.ndarray]:
    """(plan, orders, texts): the corpus as the pipeline orders, packs and orders it, copies apart or not."""
    text, tokens, cluster = corpus(seed)
    items = document_items(tokens, {"cluster": cluster})
    made = spread_order(items.counts, items.groups, text if apart else np.arange(len(text)))
    pieces = Pieces(made, np.zeros_like(made), tokens[made])
    consumed = None
    if frozen:
        before = "none" if method == "none" else "concat"
        consumed = pack(cut(pieces, piece) if piece else pieces, method=before, sequence_length=LENGTH)
        begin = consumed.indptr[frozen]
        consumed = PackedSequences(
            *(getattr(consumed, name)[:begin] for name in ("document", "start", "length")),
            consumed.indptr[: frozen + 1],
            LENGTH,
        )
        pieces = remaining(pieces, consumed)
    if piece:
        pieces = cut(pieces, piece)

    def copies(document: np.ndarray, start: np.ndarray) -> np.ndarray:
        return text[document] << 20 | (start // piece if piece else 0 * start)

    packed = pack(
        pieces,
        method=method,
        sequence_length=LENGTH,
        labels=cluster[pieces.document],
        vectors=vectors_of(text, cluster)[pieces.document],
        copies=copies(pieces.document, pieces.start) if apart else None,
        consumed=copies(consumed.document, consumed.start) if consumed else (),
    )
    packed = join(consumed, packed) if consumed else packed
    counts, groups = sequence_counts(packed, {"cluster": cluster}, {"cluster": 5})
    times = None
    if apart:
        times = sequence_times(packed, text, frozen=frozen, as_packed=strategy == "original")
    orders = epoch_orders(
        counts, groups, epochs, copies=times, frozen=np.arange(frozen), strategy=strategy, batch=16
    )
    return packed, orders, text


@pytest.mark.slow
@pytest.mark.parametrize(
    ("method", "options"),
    [
        *((method, {"frozen": 100, "epochs": 2, "piece": 20}) for method in METHODS),
        ("concat", {}),
        ("best_fit", {"piece": 20}),
        ("related", {"epochs": 3}),
        ("best_fit", {"frozen": 100}),
        ("concat", {"strategy": "random"}),
        ("related", {"strategy": "original", "epochs": 2}),
        ("best_fit", {"strategy": "stratified"}),
    ],
    ids=str,
)
def test_copies_are_far_apart_in_the_stream(method, options):
    packed, orders, text = read(method, apart=True, **options)
    assert (np.sort(orders, axis=1) == np.arange(len(packed))).all()
    frozen = options.get("frozen", 0)
    assert orders[0, :frozen].tolist() == list(range(frozen))
    found = sequence_spacing(packed, orders, text, step=options.get("piece"))
    before = sequence_spacing(*read(method, apart=False, **options), step=options.get("piece"))
    assert found.together == 0
    assert found.median_share > 0.85
    assert found.smallest_share > 0.15 > 10 * before.smallest_share


@pytest.mark.slow
@every_method
@pytest.mark.parametrize(
    ("options", "share"),
    [
        pytest.param({"strategy": "original", "epochs": 2}, 0.5, id="original"),
        pytest.param({"frozen": 100}, 0.3, id="frozen"),
        pytest.param({"frozen": 100, "epochs": 2, "piece": 20}, 0.2, id="the frozen ones come again"),
    ],
)
def test_copies_are_far_apart_whatever_the_order_of_the_documents(method, options, share):
    for seed in range(1, 1 + examples(2)):
        packed, orders, text = read(method, apart=True, seed=seed, **options)
        assert sequence_spacing(packed, orders, text, step=options.get("piece")).smallest_share > share


@given(
    tokens=texts_of,
    length=st.integers(1, 30),
    epochs=st.integers(1, 2),
    step=st.integers(1, 3),
    seed=st.integers(0, 3),
)
@laws
def test_spacing_equals_its_twin(tokens, length, epochs, step, seed):
    text, lengths = documents_of(tokens)
    packed = packed_by("concat", text, lengths, length)
    random = np.random.default_rng(seed)
    orders = np.stack([random.permutation(len(packed)) for _ in range(epochs)])
    document = np.unique(packed.document)
    copies = np.bincount(text[document], minlength=6)
    last: dict[tuple[int, int], int] = {}
    distances, shares = [], []
    for place, sequence in enumerate(orders.ravel()):
        inside = slice(packed.indptr[sequence], packed.indptr[sequence + 1])
        for number, start, size in zip(
            packed.document[inside], packed.start[inside], packed.length[inside], strict=True
        ):
            for at in range(start, start + size):
                key = (int(text[number]), at)
                if at % step == 0 and copies[text[number]] > 1:
                    if key in last:
                        distances.append(place - last[key])
                        shares.append(distances[-1] * copies[text[number]] / len(packed))
                    last[key] = place
    found = sequence_spacing(packed, orders, text, step=step)
    assert found.copies == (copies[copies > 1] - 1).sum()
    assert found.together == distances.count(0)
    if distances:
        assert (found.smallest, found.median) == (min(distances), np.median(distances))
        assert found.smallest_share == pytest.approx(min(shares))
        assert found.median_share == pytest.approx(np.median(shares))
    else:
        assert found.smallest is found.median is found.smallest_share is found.median_share is None


@pytest.mark.slow
@every_method
@pytest.mark.parametrize("epochs", [1, 3])
def test_copies_keep_half_of_their_even_distance_where_the_plan_has_it(method, epochs):
    """But for the sequences by which cells differ in size: two of about 64."""
    for seed in range(2):
        packed, orders, text = read(method, apart=True, epochs=epochs, seed=seed)
        times = sequence_times(packed, text)
        assert times.cells > 8
        bound = ~np.isnan(times.times)
        assert 0 < bound.sum() < len(packed)
        assert (times.room[bound, 0] <= times.times[bound]).all()
        assert (times.times[bound] <= times.room[bound, 1]).all()
        plan = np.tile(np.argsort(np.where(bound, times.times, 2.0), kind="stable"), (epochs, 1))
        assert sequence_spacing(packed, orders, text).smallest_share > min(
            0.45, sequence_spacing(packed, plan, text).smallest_share
        )


@every_method
@given(
    tokens=st.lists(st.tuples(st.integers(0, 5), st.integers(1, 90)), min_size=1, max_size=20),
    length=st.integers(1, 50),
    frozen=st.integers(0, 4),
    epochs=st.integers(1, 3),
    seed=st.integers(0, 3),
)
@example(tokens=[(0, 29), (0, 29)], length=10, frozen=0, epochs=1, seed=0)  # even times a rounding below 0
@settings(max_examples=examples(25), deadline=None)
def test_every_time_lies_in_the_epoch_and_every_epoch_is_a_permutation(
    method, tokens, length, frozen, epochs, seed
):
    text, lengths = documents_of(tokens)
    packed = packed_by(method, text, lengths, length, copies=text)
    counts, groups = sequence_counts(packed, {"cluster": text % 3}, {"cluster": 3})
    frozen = min(frozen, len(packed))
    times = sequence_times(packed, text, frozen=frozen)
    bound = ~np.isnan(times.times)
    bound[:frozen] = False
    assert (times.times[:frozen] < 0).all()
    assert (times.times[bound] >= 0).all()
    assert (times.times[bound] < 1).all()
    assert ((times.room[frozen:] >= 0) & (times.room[frozen:] <= 1)).all()
    with times_checked():
        orders = epoch_orders(
            counts, groups, epochs, copies=times, frozen=np.arange(frozen), seed=seed, batch=2
        )
        document = spread_order(counts, groups, text[packed.document[packed.indptr[:-1]]], seed=seed)
    assert (np.sort(orders, axis=1) == np.arange(len(packed))).all()
    assert orders[0, :frozen].tolist() == list(range(frozen))
    assert sorted(document) == list(range(len(packed)))


@given(seed=st.integers(0, 10**6), rule=st.sampled_from(["natural", "sqrt", "unimax", "table"]))
@settings(max_examples=examples(40), deadline=None)
def test_a_mix_with_copies_apart_is_a_permutation_from_documents_to_epochs(seed, rule):
    """As the pipeline goes, over tiny corpora: 400 of them in `make test-long`."""
    random = np.random.default_rng(seed)
    records, length, epochs = (
        int(random.integers(4, 60)),
        int(random.integers(4, 80)),
        int(random.integers(1, 3)),
    )
    tokens = np.ceil(random.lognormal(3, 1, records)).astype(np.int64)
    source, cluster, text = (random.integers(0, values, records) for values in (3, 4, records))
    tokens, names = tokens[text], ("a", "b", "c")
    sizes = dict(zip(names, np.bincount(source, tokens, 3).astype(int).tolist(), strict=True))
    weights = (
        {name: float(random.integers(1, 9)) for name in names if sizes[name]} if rule == "table" else rule
    )
    total = int(tokens.sum() * random.choice([0.5, 1.0, 1.7]))
    plan = plan_mix(weights, sizes, total_tokens=total, max_repeats=1000 if rule == "unimax" else None)
    # Numbers of values that are spread over all of their bits, as hashes of names are.
    spread = [(1 + of.astype(np.uint64)) * np.uint64(0x9E3779B97F4A7C15) for of in (source, cluster)]
    times = times_of(
        plan, tokens, source, even_order(spread, random.integers(0, 1 << 63, records).astype(np.uint64))
    )
    record = np.repeat(np.arange(records), times)
    texts, lengths = text[record], tokens[record]
    codes = {"source": source[record], "cluster": cluster[record]}
    items = document_items(lengths, codes)
    with times_checked():
        made = spread_order(items.counts, items.groups, texts, seed=seed)
        assert sorted(made) == list(range(len(record)))
        for method in METHODS:
            packed = pack(
                Pieces(made, np.zeros_like(made), lengths[made]),
                method=method,
                sequence_length=length,
                labels=codes["cluster"][made],
                vectors=random.standard_normal((records, 4)).astype(np.float32)[texts[made]],
                copies=texts[made],
            )
            assert packed.length.sum() == lengths.sum()
            counts, groups = sequence_counts(packed, codes, {"source": 3, "cluster": 4})
            orders = epoch_orders(
                counts, groups, epochs, copies=sequence_times(packed, texts), seed=seed, batch=2
            )
            assert (np.sort(orders, axis=1) == np.arange(len(packed))).all()


@contextmanager
def times_checked() -> Iterator[None]:
    """The functions that give items their times are held to [0, 1)."""

    def checked(function: Callable[..., np.ndarray]) -> Callable[..., np.ndarray]:
        def call(*arguments: Any, **options: Any) -> np.ndarray:
            times = function(*arguments, **options)
            assert ((times >= 0) & (times < 1)).all(), function
            return times

        return call

    names = ("_even_times", "_ranked_times", "_dealt_times")
    with patch.multiple(spread, **{name: checked(getattr(spread, name)) for name in names}):
        yield


def test_windows_hold_the_mix_although_everything_is_bound():
    """Of a corpus whose documents all occur twice, windows of 64 sequences; beside a shuffle of the same sequences."""
    random = np.random.default_rng(0)
    tokens = np.ceil(random.lognormal(3.2, 1.2, 3000)).astype(np.int64).repeat(2)
    text = np.arange(3000).repeat(2)
    codes = {"source": random.choice(6, 3000, p=[0.4, 0.2, 0.2, 0.1, 0.05, 0.05])[text]}
    items = document_items(tokens, codes)
    made = spread_order(items.counts, items.groups, text)
    packed = pack(Pieces(made, np.zeros_like(made), tokens[made]), sequence_length=4 * LENGTH)
    counts, groups = sequence_counts(packed, codes, {"source": 6})
    whole = len(packed) - 1
    orders = epoch_orders(counts[:whole], groups, 2, copies=sequence_times(packed, text).first(whole))
    rows = counts[:whole].toarray()

    def worst(order: np.ndarray) -> float:
        before = np.concatenate([np.zeros((1, 6)), np.cumsum(rows[order], axis=0)])
        inside = before[64:] - before[:-64]
        share = rows.sum(axis=0) / rows.sum()
        return float(np.abs(inside / inside.sum(axis=1, keepdims=True) - share).max())

    assert whole > 15 * 64
    shuffled = np.mean([worst(random.permutation(whole)) for _ in range(3)])
    for order in orders:
        assert worst(order) < 0.3 * shuffled


@pytest.mark.parametrize(
    ("copies", "message"),
    [
        pytest.param([0], r"copies.*\(1,\).*\(2,\)", id="shape"),
        pytest.param([0.5, 1.0], "copies is float64", id="not whole"),
    ],
)
def test_bad_copies_are_named(copies, message):
    with pytest.raises(InputError, match=message):
        pack(Pieces(*np.array([[0, 1], [0, 0], [3, 4]])), sequence_length=4, copies=copies)
