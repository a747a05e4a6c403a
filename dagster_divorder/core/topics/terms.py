"""What clusters of texts are about: their characteristic words, and a short name for each.

Letters: n documents, W words, K clusters.

A word tells of a cluster where many of its documents use it (p, the share of them), and few of other clusters do. That
is class-based TF-IDF, a cluster in the place of a document, with shares of documents in the place of counts, so that
one document that repeats itself says no more than others. The weight is
    p^REACH (1 - p) x log(p / q) x (BURST + log of (the share expected of as many uses, dealt at random) / p)
        x rarity x brevity^2
where q is the share in the clusters that use the word most (all but every tenth use it less, and at least two others),
and no less than the mean. Rarity falls from 1 to 0 as the word's share of all documents with words of its script rises
from RARE to 1. So what heads many clusters counts for little, a word of a template or of the language itself, in nearly
every document, too, in any language: function words are in all clusters of a language, in many documents of its script,
in nearly all of a cluster's, spread evenly over these, and short.

Words are runs of letters, digits, marks and "_", casefolded, of 2 to 40 characters with a letter among them; those that
are mostly digits are no terms. Han characters and South-East Asian scripts, written without spaces, count by pairs of
characters; a pair that nearly always goes on in the same way is shown with what it goes on with. Katakana make words of
their own, hiragana none. `without_markup` takes out what is no word.

Guarantee: the same texts, in the same order, with the same labels give the same terms.
Cost: O(characters) in Arrow and O(distinct words) in Python: 0.1 s a megabyte at most; memory as the texts.
Sources: Grootendorst 2022 (BERTopic, class-based TF-IDF); Church and Gale 1995 (words that are about something come in
bursts); Zipf 1935 (what is used often is short).
Known weakness: words are not reduced to stems; names of people who sign all they write are characteristic too.
Measured: docs/decisions/cluster-names.md.
"""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from dagster_divorder.core.rows import row_entries

if TYPE_CHECKING:
    import pyarrow as pa
    from scipy.sparse import csr_array

TERMS = 5
"""Terms kept of a cluster."""
NAMED_BY = 3
"""Terms that make its name."""

SHORTEST, LONGEST = 2, 40
"""Characters of a word."""
LEAST_DOCUMENTS, LEAST_SHARE = 3, 0.03
"""A term is in so many documents of its cluster, and in this share of them; in all where it has fewer."""
LEAST_OTHERS = 3
LEAST_CONTRAST, LEAST_RARITY = 0.01, 0.01
"""Clusters that nothing tells apart are named by what bursts in them, and those whose words are all common by these."""
BURST = 0.3
REACH = 1.3
"""As this rises, words that many documents of a cluster use come before those that no other cluster has."""
RARE = 0.05
"""A word in this share of the documents of its script, or in less, counts whole, and one in all of them not at all."""
BREVITY = 6
"""A word of fewer letters counts by the square of its length in these; syllables and ideographs count whole."""
SAME_WORD = 0.6
"""Words that share this part of the longer one from their beginning are forms of one word."""
GOES_ON = 0.7
LONGEST_GROWN = 6
"""A pair of characters grows by the next one where so many of its uses go on with it, to so many characters."""

HAN = r"\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"
KATAKANA = r"\u30a0-\u30ff\u31f0-\u31ff\uff66-\uff9f"
HIRAGANA = r"\u3040-\u309f"
SOUTH_EAST = r"\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff"  # Thai, Lao, Burmese, Khmer
_RUNS = re.compile(
    rf"(?P<pairs>[{HAN}]+|[{SOUTH_EAST}]+)|(?P<none>[{HIRAGANA}]+)"
    rf"|(?P<word>[{KATAKANA}]+|[^{HAN}{KATAKANA}{HIRAGANA}{SOUTH_EAST}]+)"
)
_UNSPACED = re.compile(rf"[{HAN}{KATAKANA}{HIRAGANA}{SOUTH_EAST}]")
_PAIRED = re.compile(rf"[{HAN}{SOUTH_EAST}]")
_WHOLE = re.compile(rf"[{HAN}{KATAKANA}{SOUTH_EAST}\uac00-\ud7a3]")
_LEADING = "\u0e40\u0e41\u0e42\u0e43\u0e44\u0ec0\u0ec1\u0ec2\u0ec3\u0ec4"
_TORN = re.compile(rf"[\u0e30\u0e32\u0e33\u0e45\u0eb0\u0eb2\u0eb3]|.*[{_LEADING}]$")
"""Pairs that begin with a vowel of the character before, or end with one of the character behind: Thai, Lao."""
_MARKUP = (
    (r"(?i)\b(?:[a-z][a-z0-9+.-]*://|www\.)\S+|\S+@\S+", " "),
    (r"</?[A-Za-z][^<>]{0,300}>|&(?:[A-Za-z]+|#[0-9]+);", " "),
    (r"(^|[^A-Za-z_:\\])\\[A-Za-z]+", r"\1 "),  # no folders, as in C:\WINDOWS\SYSTEM
    (r"\b0[xX][0-9A-Fa-f]+\b|\b[0-9A-Fa-f]*[0-9][0-9A-Fa-f]{7,}\b|[A-Za-z0-9+/]{48,}=*", " "),
)
"""Regular expressions of Arrow, and what stands in the place of what they match."""


@dataclass(frozen=True, eq=False)
class Words:
    """Which words documents use, and how often.

    counts: int32 (n, W). vocabulary: W words. texts: large_string (n,), as they were counted.
    """

    counts: csr_array
    vocabulary: list[str]
    texts: pa.Array


def count_words(texts: pa.Array) -> Words:
    """The words of texts, string or large_string (n,)."""
    import pyarrow.compute as pc
    from scipy.sparse import csr_array

    spaced = pc.replace_substring_regex(texts, r"[^\p{L}\p{M}\p{N}_]+", " ")
    split = pc.split_pattern(spaced, " ")
    runs = split.flatten().dictionary_encode()
    document = np.from_dlpack(pc.list_parent_indices(split)).astype(np.int64)
    numbers: dict[str, int] = {}
    parts: list[int] = []
    ends = [0]
    for run in runs.dictionary.to_pylist():
        parts += [numbers.setdefault(word, len(numbers)) for word in _words_of(run)]
        ends.append(len(parts))
    starts = np.array(ends, np.int64)
    entries, begins = row_entries(starts, np.from_dlpack(runs.indices).astype(np.int64))
    uses = np.array(parts, np.int64)[entries]
    document = document.repeat(np.diff(begins))
    ones = np.ones(len(uses), np.int32)
    counts = csr_array((ones, (document, uses)), shape=(len(texts), len(numbers)))
    counts.sum_duplicates()
    return Words(counts, list(numbers), texts)


def without_markup(texts: pa.Array) -> pa.Array:
    """Texts, string or large_string (n,), without what is no word: URLs, addresses, tags and entities of HTML, commands
    of LaTeX, hexadecimal numbers, base64."""
    import pyarrow.compute as pc

    for pattern, instead in _MARKUP:
        texts = pc.replace_substring_regex(texts, pattern, instead)
    return texts


def characteristic_terms(words: Words, labels: NDArray[np.integer], clusters: int) -> list[tuple[str, ...]]:
    """For each of K clusters at most TERMS words, by falling weight; labels int (n,) in [0, clusters), by document.

    A cluster without a document, or with no word that enough of its documents use, has none.
    """
    from scipy.sparse import csr_array

    documents = len(labels)
    of_cluster = csr_array(
        (np.ones(documents, np.int32), (labels, np.arange(documents))), shape=(clusters, documents)
    )
    used = words.counts.copy()
    used.data = np.ones_like(used.data)
    holding, uses = of_cluster @ used, of_cluster @ words.counts
    for matrix in (holding, uses):
        matrix.sort_indices()
    sizes = np.bincount(labels, minlength=clusters)
    size = sizes.repeat(np.diff(holding.indptr))
    least = np.minimum(size, np.maximum(LEAST_DOCUMENTS, LEAST_SHARE * size))
    names_something = np.array([_names_something(word) for word in words.vocabulary], bool)
    often = np.flatnonzero((holding.data >= least) & names_something[holding.indices])
    ends = np.searchsorted(often, holding.indptr).tolist()
    candidates, at = np.unique(holding.indices[often], return_inverse=True)
    written = [words.vocabulary[word] for word in candidates.tolist()]
    brevity = [1.0 if _WHOLE.search(word) else min(len(word), BREVITY) / BREVITY for word in written]
    factors = _rarity(used[:, candidates], written) * np.array([short**2 for short in brevity])
    weights = (_weights(holding, size, uses.data, often) * factors[at]).tolist()
    ranked = [(-weight, written[word]) for weight, word in zip(weights, at.tolist(), strict=True)]
    members = np.split(np.argsort(labels, kind="stable"), np.cumsum(sizes)[:-1])
    return [
        _distinct([word for _, word in sorted(ranked[start:end])], words.texts, documents_of)
        for documents_of, (start, end) in zip(members, pairwise(ends), strict=True)
    ]


def short_names(terms: Sequence[Sequence[str]]) -> list[str]:
    """A name for each cluster: its first NAMED_BY terms, more of them or a number where another has the same; without
    terms "cluster" and its number."""
    names: list[str] = []
    taken: set[str] = set()
    for number, words in enumerate(terms):
        longer = [
            ", ".join(words[:count]) for count in range(min(NAMED_BY, len(words)), len(words) + 1) if count
        ]
        numbered = f"{longer[0]} (cluster {number})" if longer else f"cluster {number}"
        name = next((name for name in longer if name not in taken), numbered)
        taken.add(name)
        names.append(name)
    return names


def _weights(
    holding: csr_array, size: NDArray[np.integer], uses: NDArray[np.integer], often: NDArray[np.int64]
) -> NDArray[np.float64]:
    """Weight, but for rarity and brevity, of the entries `often` of `holding` (K, W), which counts the documents of a
    cluster that use a word; by entry `size`, the documents of the cluster, and `uses` in all of them."""
    clusters, count = holding.shape
    word = holding.indices
    share = holding.data / (size + 1)
    mean = np.bincount(word, share, count) / clusters
    # The share of each word in the cluster at this rank among those that use it most.
    rank = max(LEAST_OTHERS, -(-clusters // 10))
    order = np.lexsort((-share, word))
    at = np.searchsorted(word[order], np.arange(count)) + rank - 1
    ranked = at < np.searchsorted(word[order], np.arange(count), side="right")
    elsewhere = np.zeros(count)
    elsewhere[ranked] = share[order][at[ranked]]
    used, size, word = holding.data[often] / size[often], size[often], word[often]
    contrast = np.log(share[often] / np.maximum(elsewhere, mean)[word]).clip(LEAST_CONTRAST)
    burst = np.log(-np.expm1(-uses[often] / size) / used).clip(0.0)
    return share[often] ** REACH * (1 - share[often]) * contrast * (BURST + burst)


def _rarity(used: csr_array, written: Sequence[str]) -> NDArray[np.float64]:
    """Rarity of words, (W,): 0 of one that all documents of its script use, 1 from RARE of them down. used: 1 where a
    document uses a word, (n, W)."""
    scripts = np.array([_script(word) for word in written])
    rarity = np.ones(len(written))
    for script in np.unique(scripts):
        of_script = np.flatnonzero(scripts == script)
        in_script = used[:, of_script]
        documents = np.count_nonzero(in_script.sum(axis=1))
        rarity[of_script] = np.log(documents / in_script.sum(axis=0)) / -np.log(RARE)
    return rarity.clip(LEAST_RARITY, 1)


def _script(word: str) -> str:
    """The first word of a letter's name: LATIN, CYRILLIC, HANGUL; one for what Chinese and Japanese are written in."""
    if _UNSPACED.match(word) and not re.match(f"[{SOUTH_EAST}]", word):
        return "CJK"
    return unicodedata.name(next(filter(str.isalpha, word)), "").partition(" ")[0]


def _words_of(run: str) -> list[str]:
    """The words of a run of letters, digits, marks and underscores."""
    if not run.isascii():
        run = unicodedata.normalize("NFC", run)
    run = run.casefold()
    if run.isascii() or not _UNSPACED.search(run):
        return _word(run)
    words: list[str] = []
    for stretch in _RUNS.finditer(run):
        if stretch.lastgroup == "pairs":
            drawn = _drawn(stretch[0])
            words += [a + b for a, b in pairwise(drawn)]
        elif stretch.lastgroup == "word":
            words += _word(stretch[0])
    return words


def _names_something(word: str) -> bool:
    """Whether a word is no number (`3d` and `mp3` are none, `1월`, January, is) and no torn pair."""
    return 2 * sum(map(str.isdigit, word)) < len(word) + word.isascii() and not _TORN.match(word)


def _word(run: str) -> list[str]:
    word = run.strip("_")
    wanted = SHORTEST <= len(word) <= LONGEST and any(map(str.isalpha, word))
    return [word] if wanted else []


def _drawn(run: str) -> list[str]:
    """Characters as they are drawn, each with its marks."""
    drawn: list[str] = []
    for character in run:
        if drawn and unicodedata.category(character) in ("Mn", "Mc"):
            drawn[-1] += character
        else:
            drawn.append(character)
    return drawn


def _distinct(ranked: Sequence[str], texts: pa.Array, members: NDArray[np.int64]) -> tuple[str, ...]:
    """The first TERMS of some words that are not forms or parts of one before; pairs of characters grown to what they
    are part of in the texts of the members."""
    kept: list[str] = []
    joined = ""
    for word in ranked:
        if len(kept) == TERMS:
            break
        if any(word in other for other in kept if _PAIRED.match(word)):
            continue
        if _PAIRED.match(word):
            joined = joined or "\n".join(texts[at].as_py() for at in members.tolist())
            word = _grown(word, joined)
        if not any(_same_word(word, other) for other in kept):
            kept.append(word)
    return tuple(kept)


def _same_word(a: str, b: str) -> bool:
    shared = next((at for at, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))
    return shared >= min(3, len(a), len(b)) and shared >= SAME_WORD * max(len(a), len(b))


def _grown(pair: str, text: str) -> str:
    """A pair of characters with what it nearly always goes on with, on either side."""
    for pattern in (r"(?={}(.))", r"(?=(.){})"):
        while len(pair) < LONGEST_GROWN:
            neighbours = Counter(re.findall(pattern.format(pair), text))
            following, times = neighbours.most_common(1)[0] if neighbours else ("", 0)
            if times < GOES_ON * text.count(pair) or not _PAIRED.match(following):
                break
            pair = pair + following if pattern.endswith("(.))") else following + pair
    return pair.rstrip(_LEADING)
