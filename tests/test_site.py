"""The site's sources are whole: contents, links, reference. `make docs` builds the site from them."""

from __future__ import annotations

import json
import re
import shlex
import sys
import tomllib
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import jsonschema
import pytest
from pydantic import BaseModel, TypeAdapter

import dagster_divorder
import dagster_divorder.torch
from dagster_divorder.cli import GROUPS, command_parser
from dagster_divorder.settings import Settings, load_settings
from dagster_divorder.stages import run_all
from tests.conftest import ROOT, topic_records, write_jsonl

sys.path.insert(0, str(Path(__file__).parent.parent / "docs/site"))

import example
import pages
import reference

PAGES = sorted(
    [
        *ROOT.glob("*.md"),
        ROOT / "data/README.md",
        *(ROOT / "docs").rglob("*.md"),
        *(ROOT / "benchmarks").rglob("*.md"),
    ]
)
CONTENTS = [ROOT / "docs/index.md", ROOT / "docs/decisions/README.md"]
GENERATED = {
    ROOT / "docs/reference/settings.md": reference.settings,
    ROOT / "docs/reference/command_line.md": reference.command_line,
    ROOT / "docs/reference/python.md": reference.python,
    ROOT / "docs/reference/manifests.md": reference.manifests,
}


def name(page: Path) -> str:
    return str(page.relative_to(ROOT))


def without_code(text: str) -> str:
    return re.sub(r"^(`{3,}).*?^\1|`[^`\n]*`|^ {4}.*?$", "", text, flags=re.M | re.S)


def anchors(page: Path) -> set[str]:
    """Anchors of a page: of its headings as GitHub and as the site have them, and of terms of the glossary."""
    text = page.read_text() + (GENERATED[page]() if page in GENERATED else "")
    headings = re.findall(r"^#+ (.+)$", re.sub(r"^(`{3,}).*?^\1", "", text, flags=re.M | re.S), re.M)
    as_github = {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}
    as_site = {re.sub(r"[^a-z0-9]+", "-", heading.lower()).strip("-") for heading in headings}
    return as_github | as_site | set(re.findall(r"\]\{#([^}]+)\}", pages.with_anchors(text)))


def test_every_page_is_in_the_contents() -> None:
    entries = [
        (page.parent / target).resolve()
        for page in CONTENTS
        for toctree in re.findall(r"```\{toctree\}.*?```", pages.with_contents(page.read_text()), re.S)
        for target in re.findall(r"^(?!:)(?:.*<)?([\w./-]+)>?$", toctree, re.M)
    ]
    sources = {*PAGES, *(ROOT / "docs/notebooks").glob("*.ipynb")} - {CONTENTS[0]}
    assert sorted(map(name, entries)) == sorted(name(page.with_suffix("")) for page in sources)


def test_pages_that_the_code_names_are_there() -> None:
    sources = [*(ROOT / "dagster_divorder").rglob("*.py"), *(ROOT / "tests").rglob("*.py"), ROOT / "Makefile"]
    named = {
        page: source for source in sources for page in re.findall(r"\bdocs/[\w/-]+\.md", source.read_text())
    }
    assert named
    assert {page: name(source) for page, source in named.items() if not (ROOT / page).is_file()} == {}


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_links_lead_somewhere(page: Path) -> None:
    for path, anchor in re.findall(
        r"\]\((?!https?:)([^)#\s]*)(?:#([^)\s]+))?\)", without_code(page.read_text())
    ):
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), f"{path} of {name(page)}"
        assert not anchor or anchor in anchors(target), f"{path}#{anchor} of {name(page)}"


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_no_words_are_taken_for_html_or_for_bold(page: Path) -> None:
    prose = without_code(page.read_text())
    assert not re.findall(r"</?[a-z][\w-]*(?:\s[^<>,]*)?/?>", prose)
    assert not re.findall(r"\w\*\*\w[^*\n]*\*\*\w", prose)


COMMANDS = {
    line: page
    for page in PAGES
    for block in re.findall(r"^```(?:console|sh)\n(.*?)^```", page.read_text(), re.M | re.S)
    for line in re.findall(r"^\$ (?:\S*/)?(divorder .*)$", block, re.M)
}


@pytest.mark.parametrize("command", COMMANDS)
def test_commands_on_pages_have_only_options_that_exist(command: str) -> None:
    assert command_parser().parse_args(shlex.split(command, comments=True)[1:])


BY_INIT = {"order": {"traits": {"cluster": 1.0, "length": 1.0, "source": 1.0}}}
SET_BEFORE = {"docs/recipes.md": BY_INIT, "docs/sections.md": BY_INIT}
"""Page -> settings that its blocks are added to."""
SETTINGS = [
    pytest.param(block, SET_BEFORE.get(name(page), {}), id=f"{name(page)}-{at}")
    for page in PAGES
    for at, block in enumerate(re.findall(r"^```toml\n(.*?)^```", page.read_text(), re.M | re.S))
]


@pytest.mark.parametrize(("block", "before"), SETTINGS)
def test_settings_on_pages_can_be_loaded(block: str, before: dict) -> None:
    added = tomllib.loads(block)
    Settings(**added | {section: keys | added.get(section, {}) for section, keys in before.items()})


QUESTIONS = {
    "Is it worth it for me?": "proof.md",
    "I train with torchtitan on 8 GPUs": "trainers/torchtitan.md",
    "I have embeddings of my own model": "clusters_of_documents.md",
    "I appended 1 %: what is recomputed, and do trained batches stay?": "reruns.md#measured",
    "What is a prefix deviation?": "concepts.md#prefix-deviation",
    "500 GB: how long, and on what?": "decisions/engine.md",
    "My corpus has no sources": "recipes.md#my-corpus-has-several-languages",
    "My documents are longer than a sequence": "concepts.md#packing",
    "I have a quality score of my own": "sections.md#along-a-score",
    "I resume on another number of ranks": "trainers.md#in-pytorch",
    "A document must go": "recipes.md#my-loss-has-a-spike",
}
"""What a user asks first -> where the answer leads on to."""


def test_every_question_has_its_answer_on_one_page() -> None:
    _, *parts = re.split(r"^## (.+)\n", (ROOT / "docs/questions.md").read_text(), flags=re.M)
    answers = dict(zip(parts[::2], parts[1::2], strict=True))
    assert list(answers) == list(QUESTIONS)
    for question, target in QUESTIONS.items():
        assert f"]({target})" in answers[question].replace("\n", " "), question


def test_the_reference_has_every_setting_with_its_effect() -> None:
    keys, section = set(), ""
    for line in (ROOT / "divorder.example.toml").read_text().splitlines():
        if table := re.fullmatch(r"\[(\w+)\]", line):
            section = f"{table[1]}."
        else:
            with suppress(tomllib.TOMLDecodeError):
                keys |= {f"{section}{key}" for key in tomllib.loads(line.removeprefix("# "))}
    described = re.findall(
        r"^##+ `([\w.]+)`\n\n(.+)\. Default: (?:unset|`.+?`)\..* Variable: `(\w+)`\.\n\n(.*)",
        reference.settings(),
        re.M,
    )
    assert {key for key, *_ in described} == keys
    for key, kind, variable, effect in described:
        assert kind and variable == f"DIVORDER_{key.upper().replace('.', '__')}"
        # The section says what its keys have in common.
        assert effect or key.startswith("refit.")


def test_the_reference_has_every_verb_and_option(capsys: pytest.CaptureFixture[str]) -> None:
    _, *verbs = re.split(r"^### `divorder (\S+)`$", reference.command_line(), flags=re.M)
    shown = dict(zip(verbs[::2], verbs[1::2], strict=True))
    assert list(shown) == [verb.name for group in GROUPS.values() for verb in group]
    for verb, text in shown.items():
        with pytest.raises(SystemExit):
            command_parser().parse_args([verb, "--help"])
        options = set(re.findall(r"^  (--[\w-]+)", capsys.readouterr().out, re.M)) - {"--config", "--json"}
        assert set(re.findall(r"^- `(--[\w-]+)", text, re.M)) == options


@pytest.mark.slow
@pytest.mark.parametrize(
    "module", [dagster_divorder, dagster_divorder.torch], ids=lambda module: module.__name__
)
def test_the_reference_has_every_public_name(module) -> None:
    text = reference.python().split(f"\n## `{module.__name__}`\n")[1].split("\n## ")[0]
    named = re.findall(r"^`{6}\{py:(?:class|function)\} (\w+)", text, re.M)
    assert sorted(named) == sorted(module.__all__) and " at 0x" not in text
    assert module is not dagster_divorder or named[:4] == ["order", "reorder", "compare", "balance"]


@pytest.mark.slow
def test_manifests_have_the_keys_of_their_schema(
    tmp_path: Path, make_settings: Callable[..., Settings]
) -> None:
    write_jsonl(tmp_path / "docs.jsonl", topic_records(20))
    formats = ("parquet", "megatron", "olmo", "ds", "mds", "litdata")
    run_all(make_settings(exports={"path": tmp_path / "exports", "formats": formats}))
    files = {"curated_meta": [tmp_path / "curated/curated_meta.json"]}
    files["export_manifest"] = sorted((tmp_path / "exports").glob("_*/manifest.json"))
    assert len(files["export_manifest"]) == len(formats)
    for kind, schema in reference.schemas().items():
        for file in files[kind]:
            manifest = json.loads(file.read_text())
            jsonschema.validate(manifest, schema)
            assert not manifest.keys() - schema["properties"].keys(), file
            with pytest.raises(jsonschema.ValidationError):
                jsonschema.validate({**manifest, "seed": "0"}, schema)


def test_terms_of_the_glossary_are_in_the_order_of_the_alphabet() -> None:
    glossary = (ROOT / "docs/glossary.md").read_text()
    terms = [term.lower() for term in re.findall(r"^- \*+([^*]+)\*", glossary, re.M)]
    assert terms == sorted(terms) and 40 < len(terms) == len(set(terms)) <= 60
    for first, last, part in re.findall(r"^## (\w) to (\w)\n(.*?)(?=^## |\Z)", glossary, re.M | re.S):
        assert all(first <= term[0].upper() <= last for term in re.findall(r"^- \*+([^*]+)\*", part, re.M))
    assert len(pages.linked_terms(glossary)) > 30


EXAMPLE = (Path(__file__).parent.parent / "divorder.example.toml").read_text(encoding="utf-8")


def test_the_example_file_is_up_to_date() -> None:
    assert example.example() == EXAMPLE, "python docs/site/example.py > divorder.example.toml"


def test_the_example_file_holds_the_defaults_and_possible_values(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "copy.toml"
    file.write_text(EXAMPLE)
    assert load_settings(file, environ={}) == load_settings(environ={})
    for _, default in Settings():
        for field in type(default).model_fields.values() if isinstance(default, BaseModel) else ():
            for shown in field.examples or ():
                TypeAdapter(field.rebuild_annotation()).validate_python(shown)


def test_the_text_below_a_field_names_what_it_may_be() -> None:
    for section, default in Settings():
        for key, field in type(default).model_fields.items() if isinstance(default, BaseModel) else ():
            words = re.findall(r"Literal\[([^]]*)\]", str(field.annotation))
            text = EXAMPLE.partition(f"[{section}]")[2].partition(f"\n{key} =")[0]
            for word in re.findall(r"'(\w+)'", " ".join(words)):
                assert word in text, (section, key, word)
