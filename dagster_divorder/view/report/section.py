"""A section of the report: a heading, what it says, and where a link finds it."""

from __future__ import annotations

from dataclasses import dataclass

from dagster_divorder.view.report.html import Markup


@dataclass(frozen=True)
class Section:
    """anchor: the id of the section, letters and hyphens. lead: one sentence under the heading, plain text."""

    anchor: str
    title: str
    lead: str
    body: Markup
