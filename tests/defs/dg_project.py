"""A Dagster project as `create-dagster project` makes it, with two corpora and assets, an executor and resources of its
own around them."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from tests.conftest import topic_records, write_jsonl
from tests.defs.conftest import BINARIES, CONFIG

PYPROJECT = """
[project]
name = "shop"
requires-python = ">=3.10,<3.15"
version = "0.1.0"

[tool.dg]
directory_type = "project"

[tool.dg.cli]
suppress_warnings = ["project_and_activated_venv_mismatch"]

[tool.dg.project]
root_module = "shop"
registry_modules = ["shop.components.*"]
"""
DEFINITIONS = """
from pathlib import Path

from dagster import definitions, load_from_defs_folder


@definitions
def defs():
    return load_from_defs_folder(path_within_project=Path(__file__).parent)
"""
AROUND = """
from pathlib import Path

import dagster as dg

from dagster_divorder import load_results
from dagster_divorder.readers.export import open_export

DATA = Path(__file__).parents[3] / "data"


class Crawler(dg.ConfigurableResource):
    site: str

    def pages(self) -> list[str]:
        return (DATA / self.site).read_text().splitlines()


@dg.asset(group_name="crawl", kinds={"python"})
def pages(settings: Crawler) -> dg.MaterializeResult:
    lines = settings.pages()
    (DATA / "news.jsonl").write_text("\\n".join(lines) + "\\n")
    return dg.MaterializeResult(metadata={"pages": len(lines)})


@dg.asset(group_name="training", kinds={"torch"}, deps=[["news", "exports"]])
def model() -> dg.MaterializeResult:
    export = open_export(DATA.parent / "divorder/news/exports/parquet")
    return dg.MaterializeResult(metadata={"sequences": len(export)})


@dg.asset(group_name="training", deps=[["blog", "curated_output"]])
def topics() -> dg.MaterializeResult:
    documents = load_results(DATA.parent / "divorder/blog/store").documents
    return dg.MaterializeResult(metadata={"topics": documents.cluster.nunique()})


@dg.definitions
def around():
    return dg.Definitions(
        assets=[pages, model, topics],
        resources={"settings": Crawler(site="site.jsonl")},
        executor=dg.in_process_executor,
    )
"""
NEWS = """
type: dagster_divorder.DivOrderComponent

attributes:
  config: divorder.toml
  key_prefix: news
  upstream:
    raw_docs: [pages]

post_processing:
  assets:
    - target: "*"
      attributes:
        owners: ["team:news"]
"""
BLOG = """
type: dagster_divorder.DivOrderComponent

attributes:
  key_prefix: blog
  settings:
    input:
      paths: ["{{ context.project_root }}/data/blog.jsonl"]
      source_field: source
    store: {path: "{{ context.project_root }}/divorder/blog/store"}
    output: {path: "{{ context.project_root }}/divorder/blog/curated", sidecars: []}
    advanced: {vocab_size: 512, token_dims: 16}
    clusters: {k: 4}
    sequence: {length: 128, batch: 4}
"""
NEWS_SETTINGS = (
    CONFIG.replace('"docs.jsonl"', '"../../../../../data/news.jsonl"')
    .replace('"store"', '"../../../../../divorder/news/store"')
    .replace('"curated"', '"../../../../../divorder/news/curated"')
    + """
[exports]
formats = ["parquet"]
path = "../../../../../divorder/news/exports"
"""
)


def make_project(root: Path) -> Path:
    """The project in a folder; the folder of its defs."""
    files = {
        "pyproject.toml": PYPROJECT,
        "src/shop/__init__.py": "",
        "src/shop/components/__init__.py": "",
        "src/shop/definitions.py": DEFINITIONS,
        "src/shop/defs/__init__.py": "",
        "src/shop/defs/around.py": AROUND,
        "src/shop/defs/corpora/news/defs.yaml": NEWS,
        "src/shop/defs/corpora/news/divorder.toml": NEWS_SETTINGS,
        "src/shop/defs/corpora/blog/defs.yaml": BLOG,
    }
    for name, content in files.items():
        file = root / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(content)
    (root / "data").mkdir()
    write_jsonl(root / "data/site.jsonl", topic_records(30))
    write_jsonl(root / "data/blog.jsonl", topic_records(20))
    return root / "src/shop/defs"


def dg_command(root: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """A command of `dg` in a project that is on the path, as an installed one is."""
    own = {
        name: value for name, value in os.environ.items() if not name.startswith(("DAGSTER_", "DIVORDER_"))
    }
    path = os.pathsep.join([str(root / "src"), *filter(None, [own.get("PYTHONPATH")])])
    return subprocess.run(
        [str(BINARIES / "dg"), *arguments],
        capture_output=True,
        text=True,
        cwd=root,
        env={**own, "PYTHONPATH": path, "DAGSTER_DISABLE_TELEMETRY": "1", "COLUMNS": "300"},
    )
