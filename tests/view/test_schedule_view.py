"""An order along a schedule, in words, tables, charts and the picture, from the figures of the stage `schedule`."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import pytest
from PIL import Image

from dagster_divorder.core.measure import ShufflingCheck
from dagster_divorder.settings import Settings
from dagster_divorder.view import curricula, schedule
from dagster_divorder.view.answer import TextTable, as_text
from dagster_divorder.view.report import sections
from dagster_divorder.view.report.check import head
from dagster_divorder.view.report.html import part
from dagster_divorder.view.verdict import Verdict
from tests.view.html_page import Page, check
from tests.view.schedules import measured
from tests.view.test_ordering_comparison import pictured, riffled
from tests.view.test_report import HOSTILE, a_page

EMPTY: dict[str, Any] = {"curves": {}, "off": {}, "deviation": {}, "traits": {}, "along": {}, "seam": []}
NOTHING: dict[str, Any] = {"scales": {"sequences": EMPTY, "documents": EMPTY}}


def verdict(figures: dict[str, Any]) -> Verdict:
    nothing = ShufflingCheck((), (), ())
    return Verdict(sequences=nothing, documents=nothing, metrics={}, remedy="", schedule=figures)


def worse(trait: str) -> dict[str, Any]:
    """Figures in which a trait's batches are farther from their mix than those of a window shuffle."""
    figures = measured()
    figures["scales"]["sequences"]["traits"][trait] |= {"batch": 0.05, "shuffled": 0.045}
    return figures


def test_the_claim_names_what_is_kept_and_the_figures_beside_the_window_shuffle() -> None:
    found = verdict(measured())
    claim, because = found.sentences
    assert found.compared and found.passed
    assert claim == (
        "This order follows quality along zigzag (folds 2), and keeps cluster, length and source nearer the mix at its "
        "points than a window shuffle does."
    )
    assert (
        "mean rank is 0.021 off the schedule, after a window shuffle 0.023, by the schedule alone 0.004"
        in because
    )
    assert "2.30\u00a0% off the mix of cluster at their point, after a window shuffle 4.50\u00a0%" in because
    assert because.endswith("the schedule itself moves it by 12.10\u00a0%.")


def test_what_is_not_kept_fails_and_is_named_unless_it_is_not_balanced() -> None:
    found = verdict(worse("length"))
    assert found.compared and not found.passed
    assert "keeps length no nearer the mix" in found.sentences[0]
    assert "5.00\u00a0% off the mix of length" in found.sentences[1]
    unbalanced = measured(("cluster", "score"))
    unbalanced["scales"]["sequences"]["traits"]["score"]["batch"] = 0.9
    assert verdict(unbalanced).passed and "score" not in verdict(unbalanced).sentences[0]


def test_where_nothing_is_left_to_order_nothing_is_claimed() -> None:
    found = verdict(measured() | NOTHING)
    assert not found.compared and not found.passed
    assert found.sentences == (
        "This order follows quality along zigzag (folds 2).",
        "Nothing of it is left to order.",
    )
    assert schedule.rows(NOTHING["scales"]["sequences"]) == []
    assert not check(a_page(sections.schedule(measured() | NOTHING))).all("figure")
    assert "Too small to tell" in head(found)


def test_notes_say_what_else_decides_how_the_schedule_is_followed() -> None:
    lines = schedule.notes(measured(strength=0.5))
    assert lines == [
        "A sequence moves within 5.9 batches, 3.12\u00a0% of training, to keep everything else at its mix.",
        "50\u00a0% of the tokens follow the schedule; the others are spread evenly.",
        "The schedule starts again in every epoch.",
        "From one epoch to the next the mean rank changes by -0.91; the schedule asks for -0.93.",
    ]
    assert schedule.without_score(measured(missing=1_200)) == [
        "1,200 of 15,000 records have no quality, and are spread evenly."
    ]
    assert schedule.without_score(measured()) == []


def test_the_table_has_a_row_a_measure_and_trait_and_fits_a_narrow_terminal() -> None:
    scale = measured()["scales"]["sequences"]
    short, full = schedule.rows(scale, in_full=False), schedule.rows(scale)
    assert [row["measure"] for row in short] == [
        "off the schedule, mean",
        "TV there of cluster, %",
        "TV there of length, %",
        "TV there of source, %",
    ]
    assert short[1] == {
        "measure": "TV there of cluster, %",
        "this order": "2.30",
        "shuffled": "4.50",
        "compared": "2 times better",
        "moved, %": "12.10",
    }
    assert len(full) == len(short) + 4 and full[-1]["this order"] == "4.00"
    table = as_text([TextTable(short, schedule.title(measured()))], width=80, colour=True)
    assert len(table.splitlines()) == len(short) + 3
    assert len(schedule.meanings(in_full=False)) == 3 and len(schedule.meanings()) == 5


def test_a_section_is_a_page_of_charts_whatever_the_names_are() -> None:
    traits = ("cluster", HOSTILE, "a\n b", "$x_{$")
    figures = measured(traits, score=HOSTILE, missing=3)
    page: Page = check(a_page(sections.schedule(figures)))
    assert len(page.all("figure")) == 2 and not page.all("script")
    text = "\n".join(sections.schedule(figures).parts)
    assert text.count("<svg viewBox") >= 6 and "3 of 15,000 records have no" in text


@pytest.mark.filterwarnings("error")
def test_charts_leave_out_what_is_not_known() -> None:
    figures = measured()
    scale = figures["scales"]["sequences"]
    for name in ("achieved", "low", "high", "raw", "achievable"):
        scale["curves"][name][:40] = [None] * 40
    scale["along"]["cluster"]["batch"][0] = None
    assert "nan" not in "".join(sections.schedule(figures).parts).lower()
    scale["curves"]["raw"] = [None] * 100
    assert "nan" not in "".join(sections.schedule(figures).parts).lower()


def test_the_picture_has_the_schedule_below_the_orders() -> None:
    from dagster_divorder.view.pictures import ordering_comparison

    orders = {"original": pictured(np.arange(400), 400, 30), "sequences": pictured(riffled(400), 400, 30)}
    without = np.asarray(Image.open(io.BytesIO(ordering_comparison(orders))))
    sizes = {}
    for traits in (("cluster",), ("cluster", "a", "b", "c", "d")):
        drawn = np.asarray(Image.open(io.BytesIO(ordering_comparison(orders, [], measured(traits)))))
        assert (drawn[: len(without)] == without).all()
        sizes[len(traits)] = drawn.shape
    assert sizes[1][1] == sizes[5][1] == 1600 and sizes[1][0] < sizes[5][0]
    assert ordering_comparison(orders, [], measured() | NOTHING) == ordering_comparison(orders)


def test_the_head_of_the_report_compares_with_a_window_shuffle() -> None:
    text = head(verdict(measured()))
    assert "✓</span> Better than a window shuffle" in text
    assert "<b>0.021</b> of the ranking, on average" in text
    assert "shuffled in windows 4.50<br>moved by the schedule 12.10" in text
    assert "✗</span> Not better than a window shuffle" in head(verdict(worse("cluster")))


def test_the_page_says_which_schedule_was_asked_for() -> None:
    curriculum = {
        "score": "quality",
        "shape": "saw",
        "options": {"folds": 3},
        "strength": 0.5,
        "keep": ["length"],
    }
    text = part("asked", Settings(curriculum=curriculum), "shallow", 30, ["docs.jsonl"], None)
    assert (
        "quality along saw, folds 3, followed by 50\u00a0% of the tokens; scores ranked within each length"
        in text
    )
    assert "the mix at its point of the schedule of cluster" in text
    assert "Schedule" not in part("asked", Settings(), "shallow", 30, ["docs.jsonl"], None)


def rows(*shapes: str, balanced: float = 0.02) -> list[dict[str, Any]]:
    return [
        {
            "shape": shape,
            "windows": windows,
            "off the schedule": 0.01 * (1 + at),
            "TV there of cluster": there,
            "TV there of of it": there,
            "batch TV, clusters": 0.2 - 0.01 * at,
            "seconds": 0.5,
        }
        for at, shape in enumerate(shapes)
        for windows, there in (("shuffled", 0.05), ("balanced", balanced))
    ]


def test_shapes_are_compared_in_sentences() -> None:
    assert curricula.conclusions(rows("rise", "saw")) == [
        "With windows balanced, batches are 2.5 times as near the mix of cluster at their point as with shuffled "
        "windows, of of it 2.5.",
        "rise is nearest its schedule, 0.010 of the ranking off; saw is farthest, 0.020.",
        "Batches are nearest the corpus's own mix of topics with saw, 19.00 % off; farthest with rise, 20.00 %.",
    ]
    assert curricula.conclusions([]) == ["No sequence is left to order along a schedule."]
    assert "1 times" in curricula.conclusions(rows("rise", balanced=0.0))[0]


def test_shapes_have_columns_a_picture_and_a_section() -> None:
    table = curricula.in_short(rows("rise", "saw"))
    assert list(table[0]) == [
        "shape",
        "windows",
        "rank off",
        "cluster there, %",
        "of it there, %",
        "corpus, %",
        "seconds",
    ]
    assert list(table[1].values()) == ["rise", "balanced", "0.010", "2.00", "2.00", "20.00", "0.50"]
    assert Image.open(io.BytesIO(curricula.draw(rows("rise", "saw")))).size == (
        curricula.WIDTH,
        curricula.HEIGHT,
    )
    text = "\n".join(sections.curricula(rows("rise", "saw")).parts)
    assert ">saw</text>" in text and "windows balanced" in text
    check(a_page(sections.curricula(rows("rise", "saw"))))
