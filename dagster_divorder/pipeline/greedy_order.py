"""greedy_order: the order of the documents, by the strategy of `order.strategy`.

`order.npy`-like array int64 (N,): output position -> position among the accepted records. Computed as a whole, since
one appended document can move every other; the same input, settings and seed give the same bytes.
"""

from __future__ import annotations

import numpy as np

from dagster_divorder.core.items import document_items
from dagster_divorder.core.order import order
from dagster_divorder.pipeline.run import Run, content_hash
from dagster_divorder.pipeline.traits import Traits, load_traits
from dagster_divorder.store.arrays import pack, unpack
from dagster_divorder.store.receipts import Receipt


def run(run: Run) -> Receipt:
    settings = run.settings
    traits = load_traits(run)
    key = content_hash(settings.recipe("greedy_order"), traits.version)
    folder = f"stages/greedy_order/{key}"
    found = run.store.sealed(folder).get("order")
    if found is None:
        run.progress.note(f"ordering {len(traits.tokens):,} documents ({settings.order.strategy})")
        made = order_documents(
            traits,
            settings.order.traits,
            strategy=settings.order.strategy,
            seed=settings.seed,
            within_cluster=settings.order.within_cluster,
            sequence_length=settings.sequence.length,
        )
        file = run.store.seal(folder, "order", pack({"order": made}), "safetensors")
    else:
        file = found
    documents = len(traits.tokens)
    raw_docs, tokens, clusters = (run.receipt(name) for name in ("raw_docs", "token_counts", "clusters"))
    return Receipt(
        stage="greedy_order",
        recipe=settings.recipe("greedy_order"),
        key=key,
        version=file.rsplit(".", 2)[1],
        uses={receipt.stage: receipt.version for receipt in (raw_docs, tokens, clusters)},
        files={"order": file, "edges": traits.edges.folder},
        report={
            "documents": documents,
            "new_documents": documents if found is None else 0,
            "reused_documents": 0 if found is None else documents,
            "strategy": settings.order.strategy,
            "traits": {trait: traits.sizes()[trait] for trait in settings.order.traits},
            "tokens": int(traits.tokens.sum()),
            "fields": list(traits.fields),
            "columns_folder": traits.columns_folder,
            "source_field": settings.input.source_field,
        },
    )


def order_documents(
    traits: Traits,
    weights: dict[str, float],
    *,
    strategy: str,
    seed: int,
    within_cluster: str = "original",
    sequence_length: int | None = None,
) -> np.ndarray:
    """Order of documents by their traits, int64 (N,): each trait is balanced in tokens and in documents.

    The clusters come first where they are balanced: strategies that know one label a document take the first trait.
    """
    first = sorted(weights, key=lambda trait: trait != "cluster")
    items = document_items(traits.tokens, {trait: traits.codes[trait] for trait in first}, weights)
    return order(
        items.counts,
        items.groups,
        strategy=strategy,
        weights=items.weights,
        seed=seed,
        within_cluster=within_cluster,
        sequence_length=sequence_length,
    )


def load_order(run: Run) -> np.ndarray:
    """The current order, int64 (N,)."""
    return unpack(run.store.unseal(run.receipt("greedy_order").files["order"]))["order"]
