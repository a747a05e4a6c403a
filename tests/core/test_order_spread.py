"""Copies spread: how far apart they stand, what it costs the mix, what a frozen prefix does, and the spacing report."""

from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.sparse import csr_matrix

from dagster_divorder.core.order import STRATEGIES, Targets, order, spread
from dagster_divorder.core.order.spread import spacing, spread_order
from dagster_divorder.errors import InputError
from tests.conftest import along, examples

every_strategy = pytest.mark.parametrize("strategy", STRATEGIES)
laws = settings(max_examples=examples(25), deadline=None)
# Numbers of copies of some documents; small cells below, so that there are several of them.
multiplicities = st.lists(st.one_of(st.integers(1, 3), st.integers(1, 40)), min_size=1, max_size=60)


def corpus_of(copies: list[int], seed: int = 0) -> tuple[csr_matrix, np.ndarray, np.ndarray]:
    """(counts of two groups, groups, document of each item): documents with their copies, items in random order."""
    random = np.random.default_rng(seed)
    document = random.permutation(np.arange(len(copies)).repeat(copies))
    tokens = np.ceil(random.lognormal(4, 1.2, len(copies))).astype(np.int64)[document]
    codes = np.stack([random.integers(0, 5, len(copies)), 5 + random.integers(0, 3, len(copies))], 1)[
        document
    ]
    indptr = np.arange(0, 2 * len(document) + 1, 2)
    counts = csr_matrix((tokens.repeat(2), codes.ravel(), indptr), shape=(len(document), 8))
    return counts, np.repeat([0, 1], [5, 3]), document


@every_strategy
@given(copies=multiplicities, seed=st.integers(0, 3), frozen=st.integers(0, 30))
@settings(max_examples=examples(8), deadline=None)
def test_is_a_permutation_that_begins_with_what_is_frozen(strategy, copies, seed, frozen):
    counts, groups, document = corpus_of(copies)
    consumed = np.random.default_rng(seed).permutation(len(document))[:frozen]
    options = {"strategy": strategy, "seed": seed, "frozen": consumed, "sequence_length": 64}
    if "scores" in (options := options | along(strategy, len(document))):
        options["scores"] = options["scores"][: len(copies)][document]
    with patch.multiple(spread, CELL=16, MIN_CELL=8):
        made = spread_order(counts, groups, document, **options)
        again = spread_order(counts, groups, document, **options)
    assert sorted(made) == list(range(len(document)))
    assert made[:frozen].tolist() == consumed.tolist()
    assert made.dtype == np.int64
    assert made.tobytes() == again.tobytes()


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["balanced", "random", "stratified", "block_shuffle"])
@given(copies=multiplicities, seed=st.integers(0, 3))
@laws
def test_copies_stand_evenly_but_for_their_cells(strategy, copies, seed):
    """The nearest copies of a document with r of them are M / r apart, less two cells, and a place for each class."""
    counts, groups, document = corpus_of(copies)
    with patch.multiple(spread, CELL=16, MIN_CELL=16):
        made = spread_order(counts, groups, document, strategy=strategy, seed=seed, batch=8)
    items = len(document)
    cell = -(-items // max(1, items // 16))
    rounding = 2 * len(set(copies)) + 1
    for number, r in enumerate(copies):
        places = np.flatnonzero(document[made] == number)
        exact = strategy == "random" or items < spread.MIN_DISTANCE * r * (items // max(1, items // 16))
        if r > 1:
            assert np.diff(places).min() >= items // r - rounding - (0 if exact else 2 * cell)


def test_no_document_is_twice_in_a_subset():
    """The law of Don't Shuffle, Optimize: of 4 copies each, every quarter of the order has each document once."""
    counts, groups, document = corpus_of([4] * 3000)
    made = spread_order(counts, groups, document)
    for quarter in document[made].reshape(4, -1):
        assert len(np.unique(quarter)) > 0.999 * 3000
    # Sixteen cells, so that copies are four apart.
    assert spacing(made, document).smallest > 0.74 * 3000


def prefix_deviation(made: np.ndarray, counts: csr_matrix, groups: np.ndarray) -> np.ndarray:
    """L2 norm of every prefix's deviation, float64 (M,)."""
    rows = counts.toarray().astype(float)
    for group in set(groups):
        columns = groups == group
        share = rows[:, columns].sum(axis=0) / rows[:, columns].sum()
        rows[:, columns] -= rows[:, columns].sum(axis=1, keepdims=True) * share
    return np.linalg.norm(np.cumsum(rows[made], axis=0), axis=1)


def test_the_mix_is_kept_as_well_as_without_spreading():
    random = np.random.default_rng(0)
    counts, groups, document = corpus_of(np.minimum(random.zipf(2.5, 12_000), 9).tolist())
    plain = prefix_deviation(order(counts, groups), counts, groups).mean()
    apart = prefix_deviation(spread_order(counts, groups, document), counts, groups).mean()
    shuffled = prefix_deviation(order(counts, groups, strategy="random"), counts, groups).mean()
    assert apart < 2 * plain < 0.1 * shuffled


@pytest.mark.parametrize(
    ("document", "smallest"),
    [
        pytest.param(np.r_[np.zeros(10_000, int), np.arange(1, 5001)], 1, id="one document has two thirds"),
        pytest.param(np.zeros(15_000, int), 1, id="all identical"),
        pytest.param(np.arange(15_000) % 3, 3, id="three documents"),
        pytest.param(np.arange(15_000) // 2, 7500, id="everything twice"),
        pytest.param(np.minimum(np.arange(15_000), 12_000), 4, id="3000 copies of one"),
    ],
)
def test_degenerate_corpora_are_spread_too(document, smallest):
    counts = csr_matrix((np.ones(15_000, int), document % 7, np.arange(15_001)), shape=(15_000, 7))
    made = spread_order(counts, [0] * 7, document)
    assert sorted(made) == list(range(15_000))
    # Two cells may be lost where a strategy chooses inside them: equal items come at random there.
    assert spacing(made, document).smallest >= min(smallest, max(0, smallest - 2 * spread.CELL * 8 // 7))


def test_without_copies_it_is_the_plain_order():
    counts, groups, document = corpus_of([1] * 500)
    assert np.array_equal(spread_order(counts, groups, document, seed=3), order(counts, groups, seed=3))
    assert spread_order(csr_matrix((0, 2)), [0, 0], []).shape == (0,)


def test_a_strategy_blind_to_traits_keeps_documents_without_copies_in_its_order():
    counts, groups, document = corpus_of([1] * 300 + [5] * 20)
    made = spread_order(counts, groups, document, strategy="original")
    once = made[document[made] < 300]
    assert np.array_equal(once, np.sort(once))


def test_copies_of_frozen_documents_wait_half_a_turn():
    copies = [2] * 400 + [1] * 1200
    counts, groups, document = corpus_of(copies)
    consumed = np.flatnonzero(document < 200)[:150]
    made = spread_order(counts, groups, document, frozen=consumed)
    rest = document[made[150:]]
    waiting = set(document[consumed]) & set(rest)
    first = [np.flatnonzero(document[made] == number) for number in waiting]
    assert len(first) > 80
    # One copy left of each, so a turn is all of the rest. Of the half, a cell may be lost (a sixteenth).
    assert min(np.diff(places).min() for places in first) > 0.4 * len(rest)


def test_the_rest_makes_up_for_a_frozen_prefix():
    counts, groups, document = corpus_of([1] * 4000 + [2] * 500)
    # All of the first 30 % lacks cluster 0.
    lacking = np.flatnonzero(np.asarray(counts[:, [0]].todense()).ravel() == 0)[:1500]
    made = spread_order(counts, groups, document, frozen=lacking)
    deviation = prefix_deviation(made, counts, groups)
    assert deviation[3000:].mean() < 0.25 * deviation[1499]
    fresh = prefix_deviation(spread_order(counts, groups, document), counts, groups)
    assert deviation[4000:].mean() < 3 * fresh.mean()


def test_a_mix_that_moves_is_followed():
    counts, groups, document = corpus_of([1] * 3000 + [2] * 300)
    share = np.asarray(counts.sum(axis=0)).ravel() / counts[:, :5].sum()
    tilted = np.array([share * np.r_[2.0, np.ones(7)], share * np.r_[1e-9, np.ones(7)]])
    for group in (0, 1):
        tilted[:, groups == group] /= tilted[:, groups == group].sum(axis=1, keepdims=True)
    made = spread_order(
        counts, groups, document, targets=Targets(progress=np.array([0.0, 1.0]), shares=tilted)
    )
    rows = counts.toarray()[made]
    early, late = rows[: len(rows) // 4].sum(axis=0), rows[-len(rows) // 4 :].sum(axis=0)
    assert early[0] / early[:5].sum() > 1.4 * share[0]
    assert late[0] / late[:5].sum() < 0.6 * share[0]


@given(document=st.lists(st.integers(0, 6), max_size=30), seed=st.integers(0, 3))
@settings(max_examples=examples(40), deadline=None)
def test_spacing_equals_its_twin(document, seed):
    random = np.random.default_rng(seed)
    made = random.permutation(len(document))
    tokens = random.integers(0, 9, len(document))
    last: dict[int, tuple[int, int]] = {}
    distances, in_tokens, shares = [], [], []
    begin = 0
    for place, item in enumerate(made):
        if document[item] in last:
            before, began = last[document[item]]
            distances.append(place - before)
            in_tokens.append(begin - began)
            shares.append((place - before) * document.count(document[item]) / len(document))
        last[document[item]] = place, begin
        begin += tokens[item]
    found = spacing(made, np.array(document, int), tokens)
    assert found.copies == len(distances)
    if distances:
        assert (found.smallest, found.median) == (min(distances), np.median(distances))
        assert (found.smallest_tokens, found.median_tokens) == (min(in_tokens), np.median(in_tokens))
        assert found.smallest_share == pytest.approx(min(shares))
        assert spacing(made, document).smallest_tokens is None
    else:
        assert found.smallest is found.median is found.smallest_tokens is None


@pytest.mark.parametrize(
    ("copies", "options", "message"),
    [
        pytest.param([0, 1], {}, r"\(2,\).*\(3,\)", id="shape"),
        pytest.param([0.5, 1, 1], {}, "float64", id="not whole"),
    ],
)
def test_bad_input_is_named(copies, options, message):
    with pytest.raises(InputError, match=message):
        spread_order(csr_matrix(np.eye(3, dtype=int)), [0, 0, 0], copies, **options)
