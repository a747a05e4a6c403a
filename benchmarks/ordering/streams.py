"""What `balance` brings on a stream, beside shuffle buffers of the same size; and what it costs.

    python benchmarks/ordering/streams.py quality FILE.jsonl.gz --by label [--other lang] [--tokens] [--buffer 1024]
    python benchmarks/ordering/streams.py speed

quality: documents in the file's order, in blocks of 16 that are shuffled, and shuffled, go through `datasets`' buffer,
one that hands out a random document and takes the next in its place (webdataset, tf.data), and `balance`. Batches of
256: their distance (total variation) from all documents in the trait that is balanced, mean and worst; in what is not:
16 bins of the length, 1,024 hashed words, and another label; the worst tenth of the stream in the same; and how many
places later than it came a document goes, at most. speed: processor microseconds an example, of flat examples with
three traits.
"""

import argparse
import gzip
import json
import random
import re
import time
import zlib
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np
from datasets import Dataset, IterableDataset
from scipy.sparse import csr_array

import dagster_divorder as divorder

BATCH, BINS, WORDS, BLOCK = 256, 16, 1024, 16
CHARACTERS = 2000
"""Of a document whose words are counted."""


def documents(path: str) -> list[dict[str, Any]]:
    with gzip.open(path, "rt") if path.endswith(".gz") else open(path) as file:
        return [json.loads(line) for line in file]


def one_of(values: list[Any], amounts: np.ndarray) -> csr_array:
    """The value of each document, float64 (N, J)."""
    _, numbers = np.unique(np.array([str(value) for value in values]), return_inverse=True)
    return csr_array((amounts, (np.arange(len(values)), numbers)))


def words(texts: list[str]) -> csr_array:
    known: dict[str, int] = {}
    indices: list[int] = []
    indptr = [0]
    for text in texts:
        found = re.findall(r"\w+", text[:CHARACTERS].lower())
        indices.extend(known.setdefault(word, zlib.crc32(word.encode()) % WORDS) for word in found)
        indptr.append(len(indices))
    matrix = csr_array((np.ones(len(indices)), indices, indptr), shape=(len(texts), WORDS))
    matrix.sum_duplicates()
    return matrix


def distances(feature: csr_array, order: np.ndarray, parts: np.ndarray) -> np.ndarray:
    """Of each part of the order from all documents. parts int64 (N,): the part of each position."""
    rows = csr_array((np.ones(len(order)), (parts, order)))
    sums = (rows @ feature).toarray()
    whole = feature.sum(axis=0)
    shares = sums / np.maximum(sums.sum(axis=1, keepdims=True), 1e-12)
    return 0.5 * np.abs(shares - whole / whole.sum()).sum(axis=1)


def random_slot(stream: list[int], buffer: int, seed: int) -> Iterator[int]:
    drawn = random.Random(seed)
    held: list[int] = []
    for item in stream:
        held.append(item)
        if len(held) > buffer:
            at = drawn.randrange(buffer)
            held[at], held[-1] = held[-1], held[at]
            yield held.pop()
    drawn.shuffle(held)
    yield from held


def datasets_buffer(stream: list[int], buffer: int, seed: int) -> Iterator[int]:
    data = IterableDataset.from_generator(lambda: ({"row": row} for row in stream))
    return (example["row"] for example in data.shuffle(seed=seed, buffer_size=buffer))


def quality(options: argparse.Namespace) -> None:
    rows = documents(options.file)
    number = len(rows)
    texts = [row["text"] for row in rows]
    tokens = np.array([1 + len(text) // 4 for text in texts], np.float64)
    amounts = tokens if options.tokens else np.ones(number)
    values = [row.get(options.by) for row in rows]
    balanced = one_of(values, amounts)
    edges = np.quantile(tokens, np.linspace(0, 1, BINS + 1)[1:-1])
    others = {"lengths": one_of(np.digitize(tokens, edges).tolist(), np.ones(number)), "words": words(texts)}
    if options.other:
        others[options.other] = one_of([row.get(options.other) for row in rows], amounts)

    def balance(stream: list[int], seed: int) -> Iterable[int]:
        count = (lambda row: tokens[row]) if options.tokens else None
        by = {options.by: lambda row: str(values[row])}
        return divorder.balance(stream, by, tokens=count, buffer=options.buffer, seed=seed)

    ways: dict[str, Callable[[list[int], int], Iterable[int]]] = {
        "as it comes": lambda stream, seed: stream,
        "datasets' shuffle": lambda stream, seed: datasets_buffer(stream, options.buffer, seed),
        "random slot": lambda stream, seed: random_slot(stream, options.buffer, seed),
        "balance": balance,
    }
    names = list(others)
    print(
        f"{options.file}: {number:,} documents by {options.by}, counted in "
        f"{'tokens' if options.tokens else 'documents'}, C = {options.buffer:,}, mean of {options.seeds} seeds"
    )
    print(
        f"| stream | buffer | {options.by} | worst batch | {' | '.join(names)} | worst tenth: {options.by} | "
        f"{' | '.join(names)} | longest wait / C |\n|---|---|{'--:|' * (4 + 2 * len(names))}"
    )
    for name, stream_of in (("in order", in_order), ("blocks of 16", in_blocks), ("shuffled", shuffled)):
        for way, through in ways.items():
            cells = []
            for seed in range(options.seeds):
                stream = stream_of(number, seed)
                order = np.array(list(through(stream, seed)))
                assert sorted(order) == list(range(number))
                cells.append(
                    measured(order, np.array(stream), balanced, list(others.values()), options.buffer)
                )
            print(
                f"| {name} | {way} | {' | '.join(f'{cell:.3f}' for cell in np.mean(cells, axis=0))} |",
                flush=True,
            )


def measured(
    order: np.ndarray, stream: np.ndarray, balanced: csr_array, others: list[csr_array], buffer: int
) -> list[float]:
    number = len(order)
    batches = np.minimum(np.arange(number) // BATCH, max(0, number // BATCH - 1))
    tenths = np.arange(number) * 10 // number
    came = np.empty(number, np.int64)
    came[stream] = np.arange(number)
    own = distances(balanced, order, batches)
    wait = (np.arange(number) - came[order]).max() / buffer
    return [
        own.mean(),
        own.max(),
        *(distances(feature, order, batches).mean() for feature in others),
        *(distances(feature, order, tenths).max() for feature in (balanced, *others)),
        wait,
    ]


def in_order(number: int, seed: int) -> list[int]:
    return list(range(number))


def in_blocks(number: int, seed: int) -> list[int]:
    blocks = np.random.default_rng(seed).permutation(-(-number // BLOCK))
    return [row for block in blocks for row in range(BLOCK * block, min(number, BLOCK * (block + 1)))]


def shuffled(number: int, seed: int) -> list[int]:
    return [int(row) for row in np.random.default_rng(seed).permutation(number)]


def speed(options: argparse.Namespace) -> None:
    drawn = np.random.default_rng(0)
    number = 100_000
    columns = {
        name: [f"{name}{value}" for value in drawn.integers(0, values, number)]
        for name, values in (("source", 16), ("topic", 30), ("lang", 5))
    }
    columns["tokens"] = drawn.integers(10, 2000, number).tolist()
    rows = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
    by = ["source", "topic", "lang"]
    generated = IterableDataset.from_generator(lambda: iter(rows))
    tables = Dataset.from_dict(columns).to_iterable_dataset()

    def rebalanced(stream: Any) -> Any:
        return divorder.balance(stream, by, tokens="tokens", buffer=options.buffer)

    ways: dict[str, Any] = {
        "list": rows,
        "list, balance": rebalanced(rows),
        "list, random slot": random_slot(rows, options.buffer, 0),  # type: ignore[arg-type]
        "datasets, generator": generated,
        "datasets, generator, shuffle": generated.shuffle(seed=0, buffer_size=options.buffer),
        "datasets, generator, balance": rebalanced(generated),
        "datasets, tables": tables,
        "datasets, tables, shuffle": tables.shuffle(seed=0, buffer_size=options.buffer),
        "datasets, tables, balance": rebalanced(tables),
    }
    list(rebalanced(rows[: 2 * options.buffer]))  # compiled
    print(f"C = {options.buffer:,}, three traits, tokens counted, {number:,} examples")
    print("| stream | microseconds an example | examples a second |\n|---|--:|--:|")
    for way, stream in ways.items():
        begin = time.process_time()
        count = sum(1 for _ in stream)
        each = (time.process_time() - begin) / count
        print(f"| {way} | {1e6 * each:.1f} | {1 / each:,.0f} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=["quality", "speed"])
    parser.add_argument("file", nargs="?")
    parser.add_argument("--by", default="source")
    parser.add_argument("--other")
    parser.add_argument("--tokens", action="store_true")
    parser.add_argument("--buffer", type=int, default=1024)
    parser.add_argument("--seeds", type=int, default=2)
    options = parser.parse_args()
    {"quality": quality, "speed": speed}[options.what](options)


if __name__ == "__main__":
    main()
