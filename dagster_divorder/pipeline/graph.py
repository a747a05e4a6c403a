"""The stages as a graph: what there is under some settings, what a stage needs, and what a Dagster asset stands for."""

from __future__ import annotations

import importlib
from collections.abc import Iterable, Iterator, Mapping

from dagster_divorder.pipeline.stage import PerDocument, PinnedFit, Stage, WholeCorpus
from dagster_divorder.settings import Settings

OUTPUT = "curated_output"


class Graph(Mapping[str, Stage]):
    """Stages by name, in an order in which they can run. A stage comes right after a later one that it reads under some
    settings, or shows as evidence.

    A stage without an asset of its own is there where one reads it, or lists it in `then` and these settings have it.
    """

    def __init__(self, stages: Iterable[Stage]) -> None:
        self._stages = {stage.name: stage for stage in stages}

    def __getitem__(self, name: str) -> Stage:
        return self._stages[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._stages)

    def __len__(self) -> int:
        return len(self._stages)

    @property
    def evidence(self) -> tuple[str, ...]:
        """The stages that are evidence (`Stage.evidence`)."""
        return tuple(name for name, stage in self._stages.items() if stage.evidence)

    def upstream(self, settings: Settings) -> dict[str, tuple[str, ...]]:
        """What each stage that these settings have reads directly, in an order in which they can run."""
        there = [stage.name for stage in self._stages.values() if stage.asset and stage.when(settings)]
        return {name: tuple(self[name].reads_under(settings)) for name in self._closure(settings, there)}

    def needed(self, settings: Settings, *stages: str) -> tuple[str, ...]:
        """Stages and all before them, in the order in which they run; by default all that an output needs, of stages
        that make none all, with the fits that `settings.refitting` asks for."""
        if stages or OUTPUT not in self:
            return self._closure(settings, stages or self.upstream(settings))
        needed = self._closure(settings, [OUTPUT])
        for fit in (name for name, rule in settings.refit.items() if rule == "now"):
            makers = [name for name in self.upstream(settings) if getattr(self[name], "refit", None) == fit]
            if set(needed).isdisjoint(makers):
                needed = self._closure(settings, [*needed, *makers])
        return needed

    def step(self, settings: Settings, stage: str) -> tuple[str, ...]:
        """A stage with its parts: those without an asset of their own before it, and after it, that are not parts of an
        asset before it already."""
        before = [name for name in self._closure(settings, [stage]) if self[name].asset and name != stage]
        made = self._closure(settings, before)
        return tuple(name for name in self._parts(settings, stage) if name == stage or name not in made)

    def _parts(self, settings: Settings, stage: str) -> tuple[str, ...]:
        """A stage with those that lie between it and other assets."""
        asset = {name for name in self._closure(settings, [stage]) if self[name].asset and name != stage}
        return tuple(name for name in self._closure(settings, [stage], without=asset) if name not in asset)

    def asset_upstream(self, settings: Settings) -> dict[str, tuple[str, ...]]:
        """The assets that an asset reads or comes after, itself or by its parts.

        One is left out where another of them tells of it: is made from it, and is not the same when it has changed.
        A fit that it reads itself is never left out, since only a part of it may matter to the others.
        """
        upstream = self.upstream(settings)
        direct = {
            name: dict.fromkeys(
                read
                for part in self._parts(settings, name)
                for read in (*upstream[part], *self._shown_by(part))
                if read in upstream and self[read].asset and read != name
            )
            for name in upstream
            if self[name].asset
        }
        shown_by: dict[str, set[str]] = {}
        for name, reads in direct.items():
            shown_by[name] = (
                set(reads).union(*(shown_by[read] for read in reads)) if _follows(self[name]) else set()
            )
        return {
            name: tuple(
                read
                for read in reads
                if (read in (*upstream[name], *self._shown_by(name)) and isinstance(self[read], PinnedFit))
                or not any(read in shown_by[other] for other in reads)
            )
            for name, reads in direct.items()
        }

    def _shown_by(self, stage: str) -> tuple[str, ...]:
        return self.evidence if self[stage].shows_evidence else ()

    def _closure(
        self, settings: Settings, stages: Iterable[str], without: Iterable[str] = ()
    ) -> tuple[str, ...]:
        found: set[str] = set()
        pending = list(stages)
        while pending:
            name = pending.pop()
            if name not in found:
                found.add(name)
                if name not in without:
                    then = [part for part in self[name].then if part in self and self[part].when(settings)]
                    pending += [*self[name].reads_under(settings), *then]
        order: dict[str, None] = {}

        def place(name: str) -> None:
            if name in found and name not in order:
                for read in (*self[name].reads_under(settings), *self._shown_by(name)):
                    place(read)
                order[name] = None

        for name in self._stages:
            place(name)
        return tuple(order)


def _follows(stage: Stage) -> bool:
    """Whether a result is another one whenever what it is made from has changed: a fit stays, and files may come out
    the same."""
    return isinstance(stage, PerDocument) or (isinstance(stage, WholeCorpus) and not stage.content)


def default_graph() -> Graph:
    """The stages of this package."""
    graph: Graph = importlib.import_module("dagster_divorder.stages").GRAPH
    return graph
