"""Near copies: of a few texts among many (`Index`), and all groups of a corpus (`candidate_pairs`, `group`).

Letters: n texts of many, H texts of few, P slots of a signature, B bands of P / B slots, Q pairs.

Two texts may be near where all slots of a band are equal (locality-sensitive hashing), and MIN_EQUAL of all slots; of
these the similarity is computed from the shingles themselves. Near are texts of a Jaccard similarity of THRESHOLD or
more. A group is what pairs of near texts connect.

Guarantee: nothing is called near that is not, and the similarity told is exact. A pair as similar as THRESHOLD is
missed with a probability of 5e-8, (1 - THRESHOLD^(P / B))^B, by the bands and of 3e-10 by MIN_EQUAL; a more similar one
less often. Groups depend on the texts and their order alone.
Cost: of an index B binary searches a text, of all groups a sort for each band; the shingles of those that may be near.
Memory: of the few, P 4 + B 16 bytes a text and 8 a word; of all groups some 40 bytes a text and 8 a pair, beside the
signatures and the shingles, which may be mapped from files.
Sources: Broder 1997; Indyk and Motwani 1998 (bands); Lee et al. 2022 (near copies in training data, 0.8).
Known weakness: of an index, among texts of one template, alike but not near, all pairs are compared. Of groups, where
more than MAX_BUCKET texts share a band, each is held against so many of them only, which may miss pairs that share no
smaller bucket; and a group may hold texts that are near its others, and not near its first (docs/decisions/
near-duplicates.md).
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
"""Of SLOTS: signatures alone drop pairs far from THRESHOLD."""
SURE = 119
"""Of SLOTS: pairs so alike are not held against each other again. One that is not near has as many with a probability
of 4e-5 at most."""
MAX_BUCKET = 8
"""Most representatives of the texts that share a band."""


@dataclass(frozen=True, slots=True, eq=False)
class Index:
    """The few texts.

    signatures: uint32 (H, P). keys: uint64 (B, H), of each text's bands, each row rising; texts: int64 (B, H), whose
    they are. shingles: uint64 (S,), those of each text rising, text after text; ends: int64 (H + 1,), where each text's
    begin.
    """

    signatures: NDArray[np.uint32]
    keys: NDArray[np.uint64]
    texts: NDArray[np.int64]
    shingles: NDArray[np.uint64]
    ends: NDArray[np.int64]

    @classmethod
    def of(cls, few: Iterable[pa.Array]) -> Index:
        """Of texts (string or large_string), which may come in parts."""
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
        """Which of many texts, by their signatures uint32 (n, P), share a band with one of the few; rising."""
        first, last = self._places(signatures)
        return np.flatnonzero((first < last).any(axis=1))

    def nearest(
        self, texts: pa.Array, signatures: NDArray[np.uint32]
    ) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """(the one of the few that each of n texts is near to, the nearest one and of equally near ones the first,
        int64 (n,), -1 where none is; their similarity, float64 (n,), 0 where none is).

        texts: string or large_string (n,). signatures: uint32 (n, P), theirs.
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
        """Where the bands of signatures begin and end in `keys`, int64 (n, B) each."""
        wanted = _keys(signatures)
        first, last = np.empty(wanted.shape, np.int64), np.empty(wanted.shape, np.int64)
        for band, keys in enumerate(self.keys):
            first[:, band] = np.searchsorted(keys, wanted[:, band], "left")
            last[:, band] = np.searchsorted(keys, wanted[:, band], "right")
        return first, last


def candidate_pairs(signatures: NDArray[np.uint32]) -> NDArray[np.int64]:
    """Pairs of n texts that may be near, int64 (Q, 2), rising, the one that comes first in the input first.

    signatures: uint32 (n, P), read band by band; it may be mapped from a file.
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
    """(the first text of the group of each of n texts, itself where it is near none, int64 (n,); its similarity to that
    one, float64 (n,)).

    pairs: int64 (Q, 2), those that may be near. shingles: uint64 (S,), those of each text rising, each once; spans:
    int64 (n, 2), where those of a text begin and end.
    """
    first, similarity = np.arange(len(spans)), np.empty(len(spans))
    link(pairs, shingles, spans, THRESHOLD, first, similarity)
    return first, similarity


def _keys(signatures: NDArray[np.uint32]) -> NDArray[np.uint64]:
    """uint64 (n, B): equal where all slots of a band are. (Where they are not, by a chance of 2^-64, a candidate too
    many is compared.) signatures: uint32 (n, P), or some bands of them."""
    texts, slots_of = signatures.shape
    slots = signatures.reshape(texts, slots_of // WIDTH, WIDTH).astype(np.uint64)
    key = slots[:, :, 0]
    for slot in range(1, slots.shape[2]):
        key = key * np.uint64(0x9E3779B97F4A7C15) + slots[:, :, slot]
    return key
