"""Characteristic words of clusters of texts, which name the clusters.

Letters: n documents, W words, K clusters.

A word is characteristic if many documents of the cluster use it (share p) and few of others do (mean share of the
clusters q): class-based TF-IDF with shares of documents, so a document that repeats itself counts once. The weight:
    p (1 - p) x log(p / q) x rarity x brevity^2
Words of a template (p near 1), function words (rarity falls to 0 for words of all documents) and short ones count for
little. Words are runs of letters and marks, in lower case, of 2 to 40 characters; Han and South-East Asian letters are
counted in pairs, Hiragana is left out.

Cost: 0.05 s a megabyte; memory as the texts.
Sources: Grootendorst 2022 (BERTopic); Zipf 1935 (frequent words are short). Known weakness: words are not stemmed;
frequent signatures, addresses and markup are words too. Measurements: docs/decisions/clusters.md.
"""

from __future__ import annotations

from itertools import pairwise
from math import ceil
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from dagster_divorder.core.arrow import plain_array

if TYPE_CHECKING:
    import pyarrow as pa
    from scipy.sparse import csr_array

NAMED_BY = 3
"""Words of a name."""
FLOOR, RARE, BREVITY = 0.01, 0.05, 6
"""Least contrast and rarity; share of all documents from which words are less rare; bytes of UTF-8 from which words are
not short."""
SAME_WORD = 0.6
"""Shared prefix, as a part of the longer word, from which two words count as forms of one."""
NO_WORDS = (
    (r"([\p{Han}\p{Thai}\p{Lao}\p{Myanmar}\p{Khmer}]{2})", r" \1 "),
    (r"[^\p{L}\p{M}]+|\p{Hiragana}+", " "),
)
"""Regular expressions for Arrow, with replacements."""


def find_words(texts: pa.Array) -> tuple[csr_array, list[str]]:
    """(1 where a document uses a word, int32 (n, W); the W words) of texts, string or large_string (n,)."""
    import pyarrow.compute as pc
    from scipy.sparse import csr_array

    for pattern, instead in NO_WORDS:
        texts = pc.replace_substring_regex(texts, pattern, instead)
    split = pc.split_pattern(pc.utf8_lower(pc.utf8_normalize(texts, "NFC")), " ")
    words = split.flatten().dictionary_encode()
    lengths = np.from_dlpack(pc.utf8_length(words.dictionary))
    document, word = (
        np.from_dlpack(of).astype(np.int64) for of in (pc.list_parent_indices(split), words.indices)
    )
    used = csr_array((np.ones(len(word), np.int32), (document, word)), (len(texts), len(lengths)))
    used.data[:] = 1
    kept = np.flatnonzero((lengths >= 2) & (lengths <= 40))
    return used[:, kept], words.dictionary.take(plain_array(kept)).to_pylist()


def cluster_names(
    used: csr_array, vocabulary: list[str], labels: NDArray[np.integer], clusters: int
) -> list[str]:
    """A name for each cluster: at most NAMED_BY words by falling weight, without forms of an earlier one, plus its
    number if another cluster has the same name; "cluster" and its number without words. used, vocabulary: see
    `find_words`. labels: int (n,)."""
    from scipy.sparse import csr_array

    documents, words = used.shape
    members = csr_array((np.ones(documents, np.int32), (labels, np.arange(documents))), (clusters, documents))
    holding = (members @ used).tocoo()
    cluster, word = holding.coords
    size = np.bincount(labels, minlength=clusters)[cluster]
    share = holding.data / (size + 1)
    contrast = np.log(share / (np.bincount(word, share, words) / clusters)[word])
    rarity = (np.log(documents / used.sum(axis=0)) / -np.log(RARE)).clip(FLOOR, 1)
    brevity = np.array([len(text.encode()) for text in vocabulary]).clip(max=BREVITY) / BREVITY
    weight = share * (1 - share) * contrast.clip(FLOOR) * (rarity * brevity**2)[word]

    best = np.lexsort((-weight, cluster))
    ends = np.searchsorted(cluster[best], np.arange(clusters + 1))
    names: list[str] = []
    for number, (start, end) in enumerate(pairwise(ends.tolist())):
        kept: list[str] = []
        for at in word[best[start:end]]:
            if not any(_same_word(vocabulary[at], other) for other in kept):
                kept.append(vocabulary[at])
            if len(kept) == NAMED_BY:
                break
        name = ", ".join(kept)
        if not name or name in names:
            name = f"{name} (cluster {number})" if name else f"cluster {number}"
        names.append(name)
    return names


def _same_word(a: str, b: str) -> bool:
    if len(a) == len(b) == 2:
        return bool(set(a) & set(b))
    shared = max(min(3, len(a), len(b)), ceil(SAME_WORD * max(len(a), len(b))))
    return a[:shared] == b[:shared]
