"""heldout: the documents that are kept out of training, to validate on.

`heldout.documents` is a share of the documents of every value of `mixing.trait` if that is a field of the input, else
of all documents. They are stored as ids; a document has the value of its first record. Appended data leaves them
unchanged. Documents are added when the corpus has doubled, or when a value has enough documents and none is held out;
never a document that a trainer has consumed.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from dagster_divorder.core.mix.heldout import choose
from dagster_divorder.core.order.traits import column_codes
from dagster_divorder.corpus.stored import records_by_text
from dagster_divorder.errors import InputError
from dagster_divorder.pipeline.fit import Fitted, PinnedFit, has_doubled, load_fitted
from dagster_divorder.pipeline.run import Run
from dagster_divorder.settings import Settings
from dagster_divorder.stages.corpus.fields import built_in, load_fields
from dagster_divorder.stages.mix.consumed import consumed_text_mask
from dagster_divorder.stages.order.bin_edges import BINS
from dagster_divorder.store.arrays import pack, unpack
from dagster_divorder.store.ids import distinct, places

IDS = "ids.safetensors"
MAX_BYTES = 1 << 30
"""Most bytes of held-out texts. All are in memory at once."""


def heldout_ids(run: Run) -> np.ndarray:
    """Ids of the held-out documents that are still in the corpus, uint64 (H, 2), rising."""
    ids = unpack(run.fit("heldout")[IDS])["ids"]
    return ids[np.isin(ids[:, 0], run.text_halves())]


def leaves_out(settings: Settings, stage: str) -> bool:
    """Whether a stage must not see the held-out documents and their copies."""
    # The draw leaves out what a trainer has consumed, and counting that needs tokens and the base model.
    return settings.holds_out and not (settings.order.frozen_tokens and stage == "base_model")


def fit_inputs(run: Run, stage: str) -> dict[str, str]:
    """What decides `fit_rows` of a pinned fit: the settings of `heldout`. Documents that are held out later leave the
    fit unchanged, as appended documents do."""
    return {"heldout": HELDOUT.key(run)} if leaves_out(run.settings, stage) else {}


def fit_rows(run: Run, stage: str, most: int | None = None) -> np.ndarray:
    """Rows of the documents that a stage learns from, by rising id, int64; the first `most`, or all.

    Raises:
        InputError: no document is left.
    """
    without = run.column("heldout_copies", "place") >= 0 if leaves_out(run.settings, stage) else None
    rows = records_by_text(run.records, run.view, most, without)
    if not len(rows):
        raise InputError(
            f"all {len(run.view):,} documents are held out, or copies of held-out ones; expected at least "
            "one to train on: lower heldout.documents"
        )
    return rows


class _Draw(NamedTuple):
    """The D different texts of the corpus in the order of their first records. ids: uint64 (D, 2). sizes: bytes of
    text, int64 (D,). codes: values of the trait, int (D,). names: by code. kept: which are held out so far; chosen:
    which are to be held out, bool (D,)."""

    ids: np.ndarray
    sizes: np.ndarray
    codes: np.ndarray
    names: tuple[str, ...]
    kept: np.ndarray
    chosen: np.ndarray


def _drawn_by(settings: Settings) -> str | None:
    """The field of which every value has its share; None if the corpus has one share."""
    trait = settings.mixed_trait
    return None if trait in built_in(settings) else trait


def _draw(run: Run, before: np.ndarray) -> _Draw:
    """before: ids of the documents held out so far, uint64 (H, 2)."""
    share, first = run.settings.heldout.documents, np.flatnonzero(run.are_first)
    assert share is not None
    ids, codes = run.index("text")[first], np.zeros(len(first), np.int32)
    names: tuple[str, ...] = ("the corpus",)
    if trait := _drawn_by(run.settings):
        # `bin_edges` cannot be used: it needs tokens of a model that must not see held-out documents.
        column = load_fields(run, trait).column(trait)
        coded = column_codes(column, bins=BINS, name=f"mixing.trait: field {trait!r}", balanced=True)
        codes, names = coded.codes[first], coded.names
    kept = places(ids, before) >= 0
    chosen = choose(ids, codes, share, run.settings.seed, kept, consumed_text_mask(run)[first])
    return _Draw(ids, run.index("text_size")[first], codes, names, kept, chosen)


def _choose_heldout(run: Run) -> Mapping[str, bytes]:
    share, fitted = run.settings.heldout.documents, load_fitted(run.store, HELDOUT.name, HELDOUT.key(run))
    before = unpack(fitted.files[IDS])["ids"] if fitted else np.empty((0, 2), np.uint64)
    draw = _draw(run, before)
    if not draw.chosen.any():
        raise InputError(
            f"heldout.documents = {share} is less than half a document of every {run.settings.mixed_trait}; "
            "expected at least one document: raise heldout.documents"
        )
    if (size := int(draw.sizes[draw.chosen].sum())) > MAX_BYTES:
        raise InputError(
            f"heldout.documents = {share} holds out {size:,} bytes; expected at most {MAX_BYTES:,}, since a validation "
            "set is read many times: lower heldout.documents"
        )
    # Documents that are gone from the corpus stay held out, since they may come back.
    ids = np.concatenate([draw.ids[draw.chosen], before])
    ids = ids[distinct(ids).first]
    return {IDS: pack({"ids": ids[np.lexsort((ids[:, 1], ids[:, 0]))]})}


def _heldout_drift(run: Run, fitted: Fitted) -> str | None:
    why = has_doubled(run, fitted)
    if why or run.planning:
        return why
    draw = _draw(run, unpack(fitted.files[IDS])["ids"])
    if not draw.kept.any():
        return "no held-out document is in the corpus any more"
    without = np.setdiff1d(draw.codes[draw.chosen], draw.codes[draw.kept])
    if not len(without):
        return None
    return f"no document of {run.settings.mixed_trait} {draw.names[without[0]]} is held out"


HELDOUT = PinnedFit(
    name="heldout",
    rechecked=True,
    version=1,
    asset=False,
    description="The documents that are kept out of training, to validate on.",
    reads=lambda settings: (
        *("raw_docs", "fields"),
        *(["token_counts"] if settings.order.frozen_tokens else []),
    ),
    when=lambda settings: settings.holds_out,
    settings=("mixing", "heldout", "input", "seed"),
    # What decides records' ids, but neither the corpus nor its traits.
    decided_by=lambda run: {
        "trait": _drawn_by(run.settings),
        "share": run.settings.heldout.documents,
        "seed": run.settings.seed,
        "records": run.receipt("raw_docs").key,
    },
    doing="choosing what is held out",
    compute=_choose_heldout,
    # No `refit`: held-out documents stay held out.
    drift=_heldout_drift,
    # A draw from an earlier corpus cannot be repeated.
    outlives=True,
    tentative="a value of mixing.trait has enough documents and none is held out",
    facts=lambda run, fitted: {"held_out": len(unpack(fitted.files[IDS])["ids"])},
    figures=lambda run, receipt: {"held_out_documents": receipt.facts["held_out"]},
)
