"""Characteristic words of clusters of texts, and a short name for each cluster.

Letters: n documents, W words, K clusters.

A word is characteristic if many documents of the cluster use it (share p) and few of other clusters do. This is
class-based TF-IDF with shares of documents in place of counts, so a document that repeats itself counts once. The
    weight: p^REACH (1 - p) x log(p / q) x (BURST + log(e / p)) x rarity x brevity^2
q is the share at the 90th percentile of clusters (at least the third highest), and at least the mean share. e is the
share of documents that as many uses would reach if they were spread at random. Rarity falls from 1 to 0 as the word's
share of all documents of its script rises from RARE to 1. So words that head many clusters, words of a template and
function words count for little in any language: they occur in all clusters of a language, in many documents of its
script, in nearly all of a cluster, evenly spread, and are short.

Words are runs of letters, digits, marks and "_", casefolded, of 2 to 40 characters with at least one letter. Words that
are mostly digits are not used as terms. Scripts without spaces (Han, South-East Asian) count by pairs of characters; a
pair that nearly always continues in the same way is shown with the continuation. Runs of katakana are words, hiragana
is ignored. `without_markup` removes URLs, tags and the like.

Guarantee: the same texts in the same order with the same labels give the same terms.
Cost: O(characters) in Arrow and O(distinct words) in Python: 0.1 s a megabyte at most; memory as the texts.
Sources: Grootendorst 2022 (BERTopic, class-based TF-IDF); Church and Gale 1995 (content words come in bursts); Zipf
1935 (frequent words are short).
Known weakness: words are not stemmed; the names of frequent authors who sign their texts are characteristic too.
Measurements: docs/decisions/cluster-names.md.
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
"""Terms of a cluster."""
NAMED_BY = 3
"""Terms in a cluster's name."""

SHORTEST, LONGEST = 2, 40
"""Fewest and most characters of a word."""
LEAST_DOCUMENTS, LEAST_SHARE = 3, 0.03
"""A cluster's term is used by at least this many of its documents, and at least this share; a smaller cluster needs
all."""
LEAST_OTHERS = 3
LEAST_CONTRAST, LEAST_RARITY = 0.01, 0.01
"""Floors of the weight's factors, for clusters without distinctive words and clusters of common words alone."""
BURST = 0.3
REACH = 1.3
"""Exponent of p. A higher one prefers words of many documents to words of no other cluster."""
RARE = 0.05
"""Share of its script's documents up to which a word has rarity 1."""
BREVITY = 6
"""Letters from which brevity is 1; below, it is length / BREVITY. Syllables and ideographs have brevity 1."""
SAME_WORD = 0.6
"""Shared prefix, as a part of the longer word, from which two words count as forms of one."""
GOES_ON = 0.7
LONGEST_GROWN = 6
"""Share of uses from which a pair of characters grows by the next one, and the most characters."""

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
"""Pairs that begin with a vowel of the preceding character or end with one of the next: Thai, Lao."""
_MARKUP = (
    (r"(?i)\b(?:[a-z][a-z0-9+.-]*://|www\.)\S+|\S+@\S+", " "),
    (r"</?[A-Za-z][^<>]{0,300}>|&(?:[A-Za-z]+|#[0-9]+);", " "),
    (r"(^|[^A-Za-z_:\\])\\[A-Za-z]+", r"\1 "),  # not folders, as in C:\WINDOWS\SYSTEM
    (r"\b0[xX][0-9A-Fa-f]+\b|\b[0-9A-Fa-f]*[0-9][0-9A-Fa-f]{7,}\b|[A-Za-z0-9+/]{48,}=*", " "),
)
"""Regular expressions for Arrow, with replacements."""


@dataclass(frozen=True, eq=False)
class Words:
    """Word counts of documents: counts int32 (n, W); vocabulary, W words; texts large_string (n,), as counted."""

    counts: csr_array
    vocabulary: list[str]
    texts: pa.Array


def count_words(texts: pa.Array) -> Words:
    """Word counts of texts, string or large_string (n,)."""
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
    """Texts, string or large_string (n,), without URLs, e-mail addresses, HTML tags and entities, LaTeX commands,
    hexadecimal numbers and base64."""
    import pyarrow.compute as pc

    for pattern, instead in _MARKUP:
        texts = pc.replace_substring_regex(texts, pattern, instead)
    return texts


def characteristic_terms(words: Words, labels: NDArray[np.integer], clusters: int) -> list[tuple[str, ...]]:
    """At most TERMS words of each cluster, by falling weight. labels: int (n,) in [0, clusters).

    A cluster has no terms if it is empty, or if too few of its documents use any word.
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
    often = np.flatnonzero(holding.data >= least)
    met, at = np.unique(holding.indices[often], return_inverse=True)
    names_something = np.array([_names_something(words.vocabulary[word]) for word in met.tolist()], bool)
    often = often[names_something[at]]
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
    """A name for each cluster: its first NAMED_BY terms, plus further terms or a number if another cluster has the same
    name. A cluster without terms is "cluster" and its number."""
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
    """Weights without rarity and brevity, for the entries `often` of `holding` (K, W), the number of a cluster's
    documents that use a word. By entry: size, documents of the cluster; uses, of the word in them."""
    clusters, count = holding.shape
    word = holding.indices
    share = holding.data / (size + 1)
    mean = np.bincount(word, share, count) / clusters
    # The share of each word in the cluster of this rank.
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
    """Rarity of words (W,): 0 if all documents of the script use it, 1 at a share of RARE or less. used (n, W): 1 if a
    document uses a word."""
    scripts = np.array([_script(word) for word in written])
    rarity = np.ones(len(written))
    for script in np.unique(scripts):
        of_script = np.flatnonzero(scripts == script)
        in_script = used[:, of_script]
        documents = np.count_nonzero(in_script.sum(axis=1))
        rarity[of_script] = np.log(documents / in_script.sum(axis=0)) / -np.log(RARE)
    return rarity.clip(LEAST_RARITY, 1)


def _script(word: str) -> str:
    """A word's script, the first word of a letter's Unicode name (LATIN, CYRILLIC); one for Chinese and Japanese."""
    if _UNSPACED.match(word) and not re.match(f"[{SOUTH_EAST}]", word):
        return "CJK"
    return unicodedata.name(next(filter(str.isalpha, word)), "").partition(" ")[0]


def _words_of(run: str) -> list[str]:
    """Words of a run of letters, digits, marks and underscores."""
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
    """Whether a word is neither a number (`1월`, January, is one; `3d` and `mp3` are not) nor a torn pair."""
    return 2 * sum(map(str.isdigit, word)) < len(word) + word.isascii() and not _TORN.match(word)


def _word(run: str) -> list[str]:
    word = run.strip("_")
    wanted = SHORTEST <= len(word) <= LONGEST and any(map(str.isalpha, word))
    return [word] if wanted else []


def _drawn(run: str) -> list[str]:
    """Characters, each with its combining marks."""
    drawn: list[str] = []
    for character in run:
        if drawn and unicodedata.category(character) in ("Mn", "Mc"):
            drawn[-1] += character
        else:
            drawn.append(character)
    return drawn


def _distinct(ranked: Sequence[str], texts: pa.Array, members: NDArray[np.int64]) -> tuple[str, ...]:
    """The first TERMS words that are neither forms nor parts of an earlier one; pairs of characters grow as they
    continue in the members' texts."""
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
    """A pair of characters with the characters that nearly always precede or follow it."""
    for pattern in (r"(?={}(.))", r"(?=(.){})"):
        while len(pair) < LONGEST_GROWN:
            neighbours = Counter(re.findall(pattern.format(pair), text))
            following, times = neighbours.most_common(1)[0] if neighbours else ("", 0)
            if times < GOES_ON * text.count(pair) or not _PAIRED.match(following):
                break
            pair = pair + following if pattern.endswith("(.))") else following + pair
    return pair.rstrip(_LEADING)
