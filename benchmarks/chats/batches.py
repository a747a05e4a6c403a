"""What batches of conversations hold, in trained tokens and in all tokens, under orders of DivOrder and of TRL.

    python data/build_sample.py --chat --documents 8000
    python benchmarks/chats/batches.py data/sample/chats.jsonl --label source
    python benchmarks/chats/batches.py newsgroups.jsonl.gz --label label

A corpus of texts becomes one of conversations: what a text quotes with `>` is said by the user and what stands below
by the assistant; of a text without quotes the first two lines are the question.

Every reading is token arrays (document, id, trained), rows of --length tokens, --batch rows a batch. DivOrder's come
from its plan, TRL's from `trl.pack_dataset` over the same ids and masks: of the corpus as it is and of three shuffles,
as packed and with the rows shuffled, as its trainer does by default. Shuffled: three seeds, packed as the plan is, rows
shuffled. Orders balance the cluster and the length (and with --traits others).

Columns: mean total variation of batches from the whole, in per cent, by a label that no order sees, the cluster, the
turns, the tokens of the prompt and of the answer (16 quantile bins each), and 4,096 hashed token ids; the distance of
the batch's mean vector from the whole's, as a multiple of the shuffled row's; and of the label the mean of the worst
tenth of training.
"""

import argparse
import contextlib
import gzip
import json
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from dagster_divorder.core.order.traits import bin_codes, quantile_edges
from dagster_divorder.core.packing import PackedSequences, Pieces, pack
from dagster_divorder.pipeline.run import Run
from dagster_divorder.settings import Settings
from dagster_divorder.stages import GRAPH, open_run, run_all
from dagster_divorder.stages.order.packed_sequences import load_packed
from dagster_divorder.stages.order.sequence_order import load_sequence_order
from dagster_divorder.stages.text.loss_mask import load_loss_mask

SEEDS, BINS, BUCKETS, TENTHS = 3, 16, 4096, 10
TRAITS = {"cluster": 1.0, "length": 1.0}
TRL = {"best_fit": "bfd", "concat": "wrapped"}


def conversations(source: Path, label: str) -> Iterator[dict[str, Any]]:
    with (gzip.open if source.suffix == ".gz" else open)(source, "rt", encoding="utf-8") as lines:
        for record in map(json.loads, lines):
            messages = record.get("messages") or turns(record["text"])
            if messages:
                yield {"messages": messages, "label": str(record[label])}


def turns(text: str) -> list[dict[str, str]]:
    """A text as messages, none if nothing is asked or answered."""
    messages: list[dict[str, str]] = []
    lines = [line for line in text.splitlines() if line.strip()]
    quotes = any(line.lstrip().startswith(">") for line in lines)
    for number, line in enumerate(lines):
        asks = line.lstrip().startswith(">") if quotes else number < 2
        role = "user" if asks else "assistant"
        if messages and messages[-1]["role"] == role:
            messages[-1]["content"] += "\n" + line
        elif messages or asks:
            messages.append({"role": role, "content": line})
    if messages and messages[-1]["role"] == "user":
        messages.pop()
    return messages


class Tokens(NamedTuple):
    """A corpus of D documents as token arrays. begins: int64 (D + 1,). ids, trained: (T,). codes: by feature, int (D,).
    vectors: float32 (D, C)."""

    begins: np.ndarray
    ids: np.ndarray
    trained: np.ndarray
    codes: dict[str, np.ndarray]
    vectors: np.ndarray


class Reading(NamedTuple):
    """Rows in the order of training: document and place in `Tokens.ids` of each token, int64 (n,); indptr int64
    (rows + 1,)."""

    document: np.ndarray
    place: np.ndarray
    indptr: np.ndarray


def load_tokens(run: Run, labels: list[str]) -> Tokens:
    view, rows = run.view, np.arange(len(run.view))
    lengths = run.column("token_counts", "lengths")
    row_begins = np.concatenate([[0], np.cumsum(lengths)])
    files = run.files("token_counts")
    ids = np.concatenate([files.read(fragment)["ids"] for fragment in view.fragments])
    mask = load_loss_mask(run)
    assert mask is not None
    trained_rows = np.zeros(len(ids), bool)
    for first, last in zip(mask.trained.first, mask.trained.last, strict=True):
        trained_rows[first:last] = True
    own = lengths[rows]
    begins = np.concatenate([[0], np.cumsum(own)])
    at = np.repeat(row_begins[rows] - begins[:-1], own) + np.arange(begins[-1])
    answers = mask.tokens(np.arange(len(run.view)))
    codes = {
        "label": np.unique(labels, return_inverse=True)[1],
        "cluster": run.column("clusters", "labels")[rows],
        "turns": np.unique(run.column("token_counts", "turns")[rows], return_inverse=True)[1],
        "prompt": bins(own - answers),
        "answer": bins(answers),
    }
    vectors = run.column("shallow_embeddings", "vectors")[rows]
    return Tokens(begins, ids[at], trained_rows[at], codes, vectors)


def bins(numbers: np.ndarray) -> np.ndarray:
    return bin_codes(numbers, quantile_edges(numbers, BINS))


def of_plan(packed: PackedSequences, order: np.ndarray, tokens: Tokens) -> Reading:
    runs = np.concatenate([np.arange(packed.indptr[s], packed.indptr[s + 1]) for s in order])
    length = packed.length[runs]
    first = tokens.begins[packed.document[runs]] + packed.start[runs]
    at = np.repeat(first - (np.cumsum(length) - length), length) + np.arange(length.sum())
    sizes = packed.tokens[order]
    return Reading(packed.document[runs].repeat(length), at, np.concatenate([[0], np.cumsum(sizes)]))


def of_trl(tokens: Tokens, order: np.ndarray, length: int, strategy: str) -> Reading:
    """What TRL packs of the documents in an order: their ids and masks, with two columns that say where each token is
    from."""
    import datasets
    from trl import pack_dataset

    datasets.disable_progress_bars()
    columns: dict[str, list[np.ndarray]] = {
        "input_ids": [],
        "assistant_masks": [],
        "document": [],
        "place": [],
    }
    for document in order.tolist():
        here = slice(tokens.begins[document], tokens.begins[document + 1])
        columns["input_ids"].append(tokens.ids[here])
        columns["assistant_masks"].append(tokens.trained[here].astype(np.int8))
        columns["document"].append(np.full(here.stop - here.start, document))
        columns["place"].append(np.arange(here.start, here.stop))
    packed = pack_dataset(datasets.Dataset.from_dict(columns), length, strategy).with_format("arrow")[:]
    flat = {name: packed[name].combine_chunks().flatten().to_numpy(zero_copy_only=False) for name in columns}
    assert (tokens.ids[flat["place"]] == flat["input_ids"]).all()
    assert (tokens.trained[flat["place"]] == flat["assistant_masks"]).all()
    sizes = packed["input_ids"].combine_chunks().value_lengths().to_numpy()
    return Reading(flat["document"], flat["place"], np.concatenate([[0], np.cumsum(sizes)]))


def shuffled_rows(reading: Reading, seed: int) -> Reading:
    order = np.random.default_rng([seed, 1]).permutation(len(reading.indptr) - 1)
    sizes = np.diff(reading.indptr)[order]
    at = np.repeat(reading.indptr[order] - (np.cumsum(sizes) - sizes), sizes) + np.arange(sizes.sum())
    return Reading(reading.document[at], reading.place[at], np.concatenate([[0], np.cumsum(sizes)]))


def measure(reading: Reading, tokens: Tokens, batch: int, trained: bool) -> dict[str, float]:
    """Mean total variation by feature, the mean vector's distance, and the worst tenth by label."""
    rows = len(reading.indptr) - 1
    batches = rows // batch
    end = reading.indptr[batches * batch]
    weight = tokens.trained[reading.place].astype(float) if trained else np.ones(len(reading.place))
    of_batch = np.repeat(np.arange(batches), np.diff(reading.indptr[: batches * batch + 1 : batch]))
    figures = {}
    features = {name: codes[reading.document] for name, codes in tokens.codes.items()}
    hashed = (tokens.ids.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)) >> np.uint64(52)
    features["words"] = hashed.astype(np.int64)[reading.place]
    for name, codes in features.items():
        count = int(codes.max()) + 1
        whole = np.bincount(codes, weight, count) / weight.sum()
        sums = np.bincount(of_batch * count + codes[:end], weight[:end], batches * count).reshape(
            batches, count
        )
        variation = np.abs(sums / np.maximum(sums.sum(axis=1), 1)[:, None] - whole).sum(axis=1) / 2
        figures[name] = 100 * variation.mean()
        if name == "label":
            figures["worst tenth"] = 100 * max(part.mean() for part in np.array_split(variation, TENTHS))
    documents = len(tokens.begins) - 1
    whole = np.bincount(reading.document, weight, documents) @ tokens.vectors / weight.sum()
    distances = []
    for at in range(batches):
        here = slice(reading.indptr[at * batch], reading.indptr[(at + 1) * batch])
        sums = np.bincount(reading.document[here], weight[here], documents)
        distances.append(np.linalg.norm(sums @ tokens.vectors / max(sums.sum(), 1) - whole))
    return figures | {"vector": float(np.mean(distances))}


def averaged(readings: Iterator[Reading], tokens: Tokens, batch: int) -> list[dict[str, float]]:
    """[in trained tokens, in all tokens], each the mean over readings."""
    every = [[measure(reading, tokens, batch, trained) for trained in (True, False)] for reading in readings]
    return [
        {name: float(np.mean([one[at][name] for one in every])) for name in every[0][at]} for at in (0, 1)
    ]


def packed_like(
    packed: PackedSequences, method: str, length: int, seed: int
) -> tuple[PackedSequences, np.ndarray]:
    """The runs of a plan, by document in random order, packed by the same method; the sequences shuffled."""
    random = np.random.default_rng([seed, 2])
    place = random.permutation(int(packed.document.max()) + 1)
    runs = np.lexsort((packed.start, place[packed.document]))
    pieces = Pieces(packed.document[runs], packed.start[runs], packed.length[runs])
    again = pack(pieces, method=method, sequence_length=length)
    return again, random.permutation(len(again))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("corpus", type=Path)
    parser.add_argument("--label", default="source", help="field of the records that no order sees")
    parser.add_argument("--length", type=int, default=2048)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--clusters", type=int, default=20)
    parser.add_argument("--traits", nargs="*", default=[], help="balanced beside cluster and length")
    parser.add_argument("--methods", nargs="*", default=["best_fit", "none", "concat"])
    parser.add_argument("--every", type=int, default=1, help="take every n-th record")
    parser.add_argument("--folder", help="kept for another run; by default a temporary one")
    given = parser.parse_args()
    with contextlib.ExitStack() as stack:
        folder = given.folder or stack.enter_context(tempfile.TemporaryDirectory())
        Path(folder).mkdir(exist_ok=True)
        records = list(conversations(given.corpus, given.label))[:: given.every]
        chats = Path(folder, "chats.jsonl")
        chats.write_text("".join(json.dumps({"messages": record["messages"]}) + "\n" for record in records))
        report(given, folder, chats, [record["label"] for record in records])


def report(given: argparse.Namespace, folder: str, chats: Path, labels: list[str]) -> None:
    tokens = None
    for method in given.methods:
        rows: list[tuple[str, list[dict[str, float]]]] = []
        settings = Settings(
            input={"paths": (str(chats),), "format": "messages"},
            store={"path": f"{folder}/store"},
            output={"path": f"{folder}/out", "sidecars": ()},
            sequence={"length": given.length, "batch": given.batch},
            clusters={"k": given.clusters},
            packing={"method": method},
            order={"traits": TRAITS | dict.fromkeys(given.traits, 1.0)},
        )
        run_all(settings, stages=GRAPH.needed(settings, "sequence_order"))
        run = open_run(settings)
        assert len(run.view) == len(labels), "a record was refused"
        tokens = tokens or load_tokens(run, labels)
        plan = load_packed(run)
        again = (packed_like(plan, method, given.length, seed) for seed in range(SEEDS))
        baseline = averaged((of_plan(*one, tokens) for one in again), tokens, given.batch)
        rows.append(("shuffled", baseline))
        ours = averaged(iter([of_plan(plan, load_sequence_order(run)[0], tokens)]), tokens, given.batch)
        rows.append(("DivOrder", ours))
        if method in TRL:
            rows += of_trls(tokens, given.length, given.batch, TRL[method])
        print(
            f"\n### {given.corpus.name}, {method}: {len(plan):,} sequences, {int(tokens.trained.sum()):,} of"
        )
        print(f"{len(tokens.ids):,} tokens are trained on\n")
        show(rows)
        sys.stdout.flush()


def of_trls(
    tokens: Tokens, length: int, batch: int, strategy: str
) -> list[tuple[str, list[dict[str, float]]]]:
    as_is = of_trl(tokens, np.arange(len(tokens.begins) - 1), length, strategy)
    shuffles = [
        of_trl(tokens, np.random.default_rng(seed).permutation(len(tokens.begins) - 1), length, strategy)
        for seed in range(SEEDS)
    ]
    return [
        (f"TRL {strategy} of the corpus", averaged(iter([as_is]), tokens, batch)),
        (
            f"TRL {strategy} of the corpus, rows shuffled",
            averaged((shuffled_rows(as_is, seed) for seed in range(SEEDS)), tokens, batch),
        ),
        (f"TRL {strategy} of the shuffled corpus", averaged(iter(shuffles), tokens, batch)),
        (
            f"TRL {strategy} of the shuffled corpus, rows shuffled",
            averaged((shuffled_rows(one, seed) for seed, one in enumerate(shuffles)), tokens, batch),
        ),
    ]


def show(rows: list[tuple[str, list[dict[str, float]]]]) -> None:
    names = list(rows[0][1][0])
    print(f"| read | shares of | {' | '.join(names)} |\n|---|---|{'--:|' * len(names)}")
    for at, shares in enumerate(("trained", "all")):
        for reading, figures in rows:
            values = dict(figures[at])
            values["vector"] /= rows[0][1][at]["vector"]
            print(f"| {reading} | {shares} | {' | '.join(f'{values[name]:.2f}' for name in names)} |")


if __name__ == "__main__":
    main()
