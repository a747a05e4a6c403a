"""The settings are total: whatever value they accept runs or ends in a DivOrderError, and what they do not is said.

Values come from the fields' own types, so that a new setting is covered as soon as it is there: the edges of numbers,
every choice, and hand-picked tables.
"""

from __future__ import annotations

import json
import math
import signal
import types
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic import BaseModel

from dagster_divorder import run_all
from dagster_divorder.core.order import STRATEGIES
from dagster_divorder.engine.progress import Silent
from dagster_divorder.errors import DivOrderError, SettingsError
from dagster_divorder.settings import Settings, load_settings
from dagster_divorder.stages import GRAPH
from dagster_divorder.write.exports import FORMATS
from tests.conftest import TOPICS, examples, small_toml, topic_records, write_jsonl

SECONDS = 120
"""A run of sixty documents that takes longer hangs."""

WHOLE = (
    *(-1, 0, 1, 2, 3, 7, 61, 1000, 10**6),
    *(2**31 - 1, 2**31, 2**32 - 1, 2**32, 2**53, 2**53 + 1, 10**18, 2**63 - 1, 2**63, 2**64, 10**30),
)
REAL = (-1.0, 0.0, 5e-324, 1e-300, 1e-20, 1e-6, 1.0, 1e6, 1e20, 1e300, 1.7e308, math.inf, math.nan)


ORDERS = sorted(STRATEGIES)
SITE, OTHER = (f"{topic}.example" for topic in tuple(TOPICS)[:2])
BY_HAND: dict[str, list[Any]] = {
    "exports.trainer": [None, "hf-trainer", "trl", "torchtitan", "litdata", "megatron", "hf", ""],
    "order.options": [
        {},
        {"within_cluster": "original"},
        {"within_cluster": "nope"},
        {"shards": 3},
        {"nope": 1},
        *({"block_strategy": name} for name in ("f3", "block_shuffle", "nope", "")),
        [],
    ],
    "order.traits": [
        {},
        *({"cluster": weight} for weight in REAL),
        {"cluster": 1e-6, "length": 1e6, "score": 1.0},
        *(
            {name: 1.0}
            for name in ("", "\0", "nope", "text", "checked", "odd", "many", "const", "when", "x" * 999)
        ),
    ],
    "order.separate_copies": [True, False, "nope", 2],
    "curriculum.score": [
        *("", "\0", "score", "length", "difficulty"),
        *("checked", "const", "odd", "many", "when", "source", "text", "nope", "x" * 999),
    ],
    "mixing.trait": [
        *("", "\0", "cluster", "length", "score", "nope", "const", "odd", "when", "checked"),
        *([], ["source"], ["source", "score"]),
    ],
    "mixing.weights": [
        *("natural", "uniform", "sqrt", "unimax", "nope", "", *REAL),
        *({}, {SITE: 1.0}, {SITE: 1, "(missing)": 3.0}, {"nope": 1.0}, {SITE: 0.0}),
        *({SITE: weight, OTHER: 1.0} for weight in REAL),
    ],
    "mixing.phase": [
        [],
        [{"weights": "natural"}],
        *([{"until": end, "weights": "uniform"}, {"weights": 0.3}] for end in REAL),
        *([{"tokens": end, "weights": {SITE: 1.0}}, {"weights": "sqrt"}] for end in WHOLE),
        [{"until": 0.5, "weights": {"nope": 1.0}}, {"weights": {}}],
        [{"until": 0.5, "weights": "natural"}, {"until": 0.2, "weights": "natural"}, {"weights": "sqrt"}],
        [{"until": 0.5}],
        "natural",
    ],
    "evidence.orders": [
        [],
        ["nope"],
        ["nope/random"],
        ["curated"] * 2,
        ["stratified/nope"],
        ["curated/f3"],
        ["saw"],
    ],
    "evidence.learning_rates": [[], [0.0], [1e-3], [11.0], [math.nan], ["nope"]],
    "refit": [{}, {"clusters": "never"}, {"model": "auto"}, {"clusters": "now"}, {"nope": "auto"}, []],
    "heldout.documents": [*REAL, [], ["nowhere.jsonl"]],
    "clusters.k": [*WHOLE, "auto", [], [1], [2], [2, 60, 61], [3, 2], [2, 2], [10_000], [2**64]],
    "input.paths": [[], [""], ["/dev/null"], ["~nobody-of-this-name/x.jsonl"], ["ftp://x/y"]],
    "input.text_field": ["", "\0", "source", "score", "x" * 999],
    "input.source": ["", "\0", "books"],
    "input.source_field": ["", "\0", "page", "score", "odd", "nope"],
    "input.id_field": ["", "\0", "source", "const", "when", "nope"],
    "chats.template": ["", "\0", "/dev/null", "nowhere.jinja"],
    "model.base": ["", "bootstrap", "/dev/null", "no/where", "~nobody-of-this-name/x"],
    "deep.model": ["", "bootstrap", "/dev/null", "no/where", "no/where@main", "no/where@../..", "a@"],
    "embedding.path": ["", "/dev/null", "nowhere.npy"],
    "engine.address": ["", "local", "nope"],  # Ray has tests of its own
    "store.path": ["", ".", "\0", "other_store", "s3:///x", "s3://who:key@bucket", "ftp://x/y"],
    "output.sidecars": [[], ["plot"], ["arrays"], ["nope"], "plot"],
    "output.path": ["", ".", "store/out", "other_out", "s3://b//x", "file:///x"],
    "order.cut": [[], [""], ["nope"], ["0" * 32], ["\0"]],
    "exports.formats": [
        [],
        ["nope"],
        ["parquet"] * 2,
        ["parquet"],
        ["ds", "text"],
        ["ds", "mds"],
        sorted(FORMATS),
    ],
    "exports.path": ["", ".", "store/exports", "other_exports"],
}


def values_of(annotation: Any) -> list[Any]:
    """The edges of a type, or all of it."""
    if annotation is bool:
        return [True, False]
    if annotation in (int, float):
        return list(WHOLE if annotation is int else REAL)
    if typing.get_origin(annotation) is typing.Literal:
        return list(typing.get_args(annotation))
    if typing.get_origin(annotation) in (typing.Union, types.UnionType):
        return [
            value
            for one in typing.get_args(annotation)
            if one is not types.NoneType
            for value in values_of(one)
        ]
    raise AssertionError(f"no values for {annotation}: add them to BY_HAND")


def candidates(values: list[Any], here: Any) -> list[Any]:
    """The values of a field that are most likely to be accepted and to make a difference: small ones."""

    def size(value: Any) -> float:
        if isinstance(value, bool) or not isinstance(value, int | float):
            return 0
        return abs(math.log(abs(value) + 1e-9)) if math.isfinite(value) else math.inf

    return sorted((value for value in values if value != here), key=size)


def fields() -> Iterator[tuple[str, list[Any]]]:
    """Every field, and values to try: of its type, where none are in BY_HAND."""
    for section, field in Settings.model_fields.items():
        inner = field.annotation
        if not (isinstance(inner, type) and issubclass(inner, BaseModel)):
            yield section, BY_HAND.get(section) or values_of(inner)
            continue
        for key, of in inner.model_fields.items():
            name = f"{section}.{key}"
            by_hand = BY_HAND.get(name, [*ORDERS, "fold"] if key == "strategy" else None)
            yield name, values_of(of.annotation) if by_hand is None else by_hand


GIVEN: dict[str, list[tuple[str, Any]]] = {
    "curriculum": [("curriculum.score", "score"), ("sequence.epochs", 2)],
    "evidence": [("heldout.documents", 0.2)],
}
"""Settings of a section without which it refuses its others."""


def with_given(*changes: tuple[str, Any]) -> list[tuple[str, Any]]:
    """The changes behind what their sections need, which they may change."""
    sections = {name.partition(".")[0] for name, _ in changes}
    return [*(given for section in sorted(sections) for given in GIVEN.get(section, [])), *changes]


CHANGES = [(name, value) for name, values in fields() for value in values]


def environment(*changes: tuple[str, Any]) -> dict[str, str]:
    """As a user gives them: a variable a setting, JSON where it is a table or a list."""
    return {
        f"DIVORDER_{name.upper().replace('.', '__')}": json.dumps(value)
        if isinstance(value, (dict, list, bool))
        else str(value)
        for name, value in changes
    }


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Sixty documents with fields of all kinds, and settings small enough that a run takes a moment. All examples share
    the store, so that each computes only what its settings change."""
    folder = tmp_path_factory.mktemp("total")
    records = [
        {**record, "odd": {"a": at % 2}, "many": [at % 3], "const": 1, "when": at * 10**17}
        for at, record in enumerate(topic_records(15))
    ]
    write_jsonl(folder / "docs.jsonl", records)
    file = folder / "divorder.toml"
    file.write_text(
        small_toml(
            output={"path": "out"},
            advanced={"token_dims": 8},
            order={"frozen_tokens": 0},
            sequence={"length": 64, "batch": 2},
            engine={"workers": 1},
        )
    )
    return file


def run(config: Path, environ: dict[str, str]) -> None:
    """Run to the end, or to a sentence."""

    def hang(*_: object) -> None:
        raise AssertionError(f"still running after {SECONDS} s: {environ}")

    before = signal.signal(signal.SIGALRM, hang)
    signal.alarm(SECONDS)
    try:
        chosen = load_settings(config, environ)
        run_all(chosen, Silent())
    except DivOrderError:
        pass
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


@pytest.mark.parametrize("name", sorted({name for name, _ in CHANGES}))
def test_every_value_is_accepted_or_refused_by_name(name: str, config: Path) -> None:
    accepted = 0
    for change in (change for change in CHANGES if change[0] == name):
        try:
            chosen = load_settings(config, environment(*with_given(change)))
        except SettingsError as error:
            assert name.split(".")[0] in str(error), change
        else:
            accepted += 1
            # What a run goes by: what of them decides each stage's result is hashed.
            assert all(stage.fingerprint(chosen) for stage in GRAPH.values())
    # Nothing is mixed or chosen, and the input is one alone.
    alone = ("input.source", ".total_tokens", ".max_repeats", "selection.tokens")
    assert accepted or name.endswith(alone)


@settings(
    max_examples=examples(15),
    deadline=None,
    suppress_health_check=list(HealthCheck),
    print_blob=True,
)
@given(changes=st.lists(st.sampled_from(CHANGES), min_size=1, max_size=3, unique_by=lambda change: change[0]))
def test_whatever_is_accepted_runs_or_ends_in_a_sentence(
    config: Path, changes: list[tuple[str, Any]]
) -> None:
    run(config, environment(*with_given(*changes)))
