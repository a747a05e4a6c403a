"""The incremental law: however a corpus and its settings came to be what they are, the output is that of one fresh run.

A state machine edits input files, changes settings and changes them back, prunes, and runs in between. After every run
its counts are compared with its plan (`test_only_new` says which records are new); at the end a fresh store with a copy
of the fits has to come to the same ids, labels, order and output bytes.

`make test-long` draws every section's fields, in many more examples.
"""

from __future__ import annotations

import shutil
import tempfile
from collections import Counter
from contextlib import closing, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pandas as pd
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    precondition,
    rule,
    run_state_machine_as_test,
)

from dagster_divorder import load_results, run_all
from dagster_divorder.core.order import STRATEGIES
from dagster_divorder.corpus import cut, ingest, inputs
from dagster_divorder.corpus.shapes import shapes_of
from dagster_divorder.corpus.stored import Records
from dagster_divorder.engine.progress import Silent
from dagster_divorder.errors import InputError, SettingsError
from dagster_divorder.pipeline.fit import PinnedFit
from dagster_divorder.pipeline.plan import StagePlan, make_plan
from dagster_divorder.pipeline.prune import prune
from dagster_divorder.pipeline.run import Run
from dagster_divorder.settings import Settings, load_settings
from dagster_divorder.settings.sections import RULES, Evidence
from dagster_divorder.stages import GRAPH
from dagster_divorder.store.fragments import Fragments
from dagster_divorder.store.local import LocalStore
from dagster_divorder.store.state import Receipt, Result, keep_result, load_receipt, load_result, load_state
from dagster_divorder.store.view import View
from tests.conftest import TOPICS, copy_fits, examples, is_long, topic_text
from tests.law.test_totality import candidates, environment, fields

STEPS = 12
COMPARED_APART = ("curated_meta.json", "embeddings.npy", "left_out.parquet")
"""Files of an output whose bytes may differ: one names the store, two are equal to within rounding."""
MISSING = object()
NAMES = ("a.jsonl", "b.jsonl", "c.jsonl", "d.jsonl")
TEXT_FIELDS = ("text", "body")

CHOICES: dict[str, tuple[Any, ...]] = {
    "clusters.k": (3, 2, 5),
    "refit": ({}, {"clusters": "never"}),
    "curriculum.score": (None, "length", "score", "extra"),
    "curriculum.shape": ("rise", "zigzag", "fold"),
    "embedding.pooling": ("idf", "mean"),
    "exports.formats": ((), ("parquet", "olmo"), ("megatron", "ds")),
    "input.text_field": TEXT_FIELDS,
    "input.source_field": (None, "source"),
    "input.id_field": (None, "extra"),
    "heldout.documents": (None, 0.2),
    "mixing.trait": ("source", "cluster"),
    "mixing.weights": (None, "sqrt", 0.3, {"site 0": 0.5, "0": 0.1}),
    "mixing.phase": ((), ({"until": 0.4, "weights": "uniform"}, {"weights": "natural"})),
    "order.strategy": ("balanced", *sorted(STRATEGIES.keys() - {"balanced"})),
    "order.options": ({"within_cluster": "original"}, {"within_cluster": "random"}),
    "order.traits": (
        {"cluster": 1.0, "score": 1.0, "source": 0.5},
        {"cluster": 1.0, "length": 1.0},
        {"length": 1.0, "source": 1.0},
        {"score": 1.0},
    ),
    "order.separate_copies": (False, True),
    "packing.method": ("concat", "best_fit", "cluster_packed", "none"),
    "packing.too_long": ("cut", "truncate", "drop"),
    "packing.end_of_text": (False, True),
    "selection.method": ("none", "random", "spokes", "semdedup"),
    "selection.tokens": (30, 100),
    "sequence.strategy": ("balanced", "f3", "original"),
    "sequence.epochs": (1, 2),
    "seed": (0, 1),
}
ALL_CHOICES = CHOICES | {
    "clusters.k": (3, 2, 5, "auto", (2, 4, 6)),
    "deep.max_tokens": (0, 5),
    "embedding.kind": ("shallow", "deep", "external", "auto"),
    "engine.workers": (0, 1),
    "exports.formats": ((), ("parquet", "olmo"), ("megatron", "ds"), ("litdata", "mds")),
    "exports.micro_batch": (1, 2),
    "exports.workers": (1, 2),
    "exports.world_size": (1, 2),
    "input.id_field": (None, "source", "extra"),
    "input.max_reject_share": (1.0, 0.99),
    "advanced.token_dims": (8, 4),
    "advanced.vocab_size": (512, 600),
    "order.frozen_tokens": (0, 50, 300),
    "refit": ({}, {"clusters": "never"}, dict.fromkeys(RULES, "auto"), dict.fromkeys(RULES, "never")),
    "output.format": ("auto", "jsonl"),
    "output.sidecars": ((), ("plot",)),
    "sequence.batch": (2, 5),
    "sequence.length": (64, 100),
}
"""Of `make test-long`."""
NOT_DRAWN = {
    *("input.paths", "store.path", "output.path", "exports.path", "embedding.path"),  # places
    "order.cut",  # ids of documents
    "order.append",  # "extend" gives another order than a run from scratch (tests/pipeline/test_published.py)
    *("mixing.total_tokens", "mixing.max_repeats"),  # only with mixing.weights
    "input.source",
    "exports.equal_ranks",  # only with exports.world_size and exports.micro_batch
    *("model.base", "deep.model"),  # a model of one's own
    *(f"evidence.{name}" for name in Evidence.model_fields),  # of training_evidence, which no output needs
    *("engine.device", "deep.tensor_parallel", "engine.address"),  # of the machine
}


def own_choices(name: str, values: list[Any]) -> tuple[Any, ...]:
    """The default of a field and the smallest other value that its type has and settings accept."""
    default: Any = Settings()
    for part in name.split("."):
        default = getattr(default, part)
    for value in candidates(values, default):
        with suppress(SettingsError):
            load_settings(environ=environment((name, value)))
            return (default, value)
    raise AssertionError(f"no value of {name} is accepted alone: add some to ALL_CHOICES, or NOT_DRAWN")


ALL_CHOICES |= {
    name: own_choices(name, values)
    for name, values in fields()
    if name not in ALL_CHOICES and name not in NOT_DRAWN
}
if is_long():
    CHOICES = ALL_CHOICES


def record(number: int, score: Any, source: int, extra: int) -> bytes:
    """A JSONL line. There are few texts, so that documents repeat, go and come back, in more records than texts."""
    topic = tuple(TOPICS)[number % len(TOPICS)]
    fields = {
        "text": topic_text(topic, number, 1 + number * number % 23),
        "body": topic_text(topic, number // 3, 2 + number % 5),
        "source": f"site {source}",
        "score": score,
        "extra": extra,
    }
    return orjson.dumps({name: value for name, value in fields.items() if value is not MISSING})


# A numeric field that some records lack. One that fills it with text makes all of it a category, so that is rare.
scores = st.sampled_from([*[0.5, 3, 3.0, -1, 7.25, 1e9, None, MISSING] * 4, "n/a", True])
sound_lines = st.builds(record, st.integers(0, 40), scores, st.integers(0, 2), st.integers(0, 1))
bad_lines = st.sampled_from([b'{"text": 1, "body": ""}', b"{", b"[]", b'{"text": "\\ud800"}', b"", b" \t"])
lines = st.integers(0, 4).flatmap(lambda at: bad_lines if at == 0 else sound_lines)
files = st.sampled_from(NAMES)
FIRST = [record(0, 0.5, 0, 0), record(3, 0.5, 0, 0)]
"""Always there: no run fails for want of records or of a field."""
DRIFTS = {
    "base_model": (" are left",),
    **dict.fromkeys(("ari_comparison", "k_calibration"), (" have changed since",)),
    "frozen": ("begins otherwise",),
    "centroids": ("has grown", " are left", "lie"),
    "bin_edges": ("has grown", " are left", "is a number now"),
    "heldout": ("has grown", " are left", "is held out", " any more"),
}
"""Why a fit may be made again, in words of the reason, by stage; the others may not."""
PLANNED: Counter[str] = Counter()
"""Stages of runs by what was planned for them, and whether a run found out more."""
REACHED: Counter[tuple[bool, bool]] = Counter()
"""Runs by whether some files were trusted, and whether there was something new."""


class Law(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp(prefix="divorder-law-"))
        self.store = LocalStore(self.folder / "store")
        self.corpus: dict[str, list[bytes]] = {}
        self.ends: dict[str, bytes] = {}
        self.options = {name: values[0] for name, values in CHOICES.items()}
        self.dirty = True
        self.receipts: dict[str, Receipt] = {}
        self.orders: set[str] = set()
        self.texts: set[str] = set()
        self.fits: dict[tuple[str, str], Result] = {}

    # What the user does ------------------------------------------------------------------------------------------

    @initialize(
        first=st.lists(lines, min_size=5, max_size=30),
        second=st.lists(lines, max_size=10),
    )
    def start(self, first: list[bytes], second: list[bytes]) -> None:
        self.corpus = {"a.jsonl": first, "c.jsonl": second}
        self.run()

    @rule(name=files, added=st.lists(lines, min_size=1, max_size=4), then_run=st.booleans())
    def append(self, name: str, added: list[bytes], then_run: bool) -> None:
        """Also makes files."""
        self.corpus[name] = self.corpus.get(name, []) + added
        self.changed(then_run)

    @rule(name=files, at=st.integers(0, 30), line=lines, then_run=st.booleans())
    def edit(self, name: str, at: int, line: bytes, then_run: bool) -> None:
        if held := self.corpus.get(name):
            held[at % len(held)] = line
            self.changed(then_run)

    @rule(name=files, at=st.integers(0, 30), count=st.integers(1, 12), then_run=st.booleans())
    def delete(self, name: str, at: int, count: int, then_run: bool) -> None:
        if held := self.corpus.get(name):
            first = at % len(held)
            del held[first : first + count]
            self.changed(then_run)

    @rule(name=files, order=st.randoms(use_true_random=False), then_run=st.booleans())
    def reorder(self, name: str, order: Any, then_run: bool) -> None:
        order.shuffle(self.corpus.get(name, []))
        self.changed(then_run)

    @rule(name=files, other=files, count=st.integers(0, 6), then_run=st.booleans())
    def move(self, name: str, other: str, count: int, then_run: bool) -> None:
        """Also duplicates records, and renames and removes files."""
        held = self.corpus.get(name, [])
        if count:
            self.corpus[other] = self.corpus.get(other, []) + held[:count]
        elif held:
            del self.corpus[name]
            if other != name:
                self.corpus[other] = held
        self.changed(then_run)

    @rule(
        name=files, end=st.sampled_from([b"\n", b"\r\n", b"", b'\n{"text": "unfin']), then_run=st.booleans()
    )
    def end_file(self, name: str, end: bytes, then_run: bool) -> None:
        """How the file ends: newlines of one kind or another, none, or a line still being written."""
        self.ends[name] = end
        self.changed(then_run)

    @rule(change=st.sampled_from([(name, value) for name, values in CHOICES.items() for value in values]))
    def set_option(self, change: tuple[str, Any]) -> None:
        self.options[change[0]] = change[1]
        self.run()

    @precondition(lambda self: not self.dirty)
    @rule()
    def run_again(self) -> None:
        """Nothing new, in files as they were or in a copy of them: nothing is computed, no output file is touched."""
        output = self.settings().output.path
        before = {path: (path.stat().st_mtime_ns, path.read_bytes()) for path in output.iterdir()}
        for copied in (False, True):
            if copied:
                shutil.copytree(self.folder / "in", self.folder / "copy", copy_function=shutil.copyfile)
                shutil.rmtree(self.folder / "in")
                (self.folder / "copy").rename(self.folder / "in")
            self.run()
            made = [self.receipts[stage] for stage in GRAPH.needed(self.settings())]
            assert {receipt.figures["new_documents"] for receipt in made} == {0}
            assert {path: (path.stat().st_mtime_ns, path.read_bytes()) for path in output.iterdir()} == before

    @rule(stages=st.integers(1, len(GRAPH.needed(Settings())) - 1))
    def run_the_first_stages(self, stages: int) -> None:
        """As someone does who materialises a part of the assets, or whose run stops at an error."""
        self.run(stages)

    @rule()
    def prune(self) -> None:
        before, removed = self.view_content(), load_state(self.store).removed
        pruned = prune(GRAPH, self.store)
        assert self.view_content() == before
        # What had words of deleted documents is gone, and the next run makes it anew; so is what may have words of
        # fragments that runs removed.
        self.dirty |= pruned.texts or bool(removed)
        self.fits = self.read_fits()
        self.orders &= {self.receipts["greedy_order"].key}

    # One run and the model of it ---------------------------------------------------------------------------------

    def changed(self, then_run: bool) -> None:
        self.dirty = True
        if then_run:
            self.run()

    def settings(self, **sections: Any) -> Settings:
        base: dict[str, Any] = {
            "input": {"paths": [str(self.folder / "in")], "max_reject_share": 1.0},
            "store": {"path": self.store.root},
            "output": {"path": self.folder / "out", "sidecars": ()},
            "exports": {"path": self.folder / "exports"},
            "advanced": {"vocab_size": 512, "token_dims": 8},
            "embedding": {"path": self.folder / "vectors.npy"},
            "order": {"frozen_tokens": 0},
            "sequence": {"length": 64, "batch": 2},
        }
        for name, value in self.options.items():
            section, _, key = name.partition(".")
            if key:
                base.setdefault(section, {})[key] = value
            else:
                base[section] = value
        for section, values in sections.items():
            base[section] = base.get(section, {}) | values
        follows = base["curriculum"]["score"] is not None
        if base["mixing"]["weights"] is not None or base["sequence"]["epochs"] > 1 or follows:
            base["mixing"]["phase"] = ()
        if not follows:
            base["curriculum"] = {}
        if base["selection"]["method"] == "none":
            del base["selection"]["tokens"]
        in_use = {base["order"]["strategy"], base["sequence"]["strategy"]}
        options = base["order"]["options"]
        declared = {name for strategy in in_use for name in STRATEGIES[strategy].Options.model_fields}
        base["order"]["options"] = {name: options[name] for name in options if name in declared}
        return Settings(**base)

    def write(self) -> None:
        """Only changed files are written, so that others can be trusted."""
        folder = self.folder / "in"
        folder.mkdir(exist_ok=True)
        contents = {"0.jsonl": b"\n".join(FIRST) + b"\n"}
        for name, held in self.corpus.items():
            end = self.ends.get(name, b"\n")
            between = b"\r\n" if end == b"\r\n" else b"\n"
            contents[name] = between.join(held) + end if held else b""
        for path in folder.iterdir():
            if path.name not in contents:
                path.unlink()
        for name, content in contents.items():
            path = folder / name
            if not path.exists() or path.read_bytes() != content:
                path.write_bytes(content)
        rows = [np.random.default_rng([*text.encode()]).normal(size=5) for _, text in self.accepted()]
        np.save(self.folder / "vectors.npy", np.array(rows, np.float32))

    def lines(self) -> list[bytes]:
        """Those of the input that are not blank."""
        return [*FIRST, *(line for name in sorted(self.corpus) for line in self.corpus[name] if line.strip())]

    def accepted(self) -> list[tuple[bytes, str]]:
        """Records of the input, in order, and their texts."""
        chosen = self.settings().input
        texts = ((line, text_of(line, chosen.text_field)) for line in self.lines())
        return [(line, text) for line, text in texts if text]

    def run(self, count: int | None = None) -> None:
        """Run all stages, or the first so many of them; without the settings that the corpus does not allow."""
        chosen = self.settings()
        stages = GRAPH.needed(chosen)[:count]
        may_be_refused = (
            chosen.order.frozen_tokens,
            chosen.selects,
            chosen.curriculum.on,
            isinstance(chosen.mixing.weights, dict),
        )
        if "greedy_order" not in stages or not any(may_be_refused):
            self.run_as_set(count)
            return
        try:
            self.run_as_set(stages.index("clusters") + 1)
            self.run_as_set(count)
        except InputError as error:
            harmless = {
                "order.frozen_tokens": 0,
                "selection.method": "none",
                "mixing.weights": None,
                "curriculum.score": None,
            }
            assert any(name.removesuffix("method") in str(error) for name in harmless), error
            self.options |= harmless
            # What came to its end before it was refused is stored.
            self.receipts = {name: made for name in GRAPH if (made := load_receipt(self.store, name))}
            if "greedy_order" in self.receipts:
                self.orders.add(self.receipts["greedy_order"].key)
            self.fits = self.read_fits()
            self.run_as_set(count)

    def run_as_set(self, count: int | None) -> None:
        self.write()
        chosen = self.settings()
        # Files this young are trusted in turn.
        ingest.SETTLED_NS = -(1 << 62) if ingest.SETTLED_NS > 0 else 1 << 62
        stages = GRAPH.needed(chosen)[:count]
        plan = {stage.stage: stage for stage in make_plan(GRAPH, chosen, *stages).stages}
        made = run_all(chosen, Silent(), stages)
        self.check_plan(plan, made)
        self.receipts |= made
        self.dirty = stages != GRAPH.needed(chosen)
        read, accepted = self.lines(), self.accepted()
        unfinished = sum(b"unfin" in self.ends.get(name, b"") for name, held in self.corpus.items() if held)
        self.texts = {text for _, text in accepted}

        figures = made["raw_docs"].figures
        assert figures["records"] == len(accepted)
        assert figures["texts"] == len(self.texts)
        assert (
            figures["rejected_records"] + figures["partial_lines"] == len(read) - len(accepted) + unfinished
        )
        REACHED[bool(figures["trusted_bytes"]), bool(figures["new_records"])] += 1

        # What is learnt from the corpus stays, but for what says why it was fitted again.
        fits, kept = self.read_fits(), ("no:", "first run")
        why = {stage: made[stage].figures.get("fitted", "no:") for stage in made}
        refitted = {stage for stage in made if not why[stage].startswith(kept)}
        for (stage, key), fit in self.fits.items():
            if (stage, key) not in fits:
                # It went with the fit that it rests on, which another one has replaced.
                assert refitted & set(GRAPH.reads(stage, chosen)), (stage, key)
            elif fits[stage, key] != fit:
                assert stage in refitted, (stage, key)
                reason = fits[stage, key].facts["reason"]
                assert any(drift in reason for drift in DRIFTS.get(stage, ())), (stage, key, reason)
        self.fits = fits

        for stage in made:
            assert made[stage].figures["documents"] == len(accepted), stage
        if "greedy_order" in made:
            expected = 0 if made["greedy_order"].key in self.orders else len(accepted)
            assert made["greedy_order"].figures["new_documents"] == expected
            self.orders.add(made["greedy_order"].key)

    def check_plan(self, plan: dict[str, StagePlan], made: dict[str, Receipt]) -> None:
        """A run computes what was planned, but where the plan said what only a run can tell: a fit is made again after
        all, and with it what follows, or what is made again comes out as it was, and only new records are."""
        new = made["raw_docs"].facts["computed"]
        surprises: set[str] = set()
        for stage, receipt in made.items():
            computed = receipt.facts["computed"]
            if not surprises.isdisjoint(GRAPH.reads(stage, self.settings())):
                surprises.add(stage)
            elif computed != plan[stage].documents:
                assert plan[stage].unless, (stage, plan[stage], computed)
                assert computed <= new or plan[stage].documents == 0, (stage, plan[stage], computed)
                surprises |= {stage} if computed > plan[stage].documents else set()
            else:
                PLANNED[plan[stage].scope] += 1

    def view(self) -> View:
        receipt = load_receipt(self.store, "raw_docs")
        assert receipt is not None
        return View.load(self.store, receipt.files["view"])

    def view_content(self) -> list[tuple[bytes, str]]:
        """Record and text at every input position."""
        records = Records(
            Fragments(self.store, self.receipts["raw_docs"].key), "jsonl", shapes_of(self.settings())
        )
        return [
            pair
            for fragment in self.view().fragments
            for pair in zip(
                records.records(fragment).to_pylist(), records.texts(fragment).to_pylist(), strict=True
            )
        ]

    def read_fits(self) -> dict[tuple[str, str], Result]:
        """The fits of the store by stage and key."""
        results = load_state(self.store).results
        return {(stage, fit.key): fit for stage in results for fit in results[stage] if "fit" in fit.files}

    # The law -----------------------------------------------------------------------------------------------------

    def teardown(self) -> None:
        try:
            if self.receipts:
                if self.dirty:
                    self.run()
                self.run_again()
                self.compare_with_a_fresh_run()
        finally:
            shutil.rmtree(self.folder)

    def compare_with_a_fresh_run(self) -> None:
        fresh = self.settings(
            store={"path": self.folder / "fresh"},
            output={"path": self.folder / "fresh_out"},
            exports={"path": self.folder / "fresh_exports"},
            refit=dict.fromkeys(RULES, "never"),
        )
        copy_fits(self.store.root, fresh.store.path)
        with pytest.MonkeyPatch.context() as patch:
            # Fragments are cut as before: the version of raw_docs, which names files of exports, is of records by
            # fragment.
            patch.setattr(inputs, "BLOCK_BYTES", 8 << 20)
            if "external_embeddings" in GRAPH.needed(fresh):
                self.pin_the_fits_of_external_vectors(fresh)
            receipts = run_all(fresh, Silent())
        fits = {name: made.figures["fitted"] for name, made in receipts.items() if "fitted" in made.figures}
        assert {name: why for name, why in fits.items() if not why.startswith("no: kept")} == {}
        expected, found = (
            {path.name: path.read_bytes() for path in folder.iterdir() if path.name not in COMPARED_APART}
            for folder in (fresh.output.path, self.folder / "out")
        )
        assert {"order.npy", "rejects.jsonl"} < expected.keys()
        for name in fresh.exports.formats:
            for files, folder in ((expected, "fresh_exports"), (found, "exports")):
                files |= {
                    f"{name}/{path.name}": path.read_bytes()
                    for path in (self.folder / folder / name).iterdir()
                }
                files |= {
                    f"_{name}/{path.name}": path.read_bytes()
                    for path in (self.folder / folder / f"_{name}").iterdir()
                }
                assert files.pop(f"_{name}/manifest.json")
        assert [name for name in {*expected, *found} if expected.get(name) != found.get(name)] == []
        if fresh.selects:
            # Weights come from vectors, which are equal to 1e-5.
            left_out = [
                pd.read_parquet(at / "left_out.parquet") for at in (self.folder / "out", fresh.output.path)
            ]
            pd.testing.assert_frame_equal(*left_out, rtol=0, atol=1e-5)
        incremental, scratch = load_results(self.store.root), load_results(fresh.store.path)
        pd.testing.assert_frame_equal(incremental.documents, scratch.documents, rtol=0, atol=1e-5)
        np.testing.assert_allclose(incremental.embeddings, scratch.embeddings, rtol=0, atol=1e-5)

    def pin_the_fits_of_external_vectors(self, fresh: Settings) -> None:
        """Their key names what the file held when it was first read, and keys of fits name it: a fresh store would make
        fits of its own."""
        needed, store = GRAPH.needed(fresh), LocalStore(fresh.store.path)
        for at in range(needed.index("external_embeddings") + 1, len(needed)):
            stage = GRAPH[needed[at]]
            if isinstance(stage, PinnedFit):
                run_all(fresh, Silent(), needed[:at])
                with closing(Run(fresh, store, GRAPH, Silent())) as run:
                    own, key = self.receipts[stage.name].key, stage.key(run)
                fit = load_result(store, stage.name, own)
                assert fit
                keep_result(store, stage.name, replace(fit, key=key))


def text_of(line: bytes, text_field: str) -> str | None:
    """What is accepted, said another way than the package says it."""
    try:
        found = orjson.loads(line)
    except orjson.JSONDecodeError:
        return None
    text = found.get(text_field) if isinstance(found, dict) else None
    return text if isinstance(text, str) and text else None


@pytest.fixture
def tiny_fragments(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fragments of a few lines, read block by block."""
    monkeypatch.setattr(inputs, "BLOCK_BYTES", 512)
    monkeypatch.setattr(cut, "MEAN_LINES", 5)
    monkeypatch.setattr(cut, "HARD_LINES", 12)
    monkeypatch.setattr(ingest, "SETTLED_NS", ingest.SETTLED_NS)


def test_every_field_is_drawn_in_the_long_run() -> None:
    assert set(ALL_CHOICES) | NOT_DRAWN == {name for name, _ in fields()}
    assert all(len(set(map(repr, values))) > 1 for name, values in ALL_CHOICES.items() if name not in CHOICES)


def test_any_history_ends_in_the_bytes_of_one_fresh_run(tiny_fragments: None) -> None:
    # Files that are trusted beside a new one, which few of the drawn histories have.
    law = Law()
    law.start([record(number, 0.5, 0, 0) for number in range(8)], [])
    law.append("d.jsonl", [record(9, 0.5, 0, 0)], True)
    law.teardown()
    run_state_machine_as_test(
        Law,
        settings=settings(
            deadline=None,
            max_examples=examples(15),
            stateful_step_count=STEPS,
            suppress_health_check=list(HealthCheck),
            print_blob=True,
        ),
    )
    assert all(REACHED[trusted, new] for trusted in (False, True) for new in (False, True)), REACHED
    assert PLANNED["nothing"] and PLANNED["new"] and PLANNED["all"], PLANNED
