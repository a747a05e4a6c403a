"""What the site adds to pages of the repository: its contents, anchors in the glossary, and notebooks as pages."""

from __future__ import annotations

import json
import re
from typing import Any


def with_contents(text: str) -> str:
    """A page with the pages that it links below each of its headings as that heading's part of the site's contents."""
    sections = re.split(r"^(?=## )", text, flags=re.M)
    return "\n".join(f"{section}\n{_toctree(section)}" for section in sections)


def _toctree(section: str) -> str:
    heading = re.match(r"## (.+)", section)
    pages = re.findall(r"\[([^]]+)\]\(([^)#:]+)\.(?:md|ipynb)\)", section)
    caption = [f":caption: {heading[1]}"] if heading else []
    # A link whose text is a file's name gives no title: the page's own heading is one.
    entries = [path if title.endswith(".md") else f"{title} <{path}>" for title, path in pages]
    return "\n".join(["```{toctree}", ":hidden:", *caption, "", *entries, "```", ""]) if pages else ""


def with_anchors(text: str) -> str:
    """The glossary with an anchor at each term, which the search looks for first."""
    return re.sub(r"\*\*([^*]+)\*\*(?=[:;]| \()", _anchored, text)


def _anchored(term: re.Match[str]) -> str:
    anchor = re.sub(r"[^a-z0-9]+", "-", term[1].lower()).strip("-")
    return f"[**{{index}}`{term[1]} <!{term[1]}>`**]{{#{anchor}}}"


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
