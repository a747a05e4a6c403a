"""Settings of the site, for Sphinx: `make docs`. The site has the folders of the repository, so that links between
pages lead to the same place in both."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from docutils import nodes
from pygments.lexers.special import TextLexer
from sphinx.addnodes import desc, pending_xref

import dagster_divorder

sys.path.insert(0, str(Path(__file__).parent))

import pages
import reference

project, release = "DivOrder", dagster_divorder.__version__
extensions = ["myst_parser"]
root_doc = "docs/index"
source_suffix = {".md": "markdown", ".ipynb": "markdown"}
include_patterns = ["*.md", "data/README.md", "docs/**.md", "docs/notebooks/*.ipynb", "benchmarks/**.md"]
exclude_patterns = [".*", "build", "dagster_divorder", "data/[!R]*", "deploy", "dist", "tests"]
myst_heading_anchors = 4
myst_enable_extensions = ["attrs_inline"]
highlight_language = "text"
python_maximum_signature_line_length = 80
smartquotes = False
add_module_names = False
toc_object_entries_show_parents = "hide"

html_theme = "furo"
html_title = f"DivOrder {release}"
html_static_path = ["static"]
html_css_files = ["style.css"]
html_extra_path = ["root"]
html_search_scorer = str(Path(__file__).with_name("scorer.js"))
html_copy_source = False
html_show_sphinx = False
html_show_copyright = False
html_use_index = False

GENERATED = {
    "docs/reference/settings": reference.settings,
    "docs/reference/command_line": reference.command_line,
    "docs/reference/python": reference.python,
    "docs/reference/manifests": reference.manifests,
}
"""Page -> what is added at its end."""
GLOSSARY = "docs/glossary"
NOT_RUNNING_TEXT = (nodes.reference, nodes.literal, nodes.FixedTextElement, nodes.table, desc)


def _complete(app: Any, page: str, source: list[str]) -> None:
    if page.startswith("docs/notebooks/"):
        source[0] = pages.of_notebook(source[0])
    elif page in ("docs/index", "docs/decisions/README"):
        source[0] = pages.with_contents(source[0])
    elif page == GLOSSARY:
        source[0] = pages.with_anchors(source[0])
    elif page in GENERATED:
        source[0] += "\n" + GENERATED[page]()
    source[0] = pages.with_tables(source[0])


def _unlink_folders(app: Any, document: Any) -> None:
    """Links to folders of the repository become text: the site holds pages and files alone."""
    for link in list(document.findall(pending_xref)):
        target = Path(document["source"]).parent / link["reftarget"]
        # The target of a link to a page has no suffix here.
        if target.is_dir() and not target.with_suffix(".md").is_file():
            link.replace_self(link.children)


def _link_terms(app: Any, document: Any, page: str) -> None:
    """Links the first use of each term in the running text of a page to the glossary."""
    if page == GLOSSARY or page in GENERATED or app.builder.format != "html":
        return
    unseen = pages.linked_terms(Path(app.srcdir, f"{GLOSSARY}.md").read_text())
    glossary = app.builder.get_relative_uri(page, GLOSSARY)
    for text in [
        text for paragraph in document.findall(nodes.paragraph) for text in paragraph.findall(nodes.Text)
    ]:
        if not any(isinstance(around, NOT_RUNNING_TEXT) for around in _around(text)):
            text.parent.replace(
                text,
                [
                    nodes.reference("", part, refuri=f"{glossary}#{anchor}", internal=True, classes=["term"])
                    if anchor
                    else nodes.Text(part)
                    for part, anchor in pages.with_first_uses(text.astext(), unseen)
                    if part
                ],
            )


def _around(node: Any) -> Iterator[Any]:
    while node := node.parent:
        yield node


def _write_schemas(app: Any, error: Exception | None) -> None:
    written = error is None and app.builder.format == "html"
    for name, schema in reference.schemas().items() if written else ():
        Path(app.outdir, f"docs/reference/{name}.schema.json").write_text(json.dumps(schema, indent=2))


def setup(app: Any) -> None:
    app.add_lexer("mermaid", TextLexer)
    app.connect("source-read", _complete)
    app.connect("doctree-read", _unlink_folders)
    app.connect("doctree-resolved", _link_terms)
    app.connect("build-finished", _write_schemas)
