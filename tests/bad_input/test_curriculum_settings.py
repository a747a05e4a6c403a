"""Scores as they come, and what a curriculum cannot follow."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import orjson
import pytest

from tests.bad_input.conftest import Outcome
from tests.conftest import topic_records

Divorder = Callable[..., Outcome]
RECORDS = topic_records(10)
N = len(RECORDS)
SCORE = 'curriculum.score = "quality"'


def write(folder: Path, scores: list[Any]) -> None:
    """A score for each record; an Ellipsis for records without the field, bytes as they are."""
    lines = [orjson.dumps(record)[:-1] for record in RECORDS]
    for at, score in enumerate(scores):
        text = score if isinstance(score, bytes) else b"" if score is ... else orjson.dumps(score)
        lines[at] += b', "quality": ' + text if text else b""
    (folder / "in/docs.jsonl").write_bytes(b"".join(line + b"}\n" for line in lines))


@pytest.mark.parametrize(
    ("scores", "missing"),
    [
        ([float(at) for at in range(N)], 0),
        ([at % 3 for at in range(N)], 0),
        ([1.0] * (N - 1) + [2.0], 0),
        ([None if at % 4 == 0 else at for at in range(N)], N // 4),
        ([... if at % 4 == 0 else at for at in range(N)], N // 4),
        ([b"NaN" if at % 4 == 0 else b"Infinity" if at == 1 else at for at in range(N)], N // 4 + 1),
        ([-1e308 if at % 2 else 1e308 for at in range(N)], 0),
        ([at if at % 2 else at + 0.5 for at in range(N)], 0),
    ],
    ids=["numbers", "ties", "one differs", "null", "absent", "NaN and infinity", "huge", "whole and not"],
)
@pytest.mark.parametrize("shape", ["zigzag", "segment"])
def test_odd_scores_are_followed(
    tmp_path: Path, divorder: Divorder, scores: list[Any], missing: int, shape: str
) -> None:
    write(tmp_path, scores)
    outcome = divorder(SCORE, f'curriculum.shape = "{shape}"')
    assert outcome.status == 0, outcome.error
    assert sorted(outcome.records) == sorted((tmp_path / "in/docs.jsonl").read_bytes().splitlines())
    spread = f"the {missing} others are spread evenly" if missing > 1 else "spread evenly"
    assert (spread in outcome.error) == bool(missing)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (["points = [[0, 0], [1, 1]]", 'shape = "saw"'], "shape is 'saw', and points are given; remove one"),
        (['shape = "sow"'], "curriculum.shape"),
        (['shape = "rise"', "options = { folds = 2 }"], "folds is not an option of the shape 'rise'"),
        (['epochs = "both"'], "curriculum.epochs"),
    ],
)
def test_settings_that_make_no_schedule(
    tmp_path: Path, divorder: Divorder, settings: list[str], message: str
) -> None:
    write(tmp_path, list(range(N)))
    outcome = divorder(SCORE, *(f"curriculum.{line}" for line in settings))
    assert outcome.status == 1
    assert message in outcome.error
    assert not outcome.output.exists()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            [SCORE, 'mixing.phase = [{ until = 0.5, weights = "sqrt" }, { weights = "natural" }]'],
            "mixing has phases; an order follows one of them: remove the other",
        ),
        ([SCORE, "sequence.repack = true"], "remove sequence.repack"),
        (['curriculum.shape = "saw"'], "shape is set, and score is not"),
        ([SCORE, 'order.strategy = "saw"'], "name the score in curriculum.score"),
    ],
    ids=["phases", "repack", "no score", "a shape as strategy"],
)
def test_what_does_not_go_with_a_curriculum(
    tmp_path: Path, divorder: Divorder, settings: list[str], message: str
) -> None:
    write(tmp_path, list(range(N)))
    outcome = divorder(*settings)
    assert outcome.status == 1
    assert message in outcome.error
    assert not outcome.output.exists()
