"""What the results promise, and whether they keep it: a promise a module, `look(run) -> Finding`.

`verify(settings, name)` holds one against what the last run made, `verify_all(settings)` all of them. Dagster's asset
checks, and Python code, go through these two. Nothing is stored or mended; a finding says what to do.
Cost: of the order of writing the output for `every_record_in_output`, which reads it; of a sort for the others.
"""

from __future__ import annotations

import importlib
from dataclasses import dataclass, field
from typing import Any

from dagster_divorder.errors import DamagedFileError
from dagster_divorder.pipeline.run import Run
from dagster_divorder.settings import Settings
from dagster_divorder.store.local import LocalStore


@dataclass(frozen=True, slots=True)
class Promise:
    """What is promised of a stage's result. `essential`: without it the result must not be used."""

    stage: str
    description: str
    essential: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """Whether a promise is kept: what was found, what to do if it is not, the figures, and tables (lists of rows)."""

    passed: bool
    text: str
    remedy: str = ""
    figures: dict[str, Any] = field(default_factory=dict)


PROMISES = {
    "rejects_below_limit": Promise(
        "raw_docs", "No more records are refused than input.max_reject_share allows.", False
    ),
    "base_model_is_of_this_corpus": Promise(
        "base_model", "Documents that the base model was made on are still in the input.", False
    ),
    "documents_have_tokens": Promise(
        "token_counts", "The tokenizer makes at least one token of nearly every document.", False
    ),
    "documents_have_vectors": Promise(
        "clusters", "Nearly every document has a vector of its own, which is not zero.", False
    ),
    "clusters_not_degenerate": Promise(
        "clusters", "Clusters tell documents apart: none is empty, none holds most of the corpus.", False
    ),
    "order_is_a_permutation": Promise(
        "greedy_order", "The order names every accepted record exactly once.", True
    ),
    "no_token_lost": Promise(
        "packed_sequences", "Every token of every document is in exactly one training sequence.", True
    ),
    "sequence_order_is_a_permutation": Promise(
        "sequence_order", "Every epoch's order names every packed sequence exactly once.", True
    ),
    "order_beats_shuffling": Promise(
        "diversity_metrics", "Windows of training keep the mix better than by shuffling.", False
    ),
    "nothing_drifts": Promise(
        "diversity_metrics", "Nothing drifts along the sequences, in what the order never saw either.", False
    ),
    "every_record_in_output": Promise(
        "curated_output",
        "Every accepted record is in the curated output, byte for byte, as often as in the input: their number, their "
        "bytes, and the sum of their hashes.",
        True,
    ),
}
"""Promises by name, in the order of the stages that make them."""


def verify(settings: Settings, name: str) -> Finding:
    """Hold one promise against the last run's results, alone on the store meanwhile.

    Raises:
        MissingStageError: there is no result under these settings.
        StoreError: the store cannot be read, or is in use where `store.wait` is false.
    """
    promise = PROMISES[name]
    store = LocalStore(settings.store.path)
    with store.lease(wait=settings.store.wait):
        try:
            finding: Finding = importlib.import_module(f"{__name__}.{name}").look(Run(settings, store.open()))
        except DamagedFileError as error:
            return Finding(
                passed=False,
                text=str(error),
                remedy=f"materialise {promise.stage} again: a damaged file is made anew by the stage that made it",
            )
    return finding


def verify_all(settings: Settings) -> dict[str, Finding]:
    """Every promise; see `verify`."""
    return {name: verify(settings, name) for name in PROMISES}
