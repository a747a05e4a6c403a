"""gradient_proxy: whether the gradients of the last `gradients.layers` blocks, projected to `gradients.dims` dims, tell
documents apart as those of all parameters do on this model.

Of a random sample of documents the gradients of all parameters are taken. `table`, a row a proxy (other numbers of
blocks and dims beside the settings' own): Spearman's correlation of a document's cosines with the other ones, and the
share of what Spokes chooses by whole gradients that it chooses by the proxy, too; by chance it is the share that is
chosen.

Cost: a forward and backward pass of some 100 documents through the whole model, and 4 bytes a parameter and document,
SAMPLE_BYTES where the model is small: FEWEST documents of a larger one, and none where memory does not hold these.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from dagster_divorder.core.evidence.gradient_proxy import choices, overlap, rank_agreement
from dagster_divorder.engine.memory import main_memory
from dagster_divorder.pipeline.run import Run
from dagster_divorder.pipeline.stage import Made, Shown, Table, WholeCorpus
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
from dagster_divorder.store.local import megabytes
from dagster_divorder.store.sample import rows_by_id, sample_texts
from dagster_divorder.store.state import Receipt

DOCUMENTS, FEWEST = 200, 20
SAMPLE_BYTES = 2 << 30
"""Of gradients, where that is FEWEST documents or more."""
TEXT_BYTES = 1 << 24
SHARES = (0.1, 0.5)
"""Of the documents, that are chosen by either."""


def _compare_gradient_proxies(run: Run) -> Made:
    texts = sample_texts(run.store, run.view, rows_by_id(run.store, run.view, DOCUMENTS), TEXT_BYTES)
    embed = gradients_of(run)
    needs = embed_needs(run, embed) | {"workers": 1}
    (found,) = run.engine.each(partial(_measure, texts), [embed], **needs)
    rows, figures = found
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
    parts = np.split(ids, np.cumsum(lengths)[:-1])
    windows = [np.array([*spec.prefix, *part[: spec.room].tolist()], np.int64) for part in parts]
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
            f"{megabytes(FEWEST * size)}, more than half of the memory ({megabytes(main_memory())}): ask on a larger "
            "machine, or name a smaller model of the same family in gradients.model",
        }
    dims = sorted({max(1, embed.dims // 16), max(1, embed.dims // 4), embed.dims})
    with quiet():
        found = proxy_cosines(model, windows[:most], block_counts(model, embed.layers), dims)
    figures["documents_measured"] = len(found.whole)
    whole = choices(found.whole, SHARES)
    proxies: list[tuple[int, int | None, np.ndarray]] = [
        (blocks, None, cosines) for blocks, cosines in found.blocks.items()
    ]
    proxies += [(embed.layers, k, cosines) for k, cosines in found.dims.items()]
    rows = []
    for blocks, k, cosines in proxies:
        chosen = [overlap(ours, theirs) for ours, theirs in zip(choices(cosines, SHARES), whole, strict=True)]
        rows.append(
            {
                "blocks": blocks,
                "dims": k,
                "parameters": found.parameters[blocks],
                "Spearman": rank_agreement(cosines, found.whole),
                **{f"chosen alike, {share:.0%}": of for share, of in zip(SHARES, chosen, strict=True)},
                "used": (blocks, k) == (embed.layers, embed.dims),
            }
        )
    return rows, figures


def load_proxies(run: Run) -> list[dict[str, Any]]:
    """A row a proxy; none where it could not be measured (`note` says why)."""
    there = "table" in run.receipt("gradient_proxy").files
    return run.rows("gradient_proxy", "table") if there else []


def _show_gradient_proxy(run: Run, receipt: Receipt) -> Shown:
    return {"proxies": Table(load_proxies(run))}


def _gradient_proxy_settings(settings: Settings) -> dict[str, Any]:
    return {name: of for name, of in gradients_settings(settings).items() if name != "stored"}


GRADIENT_PROXY = WholeCorpus(
    name="gradient_proxy",
    version=1,
    kinds={"huggingface", "pytorch"},
    description="Whether gradients of the last blocks, projected, tell documents apart as those of all parameters do "
    "on this model: Spearman's correlation of cosines, and how much of a choice is the same, for several numbers of "
    "blocks and dims.",
    evidence="whether gradients of the last blocks agree with those of all parameters",
    reads=lambda settings: ("raw_docs", "token_counts", "base_model", model_stage(settings)),
    settings=_gradient_proxy_settings,
    inputs=lambda run: {"documents": run.receipt("raw_docs").version, "model": load_model(run).fingerprint},
    when=lambda settings: settings.takes_gradients,
    doing="comparing gradients of all parameters with those of the last blocks",
    compute=_compare_gradient_proxies,
    show=_show_gradient_proxy,
)
