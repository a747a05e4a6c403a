"""What out of memory looks like, and budgets from measured passes."""

from __future__ import annotations

import math

import pytest
import torch

from dagster_divorder.engine.memory import MODEL_BYTES, is_out_of_memory
from dagster_divorder.models.batches import (
    CPU_BUDGET,
    GPU_BUDGET,
    SHARE,
    cpu_lanes,
    position_bytes,
    power_of_two,
    solve,
)


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


def peak(rows: int, length: int, a: float, b: float) -> tuple[int, int, int]:
    return rows, length, int(rows * (a * length + b * length**2))


@pytest.mark.parametrize("a", [10_000, 400_000])
@pytest.mark.parametrize("b", [0, 3, 80])
def test_a_full_batch_of_the_solved_budget_fits_whatever_its_length(a: float, b: float) -> None:
    free = 20 << 30
    budget = solve([peak(2, 256, a, b), peak(2, 2048, a, b)], free)
    for length in (16, 256, 2048, 8192):
        rows = max(1, int(budget.positions / (length * (1 + length / budget.square))))
        if rows > 1:
            assert peak(rows, length, a, b)[2] <= SHARE * free * 1.01
    if b:
        assert budget.square == pytest.approx(a / b, rel=1e-3)
    else:
        assert budget.square == math.inf
    # No more than half of what would fit is left unused.
    assert budget.positions == GPU_BUDGET or 2 * budget.positions * a > 0.99 * SHARE * free


def test_a_budget_does_not_follow_main_memory_to_the_byte() -> None:
    probes = [peak(2, 256, 400_000, 0), peak(2, 2048, 400_000, 0)]
    assert solve(probes, 21 << 30) == solve(probes, (21 << 30) + 123_456_789)


def test_lanes_are_cores_where_memory_allows_and_one_at_least() -> None:
    assert cpu_lanes(4, 512, 1000) == 4
    assert cpu_lanes(4, 512, 1 << 50) == 1
    half = MODEL_BYTES / (3.5 * CPU_BUDGET)
    assert 2 <= cpu_lanes(64, 512, int(half)) <= 5


def test_a_position_takes_more_in_a_wider_model() -> None:
    from transformers import BertConfig, LlamaConfig

    assert position_bytes(BertConfig(), 4) == 4 * (8 * 768 + 3 * 3072)
    assert position_bytes(LlamaConfig(hidden_size=64, intermediate_size=100), 2) == 2 * (8 * 64 + 300)


@pytest.mark.parametrize(("most", "limit", "expected"), [(1000, 64, 64), (100, 1 << 20, 64), (0.2, 8, 1)])
def test_powers_of_two(most: float, limit: int, expected: int) -> None:
    assert power_of_two(most, limit) == expected
