"""The two questions of `divorder init`, on a pseudo-terminal that the command is in the foreground of."""

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

import pytest

from dagster_divorder.settings import load_settings
from tests.conftest import topic_records, write_jsonl

RUN = """
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
            [sys.executable, "-c", RUN, *arguments],
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
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    write_jsonl(tmp_path / "docs.jsonl", topic_records(20))
    return tmp_path


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
