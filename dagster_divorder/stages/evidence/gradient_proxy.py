"""gradient_proxy: whether gradients of the last `gradients.layers` blocks, projected to `gradients.dims` dims, tell
documents apart as well as gradients of all parameters do on this model.

A random sample of documents gets the gradients of all parameters. `table` has a row per proxy, for the settings' own
numbers of blocks and dims and for others: Spearman's correlation between the documents' cosines by proxy and by whole
gradients, and the share of Spokes's choice by whole gradients that Spokes also chooses by proxy. By chance it would be
the share that is chosen.

Cost: a forward and backward pass of some 100 documents through the whole model. Memory: 4 bytes a parameter and
document, SAMPLE_BYTES in all; a larger model gets FEWEST documents, or none if memory cannot hold their gradients.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from dagster_divorder.core.evidence.gradient_proxy import choices, overlap, rank_agreement
from dagster_divorder.engine.memory import main_memory
from dagster_divorder.pipeline.run import Run
from dagster_divorder.pipeline.stage import Made, Table, WholeCorpus
from dagster_divorder.settings import Settings
from dagster_divorder.stages.topics.deep_embeddings import embed_needs
from dagster_divorder.stages.topics.gradient_embeddings import (
    Gradients,
    gradients_of,
    gradients_settings,
    load_model,
    model_stage,
)
from dagster_divorder.store.fits import model_path
from dagster_divorder.store.sample import rows_by_id, sample_texts
from dagster_divorder.units import byte_size

DOCUMENTS, FEWEST = 200, 20
SAMPLE_BYTES = 2 << 30
"""Bytes of gradients in memory at once, if they hold at least FEWEST documents."""
TEXT_BYTES = 1 << 24
SHARES = (0.1, 0.5)
"""Shares of the documents that Spokes chooses."""


def _compare_gradient_proxies(run: Run) -> Made:
    texts = sample_texts(run.store, run.view, rows_by_id(run.store, run.view, DOCUMENTS), TEXT_BYTES)
    embed = gradients_of(run)
    needs = embed_needs(run, embed) | {"workers": 1}
    ((rows, figures),) = run.engine.each(partial(_measure, texts), [embed], **needs)
    if figures["note"]:
        run.progress.note(figures["note"])
    return Made({"table": rows} if rows else {}, {"note": figures["note"]}, figures)


def _measure(texts: list[str], embed: Gradients) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """(rows of the table, figures), on a machine that has the model."""
    from dagster_divorder.models.gradient_proxy import block_counts, parameters_of, proxy_cosines
    from dagster_divorder.models.gradients import GradientModel
    from dagster_divorder.models.spec import quiet
    from dagster_divorder.models.tokenize import load_encoder

    model, spec = embed.load(), embed.spec
    assert isinstance(model, GradientModel)
    ids, lengths = load_encoder(model_path(embed.store, embed.model)).encode(texts)
    documents = np.split(ids, np.cumsum(lengths)[:-1])
    windows = [np.array([*spec.prefix, *tokens[: spec.room].tolist()], np.int64) for tokens in documents]
    windows = [window for window in windows if len(window) > 1]
    size = 4 * parameters_of(model)
    most = max(FEWEST, SAMPLE_BYTES // size)
    figures = {"documents_measured": min(len(windows), most), "parameters": size // 4, "note": None}
    if len(windows) < FEWEST:
        return [], {
            **figures,
            "note": f"{len(windows)} documents have a gradient; expected {FEWEST} at least to compare",
        }
    if FEWEST * size > main_memory() // 2:
        return [], {
            **figures,
            "note": f"whole gradients of {FEWEST} documents ({size // 4:,} parameters) take "
            f"{byte_size(FEWEST * size)}, more than half of the memory ({byte_size(main_memory())}): use a larger "
            "machine, or set gradients.model to a smaller model of the same family",
        }
    dims = sorted({max(1, embed.dims // 16), max(1, embed.dims // 4), embed.dims})
    with quiet():
        cosines = proxy_cosines(model, windows[:most], block_counts(model, embed.layers), dims)
    figures["documents_measured"] = len(cosines.whole)
    whole_choices = choices(cosines.whole, SHARES)
    proxies: list[tuple[int, int | None, np.ndarray]] = [
        (blocks, None, proxy) for blocks, proxy in cosines.blocks.items()
    ]
    proxies += [(embed.layers, k, proxy) for k, proxy in cosines.dims.items()]
    rows = []
    for blocks, k, proxy in proxies:
        pairs = zip(SHARES, choices(proxy, SHARES), whole_choices, strict=True)
        rows.append(
            {
                "blocks": blocks,
                "dims": k,
                "parameters": cosines.parameters[blocks],
                "Spearman": rank_agreement(proxy, cosines.whole),
                **{f"chosen alike, {share:.0%}": overlap(chosen, whole) for share, chosen, whole in pairs},
                "used": (blocks, k) == (embed.layers, embed.dims),
            }
        )
    return rows, figures


def load_proxies(run: Run) -> list[dict[str, Any]]:
    """One row per proxy; none if the model could not be measured (`note` says why)."""
    measured = "table" in run.receipt("gradient_proxy").files
    return run.rows("gradient_proxy", "table") if measured else []


def _gradient_proxy_settings(settings: Settings) -> dict[str, Any]:
    return {name: value for name, value in gradients_settings(settings).items() if name != "stored"}


GRADIENT_PROXY = WholeCorpus(
    name="gradient_proxy",
    version=1,
    kinds={"huggingface", "pytorch"},
    description="Whether gradients of the last blocks tell documents apart as well as gradients of all parameters. "
    "Correlation of cosines (Spearman) and overlap of choices, for several numbers of blocks and dims.",
    evidence="whether gradients of the last blocks agree with gradients of all parameters",
    reads=lambda settings: ("raw_docs", "token_counts", "base_model", model_stage(settings)),
    settings=_gradient_proxy_settings,
    inputs=lambda run: {"documents": run.receipt("raw_docs").version, "model": load_model(run).fingerprint},
    when=lambda settings: settings.takes_gradients,
    doing="comparing gradients of all parameters and of the last blocks",
    compute=_compare_gradient_proxies,
    show=lambda run, receipt: {"proxies": Table(load_proxies(run))},
)
