"""What a process is allowed of the machine: cores and memory of its container."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from dagster_divorder.engine.memory import memory_quotas
from dagster_divorder.engine.progress import Silent
from dagster_divorder.errors import DivOrderError
from dagster_divorder.settings import Settings
from dagster_divorder.stages import run_all
from dagster_divorder.stages.corpus.raw_docs import RAW_DOCS
from tests.conftest import topic_records, write_jsonl


def test_memory_is_what_the_control_groups_allow(tmp_path: Path) -> None:
    own, mounted = tmp_path / "cgroup", tmp_path / "mounted"
    own.write_text("2:cpuset:/elsewhere\n0::/slice/service\n")
    assert list(memory_quotas(own, mounted)) == []
    (mounted / "slice/service").mkdir(parents=True)
    limits = {
        "slice/service": "max",
        "slice": "3000",
        ".": "1000",
    }  # the last of a container that sees itself alone
    for group, limit in limits.items():
        (mounted / group / "memory.max").write_text(f"{limit}\n")
    assert list(memory_quotas(own, mounted)) == [3000, 1000]
    assert list(memory_quotas(tmp_path / "no such file", mounted)) == []


@pytest.mark.parametrize(
    "error", [MemoryError("Unable to allocate 9 GiB"), OSError(12, "Cannot allocate memory")]
)
def test_memory_that_runs_out_in_a_stage_says_in_which_and_what_is_allowed(
    tmp_path: Path,
    make_settings: Callable[..., Settings],
    monkeypatch: pytest.MonkeyPatch,
    error: Exception,
) -> None:
    def make(*_: object) -> None:
        raise error

    write_jsonl(tmp_path / "docs.jsonl", topic_records(2))
    monkeypatch.setattr(type(RAW_DOCS), "make", make)
    with pytest.raises(
        DivOrderError, match=r"memory ran out in raw_docs \(.*llocate.*\d GB of memory are there"
    ):
        run_all(make_settings(), Silent())
