"""What decides a stage's result is what its key is made of: generated over all fields of the settings.

A field that changes the bytes of a stage's result changes the stage's key, whatever its value. Keys hold whole sections
of settings, so cheap stages are also computed again for fields that change nothing; costly ones are not. Every stage is
computed from nothing under each value.
"""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dagster_divorder import load_settings, run_all
from dagster_divorder.engine.progress import Silent
from dagster_divorder.errors import DivOrderError
from dagster_divorder.models import bootstrap
from dagster_divorder.pipeline.fit import PinnedFit
from dagster_divorder.pipeline.run import Run
from dagster_divorder.pipeline.stage import PerDocument, Stage
from dagster_divorder.settings import Settings
from dagster_divorder.stages import GRAPH, open_run
from dagster_divorder.store.arrays import unpack, unpack_table
from tests.conftest import is_long, topic_records, write_jsonl
from tests.law.test_totality import GIVEN, candidates, environment, fields, with_given

VALUES = 2
"""Of each field, at most so many that the settings accept; one will do where it changes every stage that it is in the
key of, and `make test-long` tries all of them."""


def corpus(folder: Path) -> None:
    # Words of their own, so that a vocabulary is filled and a random projection has something to choose from.
    random = np.random.default_rng(0)
    records = [
        {
            **record,
            "text": record["text"] + "".join(f" {word}" for word in random.integers(0, 4000, 20)),
            "page": number % 3,
        }
        for number, record in enumerate(topic_records(30))
    ]
    records += records[:3]
    write_jsonl(folder / "docs.jsonl", records)


def settings_of(folder: Path, name: str, *changes: tuple[str, Any]) -> Settings:
    (folder / "divorder.toml").write_text(
        f"""
        input = {{ paths = ["docs.jsonl"], source_field = "source", max_reject_share = 0.9 }}
        store = {{ path = "{name}" }}
        output = {{ path = "{name}-out", sidecars = [] }}
        advanced = {{ vocab_size = 512, token_dims = 8, decoder_tokens = 2000 }}
        clusters = {{ k = 4 }}
        order = {{ frozen_tokens = 0, length_bins = 5, traits = {{ cluster = 1, length = 1, source = 1, page = 1 }} }}
        sequence = {{ length = 64, batch = 4, vectors = 8 }}
        exports = {{ formats = ["olmo", "parquet"], path = "{name}-exports" }}
        """
    )
    return load_settings(folder / "divorder.toml", environment(*changes))


Result = tuple[str, dict[str, str]]
"""What a result is filed under, and hashes of its parts: of the fragments of a per-document one."""


def results(settings: Settings) -> dict[str, Result]:
    """Of every stage that an output needs."""
    run_all(settings, Silent())
    run = open_run(settings)
    return {name: _result(run, GRAPH[name]) for name in GRAPH.needed(settings)}


def _result(run: Run, stage: Stage) -> Result:
    receipt = run.receipt(stage.name)
    # The key of raw_docs is that of its fragments, which other input shares.
    key = receipt.version if stage.name == "raw_docs" else receipt.key
    if stage.name == "raw_docs":  # its view holds the times of files
        return key, {"": receipt.version}
    if isinstance(stage, PerDocument):
        files = stage.files(run, receipt.key).present()
        return key, {
            fragment: _hash_of(run.store.read_verified(file), file) for fragment, file in files.items()
        }
    if isinstance(stage, PinnedFit):
        fit = run.fit(stage.name)
        return key, {"": _hash(*(name.encode() + data for name, data in sorted(fit.items())))}
    if stage.name == "curated_output":
        paths = [
            path for path in sorted(run.settings.output.path.iterdir()) if path.name != "curated_meta.json"
        ]
        return key, {"": _hash(*(path.name.encode() + path.read_bytes() for path in paths))}
    files = sorted(receipt.files.items())
    return key, {"": _hash(*(name.encode() + run.store.read_verified(file) for name, file in files))}


def _hash_of(data: bytes, file: str) -> str:
    """Of the arrays or the table, since the file names the folder that it lies in."""
    if file.endswith(".arrow"):
        return _hash(unpack_table(data).to_pandas().to_csv().encode())
    return _hash(*(name.encode() + array.tobytes() for name, array in sorted(unpack(data).items())))


def _hash(*parts: bytes) -> str:
    return hashlib.sha256(b"\0".join(parts)).hexdigest()


COSTLY = {"base_model", "token_counts", "centroids", "bin_edges"}
"""Stages that take long, or on which all later ones depend. (tests/test_settings.py has those of vectors.)"""
PATHS = ("curriculum.path", "input.paths", "store.path", "output.path", "exports.path")
SECTIONS = sorted({name.partition(".")[0] for name, _ in fields()})


def changes_of(section: str, base: Settings) -> Iterator[tuple[str, list[Any]]]:
    for name, values in fields():
        if name.partition(".")[0] == section and name not in PATHS:
            here: Any = base
            for part in name.split("."):
                here = getattr(here, part)
            yield name, candidates(values, here)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A corpus, of which the tokenizer sees a part, drawn from the seed, as of a larger one."""
    folder = tmp_path_factory.mktemp("decide")
    corpus(folder)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(bootstrap, "TOKENIZER_BYTES", 4000)
        yield folder


@pytest.fixture(scope="module")
def base(folder: Path) -> dict[str, Result]:
    """The results of the settings that are changed, a field at a time."""
    return results(settings_of(folder, "base"))


def keyed_stages(settings: Settings, base: Settings) -> set[str]:
    """Stages that have other settings in their fingerprint, or read other stages."""
    return {
        name
        for name, stage in GRAPH.items()
        if stage.fingerprint(settings) != stage.fingerprint(base)
        or stage.reads_under(settings) != stage.reads_under(base)
    }


@pytest.fixture(scope="module")
def idle(folder: Path, base: dict[str, Result]) -> set[str]:
    """Sections that have no field in a key of `base`, and leave its results as they are, all fields changed at once."""
    base_settings = settings_of(folder, "base")
    changes: list[tuple[str, Any]] = []
    sections = set()
    for section in SECTIONS:
        chosen = []
        for name, values in changes_of(section, base_settings):
            for value in values:
                with suppress(DivOrderError):
                    changed = settings_of(folder, "base", *with_given((name, value)))
                    chosen.append((name, value, keyed_stages(changed, base_settings)))
                    break
        if all(base.keys().isdisjoint(keyed) for _, _, keyed in chosen):
            sections.add(section)
            changes += [(name, value) for name, value, _ in chosen]
    return sections if results(settings_of(folder, "idle", *changes)) == base else set()


@pytest.mark.parametrize("section", SECTIONS)
def test_a_field_is_in_the_key_of_a_stage_where_it_decides_its_result(
    section: str, folder: Path, base: dict[str, Result], idle: set[str]
) -> None:
    if section in idle and not is_long():
        return
    if given := GIVEN.get(section, []):
        base = results(settings_of(folder, f"base-{section}", *given))
    base_settings = settings_of(folder, "base", *given)
    stale: list[str] = []
    in_vain: dict[tuple[str, str], list[bool]] = defaultdict(list)
    costly: dict[tuple[str, str], list[bool]] = defaultdict(list)
    for name, values in changes_of(section, base_settings):
        tried = 0
        for number, value in enumerate(values):
            if tried >= VALUES:
                break
            try:
                changes = with_given((name, value))
                settings = settings_of(folder, f"{name}-{number}".replace(".", "-"), *changes)
                found = results(settings)
            except DivOrderError:
                continue
            there = base.keys() & found.keys()
            keyed = {
                name
                for name in there
                if GRAPH[name].fingerprint(settings) != GRAPH[name].fingerprint(base_settings)
            }
            for stage in there:
                key, parts = found[stage]
                base_key, base_parts = base[stage]
                changed = any(base_parts.get(part, content) != content for part, content in parts.items())
                # Of another corpus a fit is another one too; in one store it would be kept.
                other_corpus = isinstance(GRAPH[stage], PinnedFit) and found["raw_docs"] != base["raw_docs"]
                if changed and key == base_key and not other_corpus:
                    stale.append(f"{name} = {value!r} changes {stage}, and not its key")
                reads = {*GRAPH[stage].reads_under(settings)} & there - {"raw_docs"}
                if stage in COSTLY and key != base_key and all(found[read] == base[read] for read in reads):
                    costly[name, stage].append(parts != base_parts)
                if stage in keyed:
                    in_vain[name, stage].append(parts != base_parts)
            settled = all(any(of) for (field, _), of in in_vain.items() if field == name)
            tried += VALUES if settled and not is_long() else 1
    assert not stale
    over = [f"{name} is in the key of {stage}" for (name, stage), of in costly.items() if not any(of)]
    assert not over, "\n".join(over)
