"""Distances between copies in packed sequences, against a loop over every token."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dagster_divorder.core.packing import Pieces, pack
from dagster_divorder.core.packing.copies import sequence_spacing
from tests.conftest import examples

laws = settings(max_examples=examples(40), deadline=None)
texts_of = st.lists(st.integers(0, 5), max_size=30).map(lambda texts: np.array(texts, np.int64))


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
