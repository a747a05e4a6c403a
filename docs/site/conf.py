"""Settings of the site, for Sphinx: `make docs`. The site's folders are those of the repository, so links between pages need
no translation, and a page reads the same in both."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

from pygments.lexers.special import TextLexer
from sphinx.addnodes import pending_xref

import dagster_divorder

sys.path.insert(0, str(Path(__file__).parent))

import reference

project, release = "DivOrder", dagster_divorder.__version__
extensions = ["myst_parser"]
root_doc = "docs/index"
include_patterns = ["*.md", "data/README.md", "docs/**.md", "benchmarks/**.md"]
exclude_patterns = [".*", "build", "dagster_divorder", "data/[!R]*", "deploy", "dist", "tests"]
myst_heading_anchors = 4
myst_enable_extensions = ["attrs_inline"]
highlight_language = "text"
python_maximum_signature_line_length = 80
add_module_names = False
toc_object_entries_show_parents = "hide"

html_theme = "furo"
html_title = f"DivOrder {release}"
html_static_path = ["static"]
html_css_files = ["style.css"]
html_extra_path = ["root"]
html_copy_source = False
html_show_sphinx = False
html_show_copyright = False
html_use_index = False

GENERATED = {
    "docs/reference/settings": reference.settings,
    "docs/reference/command_line": reference.command_line,
    "docs/reference/python": reference.python,
}
"""Page -> what is added at its end."""


def with_contents(text: str) -> str:
    """A page with the pages that it links below each of its headings as that heading's part of the site's contents."""
    sections = re.split(r"^(?=## )", text, flags=re.M)
    return "\n".join(f"{section}\n{_toctree(section)}" for section in sections)


def _toctree(section: str) -> str:
    heading = re.match(r"## (.+)", section)
    pages = re.findall(r"\[([^]]+)\]\(([^)#:]+)\.md\)", section)
    caption = [f":caption: {heading[1]}"] if heading else []
    # The text of a link between backticks, a file's name, is no title.
    entries = [path if title.endswith(".md") else f"{title} <{path}>" for title, path in pages]
    return "\n".join(["```{toctree}", ":hidden:", *caption, "", *entries, "```", ""]) if pages else ""


def with_anchors(text: str) -> str:
    """The glossary with an anchor at each term."""
    return re.sub(
        r"\*\*([^*]+)\*\*(?=[:;]| \()",
        lambda term: f"[{term[0]}]{{#{re.sub(r'[^a-z0-9]+', '-', term[1].lower())}}}",
        text,
    )


def _complete(app: Any, page: str, source: list[str]) -> None:
    if page in ("docs/index", "docs/decisions/README"):
        source[0] = with_contents(source[0])
    elif page == "docs/glossary":
        source[0] = with_anchors(source[0])
    elif page in GENERATED:
        source[0] += "\n" + GENERATED[page]()


def _unlink_folders(app: Any, document: Any) -> None:
    """Links to folders of the repository become text: the site holds pages and files alone."""
    for link in list(document.findall(pending_xref)):
        if Path(document["source"]).parent.joinpath(link["reftarget"]).is_dir():
            link.replace_self(link.children)


def setup(app: Any) -> None:
    app.add_lexer("mermaid", TextLexer)
    app.connect("source-read", _complete)
    app.connect("doctree-read", _unlink_folders)
