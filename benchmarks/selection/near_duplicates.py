"""Are all near copies of a corpus found, how fast, and what do large buckets cost and lose?

The groups of `core/text/near_duplicates.py` against all pairs of documents that have a shingle in common, by their
exact similarities, and against datasketch's LSH over the same shingles. CPU seconds, which on a busy machine compare
better than those of the clock.

    python benchmarks/selection/near_duplicates.py corpus.jsonl
    python benchmarks/selection/near_duplicates.py corpus.jsonl --sample 10000 --datasketch   # pip install datasketch
    python benchmarks/selection/near_duplicates.py --made 1000000   # Linux
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pyarrow as pa
from scipy.sparse import csr_matrix
from scipy.sparse.csgraph import connected_components

from dagster_divorder.core.text import near_duplicates
from dagster_divorder.core.text.minhash import shingles, signatures
from dagster_divorder.core.text.near_duplicates import THRESHOLD, candidate_pairs, group


def timed(what: str, function: Callable[[], Any]) -> Any:
    start = time.process_time()
    made = function()
    print(f"  {what}: {time.process_time() - start:.2f} s")
    return made


def peak_megabytes() -> float:
    """Resident memory at its peak; Linux."""
    status = Path("/proc/self/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0]) / 1024


def laid_out(sets: list[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """(all shingles, where those of each text begin and end, (n, 2))."""
    ends = np.cumsum([len(of) for of in sets])
    return np.concatenate(sets), np.stack([ends - [len(of) for of in sets], ends], axis=1)


def grouped(texts: pa.Array, signed: np.ndarray) -> np.ndarray:
    """The first text of each one's group, int64 (n,)."""
    pairs = timed("candidates of all bands", lambda: candidate_pairs(signed))
    some, inverse = np.unique(pairs, return_inverse=True)
    sets = timed("their shingles", lambda: laid_out(shingles(texts.take(pa.array(some)))))
    first = np.arange(len(texts))
    found, similarity = timed("groups", lambda: group(inverse.reshape(-1, 2), *sets))
    first[some] = some[found]
    copies = first != np.arange(len(first))
    sizes = np.bincount(first)
    far = int((similarity < THRESHOLD).sum())
    print(
        f"  {len(pairs):,} pairs of {len(some):,} texts compared: {int(copies.sum()):,} near copies in "
        f"{int((sizes > 1).sum()):,} groups, the largest {int(sizes.max())}; {far} less near to their first than "
        f"{THRESHOLD}"
    )
    return first


def near_pairs(sets: tuple[np.ndarray, np.ndarray]) -> Iterator[np.ndarray]:
    """All pairs (one < other) of a similarity of THRESHOLD or more, (q, 2), by their shingles in common."""
    members, spans = sets
    names, columns = np.unique(members, return_inverse=True)
    ends = np.append(spans[:, 0], spans[-1, 1])
    texts = csr_matrix((np.ones(len(columns), np.int32), columns, ends), shape=(len(spans), len(names)))
    turned, sizes = texts.T.tocsr(), np.diff(ends)
    for begin in range(0, len(spans), 500):
        both = (texts[begin : begin + 500] @ turned).tocoo()
        one, other = both.row + begin, both.col
        near = (one < other) & (both.data >= THRESHOLD * (sizes[one] + sizes[other] - both.data))
        yield np.stack([one[near], other[near]], axis=1).astype(np.int64)


def held_against_all_pairs(sets: tuple[np.ndarray, np.ndarray], first: np.ndarray) -> np.ndarray:
    """All near pairs, and in print how many the groups lack."""
    pairs = timed("all pairs that share a shingle", lambda: np.concatenate(list(near_pairs(sets))))
    graph = csr_matrix((np.ones(len(pairs)), pairs.T), shape=(len(first), len(first)))
    label = connected_components(graph, directed=False)[1]
    least = np.full(label.max() + 1, len(first))
    np.minimum.at(least, label, np.arange(len(first)))
    apart = int((first[pairs[:, 0]] != first[pairs[:, 1]]).sum())
    print(
        f"  {len(pairs):,} near pairs, of which {apart} are not in one group; "
        f"{int((least[label] != first).sum())} texts are in another group than by all pairs"
    )
    return pairs


def held_against_datasketch(sets: tuple[np.ndarray, np.ndarray], near: np.ndarray) -> None:
    from datasketch import MinHash, MinHashLSH

    members, spans = sets

    def candidates() -> set[tuple[int, int]]:
        lsh, found = MinHashLSH(threshold=THRESHOLD, num_perm=128), set()
        for at, (begin, end) in enumerate(spans):
            signed = MinHash(num_perm=128)
            signed.update_batch([one.tobytes() for one in members[begin:end]])
            found |= {(other, at) for other in lsh.query(signed)}
            lsh.insert(at, signed)
        print(f"  datasketch: {lsh.b} bands of {lsh.r}")
        return found

    found = timed("datasketch's signatures and candidates", candidates)
    known = set(map(tuple, near.tolist()))
    print(f"  of {len(known):,} near pairs it has {len(known & found):,} among {len(found):,} candidates")


def made_texts(count: int) -> pa.Array:
    """Texts of 60 words: a tenth near copies of one before, a twentieth of one template (alike by 0.6)."""
    draw = np.random.default_rng(0)
    words = np.array([f"w{number}" for number in range(50_000)], object)
    number = draw.integers(0, len(words), (count, 60))
    kind = draw.random(count)
    template = np.flatnonzero(kind < 0.05)
    number[template, :45] = number[0, :45]
    for at in np.flatnonzero((kind > 0.9) & (np.arange(count) > 0)).tolist():
        number[at] = number[draw.integers(0, at)]
        number[at, draw.integers(0, 60)] = draw.integers(0, len(words))
    return pa.array([" ".join(row) for row in words[number]], pa.large_string())


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("corpus", nargs="?", help="JSONL with the field text")
    parser.add_argument("--sample", type=int, help="so many texts, drawn at random")
    parser.add_argument("--datasketch", action="store_true")
    parser.add_argument(
        "--made", type=int, help="in place of a corpus: so many made texts, not held against all pairs"
    )
    parser.add_argument(
        "--bucket", type=int, default=near_duplicates.MAX_BUCKET, help="texts that stand for a bucket"
    )
    arguments = parser.parse_args()
    near_duplicates.MAX_BUCKET = arguments.bucket
    small = pa.array(["a b c d e f", "a b c d e f g"], pa.large_string())
    group(candidate_pairs(signatures(small)), *laid_out(shingles(small)))  # compiled before it is timed
    if arguments.made:
        texts = made_texts(arguments.made)
    else:
        with open(arguments.corpus, "rb") as file:
            every = list(dict.fromkeys(orjson.loads(line)["text"] for line in file))
        if arguments.sample:
            chosen = np.random.default_rng(0).permutation(len(every))[: arguments.sample]
            every = [every[at] for at in np.sort(chosen)]
        texts = pa.array(every, pa.large_string())
    print(f"{len(texts):,} texts, {texts.nbytes / 1e6:.1f} MB")
    signed = timed("signatures", lambda: signatures(texts))
    Path("/proc/self/clear_refs").write_text("5")  # the peak begins here
    before = peak_megabytes()
    first = grouped(texts, signed)
    print(f"  {peak_megabytes() - before:.0f} MB at most beside the texts and their signatures")
    if not arguments.made:
        sets = laid_out(shingles(texts))
        near = held_against_all_pairs(sets, first)
        if arguments.datasketch:
            held_against_datasketch(sets, near)


if __name__ == "__main__":
    main()
