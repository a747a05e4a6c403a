"""The pages that are followed step by step: their commands as they stand there, on fewer documents. `divorder` is
forked from a process that has imported it."""

from __future__ import annotations

import contextlib
import io
import os
import re
import runpy
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import ROOT, variables_without
from tests.faults.runner import REPORTING, Runner


def commands(page: str, documents: int) -> list[str]:
    text, fewer = re.subn(r"--documents \d+", f"--documents {documents}", page)
    assert fewer == 1
    return re.findall(r"^\$ (.+)$", text, re.M)


def run_page(
    runner: Runner, name: str, scripts: tuple[str, ...], documents: int, folder: Path
) -> dict[str, str]:
    """What each command printed, run in their order in one shell's folder; a command that comes again has a number.
    scripts: the names of the page's blocks of Python."""
    page = (ROOT / f"docs/{name}.md").read_text()
    (folder / "data").symlink_to(ROOT / "data")
    (folder / "dagster_divorder").symlink_to(ROOT / "dagster_divorder")
    for script, text in zip(scripts, re.findall(r"```python\n(.*?)```", page, re.S), strict=True):
        (folder / script).write_text(text)
    environment = variables_without("DAGSTER_", "DIVORDER_") | {
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT),
        "HF_HUB_OFFLINE": "1",
        # A vocabulary for a corpus of this size: its vectors are the larger part of a first run else.
        "DIVORDER_ADVANCED__VOCAB_SIZE": "2048",
    }
    found: dict[str, str] = {}
    for command in commands(page, documents):
        if command.removeprefix("python ") in scripts:
            # Here, where torch is imported already.
            printed = io.StringIO()
            with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(printed):
                patch.chdir(folder)
                patch.setenv("DIVORDER_ADVANCED__VOCAB_SIZE", environment["DIVORDER_ADVANCED__VOCAB_SIZE"])
                runpy.run_path(command.removeprefix("python "), run_name="__main__")
            found[command] = printed.getvalue()
            continue
        status, said = run_command(runner, command, folder, environment)
        assert status == 0, f"{command}\n{said}"
        times = sum(known.split(" (")[0] == command for known in found)
        found[f"{command} ({times + 1})" if times else command] = said
    return found


def run_command(runner: Runner, command: str, folder: Path, environment: dict[str, str]) -> tuple[int, str]:
    """The exit status of a line of a page, and what it printed."""
    if line := re.fullmatch(r"((?:\w+=\S+ )*)divorder (.*)", command):
        own = {name: value for name, value in environment.items() if name.startswith("DIVORDER_")}
        given = own | {"DIVORDER_CONFIG": ""} | dict(each.split("=") for each in line[1].split())
        plain = {"plain": shlex.split(line[2]), "environment": given, "imports": REPORTING}
        status = runner.run(folder / "divorder.toml", folder / "log", **plain)
        return status, (folder / "log.out").read_text()
    ended = subprocess.run(
        ["bash", "-c", command], cwd=folder, env=environment, text=True, capture_output=True, timeout=300
    )
    return ended.returncode, ended.stdout + ended.stderr


pytestmark = pytest.mark.slow


def test_the_page_is_true(runner: Runner, tmp_path: Path) -> None:
    said = run_page(runner, "tutorial", ("train.py",), 600, tmp_path)
    assert 'text_field = "text"' in said["cat divorder.toml"]
    assert 'source_field = "source"' in said["cat divorder.toml"]
    assert "first run on this store" in said["divorder plan"]
    assert "Give your trainer" in said["divorder run"] and "times better" in said["divorder run"]
    assert "ordering_report.html" in said["divorder report"]
    assert "1 of them new" in said["divorder plan (2)"]
    assert "Nothing drifts" in said["divorder run (2)"]
    assert "clusters.k 30 -> 15" in said["DIVORDER_CLUSTERS__K=15 divorder plan"]
    steps = re.findall(r"^step \d: \((\d+), (\d+)\)", said["python train.py"], re.M)
    settings = said["cat divorder.toml"].partition("[sequence]")[2]
    shape = tuple(re.findall(r"^(?:batch|length) = (\d+)", settings, re.M)[::-1])
    assert steps == [shape] * 3
    job = said["dagster job execute -j curate -m dagster_divorder.definitions"]
    assert "RUN_SUCCESS" in job and "training the bootstrap model" not in job
    assert "Traceback" not in "".join(said.values())


def test_the_page_about_chats_is_true(runner: Runner, tmp_path: Path) -> None:
    said = run_page(runner, "chats", ("sft.py",), 300, tmp_path)
    assert 'format = "messages"' in said["cat divorder.toml"]
    assert re.search(
        r"^300 read = 300 trained; .*\n[\d,]+ tokens \([\d,]+ trained on\) in ",
        said["divorder run"],
        re.M,
    )
    verified = said["divorder verify divorder/exports/parquet --trainer trl"]
    assert re.search(r"as planned, and (\d+) of \1 batches with its lines", verified)
    losses = re.findall(r"'loss': '?([\d.]+)", said["python sft.py"])
    assert len(losses) == 3 and all(0 < float(loss) < 20 for loss in losses)
