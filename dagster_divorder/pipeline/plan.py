"""What a run would do, before it does it: which stages compute how much, why, for how long, and the disk in use.

Reads the input as a run does, parsing what was never seen, and stores nothing. A per-document stage is looked up under
the key that it would have, so results kept from other settings count as there; a stage that looks at all documents
together, in the history of its results. Times are the last measured seconds a new document.
Known weakness: only a run shows that new documents lie too far from the centroids (`clusters.refit = "auto"`), that a
known document has another vector in `embedding.path`, that `deep.model` is another checkpoint or its device another one
than last time, and what a measure that is taken again recommends. How much of the corpus has changed since a measure is
told from the number of documents alone.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

import orjson

from dagster_divorder.core.cluster import needs_refit
from dagster_divorder.engine.progress import Silent
from dagster_divorder.pipeline.ari_comparison import INFO as COMPARISON
from dagster_divorder.pipeline.base_model import (
    BaseModel,
    find_checkpoint,
    load_pin,
    reason_to_fit,
    warn_of_another_corpus,
)
from dagster_divorder.pipeline.base_model import load_pinned as load_base_model
from dagster_divorder.pipeline.cluster_names import load_pin as load_names_pin
from dagster_divorder.pipeline.clusters import clusters_key
from dagster_divorder.pipeline.clusters import load_pinned as load_clusters
from dagster_divorder.pipeline.curated_output import USES, output_key
from dagster_divorder.pipeline.external_embeddings import open_external
from dagster_divorder.pipeline.external_embeddings import pinned_key as external_key
from dagster_divorder.pipeline.graph import needed, upstream
from dagster_divorder.pipeline.k_calibration import INFO as CALIBRATION
from dagster_divorder.pipeline.prune import disk_use
from dagster_divorder.pipeline.raw_docs import survey_input
from dagster_divorder.pipeline.refresh import MIN_SHARE_LEFT, documents_left
from dagster_divorder.pipeline.run import Run, content_hash
from dagster_divorder.pipeline.shallow_embeddings import vectors_key
from dagster_divorder.pipeline.space import STAGE_OF, load_components, space_key
from dagster_divorder.pipeline.token_counts import tokens_key
from dagster_divorder.settings import Settings
from dagster_divorder.store.curated import has_files, read_manifest, refuse_foreign_files
from dagster_divorder.store.fits import Fit, pinned, read_fit
from dagster_divorder.store.ingest import Survey
from dagster_divorder.store.local import LocalStore
from dagster_divorder.store.receipts import Receipt, load_history, load_receipt
from dagster_divorder.store.stages import StageFiles
from dagster_divorder.store.view import View

MEASURES = {"ari_comparison": (COMPARISON, "measured_documents"), "k_calibration": (CALIBRATION, "documents")}
"""Of each measure the file that says what it found, and the name in it of the number of documents."""

Scope = Literal["nothing", "new", "all"]


@dataclass(frozen=True, slots=True)
class StagePlan:
    """One stage: how much it would compute (in documents) and why; seconds is None where no run has been timed."""

    stage: str
    scope: Scope
    why: str
    documents: int
    seconds: float | None


@dataclass(frozen=True, slots=True)
class Plan:
    """What a run would do. `new_records` were never seen; `disk` is bytes by part of the store."""

    records: int
    new_records: int
    stages: tuple[StagePlan, ...]
    disk: dict[str, int]


def make_plan(settings: Settings) -> Plan:
    """Plan a run with these settings on the store as it is.

    Raises:
        InputError: the input cannot be read, or too much of it would be refused.
    """
    store = LocalStore(settings.store.path).open(create=False)
    refuse_foreign_files(store, settings.output)
    survey, facts = survey_input(settings, store)
    planner = _Planner(Run(settings, store, Silent()), survey, facts)
    plans = tuple(planner.plan(stage) for stage in needed(settings))
    return Plan(survey.records, survey.new_records, plans, disk_use(store))


@dataclass(slots=True)
class _Planner:
    """Plans stage after stage. `versions` are those that the results will have, where that can be told."""

    run: Run
    survey: Survey
    facts: dict[str, Any]
    """What the report of raw_docs says of the input's files."""
    versions: dict[str, str] = field(default_factory=dict)
    remade: set[str] = field(default_factory=set)
    """Stages that are made again from the first document to the last."""
    model: BaseModel | None = None
    keys: dict[str, str] = field(default_factory=dict)
    """Of the per-document stages, as far as they can be told."""
    chosen: str | None = None
    """The kind of vectors that are clustered, None before a comparison has said so."""
    names: str | None = None
    """Folder of the names of the clusters, None before there are some."""
    recommended: int | None = None
    """Clusters, by a calibration that is kept."""

    def __post_init__(self) -> None:
        kind = self.run.settings.embedding.kind
        self.chosen = None if kind == "auto" else kind

    def plan(self, stage: str) -> StagePlan:
        own = {
            "raw_docs": self._raw_docs,
            "base_model": self._base_model,
            "token_counts": self._token_counts,
            "shallow_embeddings": self._shallow_embeddings,
            "deep_embeddings": self._deep_embeddings,
            "external_embeddings": self._external_embeddings,
            "ari_comparison": self._ari_comparison,
            "k_calibration": self._k_calibration,
            "clusters": self._clusters,
            "curated_output": self._curated_output,
        }
        work = own[stage]() if stage in own else self._whole(stage)
        receipt = load_receipt(self.run.store, stage)
        if work.documents and work.documents == work.of:
            scope: Scope = "all"
            why = self._why_all(stage, receipt, work.why)
            self.remade.add(stage)
        else:
            scope = "new" if work.documents else "nothing"
            why = work.why or self._why_some(stage, receipt, work.documents)
        pace = receipt.report.get("seconds_per_new_document") if receipt else None
        seconds = 0.0 if not work.documents else None if pace is None else work.documents * pace
        return StagePlan(stage, scope, why, work.documents, seconds)

    def _why_all(self, stage: str, receipt: Receipt | None, why: str) -> str:
        if receipt is None:
            return "never ran on this store"
        if why:
            return why
        if receipt.recipe != self.run.settings.recipe(stage):
            return "its settings or its code changed"
        remade = [name for name in upstream(self.run.settings)[stage] if name in self.remade - {"raw_docs"}]
        return f"{remade[0]} is made again" if remade else "the records changed"

    def _why_some(self, stage: str, receipt: Receipt | None, documents: int) -> str:
        if documents:
            return "new records"
        if receipt and receipt.version == self.versions[stage]:
            return "up to date"
        raw_docs = load_receipt(self.run.store, "raw_docs")
        same_input = raw_docs and raw_docs.version == self.survey.version
        return "kept from other settings" if same_input else "no record is new"

    def _raw_docs(self) -> _Work:
        self.versions["raw_docs"] = self.survey.version
        return _Work(self.survey.new_documents, self.survey.documents)

    def _base_model(self) -> _Work:
        fit = load_pin(self.run)
        checkpoint = find_checkpoint(self.run)
        reason = reason_to_fit(self.run, fit, checkpoint)
        if fit is None or reason:
            return self._all(reason if fit else "")
        self.model = load_base_model(self.run, fit, checkpoint)
        self.versions["base_model"] = fit.hash
        receipt = load_receipt(self.run.store, "base_model")
        kept = "pinned" if receipt and receipt.version == fit.hash else ""
        left = self._left(fit, self.model.info["sample_documents"])
        return _Work(0, 0, warn_of_another_corpus(left) or kept)

    def _token_counts(self) -> _Work:
        if self.model is None:
            return self._all()
        return self._per_document("token_counts", tokens_key(self.run.settings, self.model))

    def _shallow_embeddings(self) -> _Work:
        if self.model is None:
            return self._all()
        key = vectors_key(self.run.settings, self.model, self.keys["token_counts"])
        return self._per_document("shallow_embeddings", key)

    def _deep_embeddings(self) -> _Work:
        """Under the key of an earlier run with these settings: which device it would be tells only a run."""
        stage, store = "deep_embeddings", self.run.store
        keys = [folder.rsplit("/", 1)[1] for folder in store.folders(f"stages/{stage}")]
        for made in reversed(load_history(store, stage)):
            records = made.uses["raw_docs"]
            expected = {
                "base_model": self.versions.get("base_model"),
                "token_counts": content_hash(self.keys.get("token_counts"), records),
            }
            if made.recipe == self.run.settings.recipe(stage) and expected.items() <= made.uses.items():
                for key in keys:
                    if content_hash(key, records) == made.version:
                        return self._per_document(stage, key)
        return self._all()

    def _external_embeddings(self) -> _Work:
        path = self.run.settings.embedding.path
        assert path is not None
        open_external(
            path,
            records=self.survey.records,
            documents=self.survey.documents,
            refused=self.survey.rejected,
            rejects=self.run.store.path("rejects"),
        )
        key = external_key(self.run)
        return self._per_document("external_embeddings", key) if key else self._all()

    def _space_key(self, kind: str | None) -> str | None:
        """Of the space of a kind of vectors, None where it is made anew."""
        key = self.keys.get(STAGE_OF[kind]) if kind else None
        if key is None or kind is None or not self.run.settings.components[kind]:
            return key
        components = load_components(self.run, kind, key)
        if components is None:
            return None
        if self._refits == "auto" and self._drifted(components.fit, components.documents):
            return None
        return space_key(key, components)

    @property
    def _refits(self) -> str:
        return self.run.settings.clusters.refit

    def _drifted(self, fit: Fit, documents: int) -> str | None:
        """Why what was fitted to so many documents is fitted again."""
        if (left := self._left(fit, documents)) < MIN_SHARE_LEFT:
            return f"{left:.0%} of its documents are left"
        return needs_refit(documents, self.survey.documents, 0.0, None)

    def _left(self, fit: Fit, documents: int) -> float:
        """Share of the documents that a fit was made on, so many, that are left. Of an input that no run has read, the
        most that can be left: it holds no more of them than known documents."""
        raw_docs = load_receipt(self.run.store, "raw_docs")
        if raw_docs is None or raw_docs.version != self.survey.version:
            return min(1.0, (self.survey.documents - self.survey.new_documents) / documents)
        return documents_left(self.run, View.load(self.run.store, raw_docs.files["view"]), fit)

    def _ari_comparison(self) -> _Work:
        settings = self.run.settings.ari_comparison
        keys = [self._space_key(kind) for kind in settings.spaces]
        work, info = self._measure("ari_comparison", keys, settings.refresh)
        if self.run.settings.embedding.kind == "auto":
            self.chosen = info.get("chosen")
        return work

    def _k_calibration(self) -> _Work:
        keys, settings = [self._space_key(self.chosen)], self.run.settings.k_calibration
        work, info = self._measure("k_calibration", keys, settings.refresh)
        self.recommended = info.get("recommended")
        return work

    def _measure(self, stage: str, spaces: list[str | None], refresh: float) -> tuple[_Work, dict[str, Any]]:
        """A measure of the corpus as a whole, and what it said last; nothing where it was never taken."""
        keys = [key for key in spaces if key]
        recipe = "-".join([self.run.settings.recipe(stage), *keys])
        fit = pinned(self.run.store, stage, recipe) if len(keys) == len(spaces) else None
        if fit is None:
            return self._all(), {}
        file, documents = MEASURES[stage]
        info: dict[str, Any] = orjson.loads(read_fit(self.run.store, fit)[file])
        before, now = info[documents], self.survey.documents
        if abs(now - before) > refresh * max(now, before):
            return self._all(f"the corpus has gone from {before:,} to {now:,} documents"), info
        self.versions[stage] = fit.hash
        return _Work(0, 0), info

    def _clusters(self) -> _Work:
        key = self._space_key(self.chosen)
        current = load_clusters(self.run, key) if key else None
        if key is None or current is None:
            return self._all()
        if self._refits == "now":
            return self._all("a refit is asked for")
        if self._refits == "auto":
            if self.recommended not in (None, current.k):
                return self._all(f"k_calibration recommends {self.recommended} clusters now")
            drifted = self._drifted(current.fit, current.documents)
            if current.corpus != self.survey.version and drifted:
                return self._all(drifted)
        key = clusters_key(self.run.settings, key, current)
        names = load_names_pin(self.run.store, current.fit)
        self.names = names.folder if names else None
        return self._per_document("clusters", key)

    def _per_document(self, stage: str, key: str) -> _Work:
        """The documents that have no result under a key."""
        self.keys[stage] = key
        self.versions[stage] = content_hash(key, self.survey.version)
        present = StageFiles(self.run.store, stage, key).present()
        there = sum(count for name, count in self.survey.stored.items() if name in present)
        return _Work(self.survey.documents - there, self.survey.documents)

    def _whole(self, stage: str) -> _Work:
        recipe = self.run.settings.recipe(stage)
        for made in reversed(load_history(self.run.store, stage)):
            fits = all(self.versions.get(name) == version for name, version in made.uses.items())
            if made.recipe == recipe and fits and all(map(self.run.store.exists, made.files.values())):
                self.versions[stage] = made.version
                return _Work(0, 0)
        return self._all()

    def _curated_output(self) -> _Work:
        """The folder holds one output, that of the last run into it."""
        uses = {name: self.versions.get(name, "") for name in USES}
        folder = self.run.settings.output.path
        manifest = read_manifest(folder)
        if manifest is None:
            return self._all("output.path holds none")
        if self.names is None and all(uses.values()):
            return self._all("clusters are named anew")
        if manifest["key"] == output_key(self.run.settings, uses, self.facts, self.names or ""):
            whole = has_files(folder, manifest["files"])
            return _Work(0, 0, "up to date") if whole else self._all("files of it are gone")
        kept = all(uses.values()) and not self.remade
        return self._all("output.path holds that of other settings or files" if kept else "")

    def _all(self, why: str | None = "") -> _Work:
        return _Work(self.survey.documents, self.survey.documents, why or "")


@dataclass(frozen=True, slots=True)
class _Work:
    """Documents to compute, of how many; why, where that is special."""

    documents: int
    of: int
    why: str = ""
