"""Documents that are held out of training: the same share of every source, chosen by hash.

Letters: D documents, S sources.
Guarantee: share * n of a source's n documents are held out, rounded (a half upwards), but never all of them. Documents
held out before stay held out. The choice depends only on ids and seed, not on the order of the documents.
Cost: O(D log D).
Known weakness: the share counts documents, not tokens; in a source with few long documents the two differ a lot.
"""

from unicodedata import normalize

import numpy as np
from numpy.typing import NDArray

from dagster_divorder.core.seeds import drawn


def folded(text: str) -> str:
    """The text without regard to case and white space: NFC, case folded, each run of white space one space. Texts with
    equal results are copies."""
    return " ".join(normalize("NFC", normalize("NFC", text).casefold()).split())


def choose(
    ids: NDArray[np.uint64],
    codes: NDArray[np.integer],
    share: float,
    seed: int,
    kept: NDArray[np.bool_],
    barred: NDArray[np.bool_],
) -> NDArray[np.bool_]:
    """Mask of held-out documents, bool (D,).

    ids: uint64 (D, 2), distinct hashes, spread evenly over all bits. codes: int (D,) in [0, S), sources.
    kept: bool (D,), documents that stay held out. barred: bool (D,), documents that must not be held out unless kept.
    """
    group = np.where(kept, 0, np.where(barred, 2, 1))
    order = np.lexsort((ids[:, 1], drawn(ids[:, 0], seed), group, codes))
    sizes = np.bincount(codes)
    wanted = np.minimum(np.floor(share * sizes + 0.5), sizes - 1)
    place = np.arange(len(codes)) - (np.cumsum(sizes) - sizes)[codes[order]]
    chosen = kept.copy()
    chosen[order[place < wanted[codes[order]]]] = True
    return chosen & (kept | ~barred)
