"""Near copies: those of a few texts among many (`Index`), and all groups in a corpus (`candidate_pairs`, `group`).

Letters: n texts, H texts of an index, P slots of a signature, B bands of P / B slots, Q pairs.

Texts are near if their Jaccard similarity is THRESHOLD or more. A pair is a candidate if all slots of one band are
equal (locality-sensitive hashing) and at least MIN_EQUAL of all slots are. The similarity of candidates is computed
from their shingles. A group is a connected component of near pairs.

Guarantee: similarities are exact, so no pair is wrongly called near. A pair at THRESHOLD is missed with a probability
of 5e-8 by the bands, (1 - THRESHOLD^(P / B))^B, and of 3e-10 by MIN_EQUAL; a more similar pair less often. Groups
depend only on the texts and their order.
Cost: an index, B binary searches a text; groups, a sort for each band; both, the shingles of the candidates.
Memory: an index, 4 P + 16 B bytes a text and 8 a word; groups, some 40 bytes a text and 8 a pair, beside signatures and
shingles, which may be mapped from files.
Sources: Broder 1997; Indyk and Motwani 1998 (bands); Lee et al. 2022 (near copies in training data, 0.8).
Known weakness: an index compares all pairs of texts that come from one template and are alike but not near. Groups
compare each text of a band with at most MAX_BUCKET others, which may miss pairs that share no smaller bucket. A group
may hold texts that are near some of its texts but not near its first (docs/decisions/near-duplicates.md).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from dagster_divorder.core.distinct import distinct_values
from dagster_divorder.core.kernels.minhash import KINDS, bucket_pairs, link, nearest
from dagster_divorder.core.text.minhash import SLOTS, shingles, signatures, text_bytes

if TYPE_CHECKING:
    import pyarrow as pa

THRESHOLD = 0.8
BANDS = 32
WIDTH = SLOTS // BANDS
MIN_EQUAL = 72
"""Equal slots below which a pair is dropped without computing its similarity."""
SURE = 119
"""Equal slots from which a pair is linked without another comparison. A pair that is not near reaches this with a
probability of at most 4e-5."""
MAX_BUCKET = 8
"""Representatives that stand for all texts of a band."""


@dataclass(frozen=True, slots=True, eq=False)
class Index:
    """A few texts whose near copies are to be found.

    signatures: uint32 (H, P). keys: uint64 (B, H), band keys, each row rising. texts: int64 (B, H), the text of each
    key. shingles: uint64 (S,), text after text, each text's rising. ends: int64 (H + 1,), offsets of texts in
    `shingles`.
    """

    signatures: NDArray[np.uint32]
    keys: NDArray[np.uint64]
    texts: NDArray[np.int64]
    shingles: NDArray[np.uint64]
    ends: NDArray[np.int64]

    @classmethod
    def of(cls, few: Iterable[pa.Array]) -> Index:
        """An index of texts (string or large_string), given in one or more arrays."""
        signed_parts, sets = [np.empty((0, SLOTS), np.uint32)], [np.empty(0, np.uint64)]
        for part in few:
            signed_parts.append(signatures(part))
            sets += shingles(part)
        signed = np.concatenate(signed_parts)
        keys = _keys(signed).T
        texts = np.argsort(keys, axis=1, kind="stable")
        return cls(
            signatures=signed,
            keys=np.take_along_axis(keys, texts, axis=1),
            texts=texts,
            shingles=np.concatenate(sets),
            ends=np.cumsum([len(members) for members in sets]),
        )

    def candidates(self, signatures: NDArray[np.uint32]) -> NDArray[np.int64]:
        """Texts that share a band with a text of the index: rows of `signatures` uint32 (n, P), rising."""
        first, last = self._places(signatures)
        return np.flatnonzero((first < last).any(axis=1))

    def nearest(
        self, texts: pa.Array, signatures: NDArray[np.uint32]
    ) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """(nearest text of the index, int64 (n,), the first of equally near ones, -1 if none is near; its similarity,
        float64 (n,), 0 if none is near).

        texts: string or large_string (n,). signatures: uint32 (n, P), of `texts`.
        """
        closest, similarity = np.empty(len(texts), np.int64), np.empty(len(texts))
        nearest(
            *text_bytes(texts),
            KINDS,
            np.ascontiguousarray(signatures),
            *self._places(signatures),
            self.texts,
            self.signatures,
            self.shingles,
            self.ends,
            MIN_EQUAL,
            closest,
            similarity,
        )
        near = similarity >= THRESHOLD
        return np.where(near, closest, -1), np.where(near, similarity, 0.0)

    def _places(self, signatures: NDArray[np.uint32]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """First and one past the last entry of `keys` that equals each band key, int64 (n, B) each."""
        wanted = _keys(signatures)
        first, last = np.empty(wanted.shape, np.int64), np.empty(wanted.shape, np.int64)
        for band, keys in enumerate(self.keys):
            first[:, band] = np.searchsorted(keys, wanted[:, band], "left")
            last[:, band] = np.searchsorted(keys, wanted[:, band], "right")
        return first, last


def candidate_pairs(signatures: NDArray[np.uint32]) -> NDArray[np.int64]:
    """Candidate pairs among n texts, int64 (Q, 2), rising, the smaller text first.

    signatures: uint32 (n, P), read band by band; may be mapped from a file.
    """
    texts = len(signatures)
    parent, pairs = np.arange(texts), np.empty(0, np.int64)
    for band in range(BANDS):
        keys = _keys(signatures[:, band * WIDTH : (band + 1) * WIDTH])[:, 0]
        members = np.argsort(keys, kind="stable")
        keys = keys[members]
        new = np.diff(keys, prepend=~keys[:1]) != 0
        alone = new & np.append(new[1:], True)
        members, begins = members[~alone], np.append(np.flatnonzero(new[~alone]), (~alone).sum())
        in_band = bucket_pairs(members, begins, signatures, parent, MIN_EQUAL, SURE, MAX_BUCKET)
        pairs = distinct_values(np.concatenate([pairs, in_band]))
    return np.stack(np.divmod(pairs, max(1, texts)), axis=1)


def group(
    pairs: NDArray[np.int64], shingles: NDArray[np.uint64], spans: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """(first text of each text's group, int64 (n,), the text itself if it is near none; the similarity to that first
    text, float64 (n,)).

    pairs: int64 (Q, 2), candidates. shingles: uint64 (S,), each text's distinct and rising. spans: int64 (n, 2), first
    and one past the last shingle of each text.
    """
    first, similarity = np.arange(len(spans)), np.empty(len(spans))
    link(pairs, shingles, spans, THRESHOLD, first, similarity)
    return first, similarity


def _keys(signatures: NDArray[np.uint32]) -> NDArray[np.uint64]:
    """Band keys, uint64 (n, B): equal if all slots of a band are (a chance collision only adds a candidate).
    signatures: uint32 (n, P), or some of its bands."""
    texts, width = signatures.shape
    slots = signatures.reshape(texts, width // WIDTH, WIDTH).astype(np.uint64)
    key = slots[:, :, 0]
    for slot in range(1, slots.shape[2]):
        key = key * np.uint64(0x9E3779B97F4A7C15) + slots[:, :, slot]
    return key
