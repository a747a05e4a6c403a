"""quality_scores: scores the quality of each document with the text-classification model of `selection.quality`.

Per document fragment: `quality` float32 (rows,), 0 or more; NaN if the model gives no score.
"""

from __future__ import annotations

import functools
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from dagster_divorder.corpus.stored import Records
from dagster_divorder.engine.base import Needs
from dagster_divorder.engine.local import count_workers
from dagster_divorder.models.checkpoint import locate
from dagster_divorder.models.spec import find_device
from dagster_divorder.pipeline.run import Run
from dagster_divorder.pipeline.stage import PerDocument
from dagster_divorder.settings import Settings
from dagster_divorder.stages.topics.deep_embeddings import call_on_a_worker
from dagster_divorder.stages.topics.deep_model import checkpoint_fingerprint
from dagster_divorder.store.view import Fragment

if TYPE_CHECKING:
    from dagster_divorder.models.quality import Classifier

ROWS = 1024
"""Texts in memory at a time."""


def _locate(settings: Settings) -> Path:
    assert settings.selection.quality_model is not None
    return locate(settings.selection.quality_model, weights="all", setting="selection.quality")


def score(records: Records, model: Path, device: str, fragment: Fragment) -> dict[str, np.ndarray]:
    """The quality of the documents of a fragment."""
    classifier, content = _classifier(model, device), records.words(fragment)
    scores = [classifier(content.slice(first, ROWS).to_pylist()) for first in range(0, len(content), ROWS)]
    return {"quality": np.concatenate(scores)}


@functools.lru_cache(maxsize=1)
def _classifier(model: Path, device: str) -> Classifier:
    from dagster_divorder.models.quality import Classifier

    return Classifier(model, device)


def _quality_scores_needs(run: Run, missing: Any) -> Needs:
    """One process, which uses all cores or a GPU."""
    gpus = int(call_on_a_worker(run, find_device) == "cuda")
    return {"workers": 1, "threads": count_workers(0), "gpus": gpus}


QUALITY_SCORES = PerDocument(
    name="quality_scores",
    version=1,
    asset=False,
    description="The quality of each document, scored by a text-classification model.",
    reads=("raw_docs",),
    settings=("selection.quality",),
    decided_by=lambda run: {"model": checkpoint_fingerprint(_locate(run.settings))},
    when=lambda settings: settings.selects and settings.selection.quality_model is not None,
    doing="scoring quality",
    check=lambda run: _locate(run.settings),
    compute=lambda run: functools.partial(
        score, run.records, _locate(run.settings), call_on_a_worker(run, find_device)
    ),
    needs=_quality_scores_needs,
    figures=lambda run, files: {"model": run.settings.selection.quality},
)
