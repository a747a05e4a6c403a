"""The questions of `divorder init`, on a real terminal: a pseudo-terminal that the command is in the foreground of."""

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

from dagster_divorder.cli import main
from dagster_divorder.settings import load_settings
from tests.conftest import topic_records, write_jsonl

RUN = """
import fcntl, sys, termios
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
from dagster_divorder.cli import main
sys.exit(main())
"""
SECONDS = 120
CTRL_C, CTRL_D = "\x03", "\x04"


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
                self.process.wait(1)

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
    records = [{**record, "lang": "en" if record["length"] else "de"} for record in _records()]
    write_jsonl(tmp_path / "docs.jsonl", records)
    return tmp_path


def _records() -> list[dict[str, object]]:
    return [
        {
            "name": f"n{n}",
            "text": record["text"],
            "body": record["text"] * 3,
            "src": "ab"[n % 2],
            "length": n % 2,
        }
        for n, record in enumerate(topic_records(20))
    ]


@pytest.fixture
def terminal(folder: Path) -> Iterator[Terminal]:
    opened = Terminal("init", "docs.jsonl")
    yield opened
    opened.close()


@pytest.mark.slow
def test_answers_are_taken_and_asked_for_again_where_they_cannot_be(terminal: Terminal) -> None:
    for question, given in (
        ("Text field [body]: ", "txt\n"),
        ("the text field is 'txt'; expected one of", "text\n"),
        ("Field of your own ids [none]: ", "name\n"),
        ("Field of the source [none]: ", "src\n"),
        (
            "Traits to balance, separated by commas [cluster, length, src, lang]: ",
            "cluster, lang, langs\n",
        ),
        ("a trait is 'langs'", "cluster, lang\n"),
        ("[none]: ", "torchtitn\n"),
        ("did you mean 'torchtitan'?", "torchtitan\n"),
        ("Ranks (the world size) [1]: ", "four\n"),
        ("'four' is not a whole number", "4\n"),
        ("Sequences that a rank reads at a time [1]: ", "2\n"),
        ("Loader processes of a rank [1]: ", "\n"),
        ("Tokens of a sequence [512]: ", "2\n"),
        ("sequence.length = 2; expected 16 to", "64\n"),
        ("Sequences of a batch [8]: ", "12\n"),
        ("A batch of 12 sequences is not a whole number of steps", "16\n"),
    ):
        terminal.answer(question, given)
    assert terminal.end() == 0, terminal.said
    settings = load_settings()
    assert (settings.input.text_field, settings.input.id_field, settings.input.source_field) == (
        "text",
        "name",
        "src",
    )
    assert list(settings.order.traits) == ["cluster", "lang"]
    assert (settings.sequence.length, settings.sequence.batch) == (64, 16)
    exports = settings.exports
    assert (exports.formats, exports.world_size, exports.micro_batch, exports.workers) == (
        ("parquet",),
        4,
        2,
        1,
    )
    # The table came before the questions, and not again.
    assert terminal.said.count("fields of") == 1
    assert terminal.said.index("fields of") < terminal.said.index("Text field")


@pytest.mark.slow
def test_enter_takes_what_is_proposed_without_a_terminal(terminal: Terminal, folder: Path) -> None:
    for question in ("Text field", "own ids", "the source", "Traits", "Trainer", "Tokens", "Sequences"):
        terminal.answer(question, "\n")
    assert terminal.end() == 0, terminal.said
    answered = Path("divorder.toml").read_text(encoding="utf-8")
    Path("divorder.toml").unlink()
    assert main(["init", "docs.jsonl"]) == 0
    assert Path("divorder.toml").read_text(encoding="utf-8") == answered


@pytest.mark.slow
@pytest.mark.parametrize(
    ("key", "status", "said"),
    [
        (CTRL_C, 130, "divorder: stopped; nothing was written"),
        (CTRL_D, 1, "nothing was written; --yes takes"),
    ],
)
def test_a_broken_off_dialogue_leaves_nothing(
    key: str, status: int, said: str, terminal: Terminal, folder: Path
) -> None:
    terminal.answer("Text field [body]: ", "\n")
    terminal.answer("Field of your own ids [none]: ", "")
    terminal.press(key)
    assert terminal.end() == status
    assert said in terminal.said and "Traceback" not in terminal.said
    assert os.listdir(folder) == ["docs.jsonl"]


@pytest.mark.slow
@pytest.mark.parametrize(("answer", "replaced"), [("\n", False), ("perhaps\nyes\n", True)])
def test_a_settings_file_that_is_there_is_replaced_only_on_request(
    answer: str, replaced: bool, folder: Path
) -> None:
    Path("divorder.toml").write_text("# mine\n", encoding="utf-8")
    terminal = Terminal("init", "docs.jsonl")
    terminal.answer("divorder.toml is there already. Replace it [no]: ", answer)
    if replaced:
        for question in ("Text field", "own ids", "the source", "Traits", "Trainer", "Tokens", "Sequences"):
            terminal.answer(question, "\n")
    assert terminal.end() == (0 if replaced else 1), terminal.said
    terminal.close()
    assert (Path("divorder.toml").read_text(encoding="utf-8") == "# mine\n") != replaced
    if not replaced:
        assert "divorder.toml is there already; remove it" in terminal.said
    assert os.listdir(folder).count("divorder.toml") == 1


@pytest.mark.slow
def test_where_the_text_cannot_be_told_it_is_asked_for(folder: Path) -> None:
    write_jsonl(
        folder / "docs.jsonl", [{"en": "some words " * n, "de": "Worte hier " * n} for n in range(1, 30)]
    )
    terminal = Terminal("init", "docs.jsonl")
    terminal.answer("the text may be in", "")
    terminal.answer("Text field: ", "\n")
    terminal.answer("name one of the fields", "de\n")
    for question in ("own ids", "the source", "Traits", "Trainer", "Tokens", "Sequences"):
        terminal.answer(question, "\n")
    assert terminal.end() == 0, terminal.said
    terminal.close()
    assert load_settings().input.text_field == "de"


@pytest.mark.slow
def test_chats_have_a_format_and_no_question_for_a_text_field(folder: Path) -> None:
    turns = [{"role": "user", "content": "what is it"}, {"role": "assistant", "content": "words of it " * 9}]
    write_jsonl(folder / "chats.jsonl", [{"n": n, "messages": turns} for n in range(30)])
    terminal = Terminal("init", "chats.jsonl")
    for question in ("own ids", "the source", "Traits", "Trainer", "Tokens", "Sequences"):
        terminal.answer(question, "\n")
    assert terminal.end() == 0, terminal.said
    terminal.close()
    assert "format: messages, as these are chat messages" in terminal.said
    assert "Text field" not in terminal.said
    assert load_settings().input.format == "messages"


@pytest.mark.slow
@pytest.mark.parametrize("option", ["--yes", "--json"])
def test_nothing_is_asked_with(option: str, folder: Path) -> None:
    terminal = Terminal("init", "docs.jsonl", option)
    assert terminal.end() == 0, terminal.said
    terminal.close()
    assert "Text field" not in terminal.said and Path("divorder.toml").is_file()
