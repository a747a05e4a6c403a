"""`input.template`: the text and the trained parts that Jinja makes of a record."""

from __future__ import annotations

from typing import Any

import pytest

from dagster_divorder.chats.document import MarkedText
from dagster_divorder.chats.input_template import compiled, templated
from dagster_divorder.errors import InputError, SettingsError
from dagster_divorder.settings import load_settings


@pytest.mark.parametrize(
    ("jinja", "text", "spans"),
    [
        ("{{ q }} {{ a }}", "Q A", ((0, 3),)),
        ("{{ q }} {% generation %}{{ a }}{% endgeneration %}.", "Q A.", ((2, 3),)),
        (
            "{% for t in turns %}{{ t.q }}:{% generation %}{{ t.a }}{% endgeneration %};{% endfor %}",
            "x:yy;z:w;",
            ((2, 4), (7, 8)),
        ),
        ("{{ q }}{% generation %}{% if a %}{{ a }}{% endif %}{% endgeneration %}", "QA", ((1, 2),)),
        ("{{ note or q }}", "Q", ((0, 1),)),
        ("{{ turns | tojson }}", '[{"q": "x", "a": "yy"}, {"q": "z", "a": "w"}]', ((0, 45),)),
    ],
)
def test_a_template_makes_a_text_and_marks_what_is_trained(
    jinja: str, text: str, spans: tuple[tuple[int, int], ...]
) -> None:
    record = {"q": "Q", "a": "A", "note": None, "turns": [{"q": "x", "a": "yy"}, {"q": "z", "a": "w"}]}
    assert templated(record, jinja) == MarkedText(text, spans)


@pytest.mark.parametrize(
    ("jinja", "record", "reason"),
    [
        ("{{ answer }}", {"q": "Q"}, "'answer' is undefined"),
        ("{{ meta.topic }}", {"meta": {}}, "has no attribute 'topic'"),
        ("{{ q }}", {"q": None}, "writes a value that is null"),
        ("{{ 1 // n }}", {"n": 0}, "by zero"),
        ("{{ raise_exception('too short') }}", {}, "raises: too short"),
        ("{{ q }}", {"q": "  "}, "makes an empty text"),
        (
            "{{ q }}{% generation %}{{ a }}{% endgeneration %}",
            {"q": "Q", "a": ""},
            "no character is trained on",
        ),
        ("{% for n in range(10 ** 9) %}{% endfor %}", {}, "Range too big"),
        ("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", {}, "calls itself endlessly"),
        ("{{ q.__class__ }}", {"q": "Q"}, "is unsafe"),
        ("{% include 'other' %}", {}, "no loader"),
        ("{{ turns.append(1) }}", {"turns": []}, "is unsafe|not safely"),
    ],
)
def test_a_template_that_raises_refuses_the_record(jinja: str, record: dict[str, Any], reason: str) -> None:
    with pytest.raises(InputError, match=reason):
        templated(record, jinja)


@pytest.mark.parametrize(
    ("jinja", "reason"),
    [
        ("{{ q", "unexpected end of template"),
        ("{{ q | title_of }}", "No filter named 'title_of'"),
        ("{% generation %}{{ q }}", "endgeneration"),
        (
            "{% macro f() %}{% generation %}{{ q }}{% endgeneration %}{% endmacro %}{{ f() }}",
            "stands inside a macro",
        ),
        ("{% set x %}{% generation %}{{ q }}{% endgeneration %}{% endset %}", "stands inside a macro"),
    ],
)
def test_what_is_no_template_is_refused_with_the_settings(
    jinja: str, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DIVORDER_INPUT__TEMPLATE", jinja)
    with pytest.raises(SettingsError, match=f"input.template.*{reason}"):
        load_settings()


def test_the_fields_of_a_template_are_known() -> None:
    _, fields, marks = compiled("{% for t in turns %}{{ t.a }}{{ range }}{% endfor %}")
    assert {"turns", "range"} <= fields
    assert not marks
