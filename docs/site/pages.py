"""What the site adds to pages of the repository: its contents, anchors in the glossary, links to them, and
notebooks as pages."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

_TERM = re.compile(r"(\*{1,2})([^*\n]+)\1(?=[:;,]| \()")
"""A term of the glossary: **one that links there**, or *one that does not*."""


def with_contents(text: str) -> str:
    """A page with the pages that it links below each of its headings as that heading's part of the site's contents."""
    sections = re.split(r"^(?=## )", text, flags=re.M)
    return "\n".join(f"{section}\n{_toctree(section)}" for section in sections)


def _toctree(section: str) -> str:
    heading = re.match(r"## (.+)", section)
    pages = re.findall(r"\[([^]]+)\]\(([^)#:]+)\.(?:md|ipynb)\)", section)
    caption = [f":caption: {heading[1]}"] if heading else []
    # A link whose text is a file's name gives no title: the page's own heading is one.
    titled = ((" ".join(title.split()), path) for title, path in pages)
    entries = [path if title.endswith(".md") else f"{title} <{path}>" for title, path in titled]
    return "\n".join(["```{toctree}", ":hidden:", *caption, "", *entries, "```", ""]) if pages else ""


def with_anchors(text: str) -> str:
    """The glossary with an anchor at each term, which the search looks for first."""
    return _TERM.sub(lambda term: _anchored(*term.groups()), text)


def _anchored(mark: str, term: str) -> str:
    return f"[{mark}{{index}}`{term} <!{term}>`{mark}]{{#{_anchor(term)}}}"


def _anchor(term: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", term.lower()).strip("-")


def linked_terms(glossary: str) -> dict[str, str]:
    """Term -> its anchor, of the terms that other pages link."""
    return {term: _anchor(term) for mark, term in _TERM.findall(glossary) if mark == "**"}


def with_first_uses(text: str, unseen: dict[str, str]) -> Iterator[tuple[str, str]]:
    """The parts of a text, each with the anchor of its term, or "". unseen: terms that the page has not used so far.
    Terms that the text uses are taken from it."""
    words = "|".join(
        f"[{term[0].upper()}{term[0]}]{re.escape(term[1:])}s?"
        for term in sorted(unseen, key=len, reverse=True)
    )
    end = 0
    for use in re.finditer(rf"\b(?:{words})\b", text) if unseen else ():
        found = (use[0], use[0].removesuffix("s"))
        terms = (form for word in found for form in (word, word[0].lower() + word[1:]) if form in unseen)
        if term := next(terms, None):
            yield text[end : use.start()], ""
            yield use[0], unseen.pop(term)
            end = use.end()
    yield text[end:], ""


def with_tables(text: str) -> str:
    """A page whose Mermaid graphs of names and arrows are tables, since the site draws none."""
    return re.sub(r"```mermaid\n(.*?)```", _arrows, text, flags=re.S)


def _arrows(graph: re.Match[str]) -> str:
    part, parts, read_by = "", dict[str, str](), dict[str, list[str]]()
    for line in map(str.strip, graph[1].splitlines()):
        if arrow := re.fullmatch(r"([\w &]+)-->([\w &]+)", line):
            for name in re.findall(r"\w+", arrow[1]):
                read_by.setdefault(name, []).extend(re.findall(r"\w+", arrow[2]))
        elif subgraph := re.fullmatch(r"subgraph (\w+)", line):
            part = subgraph[1]
        elif re.fullmatch(r"\w+", line) and line != "end":
            parts[line] = part
        elif line not in ("end", "flowchart LR"):
            return graph[0]
    rows = [f"| {part} | `{name}` | {', '.join(read_by.get(name, []))} |" for name, part in parts.items()]
    return "\n".join(["| part | name | read by |", "|---|---|---|", *rows])


def of_notebook(text: str) -> str:
    """A notebook as Markdown: its cells and the outputs that are kept in it. Nothing is run."""
    parts: list[str] = []
    for cell in json.loads(text)["cells"]:
        source = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            parts.append(source)
        else:
            language = "sh" if re.search("^!", source, re.M) else "python"
            parts += [f"```{language}\n{source}\n```", *map(_output, cell["outputs"])]
    return "\n\n".join(parts)


def _output(output: dict[str, Any]) -> str:
    shown = output.get("data", {"text/plain": output.get("text", [])})
    if "image/png" in shown:
        return f"![Output of the cell above](data:image/png;base64,{''.join(shown['image/png']).strip()})"
    if "text/html" in shown:
        table = re.sub(r"<style.*?</style>|(?<=<table)[^>]*", "", "".join(shown["text/html"]), flags=re.S)
        return f"```{{raw}} html\n{table.replace('<table', '<table class=docutils')}\n```"
    return f"```text\n{''.join(shown['text/plain']).strip()}\n```"
