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
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np
import orjson
import xxhash

from dagster_divorder.core.sketch import sketch
from dagster_divorder.engine.base import Needs
from dagster_divorder.engine.progress import Advance
from dagster_divorder.errors import DiskFullError, StoreError
from dagster_divorder.pipeline.changes import given_settings, what_changed
from dagster_divorder.pipeline.per_fragment import (
    ComputeAndStore,
    Computed,
    StoredFragment,
    Work,
    by_size,
    store_with_repeats,
    work_to_do,
)
from dagster_divorder.settings import Settings
from dagster_divorder.settings.places import Place
from dagster_divorder.settings.sections import FitName
from dagster_divorder.store.arrays import pack, pack_rows, unpack
from dagster_divorder.store.base import Store
from dagster_divorder.store.fits import FITS, put_fit, read_fit
from dagster_divorder.store.output_manifests import verified_files
from dagster_divorder.store.stages import StageFiles
from dagster_divorder.store.state import (
    Receipt,
    Result,
    as_stored,
    keep_result,
    load_receipt,
    load_result,
    load_state,
    put_result,
    save_results,
)
from dagster_divorder.store.view import Fragment
from dagster_divorder.units import byte_size

if TYPE_CHECKING:
    from dagster_divorder.pipeline.run import Run

SKETCH = "documents.safetensors"
"""A file of every fit: a sketch of the documents that the fit was made on (`core.sketch`)."""


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
    """Bytes of a named file of a result, and its extension."""

    data: bytes
    extension: str


@dataclass(frozen=True, slots=True)
class Made:
    """A whole-corpus result: `files` by name, `facts` for later stages, and `figures` for people. Arrays are stored as
    safetensors, and rows of plain values as Parquet."""

    files: Mapping[str, File | Mapping[str, np.ndarray] | list[dict[str, Any]]]
    facts: dict[str, Any] = field(default_factory=dict)
    figures: dict[str, Any] = field(default_factory=dict)


class Table(NamedTuple):
    """Rows of plain values by column name, for people."""

    rows: list[dict[str, Any]]


class Picture(NamedTuple):
    """A PNG file, and a description of it."""

    file: Path
    what: str


class Text(NamedTuple):
    """Markdown."""

    markdown: str


class Link(NamedTuple):
    """A file or folder to open."""

    path: Place


Shown = Mapping[str, Table | Picture | Text | Link | float]
"""What people see of a result beside its figures, by name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """The outcome of a check. text: the outcome in words. remedy: what to do if the check failed. figures: numbers, and
    tables as lists of rows."""

    passed: bool
    text: str
    remedy: str = ""
    figures: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """A claim about a stage's result, and the function that tests it on the stored files. If a `blocking` check fails,
    results made from this one must not be used."""

    name: str
    description: str
    check: Callable[[Run], Finding]
    blocking: bool = False
    when: Callable[[Settings], bool] = lambda settings: True
    """Whether these settings have the check at all."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Stage(ABC):
    """One stage.

    `version` rises when the code gives other bytes for the same input. `reads` names the stages that it reads under
    given settings. `settings` gives the settings that decide its own result. `inputs` gives the parts of earlier
    results that decide its result: by default their versions, without the corpus for results of fragments and for fits.
    A stage without `asset` has no Dagster asset: it runs with the stages that read it, or right after the stage that
    lists it in `then`. `quotes` names the files that may hold words of documents ("*": all files). `divorder prune`
    removes these files with deleted documents.
    """

    name: str
    version: int
    description: str | Callable[[Settings], str]
    reads: Sequence[str] | Callable[[Settings], Sequence[str]]
    settings: Callable[[Settings], Mapping[str, Any]] = lambda settings: {}
    inputs: Callable[[Run], Mapping[str, Any]] | None = None
    key_from_inputs: bool = False
    """Whether the key consists of the code version and `inputs` alone. `inputs` then hold the outcome of settings such
    as `auto` on this machine, so settings with the same outcome share a result."""
    when: Callable[[Settings], bool] = lambda settings: True
    """Whether these settings have the stage at all."""
    group: str = "evidence"
    kinds: Collection[str] | Callable[[Settings], Collection[str]] = ()
    """Libraries and formats of the result, such as `faiss`. Dagster shows icons for the names that it knows."""
    asset: bool = True
    then: tuple[str, ...] = ()
    beside: bool = False
    """Whether it may run beside stages that do not read it. Its memory must be bounded."""
    evidence: str = ""
    """A description of what the report shows of the result. A stage with a description is evidence: the report,
    `divorder report --all` and the jobs `explore` and `report` include it."""
    shows_evidence: bool = False
    """Whether it shows the existing evidence. In Dagster it comes after all evidence."""
    quotes: tuple[str, ...] = ()
    doing: str = ""
    """What the stage does, for progress lines, such as `tokenising`."""
    figures_now: Callable[[Run], Mapping[str, Any]] = lambda run: {}
    """Figures that every run computes again, because they depend on more than the result."""
    check_settings: Callable[[Run], object] = lambda run: None
    """Raises errors in settings that can be found before the stage runs."""
    show: Callable[[Run, Receipt], Shown] = lambda run, receipt: {}
    checks: tuple[Check, ...] = ()

    def reads_under(self, settings: Settings) -> Sequence[str]:
        """The stages that it reads under these settings."""
        return self.reads(settings) if callable(self.reads) else self.reads

    def kinds_under(self, settings: Settings) -> Collection[str]:
        """Libraries and formats of the result, under these settings."""
        return self.kinds(settings) if callable(self.kinds) else self.kinds

    def description_under(self, settings: Settings) -> str:
        """What the result is, under these settings."""
        return self.description(settings) if callable(self.description) else self.description

    def fingerprint(self, settings: Settings) -> str:
        """The code version and a hash of the settings that decide the result, such as `1-9f3a0c5e...`."""
        decides = orjson.dumps(dict(self.settings(settings)), option=orjson.OPT_SORT_KEYS, default=str)
        return f"{self.version}-{xxhash.xxh3_64_hexdigest(decides)}"

    def key(self, run: Run) -> str:
        """The key of the result in the store: a hash of everything that the result depends on.

        Raises:
            MissingStageError: a stage before it has no current result.
        """
        inputs = self.inputs(run) if self.inputs else self._all_inputs(run)
        code = self.version if self.key_from_inputs else self.fingerprint(run.settings)
        return content_hash(self.name, code, inputs)

    def _all_inputs(self, run: Run) -> Mapping[str, Any]:
        return versions(run, *self.reads_under(run.settings))

    def receipt(self, run: Run, key: str, version: str, **content: Any) -> Receipt:
        """A receipt of this stage, with the current results as its upstream."""
        return Receipt(
            stage=self.name,
            fingerprint=self.fingerprint(run.settings),
            key=key,
            version=version,
            # A plan keeps no receipts, and may not know the results of some stages.
            upstream={} if run.planning else versions(run, *self.reads_under(run.settings)),
            settings=given_settings(run.settings),
            **content,
        )

    @abstractmethod
    def decide(self, run: Run) -> Decision:
        """What to compute. Stores nothing."""

    @abstractmethod
    def make(self, run: Run, decision: Decision) -> Receipt:
        """Compute what was decided. Returns the receipt of the result."""


def versions(run: Run, *stages: str) -> dict[str, str]:
    """The versions of the current results of stages."""
    return {stage: run.receipt(stage).version for stage in stages}


def _versions_without_corpus(run: Run, stage: Stage) -> dict[str, str]:
    """Keys or versions of the results that a stage reads, without the corpus: a fragment's result does not depend on
    the corpus, and a fit outlives it."""
    receipts = {name: run.receipt(name) for name in stage.reads_under(run.settings) if name != "raw_docs"}
    return {
        name: receipt.key if isinstance(run.graph[name], PerDocument) else receipt.version
        for name, receipt in receipts.items()
    }


def counts(documents: int, new: int) -> dict[str, int]:
    """The figures that every stage shows."""
    return {"documents": documents, "new_documents": new, "reused_documents": documents - new}


@dataclass(frozen=True, kw_only=True, eq=False)
class PerDocument(Stage):
    """A function of a fragment. `compute` returns the function for workers. It can be pickled, and holds everything
    that it depends on except the fragment. `needs` says what the engine has to give it. `by_text`: its results depend
    on a record's text alone and are costly, so that each text is computed once. `figures` summarise all results."""

    compute: Callable[[Run], Callable[[Fragment], Computed]]
    needs: Callable[[Run, Sequence[Work]], Needs] = by_size
    by_text: bool = False
    figures: Callable[[Run, StageFiles], Mapping[str, Any]] = lambda run, files: {}
    facts: Callable[[Run], Mapping[str, Any]] = lambda run: {}

    def _all_inputs(self, run: Run) -> Mapping[str, Any]:
        return _versions_without_corpus(run, self)

    def files(self, run: Run, key: str) -> StageFiles:
        return StageFiles(run.store, self.name, key)

    def work(self, run: Run, key: str) -> list[Work]:
        """The fragments of the input without a result under a key."""
        files, fragments = self.files(run, key), run.records.fragments
        return work_to_do(fragments, run.view, files, by_text=self.by_text, plan=run.planning)

    def missing(self, run: Run, key: str) -> int:
        """The number of records that have to be computed under a key."""
        return sum(work.new.rows for work in self.work(run, key))

    def decide(self, run: Run) -> Decision:
        key, corpus = self.key(run), run.corpus
        missing, total = self.missing(run, key), corpus.records
        receipt = self.receipt(run, key, content_hash(key, corpus.version), facts=dict(self.facts(run)))
        if not missing:
            return Decision(scope="nothing", documents=0, why="", receipt=receipt)
        if missing < total:
            return Decision(scope="new", documents=missing, why="new records", receipt=receipt)
        return Decision(scope="all", documents=missing, why=what_changed(self, run), receipt=receipt)

    def make(self, run: Run, decision: Decision) -> Receipt:
        receipt = decision.receipt
        assert receipt is not None
        if works := self.work(run, receipt.key):
            self._compute_with_progress(run, receipt.key, works)
        last = load_receipt(run.store, self.name)
        same = last and (last.key, last.version, last.upstream) == (
            receipt.key,
            receipt.version,
            receipt.upstream,
        )
        kept = last.figures if last and same else self.figures(run, self.files(run, receipt.key))
        # A rate belongs to the run that measured it.
        figures = {name: value for name, value in kept.items() if not name.endswith("_per_second")}
        return replace(receipt, figures={**figures, **counts(run.corpus.records, decision.documents)})

    def _compute_with_progress(self, run: Run, key: str, works: Sequence[Work]) -> None:
        rows = sum(work.new.rows for work in works)
        try:
            with run.progress(self.doing or self.name, rows, "records") as advance:
                for stored in self.compute_missing(run, key, works):
                    rows -= stored.rows
                    advance(stored.rows)
        except DiskFullError as error:
            if not error.row_bytes:
                raise
            rest = byte_size(int(error.row_bytes * rows))
            raise DiskFullError(f"{error}; {self.name} takes about {rest} more in all") from error

    def compute_missing(self, run: Run, key: str, works: Sequence[Work]) -> Iterator[StoredFragment]:
        """Compute and store the results of fragments, in their order."""
        return self.compute_with(self.compute(run), run, key, works)

    def compute_with(
        self,
        compute: Callable[..., Computed],
        run: Run,
        key: str,
        works: Sequence[Work],
        advance: Advance | None = None,
    ) -> Iterator[StoredFragment]:
        """As `compute_missing`, with a function in place of `compute(run)`. advance: see `Engine.each`."""
        compute_and_store = ComputeAndStore(run.store, self.name, key, compute)
        stored = run.engine.each(compute_and_store, works, **self.needs(run, works), advance=advance)
        if all(work.repeats is None for work in works):
            return stored
        return store_with_repeats(self.files(run, key), works, stored)


@dataclass(frozen=True, kw_only=True, eq=False)
class WholeCorpus(Stage):
    """Named files, made from results of other stages. `content` names the files whose hashes make the version; if it is
    empty, the version is the key. `lacks` says why a stored result is incomplete. `publish` copies every result, new or
    stored, to the place where people look for it."""

    compute: Callable[[Run], Made]
    content: tuple[str, ...] = ()
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
        return Decision(scope="all", documents=run.corpus.records, why=why, key=key)

    def _receipt(self, run: Run, result: Result) -> Receipt:
        content = {name: getattr(result, name) for name in ("files", "facts", "figures")}
        return self.receipt(run, result.key, result.version, **content)

    def make(self, run: Run, decision: Decision) -> Receipt:
        receipt = decision.receipt
        if receipt is None:
            if self.doing:
                run.progress.note(f"{self.doing}{f' ({decision.why})' if decision.why else ''}")
            receipt = self._receipt(run, self._compute_and_keep(run, decision.key))
        self.publish(run, receipt)
        counted = counts(run.corpus.records, decision.documents)
        # A new result may have its own figure of new documents.
        kept = decision.scope == "nothing"
        figures = {**receipt.figures, **counted} if kept else {**counted, **receipt.figures}
        verified = {"verified": run.memo["verified"]} if "verified" in run.memo else {}
        return replace(receipt, facts={**receipt.facts, **verified}, figures=figures)

    def _compute_and_keep(self, run: Run, key: str) -> Result:
        folder, before = f"stages/{self.name}/{key}", load_result(run.store, self.name, key)
        computed = self.compute(run)
        files = {}
        for name, content in sorted(computed.files.items()):
            if isinstance(content, Mapping):
                content = File(pack(content), "safetensors")
            elif isinstance(content, list):
                content = File(pack_rows(content), "parquet")
            files[name] = run.store.put_hashed(folder, name, *content)
        hashes = [files[name].rsplit(".", 2)[1] for name in self.content]
        version = content_hash(*hashes) if hashes else key
        result = as_stored(
            Result(key=key, version=version, files=files, facts=computed.facts, figures=computed.figures)
        )
        if before and _without_counts(before) == _without_counts(result):
            # An equal result keeps its first counts.
            result = replace(result, figures=before.figures)
        keep_result(run.store, self.name, result)
        return result


def is_published(run: Run, stage: str, folder: Place, files: dict[str, dict[str, Any]]) -> bool:
    """Whether a folder holds the files of its manifest. The receipt keeps what shows a change of each file that was
    hashed, so that the next run hashes only changed files."""
    last = load_receipt(run.store, stage)
    verified = verified_files(folder, files, last.facts.get("verified", {}) if last else {})
    run.memo.setdefault("verified", {}).update(verified or {})
    return verified is not None


def _without_counts(result: Result) -> tuple[dict[str, Any], dict[str, Any]]:
    """The facts and figures of a result, without the counts of documents."""
    figures = {name: value for name, value in result.figures.items() if name not in counts(0, 0)}
    return result.facts, figures


@dataclass(frozen=True, slots=True)
class Fitted:
    """A stored fit: its result, its files by name, the number of `documents` that it was made on, and a `sketch` of
    these documents, uint64 (m,), rising."""

    result: Result
    files: Mapping[str, bytes]
    documents: int
    sketch: np.ndarray


@dataclass(frozen=True, kw_only=True, eq=False)
class PinnedFit(Stage):
    """A fit on the corpus. `drift` says why a fit no longer describes the corpus; None if it does. `tentative` names a
    drift that only a run can find. `facts` and `figures` describe a fit, new or stored."""

    compute: Callable[[Run], Mapping[str, bytes]]
    refit: FitName | None = None
    """The name in `divorder run --refit NAME` and in the table `[refit]`, which sets the rule. Without a name the rule
    is `auto`."""
    drift: Callable[[Run, Fitted], str | None] = lambda run, fitted: None
    tentative: str = ""
    checked_once_per_corpus: bool = True
    """Whether `drift` depends on the corpus alone, so that one check a corpus is enough. False if it also depends on
    settings or on the last output."""
    outlives: Callable[[Collection[str]], bool] = lambda files: False
    """Whether a fit with files of these names stays when an earlier fit is made again, and when `divorder prune` runs
    under other settings. Such a fit cannot be repeated."""
    kept_by_outcome: bool = False
    """Whether later stages depend on the choice (a kind of vectors, a number of clusters), not on the fit's hash. Their
    results then stay when the fit is made again with the same choice."""
    facts: Callable[[Run, Fitted], Mapping[str, Any]] = lambda run, fitted: {}
    figures: Callable[[Run, Receipt], Mapping[str, Any]] = lambda run, receipt: {}

    def _all_inputs(self, run: Run) -> Mapping[str, Any]:
        return _versions_without_corpus(run, self)

    def rule(self, settings: Settings) -> str:
        """When the fit is made again: `auto` (after drift), `now` (in this run) or `never`."""
        return settings.refit[self.refit] if self.refit else "auto"

    def decide(self, run: Run) -> Decision:
        key, rule = self.key(run), self.rule(run.settings)
        if rule == "now":
            return self._anew(run, key, f"asked for by --refit {self.refit}")
        fitted = load_fitted(run.store, self.name, key, self.refit)
        if fitted is None:
            return self._anew(run, key, what_changed(self, run))
        unless = ""
        if rule == "auto" and not (self.checked_once_per_corpus and self._was_checked(run, fitted)):
            if why := self.drift(run, fitted):
                return self._anew(run, key, why)
            unless = self.tentative if run.planning else ""
        receipt, why = self._receipt(run, fitted), ""
        if rule != "auto":
            receipt.facts["checked"] = None
            if run.planning and (drift := self.drift(run, fitted)):
                why = f"{drift}; divorder run --refit {self.refit} makes it again"
        return Decision(scope="nothing", documents=0, why=why, receipt=receipt, unless=unless)

    def _anew(self, run: Run, key: str, why: str) -> Decision:
        return Decision(scope="all", documents=run.corpus.records, why=why, key=key)

    def _was_checked(self, run: Run, fitted: Fitted) -> bool:
        """Whether the last run has already compared this fit with this corpus."""
        last = load_receipt(run.store, self.name)
        return last is not None and (last.version, last.facts.get("checked")) == (
            fitted.result.version,
            run.corpus.version,
        )

    def _receipt(self, run: Run, fitted: Fitted) -> Receipt:
        result = fitted.result
        # `result.facts` hold the number of documents that the fit was made on, and the reason.
        facts = {**self.facts(run, fitted), **result.facts, "checked": run.corpus.version}
        return self.receipt(run, result.key, result.version, files=result.files, facts=facts)

    def make(self, run: Run, decision: Decision) -> Receipt:
        receipt = decision.receipt
        if receipt is None:
            run.progress.note(f"{self.doing or self.name} ({decision.why})")
            ids = sketch(run.corpus.ids())
            files = {**self.compute(run), SKETCH: pack({"ids": ids})}
            folder = put_fit(run.store, self.name, files)
            facts = {"documents": run.corpus.records, "reason": decision.why}
            result = fit_result(decision.key, folder, facts)
            before = load_result(run.store, self.name, decision.key)
            kept = put_result(run.store, self.name, result, before)
            if before and before.version != kept.version:
                _remove_replaced(run, self, before)
            fitted_now = Fitted(result, files, run.corpus.records, ids)
            if kept.version != result.version:  # another run on this bucket was first
                fitted_now = load_fitted(run.store, self.name, decision.key, self.refit) or fitted_now
            receipt = self._receipt(run, fitted_now)
        fitted = decision.why if decision.scope == "all" else f"no: kept ({receipt.facts['reason']})"
        figures = {"fitted": fitted, **self.figures(run, receipt)}
        counted = counts(run.corpus.records, decision.documents)
        return replace(receipt, figures={**figures, **counted})


def fit_result(key: str, folder: str, facts: Mapping[str, Any]) -> Result:
    """The result of a fit whose files lie in a folder."""
    return Result(key=key, version=folder.rpartition("/")[2], files={"fit": folder}, facts=dict(facts))


def load_fitted(store: Store, stage: str, key: str, name: FitName | None = None) -> Fitted | None:
    """The fit of a stage under a key; None if there is none. name: the stage's name for `--refit`.

    Raises:
        StoreError: one of its files is missing or altered. If a stage has no `name`, people may delete the folder of
            all its fits; the stage then makes another.
    """
    result = load_result(store, stage, key)
    if result is None:
        return None
    try:
        files = read_fit(store, result.files["fit"], name)
    except StoreError:
        if name or f"{FITS}/{stage}" in store.folders(FITS):
            raise
        return None
    return Fitted(result, files, result.facts["documents"], unpack(files[SKETCH])["ids"])


def _remove_replaced(run: Run, fitted: PinnedFit, before: Result) -> None:
    """Remove results that used a replaced fit. No key leads to them any more, and with small appends fits may be
    replaced every few days. `pipeline.prune` removes files of fits."""
    results = load_state(run.store).results
    # Another key may lead to the same fit.
    if fitted.kept_by_outcome or before.version in {result.version for result in results[fitted.name]}:
        return
    for stage in run.graph.values():
        last = load_receipt(run.store, stage.name)
        if last is None or last.upstream.get(fitted.name) != before.version:
            continue
        if isinstance(stage, PerDocument) and not run.store.shared:
            run.store.delete(*stage.files(run, last.key).present().values())
        elif isinstance(stage, PinnedFit) and not stage.outlives(run.store.list(last.files["fit"])):
            others = [result for result in results.get(stage.name, []) if result.key != last.key]
            save_results(run.store, stage.name, others)
