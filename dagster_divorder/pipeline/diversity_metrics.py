"""diversity_metrics: original order, shuffling (mean of three seeds) and curated order, measured side by side."""

from __future__ import annotations

from typing import Any

import numpy as np
import orjson
import pyarrow as pa

from dagster_divorder.core.metrics import Diversity, average, cluster_mix, distinct_clusters, measure
from dagster_divorder.pipeline.greedy_order import load_order
from dagster_divorder.pipeline.run import Run, content_hash
from dagster_divorder.pipeline.traits import Traits, load_traits
from dagster_divorder.store.local import LocalStore
from dagster_divorder.store.receipts import Receipt

SHUFFLES = 3
ORDERS = ("original", "random", "curated")


def run(run: Run) -> Receipt:
    settings = run.settings
    greedy_order = run.receipt("greedy_order")
    traits = load_traits(run)
    key = content_hash(settings.recipe("diversity_metrics"), traits.version, greedy_order.version)
    folder = f"stages/diversity_metrics/{key}"
    wanted = ["metrics", "table", *(["picture"] if settings.output.plot else [])]
    found = run.store.sealed(folder)
    reused = all(name in found for name in wanted)
    if not reused:
        curated = load_order(run)
        measured = _measure_orders(run, traits, curated)
        metrics = orjson.dumps({name: diversity.to_dict() for name, diversity in measured.items()})
        found = {
            "metrics": run.store.seal(folder, "metrics", metrics, "json"),
            "table": run.store.seal(folder, "table", _parquet(measured), "parquet"),
        }
        if settings.output.plot:
            picture = _picture(run, traits, curated, measured)
            found["picture"] = run.store.seal(folder, "picture", picture, "png")
    documents = len(traits.tokens)
    return Receipt(
        stage="diversity_metrics",
        recipe=settings.recipe("diversity_metrics"),
        key=key,
        version=found["metrics"].rsplit(".", 2)[1],
        uses={"greedy_order": greedy_order.version},
        files={name: found[name] for name in wanted},
        report={
            "documents": documents,
            "new_documents": 0 if reused else documents,
            "reused_documents": documents if reused else 0,
            "summary": summary_rows(load_metrics(run.store, found["metrics"])),
        },
    )


def _measure_orders(run: Run, traits: Traits, curated: np.ndarray) -> dict[str, Diversity]:
    documents = len(traits.tokens)
    with run.progress("measuring orders", 2 + SHUFFLES, "orders") as advance:

        def one(order: np.ndarray) -> Diversity:
            result = measure(
                order,
                traits.tokens,
                traits.codes,
                traits.sizes(),
                sequence_length=run.settings.sequence.length,
                batch=run.settings.sequence.batch,
            )
            advance(1)
            return result

        return {
            "original": one(np.arange(documents)),
            "random": average([one(_shuffle(run, documents, number)) for number in range(SHUFFLES)]),
            "curated": one(curated),
        }


def _shuffle(run: Run, documents: int, number: int) -> np.ndarray:
    return np.random.default_rng([run.settings.seed, number]).permutation(documents)


def _picture(run: Run, traits: Traits, curated: np.ndarray, measured: dict[str, Diversity]) -> bytes:
    from dagster_divorder.view.ordering_comparison import (
        BAR_PIXELS,
        PicturedOrder,
        ordering_comparison,
        to_png,
    )

    clusters = traits.sizes()["cluster"]
    documents = len(traits.tokens)

    def pictured(name: str, order: np.ndarray) -> PicturedOrder:
        labels = traits.codes["cluster"]
        distinct = distinct_clusters(order, traits.tokens, labels, run.settings.sequence.length)
        columns = max(1, min(len(distinct), BAR_PIXELS))
        mix = cluster_mix(order, traits.tokens, labels, clusters, columns)
        return PicturedOrder(name, measured[name], distinct, mix)

    return to_png(
        ordering_comparison(
            before=pictured("original", np.arange(documents)),
            shuffled=pictured("random", _shuffle(run, documents, 0)),
            after=pictured("curated", curated),
        )
    )


def _parquet(measured: dict[str, Diversity]) -> bytes:
    """A row a measure (trait, window, measure), a column an order."""
    import pyarrow.parquet as pq

    rows = [
        {**row, "original": row["value"], "random": other["value"], "curated": curated["value"]}
        for row, other, curated in zip(*(measured[name].rows() for name in ORDERS), strict=True)
    ]
    sink = pa.BufferOutputStream()
    pq.write_table(pa.Table.from_pylist(rows).drop_columns("value"), sink)
    return sink.getvalue().to_pybytes()


def load_table(store: LocalStore, file: str) -> list[dict[str, Any]]:
    """Every measure as a row: `trait`, `window`, `measure`, then its value in each order."""
    import pyarrow.parquet as pq

    rows: list[dict[str, Any]] = pq.read_table(pa.BufferReader(store.unseal(file))).to_pylist()
    return rows


def load_metrics(store: LocalStore, file: str) -> dict[str, dict[str, Any]]:
    """Measures by order name, as `core.metrics.Diversity.to_dict` gives them."""
    metrics: dict[str, dict[str, Any]] = orjson.loads(store.unseal(file))
    return metrics


def summary_rows(metrics: dict[str, dict[str, Any]]) -> list[dict[str, Any]]:
    """The table people read first: a row an order, the figures that differ most; None where nothing can be told."""
    rows = []
    for name in ORDERS:
        figures = metrics[name]
        batch = figures["batch_shares"]["cluster"]
        # A corpus smaller than a batch is one window, which deviates from itself by nothing.
        told = batch["windows"] > 0 and not batch["partial"]
        rows.append(
            {
                "order": name,
                "distinct clusters a sequence": figures["split"]["mean"],
                "fewest": figures["split"]["min"],
                "batch TV, clusters": batch["mean_tv"] if told else None,
                "worst batch TV, clusters": batch["max_tv"] if told else None,
                "mean prefix deviation, tokens": figures["prefix"]["mean"],
                "every cluster seen after": figures["coverage"],
            }
        )
    return rows
