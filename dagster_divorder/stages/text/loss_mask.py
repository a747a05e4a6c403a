"""Which tokens of each document are trained on, by `chats.train_on`, and so which of them shares count.

Law: other rooms know only counted tokens; exports write the mask.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dagster_divorder.core.spans import Spans
from dagster_divorder.pipeline.run import Run
from dagster_divorder.settings import Settings
from dagster_divorder.store.stages import StageFiles
from dagster_divorder.store.view import Fragment


@dataclass(frozen=True, eq=False)
class LossMask:
    """The trained tokens of D document rows that are laid end to end. begins: first position of each row, and the end,
    int64 (D + 1,). trained: spans of trained positions; None if all are."""

    begins: np.ndarray
    trained: Spans | None

    def within(self, rows: np.ndarray, start: np.ndarray | int, length: np.ndarray) -> np.ndarray:
        """Number of trained tokens in [start, start + length) of document rows, int64 (n,). An end-of-text token after
        the last token is trained if the last token is."""
        if self.trained is None:
            return length
        first, end = self.begins[rows] + start, self.begins[rows + 1]
        has_end_of_text = (length > end - first) & (end > self.begins[rows])
        return self.trained.within(first, np.minimum(length, end - first)) + np.where(
            has_end_of_text, self.trained.within(end - 1, np.ones_like(end)), 0
        )


def has_loss_mask(settings: Settings) -> bool:
    """Whether some tokens are not trained on."""
    return settings.has_chats and settings.chats.train_on != "all"


def load_loss_mask(run: Run) -> LossMask:
    """The mask of all document rows of the view."""
    train_on = run.settings.chats.train_on if run.settings.has_chats else "all"
    return mask_of(run.files("token_counts"), run.view.fragments, train_on)


def counted_tokens(run: Run) -> np.ndarray:
    """The tokens of each record that shares count, int64 (N,): the trained ones that packing keeps; all without a
    mask."""
    lengths = run.column("token_counts", "lengths")
    if not has_loss_mask(run.settings):
        return lengths
    longest, packing = run.settings.sequence.length, run.settings.packing
    if packing.too_long == "truncate":
        lengths = np.minimum(lengths, longest)
    elif packing.too_long == "drop":
        lengths = np.where(lengths + packing.end_of_text > longest, 0, lengths)
    return load_loss_mask(run).within(np.arange(len(run.view)), 0, lengths)


def mask_of(files: StageFiles, fragments: tuple[Fragment, ...], train_on: str) -> LossMask:
    """The mask of the document rows of fragments. files: of token_counts. train_on: as `chats.train_on`."""
    from dagster_divorder.models.chat_tokens import SELECTED

    begins = np.concatenate([[0], np.cumsum(files.column(fragments, "lengths"))])
    if train_on == "all":
        return LossMask(begins, None)
    first, last, kind = files.columns(fragments, "span_first", "span_last", "span_kind")
    shift = begins[:-1].repeat(files.column(fragments, "spans"))
    chosen = kind & SELECTED[train_on] == SELECTED[train_on]
    return LossMask(begins, Spans((first + shift)[chosen], (last + shift)[chosen]))
