"""greedy_order: the order of the documents, by the strategy of `order.strategy`.

`order.npy`-like array int64 (N,): output position -> position among the accepted records. Computed as a whole, since
one appended document can move every other; the same input, settings and seed give the same bytes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import numpy as np
import orjson

from dagster_divorder.core.items import document_items
from dagster_divorder.core.order import order
from dagster_divorder.core.order.spread import spacing, spread_order
from dagster_divorder.pipeline.frozen import load_frozen, save_record_ids
from dagster_divorder.pipeline.raw_docs import load_view
from dagster_divorder.pipeline.run import Run, content_hash
from dagster_divorder.pipeline.targets import document_targets
from dagster_divorder.pipeline.traits import Traits, load_traits
from dagster_divorder.settings import Order
from dagster_divorder.store.arrays import pack, unpack
from dagster_divorder.store.receipts import Receipt

FILES = ("order", "figures")


def run(run: Run) -> Receipt:
    settings = run.settings
    view, traits = load_view(run), load_traits(run)
    frozen = load_frozen(run, view, traits.tokens)
    key = content_hash(
        settings.recipe("greedy_order"), traits.version, *([frozen.fit.hash] if frozen else [])
    )
    folder = f"stages/greedy_order/{key}"
    found = run.store.sealed(folder)
    reused = all(name in found for name in FILES)
    if not reused:
        run.progress.note(f"ordering {len(traits.tokens):,} documents ({settings.order.strategy})")
        made = order_documents(
            traits,
            settings.order,
            settings.strategy_options(settings.order.strategy),
            seed=settings.seed,
            sequence_length=settings.sequence.length,
            batch=settings.sequence.batch,
            copies=view.document_row if settings.order.separate_copies else None,
            frozen=frozen.documents if frozen else None,
        )
        figures = {"copies": asdict(spacing(made, view.document_row, traits.tokens))}
        found = {
            "order": run.store.seal(folder, "order", pack({"order": made}), "safetensors"),
            "figures": run.store.seal(folder, "figures", orjson.dumps(figures), "json"),
        }
    documents = len(traits.tokens)
    raw_docs, tokens, clusters = (run.receipt(name) for name in ("raw_docs", "token_counts", "clusters"))
    return Receipt(
        stage="greedy_order",
        recipe=settings.recipe("greedy_order"),
        key=key,
        version=found["order"].rsplit(".", 2)[1],
        uses={receipt.stage: receipt.version for receipt in (raw_docs, tokens, clusters)},
        files={
            **{name: found[name] for name in FILES},
            "records": save_record_ids(run, view),
            "edges": traits.edges.folder,
            **({"difficulty": traits.difficulty.fit.folder} if traits.difficulty else {}),
            **({"frozen": frozen.fit.folder} if frozen else {}),
        },
        report={
            "documents": documents,
            "new_documents": 0 if reused else documents,
            "reused_documents": documents if reused else 0,
            "strategy": settings.order.strategy,
            "traits": {trait: traits.sizes()[trait] for trait in settings.order.traits},
            "tokens": int(traits.tokens.sum()),
            "frozen_documents": len(frozen.documents) if frozen else 0,
            **orjson.loads(run.store.unseal(found["figures"])),
            "fields": list(traits.fields),
            "columns_folder": traits.columns_folder,
            "difficulty_folder": traits.difficulty.folder if traits.difficulty else None,
            "source_field": settings.input.source_field,
        },
    )


def order_documents(
    traits: Traits,
    settings: Order,
    options: Mapping[str, Any],
    *,
    seed: int,
    sequence_length: int | None = None,
    batch: int = 256,
    copies: np.ndarray | None = None,
    frozen: np.ndarray | None = None,
) -> np.ndarray:
    """Order of documents by their traits, int64 (N,): each trait is balanced in tokens and in documents.

    options: those of the strategy.
    copies: int64 (N,), equal for records that are to stand far apart. frozen: int64 (F,), the order's beginning.
    The clusters come first where they are balanced: strategies that know one label a document take the first trait.
    """
    first = sorted(settings.traits, key=lambda trait: trait != "cluster")
    items = document_items(traits.tokens, {trait: traits.codes[trait] for trait in first}, settings.traits)
    arguments: dict[str, Any] = {
        "strategy": settings.strategy,
        "weights": items.weights,
        "seed": seed,
        "sequence_length": sequence_length,
        "batch": batch,
        "frozen": frozen,
        "targets": document_targets(settings.targets, traits, first, items),
        **options,
    }
    if copies is not None:
        return spread_order(items.counts, items.groups, copies, **arguments)
    return order(items.counts, items.groups, **arguments)


def load_order(run: Run) -> np.ndarray:
    """The current order, int64 (N,)."""
    return unpack(run.store.unseal(run.receipt("greedy_order").files["order"]))["order"]
