"""Which parts of the documents are packed, by `packing.too_long` and the trained tokens of conversations.

With a loss mask, a piece without a trained token is in no sequence: for example, a conversation whose answers were
truncated, or, with `chats.train_on = "last"`, one whose last turn the record excludes from training.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from dagster_divorder.core.measure.runs import RunCounter
from dagster_divorder.core.packing import FILLED, PackedSequences, Pieces, cut
from dagster_divorder.pipeline.run import Run
from dagster_divorder.stages.mix.repeats import TrainingStream, run_counter
from dagster_divorder.stages.text.loss_mask import has_loss_mask

LEFT_OUT = {"truncate": "their ends are left out", "drop": "they are left out"}
"""`packing.too_long` -> what happens to documents that are too long, unless the packing method decides."""


@dataclass(frozen=True, eq=False)
class StreamPieces:
    """The documents of the stream as pieces."""

    run: Run
    stream: TrainingStream

    @cached_property
    def lengths(self) -> np.ndarray:
        """Tokens of each item when packed, int64 (M,)."""
        return self.stream.traits.tokens.astype(np.int64) + self.run.settings.packing.end_of_text

    @cached_property
    def trained(self) -> RunCounter:
        """Counts the trained tokens of pieces, int64 (P,)."""
        return run_counter(self.run, self.stream.record_of)

    def whole(self, items: np.ndarray) -> Pieces:
        """Items, int64 (n,), as pieces."""
        return Pieces(items, np.broadcast_to(np.int64(0), items.shape), self.lengths[items])

    def fitted(self, items: np.ndarray) -> Pieces:
        """The pieces of items, int64 (n,), in their order, that `packing.too_long` leaves."""
        documents, settings = self.whole(items), self.run.settings
        rule, length = settings.packing.too_long, settings.sequence.length
        if rule == "truncate":
            documents = Pieces(documents.document, documents.start, np.minimum(documents.length, length))
        elif rule == "drop":
            documents = documents.take(documents.length <= length)
        # Where some tokens do not count, each part of a document is judged separately.
        parts = has_loss_mask(settings) and settings.packing.method not in FILLED
        return cut(documents, length) if parts else documents

    def are_trained(self, pieces: Pieces | PackedSequences) -> np.ndarray:
        """Which pieces hold a trained token, bool (P,); pieces without tokens count as trained."""
        return (self.trained(pieces) > 0) | (pieces.length == 0)

    def left_out(self) -> tuple[dict[str, int], np.ndarray]:
        """(figures of what packing leaves out; items that are left out whole, int64 rising)."""
        lengths = self.lengths
        pieces = self.fitted(np.arange(len(lengths)))
        kept = np.bincount(pieces.document, pieces.length, len(lengths)).astype(np.int64)
        without = pieces.take(~self.are_trained(pieces))
        untrained = np.bincount(without.document, without.length, len(lengths)).astype(np.int64)
        left, nothing = lengths - kept + untrained, (untrained > 0) & (untrained == kept)
        wholly = np.flatnonzero((left == lengths) & (lengths > 0))
        figures = {
            "too_long_documents": int((lengths > self.run.settings.sequence.length).sum()),
            "too_long_tokens_left_out": int((lengths - kept).sum()),
            "untrained_documents": int(nothing.sum()),
            "untrained_tokens_left_out": int(untrained.sum()),
            "left_out_documents": len(wholly),
        }
        return figures, wholly


def left_out_lines(figures: Mapping[str, Any], too_long: str) -> list[str]:
    """What packing leaves out, as sentences. figures: of packed_sequences. too_long: the setting."""
    lines = []
    documents, tokens = figures.get("too_long_documents", 0), figures.get("too_long_tokens_left_out", 0)
    if documents and too_long in LEFT_OUT:
        but = f", and {tokens:,} tokens are in no sequence" if tokens else ""
        lines.append(
            f"{documents:,} records are longer than a sequence: {LEFT_OUT[too_long]}{but} (packing.too_long)"
        )
    if tokens := figures.get("untrained_tokens_left_out", 0):
        lines.append(
            f"{tokens:,} tokens in parts without a trained one are in no sequence, with them all of "
            f"{figures['untrained_documents']:,} records (chats.train_on)"
        )
    if sequences := figures.get("untrained_sequences", 0):
        lines.append(
            f'{sequences:,} sequences have no trained token, and so no loss; packing.method "best_fit" or "none" '
            "makes none"
        )
    return lines
