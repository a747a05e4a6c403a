"""Fits on the corpus, the third kind of stages, and rules of drift: a rule gives None if a fit still describes the
corpus, else the reason in words."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from dagster_divorder.core.sketch import changed_share, left_share, sketch
from dagster_divorder.errors import StoreError
from dagster_divorder.pipeline.stage import Decision, Stage, counts, what_changed
from dagster_divorder.settings import Settings
from dagster_divorder.settings.sections import FitName
from dagster_divorder.store.arrays import pack, unpack
from dagster_divorder.store.base import Store
from dagster_divorder.store.stages import FITS, put_fit, read_fit
from dagster_divorder.store.state import Receipt, Result, load_receipt, load_result, put_result

if TYPE_CHECKING:
    from dagster_divorder.pipeline.run import Run

SKETCH = "documents.safetensors"
"""A file of every fit: a sketch of the documents that the fit was made on (`core.sketch`)."""
MIN_SHARE_LEFT = 0.1
"""A corpus that holds a smaller share of a fit's documents counts as another corpus."""
GROWTH = 2.0
CHANGED = 0.2
"""Share of documents that may be added or removed before a comparison or a calibration is made again."""


@dataclass(frozen=True, slots=True)
class Fitted:
    """A stored fit: its result, its files by name, the number of `documents` that it was made on, and a `sketch` of
    these documents, uint64 (m,), rising."""

    result: Result
    files: Mapping[str, bytes]
    documents: int
    sketch: np.ndarray


@dataclass(frozen=True, kw_only=True, eq=False)
class PinnedFit(Stage):
    """A fit on the corpus. `drift` says why a fit no longer describes the corpus; None if it does. `tentative` names a
    drift that only a run can find. `facts` and `figures` describe a fit, new or stored."""

    compute: Callable[[Run], Mapping[str, bytes]]
    refit: FitName | None = None
    """The name in `divorder run --refit NAME` and in the table `[refit]`, which sets the rule. Without a name the rule
    is `auto`."""
    drift: Callable[[Run, Fitted], str | None] = lambda run, fitted: None
    rechecked: bool = False
    """Whether `drift` depends on settings or the last output, too, so that one check a corpus is not enough. A check
    reads the hashes of all texts."""
    tentative: str = ""
    outlives: bool = False
    """Whether a fit stays when `divorder prune` runs under other settings. Such a fit cannot be repeated."""
    facts: Callable[[Run, Fitted], Mapping[str, Any]] = lambda run, fitted: {}
    figures: Callable[[Run, Receipt], Mapping[str, Any]] = lambda run, receipt: {}

    def rule(self, settings: Settings) -> str:
        """When the fit is made again: `auto` (after drift), `now` (in this run) or `never`."""
        return settings.refit[self.refit] if self.refit else "auto"

    def decide(self, run: Run) -> Decision:
        def anew(why: str) -> Decision:
            return Decision(scope="all", documents=len(run.view), why=why, key=key)

        key, rule = self.key(run), self.rule(run.settings)
        if rule == "now":
            return anew(f"asked for by --refit {self.refit}")
        fitted = load_fitted(run.store, self.name, key, self.refit)
        if fitted is None:
            return anew(what_changed(self, run))
        receipt, corpus, why, unless = self._receipt(run, fitted), run.receipt("raw_docs").version, "", ""
        if rule == "auto":
            last = load_receipt(run.store, self.name)
            checked = last and (last.version, last.facts.get("checked")) == (fitted.result.version, corpus)
            if self.rechecked or not checked:
                if drift := self.drift(run, fitted):
                    return anew(drift)
                unless = self.tentative if run.planning else ""
        else:
            receipt.facts["checked"] = None
            if run.planning and (drift := self.drift(run, fitted)):
                why = f"{drift}; divorder run --refit {self.refit} makes it again"
        return Decision(scope="nothing", documents=0, why=why, receipt=receipt, unless=unless)

    def _receipt(self, run: Run, fitted: Fitted) -> Receipt:
        result = fitted.result
        # `result.facts` hold the number of documents that the fit was made on, and the reason.
        facts = {**self.facts(run, fitted), **result.facts, "checked": run.receipt("raw_docs").version}
        return self.receipt(run, result.key, result.version, files=result.files, facts=facts)

    def make(self, run: Run, decision: Decision) -> Receipt:
        receipt = decision.receipt
        if receipt is None:
            run.progress.note(f"{self.doing or self.name} ({decision.why})")
            ids = sketch(run.text_halves())
            files = {**self.compute(run), SKETCH: pack({"ids": ids})}
            folder = put_fit(run.store, self.name, files)
            result = Result(
                key=decision.key,
                version=folder.rpartition("/")[2],
                files={"fit": folder},
                facts={"documents": len(run.view), "reason": decision.why},
            )
            before = load_result(run.store, self.name, decision.key)
            kept = put_result(run.store, self.name, result, before)
            fitted: Fitted | None = Fitted(result, files, len(run.view), ids)
            if kept.version != result.version:  # another run on this bucket was first
                fitted = load_fitted(run.store, self.name, decision.key, self.refit)
            assert fitted is not None
            receipt = self._receipt(run, fitted)
        why = decision.why if decision.scope == "all" else f"no: kept ({receipt.facts['reason']})"
        figures = {"fitted": why, **self.figures(run, receipt)}
        return replace(receipt, figures={**figures, **counts(len(run.view), decision.documents)})


def load_fitted(store: Store, stage: str, key: str, name: FitName | None = None) -> Fitted | None:
    """The fit of a stage under a key; None if there is none. name: the stage's name for `--refit`. Raises
    StoreError: one of its files is missing or altered. If a stage has no `name`, people may delete the folder of all
    its fits; the stage then makes another."""
    result = load_result(store, stage, key)
    if result is None:
        return None
    try:
        files = read_fit(store, result.files["fit"], name)
    except StoreError:
        if name or f"{FITS}/{stage}" in store.folders(FITS):
            raise
        return None
    return Fitted(result, files, result.facts["documents"], unpack(files[SKETCH])["ids"])


def another_corpus(run: Run, fitted: Fitted) -> str | None:
    """Drift if the corpus holds less than MIN_SHARE_LEFT of the fit's documents."""
    share = left_share(fitted.sketch, run.text_halves())
    return f"{share:.0%} of the fit's documents are left" if share < MIN_SHARE_LEFT else None


def has_doubled(run: Run, fitted: Fitted) -> str | None:
    """Drift if the corpus has GROWTH times as many documents as the fit, or is another corpus."""
    now, then = len(run.view), fitted.documents
    if now >= GROWTH * then:
        return f"the corpus has grown from {then:,} to {now:,} documents since"
    return another_corpus(run, fitted)


def has_changed(run: Run, fitted: Fitted) -> str | None:
    """Drift if more than the share CHANGED of the documents was added or removed."""
    changed = changed_share(fitted.sketch, sketch(run.text_halves()))
    return f"{changed:.0%} of the documents have changed since" if changed > CHANGED else None
