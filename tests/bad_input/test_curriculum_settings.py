"""What a curriculum cannot follow."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.bad_input.conftest import Outcome
from tests.conftest import topic_records, write_jsonl

Divorder = Callable[..., Outcome]
RECORDS = topic_records(10)
SCORE = 'curriculum.score = "quality"'


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ([SCORE, 'curriculum.shape = "sow"'], "curriculum.shape"),
        ([SCORE, 'mixing.phase = [{ until = 0.5, weights = "sqrt" }, { weights = "natural" }]'],
         "mixing has phases; an order follows one of them: remove the other"),
        (['curriculum.shape = "zigzag"'], "shape is set, and score is not"),
        ([SCORE, 'order.strategy = "zigzag"'], "name the score in curriculum.score"),
    ],
)  # fmt: skip
def test_what_makes_no_schedule_is_refused(
    tmp_path: Path, divorder: Divorder, settings: list[str], message: str
) -> None:
    write_jsonl(tmp_path / "in/docs.jsonl", [{**record, "quality": at} for at, record in enumerate(RECORDS)])
    outcome = divorder(*settings)
    assert outcome.status == 1
    assert message in outcome.error
    assert not outcome.output.exists()
