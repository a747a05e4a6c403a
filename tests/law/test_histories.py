"""Random histories over everything that decides what is trained on, a few of those of benchmarks/fuzz/histories.py."""

from __future__ import annotations

from pathlib import Path

from tests.conftest import examples, load_script

PATH = Path(__file__).parents[2] / "benchmarks/fuzz/histories.py"


def test_nothing_is_lost_in_any_history(tmp_path: Path) -> None:
    histories, runs = load_script(PATH), 0
    for number in range(examples(8)):
        try:
            runs += histories.walk(number, tmp_path).runs
        except Exception as error:
            raise AssertionError(f"history {number}; python {PATH} --first {number} --histories 1") from error
    assert runs >= 6 * examples(8)
