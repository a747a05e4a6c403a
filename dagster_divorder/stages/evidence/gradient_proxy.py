"""gradient_proxy: whether gradients of the last `gradients.layers` blocks, projected to `gradients.dims` dims, tell
documents apart as gradients of all parameters do on this model.

`table` has a row for the last 1 to 4 blocks, and for the settings' blocks under smaller projections: Spearman's
correlation between the documents' cosines by proxy and by whole gradients, and the share of Spokes's choice of half the
documents by whole gradients that Spokes also chooses by proxy; by chance it would be a half.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from dagster_divorder.core.evidence.gradient_proxy import choice, rank_agreement
from dagster_divorder.corpus.sample import records_by_text, sample_texts
from dagster_divorder.pipeline.run import Run
from dagster_divorder.pipeline.stage import Made, Table, WholeCorpus
from dagster_divorder.stages.topics import gradient_embeddings as gradients
from dagster_divorder.stages.topics.deep_embeddings import embed_needs
from dagster_divorder.store.fits import model_path

DOCUMENTS, TEXT_BYTES, BLOCKS, SHARE = 100, 1 << 24, 4, 0.5


def _compare_gradient_proxies(run: Run) -> Made:
    texts = sample_texts(run.records, run.view, records_by_text(run.records, run.view, DOCUMENTS), TEXT_BYTES)
    embed = gradients.gradients_of(run)
    needs = embed_needs(run, embed) | {"workers": 1}
    ((rows, measured),) = run.engine.each(partial(_measure, texts), [embed], **needs)
    return Made({"table": rows}, {}, {"documents_measured": measured})


def _measure(texts: list[str], embed: gradients.Gradients) -> tuple[list[dict[str, Any]], int]:
    """(rows of the table, documents measured), on a machine that has the model."""
    from dagster_divorder.models.gradient_proxy import proxy_cosines
    from dagster_divorder.models.gradients import GradientModel, blocks_of
    from dagster_divorder.models.spec import quiet
    from dagster_divorder.models.tokenize import load_encoder

    model, spec = embed.load(), embed.spec
    assert isinstance(model, GradientModel)
    ids, lengths = load_encoder(model_path(embed.records.fragments.store, embed.model)).encode(texts)
    documents = np.split(ids, np.cumsum(lengths)[:-1])
    windows = [np.array([*spec.prefix, *tokens[: spec.room].tolist()], np.int64) for tokens in documents]
    windows = [window for window in windows if len(window) > 1]
    blocks = sorted({embed.layers, *range(1, 1 + min(BLOCKS, len(blocks_of(model.module))))})
    dims = sorted({max(1, embed.dims // part) for part in (16, 4, 1)})
    with quiet():
        proxies = proxy_cosines(model, windows, blocks, dims)
    whole = proxies.pop("whole")
    chosen, rows = choice(whole, SHARE), []
    for key, proxy in proxies.items():
        layers, size = (embed.layers, key[1]) if isinstance(key, tuple) else (key, None)
        rows.append(
            {
                "blocks": layers,
                "dims": size,
                "Spearman": rank_agreement(proxy, whole),
                f"chosen alike, {SHARE:.0%}": float((choice(proxy, SHARE) & chosen).sum() / chosen.sum()),
                "used": (layers, size) == (embed.layers, embed.dims),
            }
        )
    return rows, len(whole)


GRADIENT_PROXY = WholeCorpus(
    name="gradient_proxy",
    version=2,
    description="Whether gradients of the last blocks tell documents apart as gradients of all parameters do: rank "
    "correlation of cosines and overlap of choices.",
    reads=lambda settings: ("raw_docs", "token_counts", "base_model", gradients.model_stage(settings)),
    settings=("gradients", "deep.dtype", "engine.device", "seed"),
    when=lambda settings: settings.takes_gradients,
    doing="comparing gradients of all parameters and of the last blocks",
    compute=_compare_gradient_proxies,
    show=lambda run, receipt: {"proxies": Table(run.rows("gradient_proxy", "table"))},
)
