"""Only new documents: after any history, a stage computes exactly the records of new fragments whose id is in none of
its present results that left the view; a costly one (`by_text`) exactly the texts that are in no present result, each
once. (A cheap stage computes a record again that equals one elsewhere in the input: finding it would take an index of
all ids.)"""

from __future__ import annotations

import itertools
import random
from collections import Counter
from collections.abc import Callable, Iterator
from unittest.mock import patch

import numpy as np
import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dagster_divorder.corpus import cut
from dagster_divorder.engine.progress import Silent
from dagster_divorder.pipeline.graph import Graph
from dagster_divorder.pipeline.plan import make_plan
from dagster_divorder.pipeline.run import Run, run_graph
from dagster_divorder.pipeline.stage import PerDocument
from dagster_divorder.settings import Settings
from dagster_divorder.stages.corpus.raw_docs import RAW_DOCS
from dagster_divorder.store.fragments import Fragments
from dagster_divorder.store.ids import hex_ids
from dagster_divorder.store.local import LocalStore
from dagster_divorder.store.stages import StageFiles
from dagster_divorder.store.state import load_receipt
from dagster_divorder.store.view import Fragment
from tests.conftest import examples

computed: list[str] = []


def toy(name: str, *, by_text: bool) -> PerDocument:
    def compute(run: Run) -> Callable[[Fragment], dict[str, np.ndarray]]:
        records = run.records

        def count(fragment: Fragment) -> dict[str, np.ndarray]:
            computed.extend(hex_ids(records.fragments.index(fragment, "text" if by_text else "id")[0]))
            texts = records.texts(fragment).to_pylist()
            lengths = {"lengths": np.array([*map(len, texts)])}
            if by_text:
                return lengths
            letters = [np.frombuffer(text.encode(), np.uint8) for text in texts]
            return {"ids": np.concatenate([np.empty(0, np.uint8), *letters]), **lengths}

        return count

    return PerDocument(
        name=name, version=1, description="Letters.", reads=("raw_docs",), compute=compute, by_text=by_text
    )


STAGES = {each.name: each for each in (RAW_DOCS, toy("letters", by_text=False), toy("costly", by_text=True))}
GRAPH = Graph(STAGES, STAGES.__getitem__)
STAGES = ("raw_docs", "letters", "costly")


@pytest.fixture(autouse=True)
def small_fragments() -> Iterator[None]:
    with patch.multiple(cut, MEAN_LINES=5, HARD_LINES=12):
        yield


@settings(deadline=None, max_examples=examples(25))
@given(seed=st.integers(0, 1 << 32), steps=st.integers(2, 7))
def test_only_new_records_are_computed(
    tmp_path_factory: pytest.TempPathFactory, seed: int, steps: int
) -> None:
    folder, draw = tmp_path_factory.mktemp("history"), random.Random(seed)
    (folder / "in").mkdir()
    chosen = Settings.model_validate(
        {
            "input": {"paths": (str(folder / "in"),)},
            "store": {"path": folder / "store"},
            "output": {"path": folder / "out"},
        }
    )
    files = {
        f"{number}.jsonl": [draw.randrange(40) for _ in range(draw.randrange(1, 30))] for number in range(3)
    }
    numbers = itertools.count(3)
    for _ in range(steps):
        for name, records in files.items():
            lines = (orjson.dumps({"text": f"text {each % 25}", "n": each}) + b"\n" for each in records)
            (folder / "in" / name).write_bytes(b"".join(lines))
        # A killed run has made some stages only; a stage that is switched off makes nothing.
        stages = draw.choice([STAGES, STAGES, ("raw_docs",), ("raw_docs", "letters"), ("raw_docs", "costly")])
        check(chosen, stages)
        name = draw.choice([*files])
        match draw.randrange(6):
            case 0:
                files[name] += [draw.randrange(60) for _ in range(5)]
            case 1:
                files[name] = files[name][draw.randrange(4) :]
            case 2:
                files[name].insert(draw.randrange(len(files[name]) + 1), draw.randrange(60))
            case 3:
                half = draw.randrange(len(files[name]) + 1)
                files[f"{next(numbers)}.jsonl"], files[name] = files[name][half:], files[name][:half]
            case 4:
                files[f"{next(numbers)}.jsonl"] = [*files[name]]
            case 5:
                draw.shuffle(files[name])


def check(chosen: Settings, stages: tuple[str, ...]) -> None:
    """Run stages, and compare what they computed with what no present result has."""
    store = LocalStore(chosen.store.path)
    plan = {each.stage: each.documents for each in make_plan(GRAPH, chosen).stages}
    run_graph(GRAPH, chosen, Silent(), ("raw_docs",))
    with_receipt = {}
    for stage in stages[1:]:
        by_text = stage == "costly"
        run = Run(chosen, store.open(), GRAPH, Silent())
        fragments, column = run.records.fragments, "text" if by_text else "id"
        last = load_receipt(store, stage)
        present = StageFiles(store, stage, last.key).present() if last else {}
        here = {fragment.name for fragment in run.view.fragments}
        known = {
            each
            for name in present
            if by_text or name not in here
            for each in hex_ids(Fragments(store, fragments.key).index(Fragment(name, 0), column)[0])
        }
        missing = [fragment for fragment in run.view.fragments if fragment.name not in present]
        wanted = Counter(hex_ids(fragments.column(missing, column)))
        computed.clear()
        figures = run_graph(GRAPH, chosen, Silent(), (stage,))[stage].figures
        expected = Counter(wanted.keys() if by_text else wanted.elements())
        assert Counter(computed) == Counter(
            {each: times for each, times in expected.items() if each not in known}
        )
        assert figures["new_documents"] == len(computed) == plan[stage]
        with_receipt[stage] = run.records
    run = Run(chosen, store.open(), GRAPH, Silent())
    for stage, records in with_receipt.items():
        texts = [text for each in run.view.fragments for text in records.texts(each).to_pylist()]
        assert run.column(stage, "lengths").tolist() == [*map(len, texts)]
        if stage == "letters":
            joined = "".join(texts).encode()
            assert run.column(stage, "ids").tobytes() == joined
