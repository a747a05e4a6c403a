"""Stages. A stage is one value, defined in one file of `stages/`. There are three kinds:

- `PerDocument`: a function of a fragment of records. A record that has a result under the stage's key is never computed
  again.
- `WholeCorpus`: named files, made from results of other stages and kept under a key of all their inputs.
- `PinnedFit`: a fit on the corpus. It is pinned: appended data uses it unchanged. The stage's drift rule or a request
  makes the fit again. The reason is recorded.

`decide` says what to compute, for how many documents, and why. Runs and plans both follow it. Key, reuse, receipt,
counts and timing belong to the kinds. This module knows only one stage by name: `raw_docs`, which all others read.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np
import orjson
import xxhash
from pydantic import BaseModel, ValidationError

from dagster_divorder.engine.base import Needs
from dagster_divorder.engine.progress import Advance
from dagster_divorder.pipeline.per_fragment import (
    ComputeAndStore,
    Work,
    by_size,
    with_repeats,
    work_to_do,
)
from dagster_divorder.settings import Settings
from dagster_divorder.settings.sections import Input, Inputs
from dagster_divorder.store.arrays import pack, pack_rows
from dagster_divorder.store.stages import Result as Computed
from dagster_divorder.store.stages import StageFiles
from dagster_divorder.store.state import (
    Receipt,
    Result,
    as_stored,
    keep_result,
    load_receipt,
    load_result,
)
from dagster_divorder.store.view import Fragment
from dagster_divorder.view.shown import Chart, Link, Picture, Shown, Table, Text  # noqa: F401

if TYPE_CHECKING:
    from dagster_divorder.pipeline.run import Run


def content_hash(*values: Any) -> str:
    """Hash of JSON-ready values, 32 hex digits."""
    return xxhash.xxh3_128_hexdigest(
        orjson.dumps(values, option=orjson.OPT_SORT_KEYS | orjson.OPT_SERIALIZE_NUMPY, default=str)
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """What a stage would compute now.

    `key` is the key of the result. `receipt` is the future receipt; None if only the computation gives it. `unless`
    names a reason to compute more that only a run can find.
    """

    scope: Literal["nothing", "new", "all"]
    documents: int
    why: str
    key: str = ""
    receipt: Receipt | None = None
    unless: str = ""


class File(NamedTuple):
    """A file of a result, and its extension."""

    data: bytes
    extension: str


CONTENT = "content"
"""The fact of a whole-corpus result with the hash of its files."""


@dataclass(frozen=True, slots=True)
class Made:
    """A whole-corpus result: `files` by name, `facts` for later stages, and `figures` for people. Arrays are stored as
    safetensors, and rows of plain values as Parquet."""

    files: Mapping[str, File | Mapping[str, np.ndarray] | list[dict[str, Any]]]
    facts: dict[str, Any] = field(default_factory=dict)
    figures: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """The outcome of a check. text: the outcome in words. remedy: what to do if the check failed."""

    passed: bool
    text: str
    remedy: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """A claim about a stage's result, and the function that tests it on the stored files. If a `blocking` check fails,
    results made from this one must not be used."""

    name: str
    description: str
    check: Callable[[Run], Finding]
    blocking: bool = False


@dataclass(frozen=True, kw_only=True, eq=False)
class Stage(ABC):
    """One stage.

    `version` rises when the code gives other bytes for the same input. `reads` names the stages that it reads, as far
    as the settings have them. `settings` names the sections, or single settings, that decide its result
    (`value_of`). With the results that it reads they make the key, unless `decided_by` gives what does: less,
    such as the outcome of `auto` on this machine, or more, such as the content of a file. `when` says whether settings
    have the stage at all.

    A stage without `asset` has no Dagster asset: it runs with the stages that read it, or right after the stage that
    lists it in `then`. `quotes`: a result may hold words of documents, so that `divorder prune` removes it with deleted
    documents. `doing` is for progress lines, such as `tokenising`. `check` raises errors in settings that can be found
    before the stage runs. `show` gives what people see of a result beside its figures.
    """

    name: str
    version: int
    description: str
    reads: Sequence[str] | Callable[[Settings], Sequence[str]]
    settings: Sequence[str] = ()
    decided_by: Callable[[Run], Mapping[str, Any]] | None = None
    when: Callable[[Settings], bool] = lambda settings: True
    asset: bool = True
    then: tuple[str, ...] = ()
    quotes: bool = False
    doing: str = ""
    check: Callable[[Run], object] = lambda run: None
    show: Callable[[Run, Receipt], Shown] = lambda run, receipt: {}
    checks: tuple[Check, ...] = ()

    def given(self, settings: Settings) -> dict[str, Any]:
        """The settings that decide the result, by name."""
        return {name: value_of(settings, name) for name in self.settings}

    def fingerprint(self, settings: Settings) -> str:
        """The code version and a hash of the settings that decide the result, such as `1-9f3a0c5e...`."""
        return f"{self.version}-{content_hash(self.given(settings))[:16]}"

    def key(self, run: Run) -> str:
        """The key of the result in the store: a hash of everything that the result depends on. Raises
        MissingStageError: a stage before it has no current result."""
        return content_hash(self.name, self.version, (self.decided_by or self.usual)(run))

    def usual(self, run: Run) -> dict[str, Any]:
        """The settings and results that decide the result: for results of fragments and for fits without the corpus,
        since a fragment's result does not depend on it, and a fit outlives it."""
        before = versions(run, *run.graph.reads(self.name, run.settings))
        if not isinstance(self, WholeCorpus):
            for name in before:
                if isinstance(run.graph[name], PerDocument):
                    before[name] = run.receipt(name).key
            before.pop("raw_docs", None)
        return {"settings": self.given(run.settings), **before}

    def receipt(self, run: Run, key: str, version: str, **content: Any) -> Receipt:
        """A receipt of this stage, with the current results as its upstream."""
        return Receipt(
            stage=self.name,
            fingerprint=self.fingerprint(run.settings),
            key=key,
            version=version,
            # A plan keeps no receipts, and may not know the results of some stages.
            upstream={} if run.planning else versions(run, *run.graph.reads(self.name, run.settings)),
            settings=given_settings(run.settings),
            **content,
        )

    def all_documents(self, run: Run) -> int:
        """The number of documents to compute where no earlier result serves."""
        return len(run.view)

    @abstractmethod
    def decide(self, run: Run) -> Decision:
        """What to compute. Stores nothing."""

    @abstractmethod
    def make(self, run: Run, decision: Decision) -> Receipt:
        """Compute what was decided. Returns the receipt of the result."""


def versions(run: Run, *stages: str) -> dict[str, str]:
    """The versions of the current results of stages, as far as these settings have them."""
    return {stage: run.receipt(stage).version for stage in stages if run.graph[stage].when(run.settings)}


def counts(documents: int, new: int) -> dict[str, int]:
    """The figures that every stage shows."""
    return {"documents": documents, "new_documents": new, "reused_documents": documents - new}


RUN_FIGURES = {*counts(0, 0), "seconds"}
"""Figures of every stage about its last run."""


@dataclass(frozen=True, kw_only=True, eq=False)
class PerDocument(Stage):
    """A function of a fragment. `compute` returns the function for workers. It can be pickled, and holds everything
    that it depends on except the fragment. `needs` says what the engine has to give it. `by_text`: its results depend
    on a record's text alone and are costly, so that each text is computed once. `figures` summarise all results;
    `figures_now` depend on more than the results, so every run computes them again."""

    compute: Callable[[Run], Callable[[Fragment], Computed]]
    needs: Callable[[Run, Sequence[Work]], Needs] = by_size
    by_text: bool = False
    figures: Callable[[Run, StageFiles], Mapping[str, Any]] = lambda run, files: {}
    figures_now: Callable[[Run], Mapping[str, Any]] = lambda run: {}
    facts: Callable[[Run], Mapping[str, Any]] = lambda run: {}

    def files(self, run: Run, key: str) -> StageFiles:
        return StageFiles(run.store, self.name, key)

    def work(self, run: Run, key: str) -> list[Work]:
        """The fragments of the input without a result under a key."""
        files, fragments = self.files(run, key), run.records.fragments
        return work_to_do(fragments, run.view, files, by_text=self.by_text, plan=run.planning)

    def all_documents(self, run: Run) -> int:
        return int(run.are_first.sum()) if self.by_text else len(run.view)

    def decide(self, run: Run) -> Decision:
        key, version = self.key(run), run.receipt("raw_docs").version
        run.memo["work"] = works = self.work(run, key)
        missing = sum(work.new.rows for work in works)
        receipt = self.receipt(run, key, content_hash(key, version), facts=dict(self.facts(run)))
        if missing and missing == len(run.view):
            why = what_changed(self, run)
            return Decision(scope="all", documents=missing, why=why, receipt=receipt)
        scope: Literal["nothing", "new"] = "new" if missing else "nothing"
        why = "new records" if missing else ""
        return Decision(scope=scope, documents=missing, why=why, receipt=receipt)

    def make(self, run: Run, decision: Decision) -> Receipt:
        receipt = decision.receipt
        assert receipt is not None
        if works := run.memo["work"]:
            rows = sum(work.new.rows for work in works)
            with run.progress(self.doing or self.name, rows, "records") as advance:
                for computed in self.compute_missing(run, receipt.key, works):
                    advance(computed)
        last = load_receipt(run.store, self.name)
        if last and (last.version, last.upstream) == (receipt.version, receipt.upstream):
            figures: Mapping[str, Any] = last.figures
        else:
            figures = self.figures(run, self.files(run, receipt.key))
        counted = counts(len(run.view), decision.documents)
        return replace(receipt, figures={**figures, **counted, **self.figures_now(run)})

    def compute_missing(
        self, run: Run, key: str, works: Sequence[Work], advance: Advance | None = None
    ) -> Iterator[int]:
        """Compute and store the results of fragments; yields numbers of computed records. advance: see
        `Engine.each`."""
        compute = self.compute(run)
        files, beforehand = self.files(run, key), self.files(run, f"{key}-repeats")
        if once := [work for work in works if work.again is None]:
            needs = self.needs(run, once)
            yield from run.engine.each(ComputeAndStore(beforehand, compute), once, **needs, advance=advance)
            works = with_repeats(works, beforehand)
        needs = self.needs(run, works)
        yield from run.engine.each(ComputeAndStore(files, compute), works, **needs, advance=advance)
        run.store.delete(*beforehand.present().values())


@dataclass(frozen=True, kw_only=True, eq=False)
class WholeCorpus(Stage):
    """Named files, made from results of other stages. The version is the key, since files may hold times; the fact
    CONTENT is a hash of the files. `lacks` says why a stored result is incomplete. `publish` copies every result, new
    or stored, to the place where people look for it."""

    compute: Callable[[Run], Made]
    lacks: Callable[[Run, str], str | None] = lambda run, key: None
    publish: Callable[[Run, Receipt], None] = lambda run, receipt: None

    def decide(self, run: Run) -> Decision:
        key = self.key(run)
        result, why = load_result(run.store, self.name, key), ""
        if result is not None:
            gone = set(result.files.values()).difference(run.store.list(f"stages/{self.name}/{key}"))
            why = self.lacks(run, key) or ("files of it are gone" if gone else "")
            if not why:
                return Decision(scope="nothing", documents=0, why="", receipt=self._receipt(run, result))
        why = why or what_changed(self, run)
        return Decision(scope="all", documents=len(run.view), why=why, key=key)

    def _receipt(self, run: Run, result: Result) -> Receipt:
        content = {name: getattr(result, name) for name in ("files", "facts", "figures")}
        return self.receipt(run, result.key, result.version, **content)

    def make(self, run: Run, decision: Decision) -> Receipt:
        receipt = decision.receipt
        if receipt is None:
            if self.doing:
                run.progress.note(f"{self.doing}{f' ({decision.why})' if decision.why else ''}")
            receipt = self._receipt(run, self._computed(run, decision.key))
        self.publish(run, receipt)
        counted = counts(len(run.view), decision.documents)
        return replace(receipt, figures={**receipt.figures, **counted})

    def _computed(self, run: Run, key: str) -> Result:
        computed, files, hashes = self.compute(run), {}, {}
        for name, content in sorted(computed.files.items()):
            if isinstance(content, Mapping):
                content = File(pack(content), "safetensors")
            elif isinstance(content, list):
                content = File(pack_rows(content), "parquet")
            files[name] = run.store.put_hashed(f"stages/{self.name}/{key}", name, *content)
            hashes[name] = xxhash.xxh3_128_hexdigest(content.data)
        # Hashes in names cover the key, too.
        facts = {**computed.facts, CONTENT: content_hash(hashes)}
        result = as_stored(Result(key=key, version=key, files=files, facts=facts, figures=computed.figures))
        keep_result(run.store, self.name, result)
        return result


SHOWN_CHARACTERS = 60
DECIDES_NOTHING = {"store", "refit"}
"""Sections that decide no result: the place of the store, and when fits are made again."""
NOT_IN_KEYS = {"input": {"paths", "id_field", "max_reject_share"}, "order": {"frozen_tokens", "append"}}
"""Settings of a section that its value leaves out: a new file must not change every key, no order depends on ids, a
limit decides no result, and the stage `frozen` holds what stays of a plan. A stage that depends on one names it."""


def given_settings(settings: Settings) -> dict[str, Any]:
    """The settings that a receipt keeps: all that may decide a result and differ from their defaults."""
    return settings.model_dump(mode="json", exclude_defaults=True, exclude=DECIDES_NOTHING)


def value_of(settings: Settings, name: str) -> Any:
    """A section of the settings (`order`) without NOT_IN_KEYS, or a single setting (`order.traits`), as JSON values. Of
    several inputs a list."""
    section, _, field = name.partition(".")
    value = getattr(settings, section)
    if not isinstance(value, BaseModel):
        return value
    blocks = value.each if isinstance(value, Input) else (value,)
    if field:
        dumps = [block.model_dump(mode="json", include={field})[field] for block in blocks]
    else:
        dumps = [block.model_dump(mode="json", exclude=NOT_IN_KEYS.get(section)) for block in blocks]
    return dumps if isinstance(value, Inputs) else dumps[0]


def what_changed(stage: Stage, run: Run, otherwise: str = "what it reads has changed") -> str:
    """Why a stage has to compute its result: it has never run, its settings or its code changed, or `otherwise`."""
    last = load_receipt(run.store, stage.name)
    if last is None:
        return "first run on this store"
    if changed := changed_settings(stage, last, run.settings):
        return ", ".join(changed)
    return "its code changed" if last.fingerprint.partition("-")[0] != str(stage.version) else otherwise


def changed_settings(stage: Stage, last: Receipt, settings: Settings) -> list[str]:
    """Changes since a stage's last result of the settings that decide it, such as `clusters.k 30 -> 15`."""
    try:
        before = stage.given(Settings(**last.settings))
    except ValidationError:  # another version of the package wrote them
        return []
    return [*_differences("", before, stage.given(settings))]


def _differences(key: str, old: Any, new: Any) -> Iterator[str]:
    """Differences between two values of a setting, each as `key old -> new`; tables are compared entry by entry."""
    if isinstance(old, Mapping) and isinstance(new, Mapping):
        for name in sorted({*old, *new}):
            if old.get(name) != new.get(name):
                yield from _differences(f"{key}.{name}".removeprefix("."), old.get(name), new.get(name))
    else:
        yield f"{key} {_shown(old)} -> {_shown(new)}"


def _shown(value: Any) -> str:
    text = "unset" if value is None else value if isinstance(value, str) else orjson.dumps(value).decode()
    return text if len(text) <= SHOWN_CHARACTERS else text[:SHOWN_CHARACTERS] + "..."
