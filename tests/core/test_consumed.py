"""Packing after a consumed beginning: the consumed and the rest are all tokens, once, and the rest keeps its order."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dagster_divorder.core.packing import METHODS, Pieces, join, pack, remaining


@pytest.mark.slow
@settings(deadline=None)
@given(
    lengths=st.lists(st.integers(0, 40), max_size=20),
    method=st.sampled_from(["concat", "best_fit", "none"]),
    sequence_length=st.integers(1, 16),
    data=st.data(),
)
def test_consumed_and_remaining_tokens_are_all_tokens(
    lengths: list[int], method: str, sequence_length: int, data: st.DataObject
) -> None:
    assert method in METHODS
    order = np.array(data.draw(st.permutations(range(len(lengths)))), np.int64)
    whole = Pieces(order, np.zeros_like(order), np.array(lengths, np.int64)[order])
    packed = pack(whole, method=method, sequence_length=sequence_length, seed=0)
    chosen = data.draw(st.lists(st.integers(0, max(len(packed) - 1, 0)), unique=True, max_size=len(packed)))
    consumed = pack(
        Pieces(*(np.concatenate([np.zeros(0, np.int64), *parts]) for parts in _runs(packed, chosen))),
        method="concat",
        sequence_length=sequence_length,
        seed=0,
    )
    rest = remaining(whole, consumed)
    repacked = join(consumed, pack(rest, method=method, sequence_length=sequence_length, seed=1))
    assert _tokens(repacked) == sorted((d, at) for d, length in enumerate(lengths) for at in range(length))
    place = {int(document): at for at, document in enumerate(order)}
    keys = [(place[int(d)], int(s)) for d, s in zip(rest.document, rest.start, strict=True)]
    assert keys == sorted(keys), "what remains stands in the documents' order, each document's tokens rising"


def _runs(packed, sequences):  # type: ignore[no-untyped-def]
    slices = [slice(packed.indptr[s], packed.indptr[s + 1]) for s in sequences]
    return [[getattr(packed, name)[part] for part in slices] for name in ("document", "start", "length")]


def _tokens(packed):  # type: ignore[no-untyped-def]
    rows = zip(packed.document.tolist(), packed.start.tolist(), packed.length.tolist(), strict=True)
    return sorted((document, at) for document, start, length in rows for at in range(start, start + length))
