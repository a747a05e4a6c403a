"""Strategies, packing methods and the deal to shards give the bytes that golden_orders.json holds, on one fixed corpus.

Renewed, after a change that is meant to move them, by `python -m tests.core.test_golden_orders`.
"""

import json
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.sparse import csr_matrix

from dagster_divorder.core.order import STRATEGIES
from dagster_divorder.core.order.deal import deal
from dagster_divorder.core.order.items import document_items
from dagster_divorder.core.order.traits import Traits
from dagster_divorder.core.packing import METHODS, Pieces, pack
from tests.golden import digest
from tests.orders import epoch_orders, order

GOLDEN = Path(__file__).with_name("golden_orders.json")
DOCUMENTS, CLUSTERS, LENGTH_BINS, DIMS = 3_000, 12, 8, 5

OPTIONS: dict[str, list[dict[str, Any]]] = {
    "round_robin": [{"within_cluster": "original"}],
    "stratified": [{"within_cluster": "original"}],
    "f2": [{"f2_lambda": 0.0}, {"f2_lambda": 7.5}],
    "grid_shuffle": [{"shards": 10}],
    "within_shard": [{"shards": 7}],
    "buffer": [{"buffer": 100}, {"buffer": 5_000}],
    "block_shuffle": [
        {"block_strategy": "f2"},
        {"block_strategy": "f3"},
    ],
}
"""Beside the defaults, which every strategy is tried with."""


@cache
def corpus() -> dict[str, Any]:
    random = np.random.default_rng(14)
    tokens = np.rint(random.lognormal(5.0, 1.2, DOCUMENTS)).astype(np.int64)
    tokens[random.integers(0, DOCUMENTS, 9)] = 0
    cluster = np.minimum(random.geometric(0.2, DOCUMENTS) - 1, CLUSTERS - 1)
    bins = np.minimum(np.searchsorted(np.quantile(tokens, np.linspace(0, 1, LENGTH_BINS)[1:]), tokens), 7)
    return {
        "tokens": tokens,
        "cluster": cluster,
        "items": document_items(tokens, {"cluster": cluster, "length": bins}, {"cluster": 1.0, "length": 0.5}),
        "coordinates": random.normal(size=(DOCUMENTS, DIMS)) * tokens[:, np.newaxis],
        "texts": np.where(
            random.random(DOCUMENTS) < 0.3, random.integers(0, 200, DOCUMENTS), 1_000 + np.arange(DOCUMENTS)
        ),
        "vectors": random.normal(size=(DOCUMENTS, 16)).astype(np.float32),
    }  # fmt: skip


def mixed_rows() -> tuple[csr_matrix, np.ndarray]:
    """Sequences of equal length, of several clusters each: rows of many entries, real counts."""
    random = np.random.default_rng(15)
    clusters = random.multinomial(1024, random.dirichlet(np.full(CLUSTERS, 0.1)), DOCUMENTS)
    groups = np.repeat([0, 1], [CLUSTERS, 6])
    return csr_matrix(
        np.column_stack([clusters, random.multinomial(9, np.full(6, 1 / 6), DOCUMENTS)])
    ), groups


def ordered(call: Callable[..., Any] = order, *given: Any, **arguments: Any) -> np.ndarray:
    items = corpus()["items"]
    fixed = {"weights": items.weights, "seed": 3, "batch": 32}
    return np.asarray(call(items.counts, items.groups, *given, **{**fixed, **arguments}))


def sequences(strategy: str, **arguments: Any) -> np.ndarray:
    fixed = {"weights": [1.0, 50.0], "seed": 1}
    return order(*mixed_rows(), strategy=strategy, **fixed, **arguments)


def packed(method: str, **arguments: Any) -> np.ndarray:
    made = corpus()
    documents = np.random.default_rng(2).permutation(DOCUMENTS)
    plan = pack(
        Pieces(documents, np.zeros_like(documents), made["tokens"][documents]),
        method=method, sequence_length=1_024, seed=3, labels=made["cluster"][documents],
        vectors=made["vectors"][documents].__getitem__, **arguments,
    )  # fmt: skip
    return np.concatenate([plan.document, plan.start, plan.length, plan.indptr])


def dealt(shares: list[float], **arguments: Any) -> np.ndarray:
    made = corpus()
    codes = {"cluster": made["cluster"].astype(np.int32)}
    names = {"cluster": tuple(map(str, range(CLUSTERS)))}
    return deal(
        Traits(made["tokens"], made["tokens"], codes, names), {"cluster": 0.7}, shares, seed=3, **arguments
    )


def cases() -> dict[str, Callable[[], np.ndarray]]:
    out: dict[str, Callable[[], np.ndarray]] = {}
    for name in STRATEGIES:
        for options in ({}, *OPTIONS.get(name, [])):
            named = " ".join([name, *(f"{key}={value}" for key, value in options.items())])
            out[named] = lambda a=name, o=options: ordered(strategy=a, **o)
            out[f"{named}, sequences"] = lambda a=name, o=options: sequences(a, **o)
        out[f"{name}, epochs"] = lambda a=name: ordered(epoch_orders, 3, strategy=a)
        coordinates = {"strategy": name, "coordinates": corpus()["coordinates"]}
        out[f"{name}, coordinates"] = lambda c=coordinates: ordered(**c)
    for method in METHODS:
        out[f"packing {method}"] = lambda m=method: packed(m)
    out["packing best_fit, copies"] = lambda: packed("best_fit", copies=corpus()["texts"])
    out["deal"] = lambda: dealt([1.0] * 7)
    out["deal, shares"] = lambda: dealt([0.1, 0.6, 0.3])
    out["deal, copies"] = lambda: dealt([1.0] * 7, copies=corpus()["texts"])
    return out


@pytest.mark.parametrize("case", [pytest.param(case, id=name) for name, case in cases().items()])
def test_bytes_are_those_of_before(case: Callable[[], np.ndarray], request: pytest.FixtureRequest) -> None:
    assert digest(case().astype(np.int64)) == json.loads(GOLDEN.read_text())[request.node.callspec.id]


def test_every_strategy_and_method_is_held() -> None:
    assert set(json.loads(GOLDEN.read_text())) == set(cases())
    assert set(OPTIONS) <= set(STRATEGIES)


if __name__ == "__main__":
    GOLDEN.write_text(
        json.dumps({name: digest(case().astype(np.int64)) for name, case in cases().items()}, indent=1) + "\n"
    )
