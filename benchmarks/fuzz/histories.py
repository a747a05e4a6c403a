"""Random histories of tiny corpora over everything that decides what is trained on, and where: nothing is lost.

A history draws a corpus of 6 to 40 records, and settings: the mix, the held-out set, the choice, copies kept apart,
the packer, pieces, strategies, sections, epochs, the curriculum. Then, step by step, records are appended, edited,
deleted, moved and duplicated, settings change, a trainer consumes a part of the output (`order.frozen_tokens`), records
are cut. After each run:

- the order has every record as often as `repeats` says, and the output is its lines in that order;
- every token of these is in one sequence, but for those of cut records, and every epoch reads every sequence once, or
  all epochs together as often as there are epochs where one schedule goes over them;
- what is consumed stands first, as it was;
- no text that is held out is trained on, nor a record that is not chosen, unless it is consumed.

A run that is refused ends in an error of the package's own, and after a step back the next one goes well. At the end a
fresh store with a copy of the fits comes to the same bytes.

python benchmarks/fuzz/histories.py [--histories 300] [--first 0] [--folder /dev/shm]
"""

from __future__ import annotations

import argparse
import random
import re
import shutil
import tempfile
import time
import traceback
from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import orjson
import pandas as pd
import pyarrow.parquet as pq

from dagster_divorder import load_results, run_all
from dagster_divorder.engine.progress import Silent
from dagster_divorder.errors import DivOrderError
from dagster_divorder.pipeline.prune import prune
from dagster_divorder.settings import Settings
from dagster_divorder.settings.sections import RULES
from dagster_divorder.stages import GRAPH
from dagster_divorder.store.ids import hash_all
from dagster_divorder.store.local import LocalStore
from dagster_divorder.store.state import State, changing, load_state

STEPS = 5
WORDS = {
    "a": "wave tide boat harbour salt gull net anchor sail reef",
    "b": "oven bread flour yeast butter knead crust loaf bake salt",
    "c": "train track signal platform guard wagon steam bridge rain",
}
STRATEGIES = ("balanced", "f3", "stratified", "random", "original", "round_robin", "block_shuffle")
LEFT_OUT = "left_out.parquet"
DIFFERENT = ("curated_meta.json", "embeddings.npy", LEFT_OUT)
"""Files of an output that name its store, or are equal to within rounding."""

Sections = dict[str, dict[str, Any]]


class Consumed(NamedTuple):
    """What a trainer has read of an output: its documents, and the runs of its sequences, by record ids."""

    documents: list[str]
    sequences: list[list[tuple[str, int, int]]]

    @property
    def ids(self) -> set[str]:
        return {*self.documents, *(record for runs in self.sequences for record, *_ in runs)}


class History:
    """A corpus, its settings and what came of them, drawn by a number."""

    def __init__(self, number: int, folder: Path) -> None:
        self.draw, self.folder = random.Random(number), folder
        # Of its own, so that the curriculum changes no other draw.
        self.draw_along = random.Random(-1 - number)
        self.made = 0
        self.records: list[Any] = []
        self.append(self.draw.choice([6, 10, 20, 40]))
        self.sections = self.draw_settings()
        self.consumed: Consumed | None = None
        self.refused: Counter[str] = Counter()
        self.said = ""
        self.runs = 0
        self.good: tuple[list[Any], Sections, Consumed | None] | None = None

    # The corpus ----------------------------------------------------------------------------------------------------

    def record(self) -> Any:
        self.made += 1
        source = self.draw.choice("aaabbc")
        count = self.draw.choice([1, 3, 5, 8, 20, 60, 150])
        vocabulary = WORDS[source].split()
        words = self.draw.choices(vocabulary, k=count)
        return {
            "id": f"d{self.made}",
            "text": f"{self.draw.choice(vocabulary)} {self.made} {' '.join(words)}",
            "source": source,
            "good": self.draw.randrange(4),
        }

    def append(self, count: int) -> None:
        self.records += [self.record() for _ in range(count)]

    def change_the_corpus(self) -> None:
        change = self.draw.choice(["append", "append", "edit", "delete", "move", "duplicate"])
        at = self.draw.randrange(len(self.records))
        if change == "append":
            self.append(self.draw.choice([1, 3, 10]))
        elif change == "edit":
            self.records[at] = self.edited(self.records[at])
        elif change == "delete" and len(self.records) > 3:
            del self.records[at : at + self.draw.choice([1, 1, 4])]
            self.records = self.records or [self.record()]
        elif change == "move":
            self.draw.shuffle(self.records)
        else:
            self.records.insert(self.draw.randrange(len(self.records) + 1), self.copied(self.records[at]))

    def edited(self, record: Any) -> Any:
        return self.record() | {"id": record["id"]}

    def copied(self, record: Any) -> Any:
        return record | ({"id": f"copy {self.made}"} if self.draw.random() < 0.5 else {})

    # The settings --------------------------------------------------------------------------------------------------

    def draw_settings(self) -> Sections:
        draw, traits = self.draw, ["cluster", "length", "source"]
        weights: Any = draw.choice([None, "natural", "sqrt", 0.3, "unimax", "table", "table"])
        trait = draw.choice(["source", "source", "cluster", "length"])
        if weights == "table":
            names = {"source": list("abc"), "cluster": list("012"), "length": ["bin 0", "bin 1", "bin 2"]}
            weights = {
                name: draw.choice([0.1, 1.0, 3.0])
                for name in draw.sample(names[trait], draw.choice([1, 2, 3]))
            }
        mixing: dict[str, Any] = {"trait": trait, "weights": weights, "phase": ()}
        if self.draw_along.random() < 0.5:
            until = self.draw_along.choice([0.2, 0.5, 0.9])
            other = self.draw_along.choice(["natural", "uniform", "sqrt", 0.3])
            mixing["phase"] = [{"until": until, "weights": other}, {"weights": weights or "natural"}]
        if weights is not None:
            mixing |= {
                "total_tokens": draw.choice([None, None, 100, 500, 3000]),
                "max_repeats": draw.choice([None, None, 2, 10]) if weights != "unimax" else 3,
            }
        selection: dict[str, Any] = {}
        if draw.random() < 0.4:
            method = draw.choice(["random", "semdedup", "spokes"])
            selection |= {"method": method, "tokens": draw.choice([60, 120, 400])}
        heldout: dict[str, Any] = {"documents": draw.choice([None, None, 0.1, 0.3, 0.5])}
        return {
            "input": {
                "source_field": draw.choice([None, "source"]),
                "id_field": draw.choice([None, None, "id"]),
            },
            "mixing": mixing,
            "heldout": heldout,
            "selection": selection,
            "order": {
                "strategy": draw.choice(STRATEGIES),
                "traits": dict.fromkeys(draw.sample(traits, draw.choice([1, 2, 3])), 1.0),
                "separate_copies": draw.choice([False, True]),
                "frozen_tokens": 0,
                "cut": (),
            },
            "packing": {
                "method": draw.choice(["concat", "best_fit", "cluster_packed"]),
                "end_of_text": draw.choice([False, True]),
            },
            "sequence": {
                "length": draw.choice([16, 32, 64]),
                "batch": draw.choice([2, 4]),
                "epochs": draw.choice([1, 2]),
                "strategy": draw.choice(STRATEGIES[:5]),
            },
            "seed": {"": draw.choice([0, 1])},
            "curriculum": self.draw_curriculum(),
        }

    def draw_curriculum(self) -> dict[str, Any]:
        draw = self.draw_along
        if draw.random() < 0.6:
            return {}
        return {
            "score": draw.choice(["good", "good", "length", "length"]),
            "shape": draw.choice(["rise", "fall", "fold", "zigzag"]),
        }

    def change_the_settings(self) -> None:
        if self.draw.random() < 0.3:
            self.cut()
            return
        drawn = self.draw_settings()
        for section in self.draw.sample(sorted(drawn.keys() - {"input"}), self.draw.choice([1, 2])):
            kept = {name: self.sections["order"][name] for name in ("frozen_tokens", "cut")}
            if section == "sequence" and kept["frozen_tokens"]:
                drawn["sequence"]["length"] = self.sections["sequence"]["length"]
            self.sections[section] = drawn[section] | (kept if section == "order" else {})

    def cut(self) -> None:
        documents = load_results(self.folder / "store").documents
        some = self.draw.sample(
            documents.record_id.tolist(), min(len(documents), self.draw.choice([0, 1, 3]))
        )
        self.sections["order"] = self.sections["order"] | {"cut": tuple(some)}

    def settings(self, place: str = "", **sections: dict[str, Any]) -> Settings:
        base: Sections = {
            "input": {"paths": [str(self.folder / "in.jsonl")]},
            "store": {"path": self.folder / f"{place}store"},
            "output": {"path": self.folder / f"{place}out", "sidecars": ()},
            "advanced": {"vocab_size": 512, "token_dims": 8},
            "clusters": {"k": 3},
            "engine": {"workers": 1},
        }
        seed = self.sections["seed"][""]
        for source in ({name: of for name, of in self.sections.items() if name != "seed"}, sections):
            for name, values in source.items():
                base[name] = base.get(name, {}) | values
        mixing, sequence = base["mixing"], base["sequence"]
        if base["curriculum"] or sequence["epochs"] > 1 or mixing.get("weights") in (None, "unimax"):
            # Phases are refused beside a score and epochs.
            base["mixing"] = mixing | {"phase": ()}
        elif mixing["phase"]:
            base["mixing"] = mixing | {"weights": None}
        return Settings(seed=seed, **base)

    # What a trainer reads ------------------------------------------------------------------------------------------

    def consume(self) -> None:
        """A part of the last output, a whole number of sequences or some tokens more."""
        documents, plan, order, sequences = self.output()
        tokens = int((documents.tokens.to_numpy()[order]).sum())
        length = self.sections["sequence"]["length"]
        if (frozen := min(tokens, self.draw.randrange(1, 1 + max(1, tokens // 2)))) > 0:
            begins = np.cumsum(documents.tokens.to_numpy()[order]) - documents.tokens.to_numpy()[order]
            first = sequences[0][: -(-frozen // length)]
            self.consumed = Consumed(
                documents.record_id.to_numpy()[order[begins < frozen]].tolist(),
                [self.runs_of(documents, plan, sequence) for sequence in first],
            )
            self.sections["order"] = self.sections["order"] | {"frozen_tokens": frozen}

    def forget(self) -> None:
        self.consumed = None
        self.sections["order"] = self.sections["order"] | {"frozen_tokens": 0}

    @staticmethod
    def runs_of(documents: pd.DataFrame, plan: pd.DataFrame, sequence: int) -> list[tuple[str, int, int]]:
        of = plan[plan.sequence == sequence]
        ids = documents.record_id.to_numpy()[of.document]
        return list(zip(ids.tolist(), of.start.tolist(), of.length.tolist(), strict=True))

    def output(self) -> tuple[pd.DataFrame, pd.DataFrame, np.ndarray, np.ndarray]:
        """(documents, plan, order of the documents, orders of the sequences)."""
        out = self.folder / "out"
        return (
            load_results(self.folder / "store").documents,
            pq.read_table(out / "packed_sequences.parquet").to_pandas(),
            np.load(out / "order.npy"),
            np.atleast_2d(np.load(out / "sequence_order.npy")),
        )

    # Running, and the laws -----------------------------------------------------------------------------------------

    def lines(self) -> list[bytes]:
        """The records that are accepted, in the input's order."""
        return [orjson.dumps(record) for record in self.records]

    def write(self) -> None:
        (self.folder / "in.jsonl").write_bytes(b"\n".join(self.lines()) + b"\n")

    def run(self) -> bool:
        """Whether the settings are not refused."""
        self.write()
        try:
            run_all(self.settings(), Silent())
        except DivOrderError as error:
            said = self.said = str(error)
            if "no longer in the input" in said:
                there = {hash_all([line]).hex() for line in self.lines()}
                assert self.consumed
                assert not self.consumed.ids <= there, "what is consumed is there, and refused"
            assert re.search(
                r"(expected|set|lower|raise|give|remove|restore|name|take|leave|write)\b", said
            ), said
            self.refused[re.sub(r"'[^']*'|[\d.,]+|[0-9a-f]{32}", "#", said)[:70]] += 1
            return False
        self.runs += 1
        self.check()
        self.good = (
            list(self.records),
            {name: dict(of) for name, of in self.sections.items()},
            self.consumed,
        )
        return True

    def check(self) -> None:
        documents, plan, order, sequences = self.output()
        self.check_records(documents, order)
        self.check_tokens(documents, plan, sequences)
        self.check_training(documents, plan, order, sequences)

    def check_records(self, documents: pd.DataFrame, order: np.ndarray) -> None:
        lines, repeats = self.lines(), documents.repeats.to_numpy()
        assert len(documents) == len(lines)
        assert np.bincount(order, minlength=len(lines)).tolist() == repeats.tolist(), "the order is another"
        assert self.written() == [lines[at] for at in order], "the output is another"

    def written(self) -> list[bytes]:
        """The records of the output."""
        return (self.folder / "out/curated.jsonl").read_bytes().splitlines()

    def check_tokens(self, documents: pd.DataFrame, plan: pd.DataFrame, sequences: np.ndarray) -> None:
        lines, settings, repeats = self.lines(), self.settings(), documents.repeats.to_numpy()
        laid = np.bincount(plan.document, plan.length, len(lines)).astype(int)
        planned = (documents.tokens.to_numpy() + settings.packing.end_of_text) * repeats
        cut = documents.record_id.isin(settings.order.cut).to_numpy()
        # Nothing more need be read of what is cut, or of what a trainer has begun.
        some = cut.copy()
        if settings.order.frozen_tokens and self.consumed:
            some |= documents.record_id.isin(self.consumed.ids).to_numpy()
        assert (laid[~some] == planned[~some]).all(), "tokens are lost, or doubled"
        assert (laid[some] <= planned[some]).all(), "tokens are doubled"
        if not settings.order.frozen_tokens:
            assert not laid[cut].any(), "what is cut is packed"
        self.check_sequences(plan, sequences)

    def check_sequences(self, plan: pd.DataFrame, sequences: np.ndarray) -> None:
        sizes = plan.groupby("sequence").length.sum()
        assert (sizes <= self.settings().sequence.length).all()
        for reads in sequences:
            assert (np.bincount(reads, minlength=len(sizes)) == 1).all(), "an epoch is no permutation"

    def check_training(
        self, documents: pd.DataFrame, plan: pd.DataFrame, order: np.ndarray, sequences: np.ndarray
    ) -> None:
        settings, repeats, consumed = self.settings(), documents.repeats.to_numpy(), set[str]()
        if settings.order.frozen_tokens and self.consumed:
            count = len(self.consumed.documents)
            begin = documents.record_id.to_numpy()[order[:count]].tolist()
            assert begin == self.consumed.documents, "consumed documents moved"
            first = sequences[0][: len(self.consumed.sequences)]
            runs = [self.runs_of(documents, plan, of) for of in first]
            assert runs == self.consumed.sequences, "consumed sequences moved"
            consumed = self.consumed.ids
        free = ~documents.record_id.isin(consumed).to_numpy()
        texts = np.array(self.texts(), object)
        if settings.holds_out:
            heldout = set(pq.read_table(settings.output.path / "heldout.parquet")["text"].to_pylist())
            consumed_texts = set(texts[~free].tolist())
            assert heldout
            assert not heldout & set(texts[repeats > 0].tolist()) - consumed_texts, "a held-out text"
        if settings.selects:
            selected = load_results(settings.store.path).selection.selected.to_numpy()
            assert not (repeats > 0)[~selected].any(), "a record that is not chosen"

    def texts(self) -> list[str]:
        """The texts of the records, as heldout.parquet has them."""
        return [record["text"] for record in self.records]

    def step_back(self) -> None:
        assert self.good is not None
        records, sections, self.consumed = self.good
        self.records, self.sections = list(records), {name: dict(of) for name, of in sections.items()}

    def walk(self) -> None:
        for _ in range(20):
            if self.run():
                break
            self.sections = self.draw_settings()
        else:
            self.append(40)
            self.sections["mixing"], self.sections["selection"], self.sections["heldout"] = {}, {}, {}
            assert self.run(), self.said
        for _ in range(STEPS):
            step = self.draw.choice(["corpus", "corpus", "settings", "consume", "forget", "again", "prune"])
            if step == "corpus":
                self.change_the_corpus()
            elif step == "settings":
                self.change_the_settings()
            elif step == "consume" and not self.sections["order"]["frozen_tokens"]:
                self.consume()
            elif step == "forget":
                self.forget()
            elif step == "prune":
                prune(GRAPH, LocalStore(self.folder / "store"))
            if not self.run():
                self.step_back()
                if not self.run():
                    # What was held out and how bins were cut meanwhile stays: a mix or a choice may lack these tokens.
                    lacks = re.search("cannot be reached|to choose from|are held out", self.said)
                    assert lacks and self.sections["heldout"], self.said
                    # With no documents held out a choice may hold nothing of a value that the mix names.
                    self.sections |= {"heldout": {}, "selection": {}, "mixing": {"weights": "natural"}}
                    assert self.run(), f"what ran before does not run again: {self.said}"
        self.compare_with_a_fresh_run()

    def compare_with_a_fresh_run(self) -> None:
        fresh = self.settings("fresh_", refit=dict.fromkeys(RULES, "never"))
        state = load_state(LocalStore(self.folder / "store"))
        fits = {
            stage: [result for result in known if "fit" in result.files]
            for stage, known in state.results.items()
        }
        # Which base model the consumed tokens are of: it may be of other held-out documents.
        consumed = ["packed_sequences", "frozen"] if fresh.order.frozen_tokens else []
        receipts = {stage: state.receipts[stage] for stage in consumed}
        # What is consumed is of the plan that was published last.
        plans = state.plans if consumed else []
        changing(LocalStore(fresh.store.path).open(), lambda state: State(receipts, fits, plans=plans))
        shutil.copytree(self.folder / "store/fits", fresh.store.path / "fits")
        for name in {
            name for plan in plans for result in plan.orders.values() for name in result.files.values()
        }:
            (fresh.store.path / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(self.folder / "store" / name, fresh.store.path / name)
        run_all(fresh, Silent())
        expected, found = (
            {path.name: path.read_bytes() for path in folder.iterdir() if path.name not in DIFFERENT}
            for folder in (fresh.output.path, self.folder / "out")
        )
        assert [name for name in {*expected, *found} if expected.get(name) != found.get(name)] == []
        if fresh.selects:
            left_out = [
                pd.read_parquet(folder / LEFT_OUT) for folder in (self.folder / "out", fresh.output.path)
            ]
            pd.testing.assert_frame_equal(*left_out, rtol=0, atol=1e-5)


def walk(number: int, folder: Path | None = None, kind: type[History] = History) -> History:
    """One history, in a folder of its own that is removed."""
    with tempfile.TemporaryDirectory(dir=folder) as own:
        history = kind(number, Path(own))
        history.walk()
        return history


def main(kind: type[History] = History, histories: int = 300, description: str | None = __doc__) -> None:
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--histories", type=int, default=histories)
    parser.add_argument("--first", type=int, default=0)
    memory = Path("/dev/shm")
    parser.add_argument("--folder", type=Path, default=memory if memory.is_dir() else None)
    options = parser.parse_args()
    begin, runs, broken, refused = time.perf_counter(), 0, [], Counter[str]()
    for number in range(options.first, options.first + options.histories):
        try:
            history = walk(number, options.folder, kind)
        except Exception as error:
            broken.append(number)
            print(f"history {number}: {type(error).__name__}: {error}")
            traceback.print_exc(limit=-3)
            continue
        runs += history.runs
        refused += history.refused
    print(
        f"{options.histories} histories, {runs} runs, {refused.total()} refused, in "
        f"{time.perf_counter() - begin:,.0f} s; broken: {broken or 'none'}"
    )
    for said, count in refused.most_common():
        print(f"{count:5} {said}")


if __name__ == "__main__":
    main()
