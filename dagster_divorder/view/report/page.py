"""The page: one HTML file that needs nothing else, and may do nothing else.

No script is in it, and its content security policy forbids any: what a corpus holds is shown as text. It loads nothing,
follows the reader's light or dark, and prints.
"""

from __future__ import annotations

from collections.abc import Sequence

from dagster_divorder.view.report.html import Markup, fill
from dagster_divorder.view.report.section import Section
from dagster_divorder.view.report.style import STYLE

POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:; base-uri 'none'; form-action 'none'"

_PAGE = """\
<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{{ policy }}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<meta name="referrer" content="no-referrer">
<title>{{ title }}</title>
<link rel="icon" href="data:,">
<style>
{{ style }}</style>
</head>
<body>
<a class="skip" href="#asked">Skip to the report</a>
<header>
<p class="kind">DivOrder · ordering report</p>
<h1>{{ title }}</h1>
<p class="facts">{{ facts }}</p>
{{ verdict }}
<nav aria-label="Sections"><ol>
{% for section in sections %}
<li><a href="#{{ section.anchor }}">{{ section.title }}</a></li>
{% endfor %}
</ol></nav>
</header>
<main>
{% for section in sections %}
<section id="{{ section.anchor }}" aria-labelledby="{{ section.anchor }}-title">
<h2 id="{{ section.anchor }}-title">{{ section.title }}</h2>
<p class="lead">{{ section.lead }}</p>
{{ section.body }}
</section>
{% endfor %}
</main>
<footer>
{% for line in footer %}
<p>{{ line }}</p>
{% endfor %}
</footer>
</body>
</html>
"""


def page(
    title: str, facts: str, verdict: Markup, sections: Sequence[Section], footer: Sequence[str]
) -> bytes:
    """The file's bytes, UTF-8. title, facts, footer: plain text."""
    return fill(
        _PAGE,
        policy=POLICY,
        style=Markup(STYLE),
        title=title,
        facts=facts,
        verdict=verdict,
        sections=sections,
        footer=footer,
    ).encode()
