"""Which documents are held out of training: of each source a share, by hash.

Letters: D documents, S sources.
Guarantee: of n documents of a source share * n are held out, rounded (a half upwards), but never all of them; those
that are kept stay. Which they are depends on their ids and the seed alone, not on the order of the documents.
Cost: O(D log D).
Known weakness: a share of documents, not of tokens: of a source of few long documents it may hold much more.
"""

import numpy as np
from numpy.typing import NDArray


def choose(
    ids: NDArray[np.uint64],
    codes: NDArray[np.integer],
    share: float,
    seed: int,
    kept: NDArray[np.bool_],
    barred: NDArray[np.bool_],
) -> NDArray[np.bool_]:
    """Which of D documents are held out, bool (D,).

    ids: uint64 (D, 2), distinct, evenly spread over all of their bits. codes: int (D,) in [0, S), their sources.
    kept: bool (D,), those that are held out anyway. barred: bool (D,), those that must not be, unless kept.
    """
    mask, factor = np.random.SeedSequence(seed).generate_state(2, np.uint64)
    # Odd, so that distinct ids stay distinct.
    drawn = (ids[:, 0] ^ mask) * (factor | np.uint64(1))
    group = np.where(kept, 0, np.where(barred, 2, 1))
    order = np.lexsort((ids[:, 1], drawn, group, codes))
    sizes = np.bincount(codes)
    wanted = np.minimum(np.floor(share * sizes + 0.5), sizes - 1)
    place = np.arange(len(codes)) - (np.cumsum(sizes) - sizes)[codes[order]]
    chosen = kept.copy()
    chosen[order[place < wanted[codes[order]]]] = True
    return chosen & (kept | ~barred)
