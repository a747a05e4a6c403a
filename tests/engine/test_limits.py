"""What a process is allowed of the machine: cores and memory of its container, addresses of its shell."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import joblib
import pytest

from dagster_divorder.engine.local import count_workers
from dagster_divorder.engine.memory import (
    ADDRESSES,
    address_limit,
    main_memory,
    memory_quotas,
    need_addresses,
)
from dagster_divorder.engine.progress import Silent
from dagster_divorder.errors import MemoryLimitError
from dagster_divorder.settings import Settings
from dagster_divorder.stages import run_all
from dagster_divorder.stages.corpus.raw_docs import RAW_DOCS
from tests.conftest import topic_records, write_jsonl


def test_cores_are_counted_where_the_system_tells_of_no_affinity(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on macOS."""
    monkeypatch.delattr(os, "sched_getaffinity")
    assert 1 <= count_workers(0) <= (os.cpu_count() or 1)


def test_the_quota_of_a_container_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(joblib, "cpu_count", lambda: 7)
    assert count_workers(0) == 7


def group(folder: Path, name: str, limit: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text(f"{limit}\n")


def test_memory_is_what_the_control_groups_allow(tmp_path: Path) -> None:
    own, mounted = tmp_path / "cgroup", tmp_path / "mounted"
    own.write_text("5:cpu,memory:/outer/inner\n2:cpuset:/elsewhere\n0::/slice/service\n")
    assert list(memory_quotas(own, mounted)) == []
    group(mounted / "slice/service", "memory.max", "max")
    group(mounted / "slice", "memory.max", "3000")
    group(mounted / "memory/outer/inner", "memory.limit_in_bytes", "2000")
    group(mounted / "elsewhere", "memory.max", "1")
    assert sorted(memory_quotas(own, mounted)) == [2000, 3000]
    # Inside a container that sees itself alone.
    group(mounted, "memory.max", "1000")
    group(mounted / "memory", "memory.limit_in_bytes", "900")
    assert min(memory_quotas(own, mounted)) == 900
    assert list(memory_quotas(tmp_path / "no such file", mounted)) == []


def test_a_quota_below_the_machine_s_memory_is_what_there_is(monkeypatch: pytest.MonkeyPatch) -> None:
    assert main_memory() > 1 << 28
    monkeypatch.setattr("dagster_divorder.engine.memory.memory_quotas", lambda: iter([1 << 40, 1 << 20]))
    assert main_memory() == 1 << 20

    def unknown(name: str) -> int:
        raise ValueError(f"unrecognized configuration name {name}")

    monkeypatch.setattr(os, "sysconf", unknown)
    monkeypatch.setattr("dagster_divorder.engine.memory.memory_quotas", lambda: iter([1 << 40]))
    assert main_memory() == 4 << 30


def test_too_few_addresses_end_a_run_at_once_in_a_sentence(tmp_path: Path) -> None:
    write_jsonl(tmp_path / "docs.jsonl", topic_records(5))
    (tmp_path / "divorder.toml").write_text('[input]\npaths = ["docs.jsonl"]\n')
    run = subprocess.run(
        [sys.executable, "-m", "dagster_divorder.cli", "run"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        capture_output=True,
        text=True,
        timeout=60,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (1_200_000 << 10, resource.RLIM_INFINITY)),
    )
    assert run.returncode == 1
    (line,) = run.stderr.splitlines()
    assert line.startswith("divorder: this process may use 1.2 GB of addresses (ulimit -v 1200000)")
    assert not (tmp_path / "data").exists()


def test_addresses_that_suffice_are_no_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    assert address_limit() is None
    need_addresses()
    monkeypatch.setattr(resource, "getrlimit", lambda _: (ADDRESSES, resource.RLIM_INFINITY))
    need_addresses()


@pytest.mark.parametrize("limit", [ADDRESSES, resource.RLIM_INFINITY])
@pytest.mark.parametrize(
    "error", [MemoryError("Unable to allocate 9 GiB"), OSError(12, "Cannot allocate memory")]
)
def test_memory_that_runs_out_in_a_stage_says_in_which_and_what_is_allowed(
    tmp_path: Path,
    make_settings: Callable[..., Settings],
    monkeypatch: pytest.MonkeyPatch,
    error: Exception,
    limit: int,
) -> None:
    def make(*_: object) -> None:
        raise error

    write_jsonl(tmp_path / "docs.jsonl", topic_records(2))
    monkeypatch.setattr(type(RAW_DOCS), "make", make)
    monkeypatch.setattr(resource, "getrlimit", lambda _: (limit, limit))
    said = r"addresses \(ulimit -v\)" if limit == ADDRESSES else "of memory are there"
    with pytest.raises(MemoryLimitError, match=rf"memory ran out in raw_docs \(.*llocate.*\d MB.*{said}"):
        run_all(make_settings(), Silent())
