"""Stages that run beside others (`Stage.beside`): the results of a run in order, whatever happens to either thread."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import orjson
import pytest

from dagster_divorder.engine.progress import Silent
from dagster_divorder.errors import InputError
from dagster_divorder.pipeline.graph import Graph
from dagster_divorder.pipeline.run import Receipts, Run, run_graph
from dagster_divorder.pipeline.stage import File, Made, WholeCorpus
from dagster_divorder.settings import Settings
from dagster_divorder.stages.corpus.raw_docs import RAW_DOCS
from tests.pipeline.test_toy_stages import append, settings_in

SECONDS = 30
"""A thread that waits so long has waited for nothing."""


def stage(
    name: str, *reads: str, beside: bool = False, work: Callable[[Run], object] = lambda run: None
) -> WholeCorpus:
    def compute(run: Run) -> Made:
        work(run)
        content = [run.receipt(read).version for read in reads]
        return Made(
            {"result": File(orjson.dumps(content), "json")}, figures={"thread": threading.get_ident()}
        )

    return WholeCorpus(
        name=name,
        version=1,
        description=name,
        reads=reads,
        beside=beside,
        compute=compute,
        content=("result",),
    )


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    append(tmp_path, 0)
    return settings_in(tmp_path, engine={"workers": 2})


def run(settings: Settings, *stages: WholeCorpus) -> Receipts:
    graph = Graph((RAW_DOCS, *stages))
    return run_graph(graph, settings, Silent(), list(graph))


def test_a_stage_runs_beside_the_stages_that_do_not_read_it(settings: Settings) -> None:
    started, seen = threading.Event(), threading.Event()

    def slow(run: Run) -> None:
        started.set()
        assert seen.wait(SECONDS)

    def quick(run: Run) -> None:
        assert started.wait(SECONDS)
        seen.set()

    receipts = run(
        settings,
        stage("slow", "raw_docs", beside=True, work=slow),
        stage("quick", "raw_docs", work=quick),
        stage("reader", "slow", "quick"),
    )
    assert list(receipts) == ["raw_docs", "slow", "quick", "reader"]
    assert receipts["slow"].figures["thread"] != receipts["quick"].figures["thread"]
    assert receipts["reader"].upstream == {name: receipts[name].version for name in ("slow", "quick")}


def test_one_worker_runs_all_in_order_to_the_same_results(settings: Settings, tmp_path: Path) -> None:
    stages = (
        stage("first", "raw_docs", beside=True),
        stage("second", "first", beside=True),
        stage("third", "raw_docs"),
        stage("fourth", "second", "third"),
    )
    beside = run(settings, *stages)
    alone = settings_in(tmp_path, engine={"workers": 1}, store={"path": tmp_path / "alone"})
    in_order = run(alone, *stages)
    assert {receipt.figures["thread"] for receipt in in_order.values() if "thread" in receipt.figures} == {
        threading.get_ident()
    }
    assert {name: receipt.version for name, receipt in beside.items()} == {
        name: receipt.version for name, receipt in in_order.items()
    }


def test_its_error_is_the_error_of_the_run_and_other_results_are_kept(settings: Settings) -> None:
    def fail(run: Run) -> None:
        raise InputError("no such thing")

    stages = (
        stage("failing", "raw_docs", beside=True, work=fail),
        stage("kept", "raw_docs"),
        stage("reader", "failing"),
    )
    with pytest.raises(InputError, match="no such thing"):
        run(settings, *stages)
    mended = run(settings, stage("failing", "raw_docs", beside=True), *stages[1:])
    assert mended["kept"].figures["new_documents"] == 0


@pytest.mark.parametrize("error", [InputError("refused"), KeyboardInterrupt()], ids=["error", "interrupt"])
def test_it_ends_when_the_run_fails(settings: Settings, error: BaseException) -> None:
    """An interrupt reaches the thread of the run alone."""
    started, ended = threading.Event(), threading.Event()

    def endless(run: Run) -> None:
        try:
            with run.progress("turning") as advance:
                while True:
                    started.set()
                    advance(1)
        finally:
            ended.set()

    def fail(run: Run) -> None:
        assert started.wait(SECONDS)
        raise error

    endless_one = stage("endless", "raw_docs", beside=True, work=endless)
    with pytest.raises(type(error)):
        run(settings, endless_one, stage("failing", "raw_docs", work=fail))
    # The store is free only once nothing writes to it.
    assert ended.is_set()
    run(settings, stage("after", "raw_docs"))
