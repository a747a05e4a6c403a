"""Rules of drift: each gives None if a fit still describes the corpus, else the reason in words."""

from __future__ import annotations

from dagster_divorder.core.sketch import changed_share, left_share, sketch
from dagster_divorder.pipeline.fit import SKETCH, Fitted
from dagster_divorder.pipeline.run import Run
from dagster_divorder.store.arrays import unpack
from dagster_divorder.store.fits import read_fit
from dagster_divorder.store.state import Receipt

MIN_SHARE_LEFT = 0.1
"""A corpus that holds a smaller share of a fit's documents counts as another corpus."""

GROWTH = 2.0

CHANGED = 0.2
"""Share of documents that may be added or removed before a comparison or a calibration is made again."""


def documents_left(run: Run, receipt: Receipt) -> float:
    """The share of a fit's documents, by its receipt, that the corpus still holds."""
    files = read_fit(run.store, receipt.files["fit"])
    return left_share(unpack(files[SKETCH])["ids"], run.corpus.ids())


def another_corpus(run: Run, fitted: Fitted) -> str | None:
    """Drift if the corpus holds less than MIN_SHARE_LEFT of the fit's documents."""
    share = left_share(fitted.sketch, run.corpus.ids())
    return f"{share:.0%} of the fit's documents are left" if share < MIN_SHARE_LEFT else None


def has_doubled(run: Run, fitted: Fitted) -> str | None:
    """Drift if the corpus has GROWTH times as many documents as the fit, or is another corpus."""
    now, then = run.corpus.records, fitted.documents
    if now >= GROWTH * then:
        return f"the corpus has grown from {then:,} to {now:,} documents since"
    return another_corpus(run, fitted)


def has_changed(run: Run, fitted: Fitted) -> str | None:
    """Drift if more than the share CHANGED of the documents was added or removed."""
    changed = changed_share(fitted.sketch, sketch(run.corpus.ids()))
    return f"{changed:.0%} of the documents have changed since" if changed > CHANGED else None
