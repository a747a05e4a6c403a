"""Distances between copies of a token over the epochs of training.

Letters: S sequences, Q runs, L tokens a sequence, N documents, E epochs, r copies of one text.
Cost: O(Q log Q), and r operations for each distinct first token of the runs of a text with r copies.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from dagster_divorder.core.distinct import distinct_values
from dagster_divorder.core.packing.pieces import Ints, PackedSequences


@dataclass(frozen=True)
class SequenceSpacing:
    """Distances, in sequences, between successive copies of a token over consecutive epochs.

    copies: documents that repeat another's text. together: successive copies in one sequence. smallest, median:
    distances; None without copies. smallest_share, median_share: relative to the even distance, S / r for a text with r
    copies.
    """

    copies: int
    together: int
    smallest: int | None
    median: float | None
    smallest_share: float | None
    median_share: float | None


def sequence_spacing(packed: PackedSequences, epochs: ArrayLike, texts: Ints) -> SequenceSpacing:
    """Distances of copies if sequences are read in the orders `epochs`, int (E, S); each is read E times in all.

    texts: int64 (N,), equal for documents of equal text. The tokens 0, L, 2 L, ... of every text are measured.
    """
    orders = np.atleast_2d(np.asarray(epochs, np.int64))
    step = packed.sequence_length
    # Documents with each text.
    copies = np.bincount(texts[distinct_values(packed.document)], minlength=texts.max(initial=-1) + 1)
    run = np.flatnonzero(copies[texts[packed.document]] > 1)
    first = -(-packed.start[run] // step)
    tokens = np.maximum(-(-(packed.start[run] + packed.length[run]) // step) - first, 0)
    repeated = int(copies[copies > 1].sum() - (copies > 1).sum())
    if not tokens.sum():
        return SequenceSpacing(repeated, 0, None, None, None, None)
    token = first.repeat(tokens) + np.arange(tokens.sum()) - (np.cumsum(tokens) - tokens).repeat(tokens)
    text = texts[packed.document[run]].repeat(tokens)
    sequence = (np.searchsorted(packed.indptr, run, side="right") - 1).repeat(tokens)
    # A row may name a sequence twice and another never, if all rows together name each E times.
    places = np.argsort(orders, axis=None, kind="stable").reshape(len(packed), -1).T[:, sequence]
    text, token, places = np.tile(text, len(orders)), np.tile(token, len(orders)), places.ravel()
    by_token = np.lexsort((places, token, text))
    text, token, places = text[by_token], token[by_token], places[by_token]
    again = np.flatnonzero((text[1:] == text[:-1]) & (token[1:] == token[:-1]))
    distance = places[again + 1] - places[again]
    share = distance * copies[text[again]] / len(packed)
    return SequenceSpacing(
        copies=repeated,
        together=int((distance == 0).sum()),
        smallest=int(distance.min()),
        median=float(np.median(distance)),
        smallest_share=float(share.min()),
        median_share=float(np.median(share)),
    )
