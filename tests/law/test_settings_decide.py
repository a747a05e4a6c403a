"""What decides a stage's result is what its key is made of: generated over all fields of the settings.

A field that changes the bytes of a stage's result changes the stage's key, whatever its value; and one that changes the
fingerprint of a stage changes its bytes for some value. Every stage is computed from nothing under each value.
"""

from __future__ import annotations

import hashlib
import math
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dagster_divorder import load_settings, run_all
from dagster_divorder.engine.progress import Silent
from dagster_divorder.errors import DivOrderError
from dagster_divorder.models import bootstrap
from dagster_divorder.pipeline.run import Run
from dagster_divorder.pipeline.stage import ABOUT, FITTED, PerDocument, PinnedFit, Stage
from dagster_divorder.settings import Settings
from dagster_divorder.stages import GRAPH
from dagster_divorder.store.arrays import unpack, unpack_table
from dagster_divorder.store.fits import Fit, read_fit
from dagster_divorder.store.local import LocalStore
from tests.conftest import topic_records, write_jsonl
from tests.law.test_totality import BY_HAND, environment, fields

VALUES = 3
"""Of each field, at most so many that the settings accept."""


def candidates(values: list[Any], here: Any) -> list[Any]:
    """The values of a field that are most likely to be accepted and to make a difference: small ones."""

    def size(value: Any) -> float:
        if isinstance(value, bool) or not isinstance(value, int | float):
            return 0
        return abs(math.log(abs(value) + 1e-9)) if math.isfinite(value) else math.inf

    return sorted((value for value in values if value != here), key=size)


def corpus(folder: Path) -> None:
    # Words of their own, so that a vocabulary is filled and a random projection has something to choose from.
    random = np.random.default_rng(0)
    records = [
        {**record, "text": record["text"] + "".join(f" {word}" for word in random.integers(0, 4000, 20))}
        for record in topic_records(30)
    ]
    records += records[:3]
    write_jsonl(folder / "docs.jsonl", records)


def settings_of(folder: Path, name: str, *changes: tuple[str, Any]) -> Settings:
    (folder / "divorder.toml").write_text(
        f"""
        input = {{ paths = ["docs.jsonl"], source_field = "source", max_reject_share = 0.9 }}
        store = {{ path = "{name}" }}
        output = {{ path = "{name}-out", plot = false }}
        model = {{ vocab_size = 512, dim = 8 }}
        clusters = {{ k = 4 }}
        order = {{ length_bins = 5, traits = {{ cluster = 1.0, length = 1.0, source = 1.0 }} }}
        sequence = {{ length = 64, batch = 4, vectors = 8 }}
        """
    )
    return load_settings(folder / "divorder.toml", environment(*changes))


def results(settings: Settings) -> dict[str, tuple[str, str]]:
    """(key, hash of the result) of every stage that an output needs."""
    run_all(settings, Silent())
    run = Run(settings, LocalStore(settings.store.path), Silent())
    return {name: (run.receipt(name).key, _content(run, GRAPH[name])) for name in GRAPH.needed(settings)}


def _content(run: Run, stage: Stage) -> str:
    digest = hashlib.sha256()
    receipt = run.receipt(stage.name)
    if isinstance(stage, PerDocument):
        for fragment, file in sorted(stage.files(run, receipt.key).present().items()):
            data = run.store.unseal(file)
            digest.update(fragment.encode())
            if file.endswith(".arrow"):
                digest.update(unpack_table(data).to_pandas().to_csv().encode())
            else:
                for name, array in sorted(unpack(data).items()):
                    digest.update(name.encode() + array.tobytes())
    elif isinstance(stage, PinnedFit):
        for name, data in sorted(read_fit(run.store, Fit(stage.name, receipt.version, "")).items()):
            digest.update(name.encode() + (b"" if name == FITTED else data))
    elif stage.name == "curated_output":
        for path in sorted(run.settings.output.path.iterdir()):
            if path.name != "curated_meta.json":
                digest.update(path.name.encode() + path.read_bytes())
    else:
        for name, file in sorted(receipt.files.items()):
            digest.update(name.encode() + (b"" if name == ABOUT else run.store.unseal(file)))
    return digest.hexdigest()


SECTIONS = sorted({name.partition(".")[0] for name, _ in fields()})


def changes_of(section: str, base: Settings) -> Iterator[tuple[str, list[Any]]]:
    for name, values in fields():
        if name.partition(".")[0] == section and name not in ("input.paths", "store.path", "output.path"):
            here: Any = base
            for part in name.split("."):
                here = getattr(here, part)
            yield name, candidates(BY_HAND.get(name, values), here)


@pytest.mark.parametrize("section", SECTIONS)
def test_a_field_is_in_the_key_of_a_stage_where_it_decides_its_result(
    section: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Of a larger corpus the tokenizer sees a part, drawn from the seed.
    monkeypatch.setattr(bootstrap, "TOKENIZER_BYTES", 4000)
    corpus(tmp_path)
    base_settings = settings_of(tmp_path, "base")
    base = results(base_settings)
    stale: list[str] = []
    in_vain: dict[tuple[str, str], list[bool]] = defaultdict(list)
    for name, values in changes_of(section, base_settings):
        tried = 0
        for number, value in enumerate(values):
            if tried == VALUES:
                break
            try:
                settings = settings_of(tmp_path, f"{name}-{number}".replace(".", "-"), (name, value))
                found = results(settings)
            except DivOrderError:
                continue
            tried += 1
            for stage, (key, content) in found.items():
                if stage not in base:
                    continue
                # Of another corpus a fit is another one too; in one store it would be kept.
                other_corpus = isinstance(GRAPH[stage], PinnedFit) and found["raw_docs"] != base["raw_docs"]
                if content != base[stage][1] and key == base[stage][0] and not other_corpus:
                    stale.append(f"{name} = {value!r} changes {stage}, and not its key")
                if GRAPH[stage].fingerprint(settings) != GRAPH[stage].fingerprint(base_settings):
                    in_vain[name, stage].append(content != base[stage][1])
    assert not stale
    over = [f"{name} is in the key of {stage}" for (name, stage), of in in_vain.items() if not any(of)]
    assert not over, "\n".join(over)
