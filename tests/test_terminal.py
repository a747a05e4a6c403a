"""What the command prints reaches whatever its streams lead to: consoles of few letters, closed ones, full disks. And
the two questions of `divorder init`, on a pseudo-terminal that the command is in the foreground of."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pexpect
import pytest

from dagster_divorder.cli import main
from dagster_divorder.settings import load_settings
from tests.conftest import topic_records, write_jsonl

RUN = "import sys; from dagster_divorder.cli import main; sys.exit(main())"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    write_jsonl(tmp_path / "docs.jsonl", ({"größe-海": record["text"]} for record in topic_records(30)))
    return tmp_path


def shell(line: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """A line for bash, in which `divorder` is the command."""
    script = f'divorder() {{ {sys.executable} -c "{RUN}" "$@"; }}; {line}'
    variables = {**os.environ, **environment}
    return subprocess.run(
        ["bash", "-c", script],
        env=variables,
        capture_output=True,
        encoding="utf-8",
        errors="strict",
        check=False,
    )


@pytest.mark.slow
@pytest.mark.parametrize("closed", ["<&-", "<&- >&- 2>&-"])
def test_closed_streams_change_nothing_but_what_is_seen(folder: Path, closed: str) -> None:
    made = shell(f"divorder init docs.jsonl {closed}")
    assert (made.returncode, made.stderr) == (0, "")
    assert ("wrote divorder.toml" in made.stdout) == (">&-" not in closed.replace("2>&-", ""))
    assert (folder / "divorder.toml").is_file()


@pytest.mark.slow
def test_a_reader_that_has_gone_ends_the_command_as_it_ends_others(folder: Path) -> None:
    read, write = os.pipe()
    os.close(read)
    made = subprocess.run(
        [sys.executable, "-c", RUN, "init", "docs.jsonl"], stdout=write, stderr=subprocess.PIPE, check=False
    )
    os.close(write)
    assert (made.returncode, made.stderr) == (141, b"")


@pytest.mark.slow
def test_a_full_disk_behind_the_output_is_said(folder: Path) -> None:
    made = shell("divorder init docs.jsonl > /dev/full")
    assert made.returncode == 1
    assert made.stderr == (
        "divorder: cannot write to standard output: No space left on device; send it elsewhere\n"
    )


@pytest.mark.slow
def test_a_path_that_the_locale_cannot_name_is_refused(folder: Path) -> None:
    ascii_locale = {"LC_ALL": "C", "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0"}
    (folder / "divorder.toml").write_text('input.paths = ["größe.jsonl"]\n', encoding="utf-8")
    made = shell("divorder run", **ascii_locale)
    assert made.returncode == 1
    assert r"gr\xf6\xdfe.jsonl' has letters outside" in made.stderr
    assert "PYTHONUTF8=1" in made.stderr and "Traceback" not in made.stderr


def test_a_notebook_s_own_backend_of_matplotlib_does_not_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MPLBACKEND", "module://nowhere.backend")
    with pytest.raises(SystemExit):
        main(["--help"])
    assert "MPLBACKEND" not in os.environ


@pytest.fixture
def terminal(folder: Path) -> Iterator[Any]:
    """`divorder init` on a terminal that it is in the foreground of."""
    variables: Any = {**os.environ, "TERM": "xterm"}
    opened = pexpect.spawn(
        sys.executable, ["-c", RUN, "init", "docs.jsonl"], 120, env=variables, encoding="utf-8"
    )
    opened.logfile_read = io.StringIO()
    yield opened
    opened.close(force=True)


def end(terminal: Any) -> str:
    """All that is said until the command has ended."""
    terminal.expect(pexpect.EOF)
    terminal.wait()
    return terminal.logfile_read.getvalue()


@pytest.mark.slow
def test_trainer_and_ranks_are_asked_for_until_they_can_be_used(terminal: Any) -> None:
    for question, given in (
        ("[none]: ", "hf\n"),
        ("did you mean 'hf-trainer'?", ""),
        ("[none]: ", "torchtitan\n"),
        ("Its ranks [unknown]: ", "four\n"),
        ("'four' is not a whole number", ""),
        ("Its ranks [unknown]: ", "4\n"),
    ):
        terminal.expect_exact(question)
        terminal.send(given)
    said = end(terminal)
    assert terminal.exitstatus == 0, said
    exports = load_settings().exports
    assert (exports.formats, exports.trainer, exports.world_size) == (("parquet",), "torchtitan", 4)
    # The table comes before the questions, and not again.
    assert said.count("fields of") == 1 and said.index("fields of") < said.index("Trainer: ")


@pytest.mark.slow
def test_a_broken_off_dialogue_leaves_nothing(terminal: Any, folder: Path) -> None:
    terminal.expect_exact("[none]: ")
    terminal.sendline("trl")
    terminal.expect_exact("Its ranks [unknown]: ")
    # Ctrl-C, again if it came between the question and the reading of its answer.
    while terminal.isalive():
        terminal.sendintr()
        terminal.expect([pexpect.EOF, pexpect.TIMEOUT], timeout=10)
    assert terminal.exitstatus == 130
    said = terminal.logfile_read.getvalue()
    assert "divorder: stopped; nothing was written; --yes asks nothing" in said and "Traceback" not in said
    assert os.listdir(folder) == ["docs.jsonl"]
