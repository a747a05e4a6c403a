"""Which tokens of each document are trained on, by `chats.train_on`, and so which of them shares count.

Law: if every token is trained on, there is no mask, and shares count every token. Other rooms know only counted tokens;
exports write the mask.
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
    int64 (D + 1,). trained: spans of trained positions."""

    begins: np.ndarray
    trained: Spans

    def tokens(self, rows: np.ndarray) -> np.ndarray:
        """Number of trained tokens of document rows, int64 (n,)."""
        return self.within(rows, 0, self.begins[rows + 1] - self.begins[rows])

    def within(self, rows: np.ndarray, start: np.ndarray | int, length: np.ndarray) -> np.ndarray:
        """Number of trained tokens in [start, start + length) of document rows, int64 (n,). An end-of-text token after
        the last token is trained if the last token is."""
        first, end = self.begins[rows] + start, self.begins[rows + 1]
        has_end_of_text = (length > end - first) & (end > self.begins[rows])
        return self.trained.within(first, np.minimum(length, end - first)) + np.where(
            has_end_of_text, self.trained.within(end - 1, np.ones_like(end)), 0
        )


def has_loss_mask(settings: Settings) -> bool:
    """Whether some tokens are not trained on."""
    return settings.masked and settings.chats.train_on != "all"


def load_loss_mask(run: Run) -> LossMask | None:
    """The mask of all document rows of the view; None if every token is trained."""
    if not has_loss_mask(run.settings):
        return None
    return mask_of(run.files("token_counts"), run.view.fragments, run.settings.chats.train_on)


def counted_tokens(run: Run) -> np.ndarray:
    """The tokens of each record that shares count, int64 (N,): the trained ones that packing keeps; all without a
    mask."""
    mask, lengths = load_loss_mask(run), run.column("token_counts", "lengths")
    if mask is None:
        return lengths
    longest, packing = run.settings.sequence.length, run.settings.packing
    if packing.too_long == "truncate":
        lengths = np.minimum(lengths, longest)
    elif packing.too_long == "drop":
        lengths = np.where(lengths + packing.end_of_text > longest, 0, lengths)
    return mask.within(np.arange(len(run.view)), 0, lengths)


def answer_tokens(run: Run) -> np.ndarray:
    """Number of answer tokens of each record, int64 (N,): in the trained answers, or in all answers if `chats.train_on`
    is "all". Only for `settings.masked`."""
    train_on = run.settings.chats.train_on
    train_on = "assistant" if train_on == "all" else train_on
    mask = mask_of(run.files("token_counts"), run.view.fragments, train_on)
    return mask.tokens(np.arange(len(run.view)))


def mask_of(files: StageFiles, fragments: tuple[Fragment, ...], train_on: str) -> LossMask:
    """The mask of the document rows of fragments. files: of token_counts. train_on: as `chats.train_on`, but not
    "all"."""
    from dagster_divorder.models.chat_tokens import SELECTED

    lengths, counts = files.columns(fragments, "lengths", "spans")
    first, last, kind = files.columns(fragments, "span_first", "span_last", "span_kind")
    begins = np.concatenate([[0], np.cumsum(lengths)])
    wanted = SELECTED[train_on]
    chosen = np.flatnonzero((kind & wanted == wanted) & (first < last))
    shift = begins[np.arange(len(counts)).repeat(counts)[chosen]]
    return LossMask(begins, Spans(first[chosen] + shift, last[chosen] + shift))
