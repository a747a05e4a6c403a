"""Every pooling, and every clustering algorithm with every metric, gives the results that golden_vectors.json holds.

Renewed, after a change that is meant to move them, by `python -m tests.test_golden_vectors`. Vectors are held by their
signature, which also notices the order of rows and the sign of a column (shown below).
"""

import json
import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest

from dagster_divorder.core.topics import cluster
from dagster_divorder.core.vectors import pool
from dagster_divorder.models.spec import Pooling, read_spec
from tests.golden import TOLERANCE, same, signature
from tests.tiny_models import AFFIXES, TEXTS, save_model, save_tokenizer

GOLDEN = Path(__file__).with_name("golden_vectors.json")
DOCUMENTS, VOCABULARY, DIMS, GROUPS = 400, 300, 8, 5


def pooled(pooling: str) -> np.ndarray:
    random = np.random.default_rng(14)
    lengths = random.integers(0, 60, DOCUMENTS)
    ids = np.minimum(random.geometric(0.02, lengths.sum()) - 1, VOCABULARY - 1).astype(np.uint32)
    table = random.normal(size=(VOCABULARY, DIMS)).astype(np.float32)
    frequency = pool.document_frequency(ids, lengths, VOCABULARY)
    return pool.pool(ids, lengths, table, pool.token_weights(frequency, DOCUMENTS, pooling))


@cache
def groups_of_vectors() -> np.ndarray:
    """Groups of unequal size and length, away from the origin."""
    random = np.random.default_rng(15)
    group = random.choice(GROUPS, DOCUMENTS, p=np.arange(GROUPS, 0, -1) / np.arange(GROUPS + 1).sum())
    middles = random.normal(size=(GROUPS, DIMS)) * np.linspace(1, 3, GROUPS)[:, np.newaxis] + 0.5
    return (middles[group] + 0.6 * random.normal(size=(DOCUMENTS, DIMS))).astype(np.float32)


def clustered() -> dict[str, Any]:
    vectors = groups_of_vectors()
    fit = cluster.fit(vectors, GROUPS, seed=3)
    labels, distances = cluster.assign(vectors, fit)
    return {
        "sizes": np.bincount(labels).tolist(),
        "centroids": signature(fit.centroids),
        "mean distance": fit.mean_distance,
        "labels": signature(labels),
        "distances": signature(distances),
    }


def deep(pooling: str) -> np.ndarray:
    from dagster_divorder.models.embed import load
    from dagster_divorder.models.tokenize import load_encoder

    with tempfile.TemporaryDirectory() as made:
        folder = save_model(Path(made), "bert")
        save_tokenizer(folder, *AFFIXES["bert"])
        model = load(folder, read_spec(folder, pooling=pooling))
        tokens = load_encoder(folder, "tokenizers").encode(TEXTS)
        return model.embed(*tokens)["vectors"]


CASES: dict[str, Callable[[], Any]] = {
    **{f"pooling {name}": lambda a=name: signature(pooled(a)) for name in get_args(pool.Pooling)},
    **{f"deep pooling {name}": lambda a=name: signature(deep(a)) for name in get_args(Pooling)},
    "clusters cosine": clustered,
}


@pytest.mark.parametrize("case", CASES)
def test_results_are_those_of_before(case: str) -> None:
    found, golden = CASES[case](), json.loads(GOLDEN.read_text())[case]
    assert same(found, golden), f"{found} and before {golden}"


def test_every_pooling_and_algorithm_is_held() -> None:
    assert set(json.loads(GOLDEN.read_text())) == set(CASES)


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(lambda vectors: vectors[::-1], id="rows the other way round"),
        pytest.param(lambda vectors: vectors[[1, 0, *range(2, len(vectors))]], id="two rows exchanged"),
        pytest.param(lambda vectors: vectors[:, ::-1], id="columns the other way round"),
        pytest.param(lambda vectors: vectors * [-1, *[1] * (DIMS - 1)], id="another sign of a column"),
        pytest.param(lambda vectors: -vectors, id="another sign"),
        pytest.param(lambda vectors: vectors[:-1], id="a row less"),
        pytest.param(lambda vectors: vectors * 1.01, id="longer vectors"),
    ],
)
def test_a_signature_notices(change: Callable[[np.ndarray], np.ndarray]) -> None:
    for pooling in get_args(pool.Pooling):
        vectors = pooled(pooling)
        assert not same(signature(change(vectors)), signature(vectors))


def test_a_signature_passes_over_last_digits() -> None:
    vectors = pooled("mean")
    noise = 1 + TOLERANCE / 100 * np.random.default_rng(0).normal(size=vectors.shape)
    assert same(signature(vectors * noise), signature(vectors))


@pytest.mark.parametrize("other", [["a", 1.0], ["a", 1.0, 3], ["b", 1.0, 2], ["a", 1.01, 2], {"a": 1.0}, "a"])
def test_results_that_differ_are_told_apart(other: Any) -> None:
    assert same(["a", 1.0001, 2], ["a", 1.0, 2])
    assert not same(other, ["a", 1.0, 2])
    assert not same({"stage": other}, {"stage": ["a", 1.0, 2]})


if __name__ == "__main__":
    GOLDEN.write_text(json.dumps({name: case() for name, case in CASES.items()}, indent=1) + "\n")
