"""What the tiny training reads: some documents of every source, and the tokens that a run of the pipeline orders."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import orjson

from dagster_divorder import Settings, run_all
from dagster_divorder.corpus.compression import decompressed
from dagster_divorder.engine.progress import Silent
from dagster_divorder.pipeline.run import Run
from dagster_divorder.stages import GRAPH, open_run
from dagster_divorder.stages.order.packed_sequences import load_packed
from dagster_divorder.stages.order.sequence_order import load_sequence_order
from dagster_divorder.stages.text.base_model import load_base_model

BYTES_PER_TOKEN = 2.75
"""Of the mixture corpus under a bootstrap tokenizer of 4,096 tokens that was trained on a part of it this small."""

HELD_OUT = 0.1
"""As many bytes of the corpus are held out as this share of those trained on, where no file holds others."""

Documents = dict[str, list[str]]


def draw(corpus: Path, tokens: int, source_field: str, into: Path) -> Documents:
    """Write about `tokens` tokens of a JSONL corpus to a JSONL file, as many bytes of each source, in the order of the
    corpus; return held-out documents of the same sources, texts by source.

    Documents come at random (one seed), and one that does not fit what is left of its source's bytes is passed over.
    """
    records = [orjson.loads(line) for line in read_lines(corpus)]
    of_source: dict[str, list[int]] = defaultdict(list)
    for at in np.random.default_rng(0).permutation(len(records)).tolist():
        of_source[records[at][source_field]].append(at)
    share = tokens * BYTES_PER_TOKEN / len(of_source)
    taken: list[int] = []
    held_out: Documents = {}
    for source, documents in of_source.items():
        sizes = [len(records[at]["text"].encode()) for at in documents]
        inside = _fill(sizes, share)
        rest = [at for at in range(len(documents)) if at not in inside]
        taken += [documents[at] for at in inside]
        outside = _fill([sizes[at] for at in rest], HELD_OUT * share)
        held_out[source] = [records[documents[rest[at]]]["text"] for at in outside]
    lines = [
        orjson.dumps({"text": records[at]["text"], "source": records[at][source_field]})
        for at in sorted(taken)
    ]
    into.write_bytes(b"\n".join(lines) + b"\n")
    return held_out


def _fill(sizes: list[int], room: float) -> dict[int, None]:
    """The places of sizes that fit, each taken if there is room for it when it comes."""
    inside: dict[int, None] = {}
    for at, size in enumerate(sizes):
        if size <= room:
            inside[at] = None
            room -= size
    return inside


def read_lines(path: Path) -> list[bytes]:
    """Lines of a plain or compressed file."""
    with open(path, "rb") as file:
        return decompressed(file, path.suffix).read().splitlines()


def read_by_source(path: Path, source_field: str) -> Documents:
    """Texts of a JSONL file, by source."""
    texts: Documents = defaultdict(list)
    for line in read_lines(path):
        record = orjson.loads(line)
        texts[record[source_field]].append(record["text"])
    return texts


@dataclass(frozen=True)
class Ordered:
    """What the pipeline makes of the drawn documents under some settings, as a trainer reads it."""

    epochs: list[np.ndarray]
    """Full sequences, uint16 or uint32 (S, L), in the order of each epoch."""
    vocabulary: int


def order(settings: Settings) -> Ordered:
    """Run the pipeline as far as the order of the sequences, and gather the tokens in that order."""
    run_all(settings, Silent(), GRAPH.needed(settings, "sequence_order"))
    run = run_of(settings)
    stream, starts = sequences_of(run)
    lengths = np.diff(starts)
    full = lengths == settings.sequence.length
    row = np.cumsum(full) - 1
    whole = stream[np.repeat(full, lengths)].reshape(-1, settings.sequence.length)
    epochs = [whole[row[epoch[full[epoch]]]] for epoch in load_sequence_order(run)]
    return Ordered(epochs, int(load_base_model(run).info["vocabulary"]))


def run_of(settings: Settings) -> Run:
    """What the pipeline has made under these settings, to be read."""
    return open_run(settings)


def tokenised(settings: Settings, texts: Documents, sequences: int) -> dict[str, np.ndarray]:
    """By source the first tokens of its texts, laid end to end, as at most so many sequences (n, L)."""
    encoder = load_base_model(run_of(settings)).encoder()
    length = settings.sequence.length
    found = {}
    for source in sorted(texts):
        ids, _ = encoder.encode(texts[source])
        rows = min(sequences, len(ids) // length)
        if rows:
            found[source] = ids[: rows * length].reshape(rows, length)
    return found


def sequences_of(run: Run) -> tuple[np.ndarray, np.ndarray]:
    """Token ids of all packed sequences, as packed, and where each begins, int64 (S + 1,)."""
    view, packed, tokens = run.view, load_packed(run), run.files("token_counts")
    ids = tokens.column(view.fragments, "ids")
    lengths = tokens.column(view.fragments, "lengths")
    begins = np.cumsum(lengths) - lengths
    first = begins[packed.document] + packed.start
    ends = np.cumsum(packed.length)
    at = np.arange(ends[-1]) - np.repeat(ends - packed.length - first, packed.length)
    return ids[at], np.concatenate([[0], ends])[packed.indptr]


def settings_of(work: Path, seed: int, length: int, batch: int, changes: dict[str, Any]) -> Settings:
    """Defaults over the documents drawn into `work`, with a small vocabulary; `changes` by section."""
    sections: dict[str, Any] = {
        "input": {"paths": [str(work / "corpus.jsonl")], "source_field": "source"},
        "store": {"path": work / "store"},
        "output": {"path": work / "out"},
        "advanced": {"vocab_size": 4096},
        "sequence": {"length": length, "batch": batch},
    }
    for section, values in changes.items():
        sections[section] = {**sections.get(section, {}), **values}
    return Settings(**sections, seed=seed)
