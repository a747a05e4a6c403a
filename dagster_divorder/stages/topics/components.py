"""Which vectors are clustered (`embedding.kind`), and their space."""

from __future__ import annotations

from dagster_divorder.pipeline.run import Run
from dagster_divorder.settings import Settings
from dagster_divorder.settings.sections import KINDS
from dagster_divorder.store.stages import Space
from dagster_divorder.store.state import Receipt

STAGE_OF = {kind: f"{kind}_embeddings" for kind in KINDS}
"""The stage of each kind of vectors."""


def kinds_of(settings: Settings) -> tuple[str, ...]:
    """The kind of vectors that is clustered, or the kinds that ari_comparison compares."""
    return settings.embedding.compared if settings.embedding.kind == "auto" else (settings.embedding.kind,)


def space_reads(settings: Settings) -> tuple[str, ...]:
    """The stages that make and choose the vectors that are clustered."""
    auto = settings.embedding.kind == "auto"
    return (*(STAGE_OF[kind] for kind in kinds_of(settings)), *(["ari_comparison"] if auto else []))


def chosen_kind(run: Run) -> str:
    """The kind of vectors that are clustered: `embedding.kind`, or the choice of ari_comparison."""
    kind = run.settings.embedding.kind
    return str(run.receipt("ari_comparison").facts["chosen"]) if kind == "auto" else kind


def chosen_vectors(run: Run) -> Receipt:
    """The receipt of the stage whose vectors are clustered; its key names them.

    Raises:
        MissingStageError: it has not run with these settings.
    """
    return run.receipt(STAGE_OF[chosen_kind(run)])


def load_space(run: Run, kind: str | None = None) -> Space:
    """The space of a kind of vectors, by default of the clustered kind.

    Raises:
        MissingStageError: its stage has not run with these settings.
    """
    kind = kind or chosen_kind(run)
    # Only plain means of shallow vectors keep their mean.
    return Space(
        run.files(STAGE_OF[kind]).listed(), kind != "shallow" or run.settings.embedding.pooling != "mean"
    )
