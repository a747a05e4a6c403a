"""`.ci/style` finds phrases in prose, over line ends and the parts of a message, and not in code."""

import subprocess
import sys
from pathlib import Path

import pytest

STYLE = Path(__file__).parents[1] / ".ci" / "style"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "text", "found"),
    [
        ("a.md", "Rows, and those\nwhich are long.\n", "a.md:1: 'those which'"),
        ("a.py", '"""Files that are held\nagainst the plan."""\n', "a.py:1: 'held against'"),
        ("a.py", 'x = (\n    f"{y} is none "\n    f"of these"\n)\n', "a.py:2: "),
        ("a.md", "See `as it comes`, [here](of-which-the.md).\n\n```\nsimply\n```\n", ""),
        ("a.py", "simply = robust\n", ""),
    ],
)
def test_a_planted_phrase_is_found_and_code_is_not(name: str, text: str, found: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text(text, encoding="utf-8")
    made = subprocess.run([sys.executable, STYLE, name], cwd=tmp_path, capture_output=True, text=True)
    assert made.returncode == (1 if found else 0), made.stderr
    assert made.stdout.startswith(found) and made.stdout.count("\n") == (1 if found else 0)
