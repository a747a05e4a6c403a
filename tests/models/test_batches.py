"""Batches: none over its budget, little padding; and what out of memory looks like."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from dagster_divorder.engine.base import is_out_of_memory
from dagster_divorder.models.embed import PADDING, SMALL, batch_end


@given(
    st.lists(st.integers(1, 500), min_size=1, max_size=200).map(lambda values: np.sort(values)[::-1]),
    st.integers(1, 3000),
)
def test_batches_keep_to_the_budget_and_pad_little(lengths: np.ndarray, budget: int) -> None:
    begin = 0
    while begin < len(lengths):
        end = batch_end(lengths, begin, budget)
        batch, longest = lengths[begin:end], int(lengths[begin])
        assert end > begin
        positions = longest * len(batch)
        if len(batch) > 1:
            assert positions <= budget
        if positions > SMALL * budget:
            assert batch.sum() >= (1 - PADDING) * positions
        begin = end


def test_what_torch_raises_on_a_cpu_is_recognised() -> None:
    with pytest.raises(RuntimeError) as caught:
        torch.empty(1 << 50)
    assert is_out_of_memory(caught.value)


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (torch.cuda.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB"), True),
        (RuntimeError("not enough memory: you tried to allocate 9 bytes"), True),
        (RuntimeError("MPS backend out of memory (MPS allocated: 1 GB)"), True),
        (RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling cublasCreate"), True),
        (MemoryError(), True),
        (RuntimeError("mat1 and mat2 shapes cannot be multiplied"), False),
        (ValueError("out of memory"), False),
    ],
)
def test_other_words_for_it(error: Exception, expected: bool) -> None:
    assert is_out_of_memory(error) is expected
