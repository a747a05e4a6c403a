"""A report as a reader's browser takes it apart, and what every report has to be."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from itertools import pairwise

VOID = {"meta", "link", "img", "br", "path", "use", "rect", "image"}


class Page(HTMLParser):
    """Elements as (tag, attributes), and the text of all of them."""

    def __init__(self, page: bytes) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str]]] = []
        self.text = ""
        self.open: list[str] = []
        self.feed(page.decode())
        self.close()

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, {name: value or "" for name, value in attributes}))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, {name: value or "" for name, value in attributes}))

    def handle_endtag(self, tag: str) -> None:
        if tag not in VOID:
            assert self.open and self.open[-1] == tag, f"</{tag}> closes {self.open[-3:]}"
            self.open.pop()

    def handle_data(self, data: str) -> None:
        self.text += data

    def all(self, tag: str) -> list[dict[str, str]]:
        return [attributes for name, attributes in self.elements if name == tag]


TAGS = re.compile(
    "html|head|meta|title|link|style|body|header|main|footer|nav|section|h1|h2|h3|p|a|b|small|br|span|code|div|ul|ol|li|"
    "dl|dt|dd|figure|figcaption|img|table|details|summary|thead|tbody|tr|th|td|svg|defs|g|path|use|text|tspan|rect|"
    "clippath|image"
)


def check(data: bytes) -> Page:
    """Well-formed, self-contained, without script, accessible."""
    page = Page(data)
    assert page.open == []
    assert all(TAGS.fullmatch(tag) for tag, _ in page.elements)
    for tag, attributes in page.elements:
        assert not any(name.startswith("on") for name in attributes), (tag, attributes)
        for name in ("href", "src", "xlink:href"):
            value = attributes.get(name, "#")
            assert value.startswith(("#", "data:image/png;base64,")) or value == "data:,", (
                tag,
                name,
                value[:80],
            )
        assert not re.search(r"url\((?!#)", attributes.get("style", "")), attributes
    assert page.all("html") == [{"lang": "en"}]
    policies = [of["content"] for of in page.all("meta") if of.get("http-equiv") == "Content-Security-Policy"]
    assert len(policies) == 1 and "default-src 'none'" in policies[0] and "script-src" not in policies[0]
    assert any(of.get("name") == "viewport" for of in page.all("meta"))
    for image in page.all("img"):
        assert image["alt"].strip()
    # Drawings are named by the figure that holds them.
    assert all(drawing["aria-hidden"] == "true" for drawing in page.all("svg"))
    named = [of for of in page.all("div") if of.get("role") == "img"]
    assert all(of["aria-label"].strip() for of in named)
    levels = [int(tag[1]) for tag, _ in page.elements if re.fullmatch(r"h\d", tag)]
    assert levels[0] == 1 and levels.count(1) == 1
    assert all(after <= before + 1 for before, after in pairwise(levels))
    # A table is named by what it folds below.
    assert len(page.all("summary")) == len(page.all("details")) >= len(page.all("table"))
    assert all(head["scope"] in ("col", "row") for head in page.all("th"))
    ids = [attributes["id"] for _, attributes in page.elements if "id" in attributes]
    assert len(set(ids)) == len(ids)
    targets = {of["href"][1:] for of in page.all("a")} | {of["href"][1:] for of in page.all("use")}
    targets |= set(re.findall(r"url\(#([^)]+)\)", data.decode()))
    assert targets <= set(ids)
    return page
