"""Characteristic words of clusters of texts, which name the clusters.

Letters: n documents, W words, K clusters.

A word is characteristic if many documents of the cluster use it (share p) and few of other clusters do. This is
class-based TF-IDF with shares of documents in place of counts, so a document that repeats itself counts once. The
    weight: p^REACH (1 - p) x log(p / q) x (BURST + log(e / p)) x rarity x brevity^2
q is the share at the 90th percentile of clusters (at least the third highest), and at least the mean share. e is the
share of documents that as many uses would reach if they were spread at random. Rarity falls from 1 to 0 as the word's
share of all documents rises from RARE to 1. So words of a template and function words count for little in any language.

Words are runs of letters, digits and marks, in lower case, of 2 to 40 characters, not mostly digits. Han and South-East
Asian characters are counted in pairs. Hiragana and markup are left out.

Cost: 0.1 s a megabyte at most; memory as the texts.
Sources: Grootendorst 2022 (BERTopic, class-based TF-IDF); Church and Gale 1995 (content words come in bursts); Zipf
1935 (frequent words are short). Known weakness: words are not stemmed; the names of frequent authors who sign their
texts are characteristic too. Measurements: docs/decisions/clusters.md.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    import pyarrow as pa
    from scipy.sparse import csr_array

NAMED_BY = 3
"""Words of a name."""
LEAST_DOCUMENTS, LEAST_SHARE = 3, 0.03
"""A cluster's word is used by at least this many of its documents, and at least this share; a smaller cluster needs
all."""
FLOOR = 0.01
"""Least contrast and rarity, for clusters without distinctive words and clusters of common words alone."""
BURST, REACH, RARE, BREVITY = 0.3, 1.3, 0.05, 6
SAME_WORD = 0.6
"""Shared prefix, as a part of the longer word, from which two words count as forms of one."""

_NO_WORDS = (
    (r"(?i)\b(?:[a-z][a-z0-9+.-]*://|www\.)\S+|\S+@\S+", " "),
    (r"</?[A-Za-z][^<>]{0,300}>|&(?:[A-Za-z]+|#[0-9]+);", " "),
    (r"(^|[^A-Za-z_:\\])\\[A-Za-z]+", r"\1 "),  # LaTeX, not folders, as in C:\WINDOWS\SYSTEM
    (r"\b0[xX][0-9A-Fa-f]+\b|\b[0-9A-Fa-f]*[0-9][0-9A-Fa-f]{7,}\b|[A-Za-z0-9+/]{48,}=*", " "),
    (r"[^\p{L}\p{M}\p{N}]+|\p{Hiragana}+", " "),
    (r"([\p{Katakana}ー]+)", r" \1 "),
)
"""Regular expressions for Arrow, with replacements: URLs, addresses, HTML, LaTeX, numbers, base64, and what separates
words."""
_UNSPACED = re.compile(r"[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3400-\u9fff\uf900-\ufaff]")
_SYLLABLES = re.compile(r"[\uac00-\ud7af]")


@dataclass(frozen=True, eq=False)
class Words:
    """Word counts of documents: counts int32 (n, W); vocabulary, W words."""

    counts: csr_array
    vocabulary: list[str]


def count_words(texts: pa.Array) -> Words:
    """Word counts of texts, string or large_string (n,)."""
    import pyarrow.compute as pc
    from scipy.sparse import csr_array

    for pattern, instead in _NO_WORDS:
        texts = pc.replace_substring_regex(texts, pattern, instead)
    split = pc.split_pattern(pc.utf8_lower(pc.utf8_normalize(texts, "NFC")), " ")
    runs = split.flatten().dictionary_encode()
    numbers: dict[str, int] = {}
    words = []
    for run in runs.dictionary.to_pylist():
        if _UNSPACED.search(run):
            parts = [one + other for one, other in pairwise(run)]
        else:  # `1월`, January, is a number; `3d` and `mp3` are not.
            is_word = 2 <= len(run) <= 40 and 2 * sum(map(str.isdigit, run)) < len(run) + run.isascii()
            parts = [run] * is_word
        words.append([numbers.setdefault(part, len(numbers)) for part in parts])
    starts = np.cumsum([0, *map(len, words)])
    inside = np.fromiter((word for of_run in words for word in of_run), np.int64, starts[-1])
    of_run = csr_array((np.ones(len(inside), np.int32), inside, starts), (len(words), len(numbers)))
    document = np.from_dlpack(pc.list_parent_indices(split)).astype(np.int64)
    run = np.from_dlpack(runs.indices).astype(np.int64)
    in_document = csr_array((np.ones(len(run), np.int32), (document, run)), (len(texts), len(words)))
    return Words(csr_array(in_document @ of_run), list(numbers))


def cluster_names(words: Words, labels: NDArray[np.integer], clusters: int) -> list[str]:
    """A name for each cluster: at most NAMED_BY words by falling weight, without forms of an earlier one, plus its
    number if another cluster has the same name. labels: int (n,) in [0, clusters).

    The name is "cluster" and its number if the cluster is empty, or if too few of its documents use any word.
    """
    from scipy.sparse import csr_array

    documents, vocabulary = words.counts.shape
    members = csr_array((np.ones(documents, np.int32), (labels, np.arange(documents))), (clusters, documents))
    used = (words.counts > 0).astype(np.int32)
    holding, uses = members @ used, members @ words.counts
    # The same cells in the same order: a cluster and a word that it uses.
    holding.sort_indices()
    uses.sort_indices()
    cluster, word = holding.tocoo().coords
    size = np.bincount(labels, minlength=clusters)[cluster]

    share = holding.data / (size + 1)
    by_share = np.lexsort((-share, word))
    starts = np.searchsorted(word[by_share], np.arange(vocabulary + 1))
    at = starts[:-1] + max(3, -(-clusters // 10)) - 1
    elsewhere = np.bincount(word, share, vocabulary) / clusters
    ranked = at < starts[1:]
    elsewhere[ranked] = np.maximum(elsewhere[ranked], share[by_share][at[ranked]])
    contrast = np.log(share / elsewhere[word]).clip(FLOOR)
    burst = np.log(-np.expm1(-uses.data / size) * size / holding.data).clip(0.0)
    rarity = (np.log(documents / used.sum(axis=0)) / -np.log(RARE)).clip(FLOOR, 1)
    whole = [bool(_UNSPACED.search(text) or _SYLLABLES.search(text)) for text in words.vocabulary]
    brevity = np.where(whole, 1.0, np.array([*map(len, words.vocabulary)]).clip(max=BREVITY) / BREVITY)
    weight = share**REACH * (1 - share) * contrast * (BURST + burst) * (rarity * brevity**2)[word]

    enough = np.flatnonzero(holding.data >= np.minimum(size, np.maximum(LEAST_DOCUMENTS, LEAST_SHARE * size)))
    best = enough[np.lexsort((-weight[enough], cluster[enough]))]
    ends = np.searchsorted(cluster[best], np.arange(clusters + 1))
    names: list[str] = []
    for number, (start, end) in enumerate(pairwise(ends.tolist())):
        kept: list[str] = []
        for at_best in best[start:end].tolist():
            term = words.vocabulary[word[at_best]]
            if not any(_same_word(term, other) for other in kept):
                kept.append(term)
            if len(kept) == NAMED_BY:
                break
        name = ", ".join(kept)
        if not name or name in names:
            name = f"{name} (cluster {number})" if name else f"cluster {number}"
        names.append(name)
    return names


def _same_word(a: str, b: str) -> bool:
    if _UNSPACED.search(a):
        return bool(set(a) & set(b))
    shared = next((at for at, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))
    return shared >= max(min(3, len(a), len(b)), SAME_WORD * max(len(a), len(b)))
