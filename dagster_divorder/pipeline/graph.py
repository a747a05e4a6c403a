"""The graph of the stages: which stages exist under given settings, what each needs, and which belong to an asset."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator, Mapping

from dagster_divorder.pipeline.stage import Stage
from dagster_divorder.settings import Settings

OUTPUT = "curated_output"


class Graph(Mapping[str, Stage]):
    """Stages by name, in an order in which they can run. If settings make a stage read a later stage, it runs right
    after that stage.

    A stage without an asset runs if another stage reads it, or lists it in `then` and the settings have it. load: gives
    a stage by name.
    """

    def __init__(self, names: Iterable[str], load: Callable[[str], Stage]) -> None:
        self._stages, self._load = dict.fromkeys(names), load

    def __getitem__(self, name: str) -> Stage:
        return self._load(name)

    def __iter__(self) -> Iterator[str]:
        return iter(self._stages)

    def __len__(self) -> int:
        return len(self._stages)

    def __contains__(self, name: object) -> bool:
        return name in self._stages

    def upstream(self, settings: Settings, among: Container[str] | None = None) -> dict[str, tuple[str, ...]]:
        """Stage -> the stages that it reads directly, for all stages that these settings have, in the order of a run.
        among: for these assets, and the stages before them, alone."""
        assets = [
            name
            for name in self._stages
            if (among is None or name in among) and self[name].asset and self[name].when(settings)
        ]
        return {name: self.reads(name, settings) for name in self._closure(settings, assets)}

    def reads(self, stage: str, settings: Settings) -> tuple[str, ...]:
        """The stages that a stage reads directly, of those that these settings have."""
        reads = self[stage].reads
        named = reads(settings) if callable(reads) else reads
        return tuple(name for name in named if self[name].when(settings))

    def needed(self, settings: Settings, *stages: str) -> tuple[str, ...]:
        """Stages with all stages before them, in the order of a run. The default is all stages that an output needs and
        the fits that `settings.refit` asks for now; in a graph without an output, all stages."""
        if stages or OUTPUT not in self:
            return self._closure(settings, stages or self.upstream(settings))
        needed = self._closure(settings, [OUTPUT])
        for fit in (name for name, rule in settings.refit.items() if rule == "now"):
            makers = [name for name in self.upstream(settings) if getattr(self[name], "refit", None) == fit]
            if set(needed).isdisjoint(makers):
                needed = self._closure(settings, [*needed, *makers])
        return needed

    def step(self, settings: Settings, stage: str) -> tuple[str, ...]:
        """A stage with its parts: stages without an asset, before or after it, that belong to no earlier asset."""
        before = [name for name in self._closure(settings, [stage]) if self[name].asset and name != stage]
        earlier = self._closure(settings, before)
        return tuple(name for name in self.parts(settings, stage) if name == stage or name not in earlier)

    def parts(self, settings: Settings, stage: str) -> tuple[str, ...]:
        """A stage with all stages between it and the assets before it."""
        return self._closure(settings, [stage], parts=True)

    def _closure(self, settings: Settings, stages: Iterable[str], *, parts: bool = False) -> tuple[str, ...]:
        """Stages with all before them, or up to the next assets."""
        needed, pending, asked = set[str](), [*stages], {*stages}
        while pending:
            name = pending.pop()
            if name in needed or (parts and self[name].asset and name not in asked):
                continue
            needed.add(name)
            then = [part for part in self[name].then if part in self and self[part].when(settings)]
            pending += [*self.reads(name, settings), *then]
        order: dict[str, None] = {}

        def place(name: str) -> None:
            if name in needed and name not in order:
                for read in self.reads(name, settings):
                    place(read)
                order[name] = None

        for name in self._stages:
            place(name)
        return tuple(order)
