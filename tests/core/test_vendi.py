"""The Vendi score from Gram matrices: its laws, and against the kernel of all pairs."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dagster_divorder.core.measure import vendi as module
from dagster_divorder.core.measure.vendi import each_block, gram, vendi
from tests.conftest import examples
from tests.twins import vendi as twin

seeds = st.integers(0, 2**32 - 1)
quick = settings(max_examples=examples(12), deadline=None)


def unit(seed: int, count: int, dims: int) -> np.ndarray:
    vectors = np.random.default_rng(seed).normal(size=(count, dims))
    return (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32)


@quick
@given(seeds, st.integers(1, 40), st.integers(1, 12))
def test_equals_the_kernel_of_all_pairs_within_its_bounds(seed: int, count: int, dims: int) -> None:
    vectors = unit(seed, count, dims)
    weights = np.random.default_rng(seed).random(count) + 0.01
    found = vendi(gram(vectors, np.arange(count), weights))
    assert found == pytest.approx(twin.vendi(vectors, weights), rel=1e-5)
    assert 1 - 1e-6 <= found <= min(count, dims) * (1 + 1e-6)


@quick
@given(seeds, st.integers(1, 30))
def test_neither_rotation_nor_scale_of_weights_nor_copies_of_all_change_it(seed: int, count: int) -> None:
    vectors, draw = unit(seed, count, 6), np.random.default_rng(seed)
    weights = draw.integers(1, 4, count)
    rotation = np.linalg.qr(draw.normal(size=(6, 6)))[0].astype(np.float32)
    found = vendi(gram(vectors, np.arange(count), weights.astype(float)))
    others = (
        gram(vectors @ rotation, np.arange(count), 7.5 * weights),
        gram(vectors, np.repeat(np.arange(count), weights)),
    )
    assert [vendi(other) for other in others] == pytest.approx([found] * 2, rel=1e-5)


def test_its_extremes() -> None:
    assert vendi(gram(np.eye(5, dtype=np.float16), np.arange(5))) == pytest.approx(5)
    alike = np.zeros((4, 3), np.float32)
    alike[:, 0] = (1, 1, -1, 1)
    assert vendi(gram(alike, np.arange(4))) == pytest.approx(1)
    zeros = np.concatenate([np.eye(5, dtype=np.float32), np.zeros((3, 5), np.float32)])
    assert vendi(gram(zeros, np.arange(8))) == pytest.approx(5)
    assert vendi(gram(zeros, np.arange(5, 8))) == 1


def test_blocks_come_in_order_and_bytes_do_not_depend_on_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    vectors, rows = unit(1, 1000, 16), np.random.default_rng(2).permutation(1000)
    monkeypatch.setattr(module, "BLOCK", 16 * 32)
    parts = list(each_block(vectors, rows, lambda part, block: (part.start, block)))
    assert [start for start, _ in parts] == list(range(0, 1000, 32))
    assert (np.concatenate([block for _, block in parts]) == vectors[rows]).all()
    several = gram(vectors, rows)
    monkeypatch.setattr("joblib.cpu_count", lambda: 1)
    assert gram(vectors, rows).tobytes() == several.tobytes()
