"""The builder of the sample corpus, on a small tree that looks like an installation."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import load_script

build_sample = load_script(Path(__file__).parents[1] / "data/build_sample.py")

# `collect` lets the parser's warnings through; `build` silences them.
pytestmark = pytest.mark.filterwarnings("ignore:invalid escape sequence")

ALPHA = '''"""Module alpha."""

class Outer:
    """
    Class Outer,

        indented line.
    """

    def method(self):
        """Method."""
        def local():
            """Nested function."""
        return local

    def silent(self): ...

if True:
    def conditional():
        """Inside an if."""
else:
    async def conditional():
        """Inside the else."""

try:
    pass
except ImportError:
    def fallback():
        """Inside an except."""

match 1:
    case 1:
        def matched():
            """Inside a case."""

def empty():
    """   """

def surrogate():
    "Lone \\ud800 surrogate."
'''
ALPHA_NAMES = [
    "",
    "Outer",
    "Outer.method",
    "Outer.method.local",
    "conditional",
    "conditional",
    "fallback",
    "matched",
]


def _write(path: Path, content: str | bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content if isinstance(content, bytes) else content.encode())


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Packages alpha, bulk (the largest) and solo, beside files that must be passed over."""
    root = tmp_path / "lib"
    _write(root / "alpha/__init__.py", ALPHA)
    _write(root / "alpha/tests/test_alpha.py", '"""A test."""')
    _write(root / "alpha/__pycache__/alpha.py", '"""Cached."""')
    _write(root / "alpha/broken.py", '"""Broken."""\ndef (')
    _write(root / "alpha/latin.py", b'"""Caf\xe9, no coding line."""')
    _write(root / "alpha/coded.py", b'# -*- coding: latin-1 -*-\n"""Caf\xe9 with a coding line."""')
    _write(root / "alpha/null.py", b'"""Null."""\n\0')
    _write(root / "alpha/escape.py", '"""Invalid \\d escape."""')
    _write(root / "solo.py", '"""The same text."""')
    _write(root / "__editable___alpha_finder.py", '"""Generated."""')
    for i in range(40):
        padding = "x = 1\n" * (50 - i)
        _write(root / f"bulk/m{i:02}.py", f'"""The same text."""\ndef f():\n    """Text {i}."""\n{padding}')
    _write(root / "bulk/long.py", f'"""{"Long text. " * 1000}"""')
    return root


@pytest.fixture
def sources(root: Path) -> dict[str, list[Any]]:
    return build_sample.find_packages([root])


def test_all_text_is_found_where_nothing_stops_it_and_is_clean(sources: dict[str, list[Any]]) -> None:
    sample = build_sample.collect(sources, documents=10_000)
    records = [json.loads(line) for line in sample.lines]
    by_source = {name: [r for r in records if r["source"] == name] for name in ("alpha", "bulk", "solo")}
    assert sum(map(len, by_source.values())) == len(records)
    assert [r["path"] for r in by_source["alpha"]] == [
        *(f"alpha/__init__.py:{name}" if name else "alpha/__init__.py" for name in ALPHA_NAMES),
        "alpha/coded.py",
        "alpha/escape.py",
    ]
    assert len(by_source["bulk"]) == 81
    assert [r["path"] for r in by_source["solo"]] == ["solo.py"]
    texts = [record["text"] for record in records]
    assert {"Class Outer,\n\n    indented line.", "Café with a coding line."} < {*texts}
    assert all(text.strip() and not text.startswith((" ", "\n")) for text in texts)
    assert sample.skipped_files == 3  # broken, latin, null


def test_conversations_are_about_the_functions_of_a_file(sources: dict[str, list[Any]]) -> None:
    lines = build_sample.collect(sources, documents=10_000, reader=build_sample.chat_records).lines
    records = [json.loads(line) for line in lines]
    assert [record["path"] for record in records] == sorted(record["path"] for record in records)
    alpha = [record for record in records if record["source"] == "alpha"]
    questions = sum(len(record["messages"]) // 2 for record in alpha)
    assert questions == len(ALPHA_NAMES) - 1  # all but the module's own docstring
    for record in records:
        roles = [message["role"] for message in record["messages"]]
        assert roles == ["user", "assistant"] * (len(roles) // 2)
        assert len(roles) in (2, 4, 6)
        shows_code = all("Say in a sentence" in message["content"] for message in record["messages"][::2])
        assert shows_code == (record["language"] == "python")
    method = next(record for record in alpha if record["path"].endswith(":Outer"))["messages"][0]["content"]
    assert "class Outer" in method


@pytest.mark.slow
@pytest.mark.parametrize("documents", [1, 12, 30, 91])
def test_it_stops_at_the_documents_asked_for(sources: dict[str, list[Any]], documents: int) -> None:
    """Of several packages in blocks."""
    lines = build_sample.collect(sources, documents=documents).lines
    names = [json.loads(line)["source"] for line in lines]
    assert len(names) == documents and names == sorted(names)
    assert documents != 12 or {*names} == {"alpha", "bulk"}


def test_it_stops_at_the_bytes_asked_for(sources: dict[str, list[Any]]) -> None:
    for max_bytes in (1, 500, 3000):
        sizes = [*map(len, build_sample.collect(sources, documents=1, max_bytes=max_bytes).lines)]
        assert max_bytes <= sum(sizes) < max_bytes + max(sizes)


@pytest.mark.slow
def test_a_second_build_does_nothing_until_arguments_or_packages_change(root: Path, tmp_path: Path) -> None:
    output = tmp_path / "docs.jsonl"
    first = build_sample.build(output, documents=20, roots=[root])
    assert first.startswith(f"{output}: 20 documents of 2 packages, 0.0 MB")
    with output.open("ab") as file:
        file.write(b'{"text": "appended"}\n')
    edited = output.read_bytes()
    assert "nothing to do" in build_sample.build(output, documents=20, roots=[root])
    assert output.read_bytes() == edited
    assert "21 documents" in build_sample.build(output, documents=21, roots=[root])
    (root / "alpha-1.0.dist-info").mkdir()
    assert "nothing" not in build_sample.build(output, documents=21, roots=[root])
    assert "nothing" in build_sample.build(output, documents=21, roots=[root])
