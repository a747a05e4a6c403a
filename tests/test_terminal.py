"""What the command prints reaches whatever its streams lead to: consoles of few letters, closed ones, full disks. And
the two questions of `divorder init`, on a pseudo-terminal that the command is in the foreground of."""

from __future__ import annotations

import contextlib
import os
import pty
import re
import select
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import orjson
import pytest

from dagster_divorder.cli import main
from dagster_divorder.settings import load_settings
from tests.conftest import topic_records

RUN = "import sys; from dagster_divorder.cli import main; sys.exit(main())"
FIELD = "größe-海"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    lines = [orjson.dumps({FIELD: record["text"]}) + b"\n" for record in topic_records(30)]
    (tmp_path / "docs.jsonl").write_bytes(b"".join(lines))
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


ON_TERMINAL = """
import fcntl, sys, termios
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
from dagster_divorder.cli import main
sys.exit(main())
"""
SECONDS = 120
CTRL_C = "\x03"


class Terminal:
    """A command on a terminal. said: what it has shown, without colours."""

    def __init__(self, *arguments: str) -> None:
        self._ours, theirs = pty.openpty()
        self.process = subprocess.Popen(
            [sys.executable, "-c", ON_TERMINAL, *arguments],
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            start_new_session=True,
            env={**os.environ, "TERM": "xterm"},
        )
        os.close(theirs)
        self.said = ""
        self._seen = 0

    def _read(self) -> bool:
        """Read on; whether there was anything."""
        ready, _, _ = select.select([self._ours], [], [], SECONDS)
        assert ready, f"nothing more is said after {self.said!r}"
        # Linux ends the reading with an error where the other end is closed.
        with contextlib.suppress(OSError):
            data = os.read(self._ours, 1 << 16).decode()
            self.said = re.sub(r"\x1b\[[\d;]*m", "", self.said + data.replace("\r\n", "\n"))
            return bool(data)
        return False

    def answer(self, question: str, given: str) -> None:
        """Type an answer once the question has been asked."""
        while question not in self.said[self._seen :]:
            assert self._read(), f"{question!r} was not asked: {self.said!r}"
        self._seen = self.said.index(question, self._seen) + len(question)
        os.write(self._ours, given.encode())

    def press(self, key: str) -> None:
        """Press a key until the command ends, as a person does: one that comes between the question and the reading of
        its answer is taken with the next."""
        while self.process.poll() is None:
            with contextlib.suppress(OSError):
                os.write(self._ours, key.encode())
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(10)  # a second one would end a command that is leaving

    def end(self) -> int:
        """The exit status; everything is said then."""
        while self._read():
            pass
        return self.process.wait(SECONDS)

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self._ours)


@pytest.fixture
def terminal(folder: Path) -> Iterator[Terminal]:
    opened = Terminal("init", "docs.jsonl")
    yield opened
    opened.close()


@pytest.mark.slow
def test_trainer_and_ranks_are_asked_for_until_they_can_be_used(terminal: Terminal) -> None:
    for question, given in (
        ("[none]: ", "hf\n"),
        ("did you mean 'hf-trainer'?", ""),
        ("[none]: ", "torchtitan\n"),
        ("Its ranks [unknown]: ", "four\n"),
        ("'four' is not a whole number", ""),
        ("Its ranks [unknown]: ", "4\n"),
    ):
        terminal.answer(question, given)
    assert terminal.end() == 0, terminal.said
    exports = load_settings().exports
    assert (exports.formats, exports.trainer, exports.world_size) == (("parquet",), "torchtitan", 4)
    # The table comes before the questions, and not again.
    assert terminal.said.count("fields of") == 1
    assert terminal.said.index("fields of") < terminal.said.index("Trainer: ")


@pytest.mark.slow
def test_a_broken_off_dialogue_leaves_nothing(terminal: Terminal, folder: Path) -> None:
    terminal.answer("[none]: ", "trl\n")
    terminal.answer("Its ranks [unknown]: ", "")
    terminal.press(CTRL_C)
    assert terminal.end() == 130
    assert "divorder: stopped; nothing was written; --yes asks nothing" in terminal.said
    assert "Traceback" not in terminal.said
    assert os.listdir(folder) == ["docs.jsonl"]
