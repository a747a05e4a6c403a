"""shallow_components, deep_components, external_components: principal components of a kind of vectors.

With `embedding.pca`, vectors are clustered along their principal components. The components are a pinned fit, made
again by the rule of the clusters (`refit.clusters`). This module also decides which vectors are clustered
(`embedding.kind`), and loads their space."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import orjson

from dagster_divorder.core.vectors.pca import Pca
from dagster_divorder.pipeline.fit import PinnedFit, has_doubled
from dagster_divorder.pipeline.run import Run
from dagster_divorder.pipeline.stage import content_hash
from dagster_divorder.settings import KINDS, Settings
from dagster_divorder.stages.mix.heldout import fit_inputs, fit_reads, fit_rows
from dagster_divorder.store.arrays import pack, unpack
from dagster_divorder.store.space import Space
from dagster_divorder.store.state import Receipt

STAGE_OF = {kind: f"{kind}_embeddings" for kind in KINDS}
"""The stage of each kind of vectors."""

COMPONENTS_OF = {kind: f"{kind}_components" for kind in STAGE_OF}

ROWS = 1 << 16
BYTES = 1 << 28
"""Most documents and bytes of float32 vectors that components are fitted to; the fit takes three times these bytes."""

ARRAYS = "components.safetensors"
INFO = "pca.json"


def kinds_of(settings: Settings) -> tuple[str, ...]:
    """The kind of vectors that is clustered, or the kinds that ari_comparison compares."""
    return settings.embedding.compared if settings.embedding.kind == "auto" else (settings.embedding.kind,)


def space_reads(settings: Settings, *kinds: str) -> tuple[str, ...]:
    """The stages that make the spaces of some kinds of vectors, by default of the clustered kind."""
    auto = settings.embedding.kind == "auto" and not kinds
    kinds = kinds or kinds_of(settings)
    components = [COMPONENTS_OF[kind] for kind in kinds if settings.embedding.pca]
    return (*(STAGE_OF[kind] for kind in kinds), *components, *(["ari_comparison"] if auto else []))


def chosen_kind(run: Run) -> str:
    """The kind of vectors that are clustered: `embedding.kind`, or the choice of ari_comparison."""
    kind = run.settings.embedding.kind
    return str(run.receipt("ari_comparison").facts["chosen"]) if kind == "auto" else kind


def chosen_vectors(run: Run) -> Receipt:
    """The receipt of the stage whose vectors are clustered.

    Raises:
        MissingStageError: it has not run with these settings.
    """
    return run.receipt(STAGE_OF[chosen_kind(run)])


def is_centred(settings: Settings, kind: str) -> bool:
    """Whether the mean is subtracted from vectors of a kind before they are clustered."""
    return kind != "shallow" or settings.embedding.pooling != "mean"


def space_key(run: Run, kind: str | None = None) -> str:
    """A key of everything but the corpus that decides the vectors of a space, by default of the clustered kind."""
    kind = kind or chosen_kind(run)
    receipt = run.receipt(STAGE_OF[kind])
    if not run.settings.embedding.pca:
        return receipt.key
    return content_hash(receipt.key, run.receipt(COMPONENTS_OF[kind]).version)


def load_space(run: Run, kind: str | None = None) -> Space:
    """The space of a kind of vectors, by default of the clustered kind.

    Raises:
        MissingStageError: its stage has not run with these settings.
    """
    kind = kind or chosen_kind(run)
    components = None
    if run.settings.embedding.pca:
        files = run.fit(COMPONENTS_OF[kind])
        explained = orjson.loads(files[INFO])["explained_variance"]
        components = Pca(**unpack(files[ARRAYS]), explained=explained)
    return Space(
        files=run.files(STAGE_OF[kind]),
        centre=components is None and is_centred(run.settings, kind),
        components=components,
    )


def space_figures(run: Run) -> dict[str, Any]:
    """Figures of the clustered space."""
    kind = chosen_kind(run)
    if not run.settings.embedding.pca:
        return {"vectors": STAGE_OF[kind]}
    facts = run.receipt(COMPONENTS_OF[kind]).facts
    return {
        "vectors": STAGE_OF[kind],
        **{name: facts[name] for name in ("pca", "explained_variance")},
        "pca_fitted": f"to {facts['documents']:,} documents ({facts['reason']})",
        "pca_note": facts["note"],
    }


def _fit_components(run: Run, kind: str) -> Mapping[str, bytes]:
    from dagster_divorder.core.vectors.pca import fit

    view, vectors, asked = (
        run.view,
        Space(run.files(STAGE_OF[kind]), centre=False),
        run.settings.embedding.pca,
    )
    rows = fit_rows(run, COMPONENTS_OF[kind], min(ROWS, vectors.most_rows(view, BYTES)))
    pca = fit(vectors.rows(view, rows), asked)
    dims, found = pca.axes.shape
    note = None
    if found < asked:
        note = (
            f"{asked:,} principal components are asked for, but {run.corpus.records:,} documents of {dims:,} dims have "
            f"only {found:,}"
        )
        run.progress.note(note)
    info = {"pca": found, "explained_variance": pca.explained, "note": note}
    return {ARRAYS: pack({"mean": pca.mean, "axes": pca.axes}), INFO: orjson.dumps(info)}


def _components(kind: str) -> PinnedFit:
    return PinnedFit(
        name=COMPONENTS_OF[kind],
        version=2,
        asset=False,
        description=f"Principal components of the {kind} vectors.",
        reads=lambda settings: ("raw_docs", STAGE_OF[kind], *fit_reads(settings, COMPONENTS_OF[kind])),
        settings=("embedding.pca",),
        decided_by=lambda run: {
            "pca": run.settings.embedding.pca,
            "vectors": run.receipt(STAGE_OF[kind]).key,
            **fit_inputs(run, COMPONENTS_OF[kind]),
        },
        doing=f"fitting principal components of the {kind} vectors",
        compute=partial(_fit_components, kind=kind),
        refit="clusters",
        drift=has_doubled,
        facts=lambda run, fitted: orjson.loads(fitted.files[INFO]),
    )


SHALLOW_COMPONENTS, DEEP_COMPONENTS, EXTERNAL_COMPONENTS = map(_components, STAGE_OF)
