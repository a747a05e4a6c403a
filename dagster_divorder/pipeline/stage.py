"""What a stage is: a value that a file of `stages/` holds whole, and the three kinds that there are.

- `PerDocument`: a function of a fragment of documents (or of records). A fragment that has a result under the stage's
  key is never computed again.
- `WholeCorpus`: named files out of what lies before. Kept under the key of all that they were made from.
- `PinnedFit`: what is learnt from the corpus, pinned, so that appended data uses it as it is. Made again by its own
  rule of drift, on request, or never, and with the reason.

`decide` says what is to be computed, for how many documents, and why; a run and a plan both go by it. Key, reuse,
receipt, counts and timing belong to the kinds. Nothing here knows a stage by name but `raw_docs`, which all others
read.
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
from dagster_divorder.errors import DiskFullError
from dagster_divorder.pipeline.changes import given_settings, what_changed
from dagster_divorder.pipeline.per_fragment import (
    WORKER_BYTES,
    ComputeAndStore,
    Computed,
    StoredFragment,
    by_size,
)
from dagster_divorder.settings import Settings
from dagster_divorder.settings.places import Place
from dagster_divorder.store.arrays import pack, pack_rows, unpack
from dagster_divorder.store.base import Store
from dagster_divorder.store.fits import Fit, drop_unpinned, pin, pinned, read_fit, unpin
from dagster_divorder.store.local import megabytes
from dagster_divorder.store.receipts import Receipt, load_receipt
from dagster_divorder.store.stages import StageFiles
from dagster_divorder.store.view import Fragment

if TYPE_CHECKING:
    from dagster_divorder.pipeline.run import Run

ABOUT = "about"
"""File of a whole-corpus result, written last: its other files, facts and figures."""

SKETCH = "documents.safetensors"
"""File of every fit: how many documents it was made on, and a sketch of them (`core.sketch`)."""

FITTED = "fitted.json"

TEXT_OF_A_WORKER = 2 * WORKER_BYTES
"""Bytes of text that are stored, compressed, in about WORKER_BYTES."""


def content_hash(*parts: Any) -> str:
    """Hash of JSON-ready values, 32 hex digits."""
    return xxhash.xxh3_128_hexdigest(
        orjson.dumps(parts, option=orjson.OPT_SORT_KEYS | orjson.OPT_SERIALIZE_NUMPY, default=str)
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """What a stage would compute now.

    `key` is what the result will be filed under, `receipt` the result as it will be, as far as that can be told before
    it is made: None where only computing tells. `unless` says what only a run finds out, and that would make it
    compute more.
    """

    scope: Literal["nothing", "new", "all"]
    documents: int
    why: str
    key: str = ""
    receipt: Receipt | None = None
    unless: str = ""


class Size(NamedTuple):
    """How large a corpus is: documents, and bytes and tokens of their texts."""

    documents: float
    bytes: float
    tokens: float

    def times(self, factor: float) -> Size:
        """A corpus of the same kind, so many times as large."""
        return Size(self.documents * factor, self.bytes * factor, self.tokens * factor)


class File(NamedTuple):
    """Bytes of a named file of a result, and its extension."""

    data: bytes
    extension: str


@dataclass(frozen=True, slots=True)
class Made:
    """A whole-corpus result: its files by name (arrays are stored as safetensors, rows of plain values as Parquet),
    `facts` that later stages read, and `figures` that people see."""

    files: Mapping[str, File | Mapping[str, np.ndarray] | list[dict[str, Any]]]
    facts: dict[str, Any] = field(default_factory=dict)
    figures: dict[str, Any] = field(default_factory=dict)


class Table(NamedTuple):
    """Rows of plain values by column name, for people."""

    rows: list[dict[str, Any]]


class Picture(NamedTuple):
    """A PNG file, and what it shows in words."""

    file: Path
    what: str


class Text(NamedTuple):
    """Markdown."""

    markdown: str


class Link(NamedTuple):
    """A file or folder to open."""

    path: Place


Shown = Mapping[str, Table | Picture | Text | Link | float]
"""What a person sees of a result beside its figures, by name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """Whether a check is passed: what was found, what to do if it is not, the figures, and tables (lists of rows)."""

    passed: bool
    text: str
    remedy: str = ""
    figures: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """A claim on a stage's result, and the function that holds it against what is stored. What is made of a result that
    fails a `blocking` one must not be used."""

    name: str
    description: str
    check: Callable[[Run], Finding]
    blocking: bool = False


def _nothing_shown(run: Run, receipt: Receipt) -> Shown:
    return {}


@dataclass(frozen=True, kw_only=True, eq=False)
class Stage(ABC):
    """One stage.

    `version` is raised when the code gives other bytes for the same input. `reads` names the stages before it, and
    `settings` what of the settings decides its own result, both under some settings. `inputs` says what of the stages
    before it decides the result, by default all of it (of a fragment's result, and of a fit: whatever the corpus).
    Without `asset` a stage has no Dagster asset of its own: it is made as a part of those that read it, or of the one
    that lists it in `then`, which come right after that one. `quotes` names the files that may hold words of documents
    ("*": all): `divorder prune` takes them away with deleted documents.
    """

    name: str
    version: int
    description: str
    reads: Sequence[str] | Callable[[Settings], Sequence[str]]
    settings: Callable[[Settings], Mapping[str, Any]] = lambda settings: {}
    inputs: Callable[[Run], Mapping[str, Any]] | None = None
    key_from_inputs: bool = False
    """The key is made of the code version and `inputs` alone; `inputs` hold what settings such as `auto` came to on
    this machine, so two settings with one outcome share a result."""
    when: Callable[[Settings], bool] = lambda settings: True
    """Whether these settings have the stage at all."""
    group: str = "evidence"
    kinds: Collection[str] | Callable[[Settings], Collection[str]] = ()
    """What makes the result, such as `faiss`; Dagster shows an icon of those that it knows."""
    asset: bool = True
    then: tuple[str, ...] = ()
    after: tuple[str, ...] = ()
    """Stages that it shows where they have been made, and so comes after in Dagster."""
    quotes: tuple[str, ...] = ()
    doing: str = ""
    """What it does, for progress, such as `tokenising`."""
    figures_now: Callable[[Run], Mapping[str, Any]] = lambda run: {}
    """Figures that every run tells anew, since they are of more than the result: what it rests on, and why."""
    check_settings: Callable[[Run], object] = lambda run: None
    """Raises what can be known to be wrong with the settings before the first stage runs."""
    show: Callable[[Run, Receipt], Shown] = _nothing_shown
    checks: tuple[Check, ...] = ()
    amount: Callable[[Settings, Size], float] = lambda settings, size: size.bytes
    """How much work a corpus of this size is: what an estimate takes time to grow with, beside a fixed part."""
    pace: tuple[float, float] | None = None
    """Processor seconds of a first run, (fixed, for a million of `amount`), which a plan shows until a run has been
    timed: 2 cores of an AMD EPYC, the mixture corpus (benchmarks/estimate.py)."""
    shared_from: int | None = None
    """Bytes of text for each of which, from the second on, one worker more shares the work; None: one process does it,
    whatever the size."""

    def reads_under(self, settings: Settings) -> Sequence[str]:
        """The stages before it, under some settings."""
        return self.reads(settings) if callable(self.reads) else self.reads

    def kinds_under(self, settings: Settings) -> Collection[str]:
        """What makes the result, under some settings."""
        return self.kinds(settings) if callable(self.kinds) else self.kinds

    def fingerprint(self, settings: Settings) -> str:
        """Code version and a hash of the settings that decide the result, such as `1-9f3a0c5e...`."""
        decides = orjson.dumps(dict(self.settings(settings)), option=orjson.OPT_SORT_KEYS, default=str)
        return f"{self.version}-{xxhash.xxh3_64_hexdigest(decides)}"

    def key(self, run: Run) -> str:
        """What the result is filed under: it names all that the result depends on.

        Raises:
            MissingStageError: a stage before it has no current result.
        """
        of = self.inputs(run) if self.inputs else self._all_inputs(run)
        code = self.version if self.key_from_inputs else self.fingerprint(run.settings)
        return content_hash(self.name, code, of)

    def _all_inputs(self, run: Run) -> Mapping[str, Any]:
        return versions(run, *self.reads_under(run.settings))

    def receipt(self, run: Run, key: str, version: str, **parts: Any) -> Receipt:
        """A receipt of this stage, made from what is current now."""
        return Receipt(
            stage=self.name,
            fingerprint=self.fingerprint(run.settings),
            key=key,
            version=version,
            # Those of a plan are not kept, and not all that is read decides the result.
            upstream={} if run.planning else versions(run, *self.reads_under(run.settings)),
            settings=given_settings(run.settings),
            **parts,
        )

    @abstractmethod
    def decide(self, run: Run) -> Decision:
        """What is to be computed. Stores nothing."""

    @abstractmethod
    def make(self, run: Run, decision: Decision) -> Receipt:
        """Compute what was decided on; the receipt of the result."""


def versions(run: Run, *stages: str) -> dict[str, str]:
    """The versions of the current results of stages."""
    return {stage: run.receipt(stage).version for stage in stages}


def _versions_without_corpus(run: Run, stage: Stage) -> dict[str, str]:
    """What names the results of the stages before one, but for the corpus that they are of: a fragment's result does
    not depend on it, and a fit outlives it."""
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
    """A function of a fragment. `compute` makes that function, which workers are given: picklable, with all that it
    depends on but its fragment; `needs` says what the engine has to give it; `figures` are of all results."""

    compute: Callable[[Run], Callable[[Fragment], Computed]]
    needs: Callable[[Run, Sequence[Fragment]], Needs] = by_size
    of: Literal["documents", "records"] = "documents"
    figures: Callable[[Run, StageFiles], Mapping[str, Any]] = lambda run, files: {}
    facts: Callable[[Run], Mapping[str, Any]] = lambda run: {}
    shared_from: int | None = TEXT_OF_A_WORKER

    def _all_inputs(self, run: Run) -> Mapping[str, Any]:
        return _versions_without_corpus(run, self)

    def files(self, run: Run, key: str) -> StageFiles:
        return StageFiles(run.store, self.name, key)

    def missing(self, run: Run, key: str) -> int:
        """How many documents (or records) of the input have no result under a key."""
        present = self.files(run, key).present()
        stored = run.corpus.stored[self.of]
        return run.corpus.distinct[self.of] - sum(rows for name, rows in stored.items() if name in present)

    def decide(self, run: Run) -> Decision:
        key, corpus = self.key(run), run.corpus
        missing, total = self.missing(run, key), corpus.distinct[self.of]
        receipt = self.receipt(run, key, content_hash(key, corpus.version), facts=dict(self.facts(run)))
        if not missing:
            return Decision(scope="nothing", documents=0, why="", receipt=receipt)
        some = missing < total
        return Decision(
            scope="new" if some else "all",
            documents=missing,
            why=f"new {self.of}" if some else what_changed(self, run),
            receipt=receipt,
        )

    def make(self, run: Run, decision: Decision) -> Receipt:
        receipt = decision.receipt
        assert receipt is not None
        files = self.files(run, receipt.key)
        fragments = run.view.documents if self.of == "documents" else run.view.records
        present = files.present()
        missing = [fragment for fragment in fragments if fragment.name not in present]
        self._with_progress(run, receipt.key, missing)
        last = load_receipt(run.store, self.name)
        same = last and (last.key, last.version, last.upstream) == (
            receipt.key,
            receipt.version,
            receipt.upstream,
        )
        figures = last.figures if last and same else dict(self.figures(run, files))
        total = run.corpus.distinct[self.of]
        return replace(receipt, figures={**figures, **counts(total, decision.documents)})

    def _with_progress(self, run: Run, key: str, missing: Sequence[Fragment]) -> None:
        if not missing:
            return
        left = sum(fragment.rows for fragment in missing)
        try:
            with run.progress(self.doing or self.name, left, self.of) as advance:
                for stored in self.compute_missing(run, key, missing):
                    left -= stored.rows
                    advance(stored.rows)
        except DiskFullError as error:
            if not error.row_bytes:
                raise
            rest = megabytes(int(error.row_bytes * left))
            raise DiskFullError(f"{error}; {self.name} takes about {rest} more in all") from error

    def compute_missing(self, run: Run, key: str, missing: Sequence[Fragment]) -> Iterator[StoredFragment]:
        """Compute and store the results of fragments, in their order."""
        return self.compute_with(self.compute(run), run, key, missing)

    def compute_with(
        self,
        compute: Callable[..., Computed],
        run: Run,
        key: str,
        missing: Sequence[Fragment],
        advance: Advance | None = None,
    ) -> Iterator[StoredFragment]:
        """The same, by a function that is not, or more than, what `compute` gives; `advance` as in `Engine.each`."""
        compute_and_store = ComputeAndStore(run.store, self.name, key, compute)
        return run.engine.each(compute_and_store, missing, **self.needs(run, missing), advance=advance)


@dataclass(frozen=True, kw_only=True, eq=False)
class WholeCorpus(Stage):
    """Named files out of what lies before. `content` names the files whose bytes make the version, by default the key
    does. `lacks` says why a result that is stored is not whole all the same; `publish` puts a result, new or not, where
    people look for it."""

    compute: Callable[[Run], Made]
    content: tuple[str, ...] = ()
    lacks: Callable[[Run, str], str | None] = lambda run, key: None
    publish: Callable[[Run, Receipt], None] = lambda run, receipt: None

    def decide(self, run: Run) -> Decision:
        key = self.key(run)
        present = run.store.hashed(f"stages/{self.name}/{key}")
        found, why = self._stored(run, key, present), ""
        if ABOUT in present:
            why = self.lacks(run, key) or ("" if found else "files of it are gone")
        if found and not why:
            return Decision(scope="nothing", documents=0, why="", receipt=found)
        why = why or what_changed(self, run)
        return Decision(scope="all", documents=run.corpus.documents, why=why, key=key)

    def _stored(self, run: Run, key: str, found: Mapping[str, str]) -> Receipt | None:
        """The result that is stored under a key in these files, None where not all of it is there."""
        if ABOUT not in found:
            return None
        about = orjson.loads(run.store.read_verified(found[ABOUT]))
        if not all(name in found for name in about["files"]):
            return None
        files = {name: found[name] for name in (*about["files"], ABOUT)}
        hashes = [files[name].rsplit(".", 2)[1] for name in self.content]
        version = content_hash(*hashes) if hashes else key
        return self.receipt(run, key, version, files=files, facts=about["facts"], figures=about["figures"])

    def make(self, run: Run, decision: Decision) -> Receipt:
        receipt = decision.receipt
        if receipt is None:
            if self.doing:
                run.progress.note(f"{self.doing}{f' ({decision.why})' if decision.why else ''}")
            key, folder = decision.key, f"stages/{self.name}/{decision.key}"
            made = self.compute(run)
            for name, content in made.files.items():
                if isinstance(content, Mapping):
                    content = File(pack(content), "safetensors")
                elif isinstance(content, list):
                    content = File(pack_rows(content), "parquet")
                run.store.put_hashed(folder, name, *content)
            made_now = {"files": sorted(made.files), "facts": made.facts, "figures": made.figures}
            about = orjson.dumps(made_now, option=orjson.OPT_SERIALIZE_NUMPY)
            present = run.store.hashed(folder)
            # Made again, it is the same result; how much of it was new the first time is kept.
            if ABOUT not in present or _without_counts(
                run.store.read_verified(present[ABOUT])
            ) != _without_counts(about):
                now = run.store.put_hashed(folder, ABOUT, about, "json")
                there = run.store.list(folder)
                run.store.delete(*(of for of in there if of.startswith(f"{folder}/{ABOUT}.") and of != now))
            receipt = self._stored(run, key, run.store.hashed(folder))
            assert receipt is not None
        self.publish(run, receipt)
        of_all = counts(run.corpus.documents, decision.documents)
        # A result that was made now may say itself how many of its documents are new in it.
        kept = decision.scope == "nothing"
        return replace(
            receipt, figures={**receipt.figures, **of_all} if kept else {**of_all, **receipt.figures}
        )


def _without_counts(about: bytes) -> dict[str, Any]:
    """What a result says of itself, but for how many of its documents were new."""
    said: dict[str, Any] = orjson.loads(about)
    return said | {"figures": {name: of for name, of in said["figures"].items() if name not in counts(0, 0)}}


class Refit(NamedTuple):
    """Whether a fit may be made again: `auto` by its own rule of drift, `now` once, `never`; and the setting that says
    so."""

    when: str
    setting: str


@dataclass(frozen=True, slots=True)
class Fitted:
    """A fit as it is stored: its files by name, the number of `documents` that it was made on, and a `sketch` of them,
    uint64 (m,), rising."""

    fit: Fit
    files: Mapping[str, bytes]
    documents: int
    sketch: np.ndarray


@dataclass(frozen=True, kw_only=True, eq=False)
class PinnedFit(Stage):
    """What is learnt from the corpus. `drift` says why a fit no longer describes it, None where it does; `tentative`
    what of that only a run can tell. `facts` and `figures` are of a fit, new or not."""

    compute: Callable[[Run], Mapping[str, bytes]]
    refit: Callable[[Settings], Refit]
    drift: Callable[[Run, Fitted], str | None]
    tentative: str = ""
    checked_once_per_corpus: bool = True
    """`drift` looks at the corpus alone: asked once a corpus, not in every run. False where it also looks at settings
    or at the last output."""
    outlives: Callable[[Collection[str]], bool] = lambda files: False
    """Whether a fit of files of these names is kept when one that it was made with is made again, and by `divorder
    prune` under other settings: no run would make it again as it is."""
    kept_by_outcome: bool = False
    """Stages after it depend on what was chosen (a kind of vectors, a number of clusters), not on the fit's hash; their
    results stay when it is made again."""
    facts: Callable[[Run, Mapping[str, bytes]], Mapping[str, Any]] = lambda run, files: {}
    figures: Callable[[Run, Receipt], Mapping[str, Any]] = lambda run, receipt: {}

    def _all_inputs(self, run: Run) -> Mapping[str, Any]:
        return _versions_without_corpus(run, self)

    def decide(self, run: Run) -> Decision:
        key, refit = self.key(run), self.refit(run.settings)
        fit = pinned(run.store, self.name, key, refit=refit.when == "now", setting=refit.setting)
        if refit.when == "now":
            return self._anew(run, key, f"asked for by {refit.setting}")
        if fit is None:
            return self._anew(run, key, what_changed(self, run))
        stored = load_fitted(run.store, fit, refit.setting)
        unless = ""
        if refit.when == "auto" and not (self.checked_once_per_corpus and self._was_checked(run, fit)):
            if why := self.drift(run, stored):
                return self._anew(run, key, why)
            unless = self.tentative if run.planning else ""
        receipt, why = self._receipt(run, key, fit, self.facts(run, stored.files)), ""
        if refit.when != "auto":
            receipt.facts["checked"] = None
            if run.planning and (drift := self.drift(run, stored)):
                why = f'{drift}; set {refit.setting} = "now" for one run to make it again'
        return Decision(scope="nothing", documents=0, why=why, receipt=receipt, unless=unless)

    def _anew(self, run: Run, key: str, why: str) -> Decision:
        return Decision(scope="all", documents=run.corpus.documents, why=why, key=key)

    def _was_checked(self, run: Run, fit: Fit) -> bool:
        """Whether the last run held this fit against this corpus already."""
        last = load_receipt(run.store, self.name)
        return last is not None and (last.version, last.facts.get("checked")) == (
            fit.hash,
            run.corpus.version,
        )

    def _receipt(self, run: Run, key: str, fit: Fit, facts: Mapping[str, Any]) -> Receipt:
        about = {"checked": run.corpus.version, "reason": fit.reason}
        return self.receipt(run, key, fit.hash, files={"fit": fit.folder}, facts={**facts, **about})

    def make(self, run: Run, decision: Decision) -> Receipt:
        receipt = decision.receipt
        if receipt is None:
            run.progress.note(f"{self.doing or self.name} ({decision.why})")
            key, setting = decision.key, self.refit(run.settings).setting
            before = pinned(run.store, self.name, key, refit=True, setting=setting)
            files = {**self.compute(run), **_about_documents(run)}
            fit = pin(run.store, self.name, key, files, decision.why)
            if before and before.hash != fit.hash:
                _remove_replaced(run, self, before)
            receipt = self._receipt(run, key, fit, self.facts(run, files))
        documents = run.corpus.documents
        fitted = decision.why if decision.scope == "all" else f"no: kept ({receipt.facts['reason']})"
        figures = {"fitted": fitted, **self.figures(run, receipt)}
        return replace(receipt, figures={**figures, **counts(documents, decision.documents)})


def _about_documents(run: Run) -> dict[str, bytes]:
    about = {"documents": run.corpus.documents}
    return {FITTED: orjson.dumps(about), SKETCH: pack({"ids": sketch(run.corpus.ids())})}


def load_fitted(store: Store, fit: Fit, setting: str = "") -> Fitted:
    """A fit out of the store.

    Raises:
        StoreError: a file of it is missing or altered.
    """
    files = read_fit(store, fit, setting)
    documents = int(orjson.loads(files[FITTED])["documents"])
    return Fitted(fit, files, documents, unpack(files[SKETCH])["ids"])


def _remove_replaced(run: Run, fitted: PinnedFit, before: Fit) -> None:
    """Remove what was made with a fit that another one has replaced: nothing leads to it any more, and small appends
    may replace one every few days."""
    # Under other settings the same fit may have been found.
    if not drop_unpinned(run.store, before) or fitted.kept_by_outcome:
        return
    for stage in run.graph.values():
        last = load_receipt(run.store, stage.name)
        if last is None or last.upstream.get(fitted.name) != before.hash:
            continue
        if isinstance(stage, PerDocument):
            run.store.delete(*stage.files(run, last.key).present().values())
        elif isinstance(stage, PinnedFit) and not stage.outlives(run.store.list(last.files["fit"])):
            unpin(run.store, stage.name, last.key)
