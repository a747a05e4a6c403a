"""Distances between copies, in an order and in packed sequences, against loops over every place and token."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dagster_divorder.core.order.spacing import spacing
from dagster_divorder.core.packing import Pieces, pack
from dagster_divorder.core.packing.copies import sequence_spacing
from tests.conftest import examples

laws = settings(max_examples=examples(40), deadline=None)
texts_of = st.lists(st.integers(0, 5), max_size=30).map(lambda texts: np.array(texts, np.int64))


@given(texts=texts_of, seed=st.integers(0, 3))
@laws
def test_spacing_of_an_order_equals_its_twin(texts, seed):
    random = np.random.default_rng(seed)
    tokens, order = random.integers(0, 40, 6)[texts], random.permutation(len(texts))
    begins = np.cumsum(np.append(0, tokens[order]))
    pairs = [
        pair
        for text in range(6)
        for pair in itertools.pairwise(np.flatnonzero(texts[order] == text).tolist())
    ]
    found = spacing(order, texts, tokens)
    assert found.copies == len(pairs)
    if not pairs:
        assert found.smallest is found.median is found.smallest_share is found.smallest_tokens is None
        return
    distances = [after - before for before, after in pairs]
    shares = [
        distance * (texts == texts[order[before]]).sum() / len(texts)
        for distance, (before, _) in zip(distances, pairs, strict=True)
    ]
    in_tokens = [int(begins[after] - begins[before]) for before, after in pairs]
    assert (found.smallest, found.median) == (min(distances), np.median(distances))
    assert found.smallest_share == pytest.approx(min(shares))
    assert (found.smallest_tokens, found.median_tokens) == (min(in_tokens), np.median(in_tokens))
    assert spacing(order, texts).median_tokens is None


@given(
    texts=texts_of,
    length=st.integers(1, 30),
    epochs=st.integers(1, 2),
    step=st.integers(1, 3),
    seed=st.integers(0, 3),
)
@laws
def test_spacing_of_sequences_equals_its_twin(texts, length, epochs, step, seed):
    random = np.random.default_rng(seed)
    lengths = random.integers(0, 41, 6)[texts]
    packed = pack(Pieces(np.arange(len(texts)), np.zeros_like(texts), lengths), sequence_length=length)
    orders = np.stack([random.permutation(len(packed)) for _ in range(epochs)])
    copies = np.bincount(texts[np.unique(packed.document)], minlength=6)
    last: dict[tuple[int, int], int] = {}
    distances, shares = [], []
    for place, sequence in enumerate(orders.ravel()):
        for run in range(packed.indptr[sequence], packed.indptr[sequence + 1]):
            text = int(texts[packed.document[run]])
            for at in range(packed.start[run], packed.start[run] + packed.length[run]):
                if at % step == 0 and copies[text] > 1:
                    if (text, at) in last:
                        distances.append(place - last[text, at])
                        shares.append(distances[-1] * copies[text] / len(packed))
                    last[text, at] = place
    found = sequence_spacing(packed, orders, texts, step=step)
    assert found.copies == (copies[copies > 1] - 1).sum()
    assert found.together == distances.count(0)
    if distances:
        assert (found.smallest, found.median) == (min(distances), np.median(distances))
        assert found.smallest_share == pytest.approx(min(shares))
        assert found.median_share == pytest.approx(np.median(shares))
    else:
        assert found.smallest is found.median is found.smallest_share is found.median_share is None
