"""What holds for every stage of the graph, on one small corpus: a second run makes nothing, an append makes what it
must, a run that ended in the middle goes on to the same bytes, and nothing that is needed is pruned."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from dagster_divorder import run_all
from dagster_divorder.corpus import cut, inputs
from dagster_divorder.engine.progress import Silent
from dagster_divorder.pipeline.plan import StagePlan, make_plan
from dagster_divorder.pipeline.prune import prune
from dagster_divorder.pipeline.stage import PerDocument, WholeCorpus
from dagster_divorder.settings import Settings
from dagster_divorder.stages import GRAPH
from dagster_divorder.stages.evidence import strategy_comparison, training_evidence
from dagster_divorder.stages.output import ordering_animation
from dagster_divorder.stages.topics import gradient_embeddings
from dagster_divorder.store.base import LOCK_FILE, STATE
from dagster_divorder.store.local import LocalStore
from dagster_divorder.store.state import Receipt
from dagster_divorder.view import pictures
from tests.conftest import changed, over, small_settings, topic_records, write_jsonl
from tests.pipeline.runs import leave_undrawn

SMALL: dict[str, Any] = {
    "input": {"id_field": "id", "source_field": "source"},
    "advanced": {"token_dims": 8},
    "sequence": {"length": 64},
    "engine": {"workers": 1},
}
CASES: dict[str, dict[str, Any]] = {
    "all": {
        "embedding": {"kind": "auto"},
        "clusters": {"k": (2, 4)},
        "heldout": {"documents": 0.1},
        "selection": {"method": "spokes", "tokens": 3_000},
        "order": {
            "traits": {"cluster": 1.0, "length": 1.0, "source": 1.0, "score": 1.0},
            "separate_copies": True,
        },
        "exports": {"formats": ("parquet", "ds")},
        "output": {"sidecars": ("plot",)},
        "evidence": {"tokens": 500, "orders": ("curated",)},
    },
    "vectors of one's own": {
        "embedding": {"kind": "external"},
        "selection": {"method": "random", "tokens": 3_000},
    },
    "a score of texts": {"curriculum": {"score": "length", "shape": "zigzag"}},
    "a consumed beginning": {"order": {"frozen_tokens": 300}},
}
"""Settings that have, together, every stage."""
RECORDS = [{**record, "id": f"record {at}"} for at, record in enumerate(topic_records(30))]
MORE = [{**record, "id": f"more {at}"} for at, record in enumerate(topic_records(2, start=300))]
MODEL_VECTORS = ("deep_embeddings", "gradient_embeddings")
"""The last bits of a document's vector differ with the documents that a model sees beside it."""
LAST_OUTPUT = ("greedy_order", "packed_sequences", "sequence_order")
"""Where a trainer has consumed its beginning, these are input."""
TIMED = ("training_evidence", "ordering_report")
"""Their results tell how long something took."""
NOT_DATA = ("curated_meta.json", "manifest.json", "ordering_report.html")
"""Files of an output that tell times."""


def settings_in(folder: Path, case: str) -> Settings:
    """The settings of a case for the corpus in a folder."""
    places: dict[str, Any] = {"exports": {"path": folder / "exports"}}
    if CASES[case].get("embedding", {}).get("kind") == "external":
        places["embedding"] = {"path": folder / "vectors.npy"}
    return small_settings(folder, **over(over(SMALL, CASES[case]), places))


def new_stages(case: str) -> list[str]:
    """The stages that the settings of a case have, and of no case before it."""
    before = list(CASES)[: list(CASES).index(case)]
    known = {name for other in before for name in GRAPH.upstream(settings_in(Path("here"), other))}
    return [name for name in GRAPH.upstream(settings_in(Path("here"), case)) if name not in known]


class Killed(BaseException):
    """What a run ends with in the place of a signal: nothing catches it. Signals are sent in tests/faults."""


@contextmanager
def killed_after(writes: int | None, folder: Path) -> Iterator[list[str]]:
    """Ends a run before its write number `writes` below a folder, and gives the files that it has written there; those
    of the state, which every run writes, are not counted, nor are kernels that numba keeps elsewhere."""
    replace, written = os.replace, list[str]()

    def counted(source: Any, target: Any) -> None:
        is_state = Path(target).name == STATE
        counts = Path(target).is_relative_to(folder) and not is_state
        if counts and len(written) == writes:
            raise Killed
        replace(source, target)
        if counts:
            written.append(os.fspath(target))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "replace", counted)
        yield written


class History:
    """A corpus and its store under the settings of a case, and what runs make of them in each of several situations,
    all in one folder, whose name is in what is stored."""

    def __init__(self, folder: Path, case: str) -> None:
        self.folder = folder
        self.settings = settings_in(folder, case)
        self.stages = GRAPH.needed(self.settings, *new_stages(case))
        self.writes: dict[str, int] = {}
        """Of each stage's first run."""
        folder.mkdir()
        self.write(RECORDS)

    def write(self, records: list[dict[str, Any]]) -> None:
        write_jsonl(self.folder / "docs.jsonl", records)
        rows = [np.random.default_rng([*record["text"].encode()]).normal(size=5) for record in records]
        np.save(self.folder / "vectors.npy", np.array(rows))

    def keep(self, name: str) -> None:
        shutil.copytree(self.folder, self.folder.with_name(name))

    def restore(self, name: str) -> None:
        shutil.rmtree(self.folder)
        shutil.copytree(self.folder.with_name(name), self.folder)

    def run(self, settings: Settings | None = None) -> dict[str, Receipt]:
        return run_all(settings or self.settings, Silent(), self.stages)

    def plan(self) -> dict[str, StagePlan]:
        return {stage.stage: stage for stage in make_plan(GRAPH, self.settings, *self.stages).stages}

    def results(self) -> dict[str, set[str]]:
        """By stage, the names of the files that are stored of it, which hold hashes of their bytes."""
        names = [path.relative_to(self.folder / "store") for path in (self.folder / "store").rglob("*.*")]
        return {
            stage: {
                str(name)
                for name in names
                if stage in name.parts and "history" not in name.parts and not name.name.startswith("about.")
            }
            for stage in self.stages
        }

    def outputs(self) -> dict[str, bytes]:
        """The files beside the store, by name."""
        return {
            str(path.relative_to(self.folder)): path.read_bytes()
            for part in ("curated", "exports")
            for path in (self.folder / part).rglob("*")
            if path.is_file() and path.name not in NOT_DATA
        }

    @cached_property
    def first(self) -> dict[str, Receipt]:
        """From nothing."""
        self.begin()
        receipts = {}
        for stage in self.stages:
            with killed_after(None, self.folder) as written:
                receipts[stage] = run_all(self.settings, Silent(), [stage])[stage]
            self.writes[stage] = len(written)
        self.first_results, self.first_outputs = self.results(), self.outputs()
        self.keep("first")
        return receipts

    def begin(self) -> None:
        """What a trainer has consumed, where that is a setting."""
        if self.settings.order.frozen_tokens:
            run_all(changed(self.settings, order={"frozen_tokens": 0}), Silent())

    @cached_property
    def again(self) -> dict[str, Receipt]:
        """Nothing new, and nothing is allowed to be computed."""
        self.restore("first")
        before = self.times()
        self.plan_again = self.plan()
        receipts = self.run_without_computing()
        self.untouched = self.times() == before
        return receipts

    def times(self) -> dict[Path, int]:
        """When each file was written, but for the state, which says how long a run took, and the lock."""
        parts = (self.folder / part for part in ("curated", "exports", "store"))
        files = [path for part in parts for path in part.rglob("*") if path.is_file()]
        return {path: path.stat().st_mtime_ns for path in files if path.name not in (STATE, LOCK_FILE)}

    def run_without_computing(self) -> dict[str, Receipt]:
        def refuse(stage: str) -> Callable[..., None]:
            return lambda *_: pytest.fail(f"{stage} is computed")

        with pytest.MonkeyPatch.context() as patch:
            for name in self.stages:
                patch.setitem(vars(GRAPH[name]), "compute", refuse(name))
            return self.run()

    @cached_property
    def pruned(self) -> dict[str, Receipt]:
        """After a prune, nothing is allowed to be computed either."""
        self.restore("first")
        prune(GRAPH, LocalStore(self.settings.store.path).open())
        return self.run_without_computing()

    @cached_property
    def appended(self) -> dict[str, Receipt]:
        self.restore("first")
        self.write(RECORDS + MORE)
        self.plan_appended = self.plan()
        receipts = self.run()
        self.appended_results = self.results()
        self.keep("appended")
        return receipts

    @cached_property
    def from_scratch(self) -> dict[str, set[str]]:
        """Results of the appended corpus, all made at once by the fits that were there."""
        self.restore("appended")
        consumed = LAST_OUTPUT if self.settings.order.frozen_tokens else ()
        for folder in (self.folder / "store" / "stages").iterdir():
            if folder.name not in (*MODEL_VECTORS, *consumed):
                shutil.rmtree(folder)
        shutil.rmtree(self.folder / "curated", ignore_errors=True)
        run_all(self.settings, Silent(), [stage for stage in self.stages if stage not in TIMED])
        return self.results()

    @cached_property
    def killed(self) -> dict[str, Receipt]:
        """Every stage ends once in the middle of what it writes."""
        assert self.writes
        for part in ("store", "curated", "exports"):
            shutil.rmtree(self.folder / part, ignore_errors=True)
        self.write(RECORDS)
        self.begin()
        receipts = {}
        for stage in self.stages:
            if self.writes[stage]:
                with pytest.raises(Killed), killed_after(self.writes[stage] // 2, self.folder):
                    run_all(self.settings, Silent(), [stage])
            receipts[stage] = run_all(self.settings, Silent(), [stage])[stage]
        self.killed_results, self.killed_outputs = self.results(), self.outputs()
        return receipts


def of_kind(*kinds: type, but: Iterable[str] = ()) -> pytest.MarkDecorator:
    """A test of every stage of these kinds, by default of all, under the first settings that have it."""
    cases = [
        (case, name)
        for case in CASES
        for name in new_stages(case)
        if name not in but and isinstance(GRAPH[name], kinds or object)
    ]
    return pytest.mark.parametrize(
        ("history", "stage"), cases, indirect=["history"], scope="module", ids=[name for _, name in cases]
    )


@pytest.fixture(scope="module")
def history(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[History]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(inputs, "BLOCK_BYTES", 4096)
        patch.setattr(cut, "MEAN_LINES", 20)
        patch.setattr(cut, "HARD_LINES", 40)
        patch.setattr(torch.cpu, "get_capabilities", dict)
        patch.setattr(gradient_embeddings, "DIMS", 32)
        patch.setattr(ordering_animation, "FRAMES", 2)
        patch.setattr(strategy_comparison, "DOCUMENTS", ("original",))
        patch.setattr(strategy_comparison, "SEQUENCES", ("original",))
        patch.setattr(training_evidence, "SEEDS", 1)
        patch.setattr(pictures, "ordering_comparison", lambda *_: b"a picture")
        leave_undrawn(patch)
        made = History(tmp_path_factory.mktemp("stages") / "corpus", request.param)
        assert set(made.first) == set(made.stages)
        yield made


def test_the_settings_have_every_stage() -> None:
    assert set(GRAPH) == {name for case in CASES for name in new_stages(case)}


@of_kind()
def test_a_second_run_makes_nothing(history: History, stage: str) -> None:
    first, again = history.first[stage], history.again[stage]
    assert again.figures["new_documents"] == 0
    assert (again.key, again.version, again.files) == (first.key, first.version, first.files)
    assert history.plan_again[stage].scope == "nothing"


@pytest.mark.parametrize("history", CASES, indirect=True)
def test_a_second_run_leaves_all_files_alone(history: History) -> None:
    assert history.again and history.untouched


@of_kind(but=("raw_docs",))  # whose fragments prune may merge
def test_prune_keeps_what_is_needed(history: History, stage: str) -> None:
    first, pruned = history.first[stage], history.pruned[stage]
    assert (pruned.key, pruned.version, pruned.files) == (first.key, first.version, first.files)


@of_kind()
def test_an_append_makes_what_the_plan_says(history: History, stage: str) -> None:
    receipt, plan = history.appended[stage], history.plan_appended[stage]
    assert receipt.figures["documents"] == len(RECORDS) + len(MORE)
    assert (receipt.figures["new_documents"] > 0) == (plan.documents > 0)


# The key of vectors of one's own names those that there were first.
@of_kind(PerDocument, WholeCorpus, but=(*TIMED, "external_embeddings"))
def test_an_append_comes_to_what_a_run_of_all_comes_to(history: History, stage: str) -> None:
    assert history.appended
    kept = {name for name in history.appended_results[stage] if name in history.from_scratch[stage]}
    assert kept == history.from_scratch[stage]


@of_kind()
def test_a_run_that_was_killed_goes_on_to_the_same_bytes(history: History, stage: str) -> None:
    killed, kind = history.killed[stage], GRAPH[stage]
    assert history.writes[stage]
    if stage not in TIMED:
        assert history.killed_results[stage] == history.first_results[stage]
    if isinstance(kind, PerDocument):
        assert 0 < killed.figures["new_documents"] < len(RECORDS)


@pytest.mark.parametrize("history", CASES, indirect=True)
def test_outputs_are_those_of_a_run_that_was_not_killed(history: History) -> None:
    assert history.first and history.killed
    assert history.killed_outputs == history.first_outputs
