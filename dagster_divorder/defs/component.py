"""`DivOrderComponent`: a corpus in a folder of a Dagster project, in YAML or Python.

Every `dg` command imports this module, so the code that builds definitions is imported only when it is needed.
Annotations are evaluated, because Dagster derives the schema of the YAML from them.
"""

import os
import re
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

import click
import dagster as dg
from dagster.components.core.component_tree import ComponentTreeException
from pydantic import BaseModel, Field

from dagster_divorder.errors import DivOrderError, SettingsError

CONFIG = "divorder.toml"


class ScaffoldParams(BaseModel):
    """What `dg scaffold defs dagster_divorder.DivOrderComponent` takes."""

    paths: list[str] = Field([], description="Files, folders or globs of the corpus.")
    text_field: str | None = Field(None, description="Field of the records that holds the text.")


class DivOrderScaffolder(dg.Scaffolder[ScaffoldParams]):
    """Writes the component, and beside it the settings that `divorder init` writes."""

    @classmethod
    def get_scaffold_params(cls) -> type[ScaffoldParams]:
        return ScaffoldParams

    def scaffold(self, request: dg.ScaffoldRequest[ScaffoldParams]) -> None:
        from dagster_divorder.propose import look, write_settings

        folder = request.target_path.parent if request.append else request.target_path
        project, params = request.project_root or Path.cwd(), request.params
        try:
            write_settings(look(params.paths, params.text_field), folder / CONFIG, project=project)
        except DivOrderError as error:
            # `dg` refuses an existing folder, so the next try would fail.
            with suppress(OSError):
                folder.rmdir()
            raise click.ClickException(str(error)) from None
        prefix = re.sub(r"\W", "_", folder.name, flags=re.ASCII)
        dg.scaffold_component(request, {"config": CONFIG, "key_prefix": prefix})


@dg.scaffold_with(DivOrderScaffolder)
@dataclass(kw_only=True)
class DivOrderComponent(dg.Component, dg.Resolvable):
    """Orders a corpus of training data so that every window of training carries the corpus's own mix.

    Its assets make a curated order of the records, exports for trainers, and evidence. A run computes only what is new.
    `dg scaffold defs dagster_divorder.DivOrderComponent news --paths 'data/news/*.jsonl'` writes settings for a corpus.
    """

    settings: Annotated[
        dict[str, Any] | None,
        dg.Resolver.default(
            description="The settings, in the same tables as divorder.toml. Paths are relative to this file's folder. "
            "Give either settings or config.",
        ),
    ] = None
    config: Annotated[
        str | None,
        dg.Resolver.default(
            description="The settings file, relative to this file's folder.",
        ),
    ] = None
    key_prefix: Annotated[
        str | None,
        dg.Resolver.default(
            description="First parts of every asset key, separated by /. Joined by underscores, they also begin the "
            "names of jobs, sensors, schedules and groups. Each corpus of a project needs its own.",
        ),
    ] = None
    upstream: Annotated[
        dict[str, list[dg.ResolvedAssetKey]],
        dg.Resolver.default(
            description="By asset of ours, the assets of the project that write its input. Their updates start a run.",
        ),
    ] = field(default_factory=dict)
    automation: Annotated[
        bool,
        dg.Resolver.default(
            description="Whether runs start automatically: by a sensor on new input and updates upstream, "
            "and by a daily schedule that brings up to date what was made before.",
        ),
    ] = True
    executor: Annotated[
        Literal["in_process", "project"],
        dg.Resolver.default(
            description="Where the jobs of the corpus run: in one process, which is the fastest, or by the executor of "
            "the project, by which *Materialize* runs in any case.",
        ),
    ] = "in_process"

    def build_defs(self, context: dg.ComponentLoadContext) -> dg.Definitions:
        """The definitions of the corpus.

        Raises:
            ComponentTreeException: as `build_definitions`.
        """
        from dagster_divorder.defs.factory import build_definitions
        from dagster_divorder.settings import load_settings

        # A component made in Python may have no file.
        file = getattr(context.component_loc, "file_path", Path.cwd())
        file = file / "defs.yaml" if file.is_dir() else file
        try:
            if (self.settings is None) == (self.config is None):
                which = "neither" if self.config is None else "both"
                raise SettingsError(f"expected either settings or config; the component has {which}")
            config = None if self.config is None else file.parent / os.path.expanduser(self.config)
            return build_definitions(
                load_settings(config or self.settings, within=file),
                # A template such as {{ env.YEAR }} gives a number.
                key_prefix=str(self.key_prefix or ""),
                upstream=self.upstream,
                automation=self.automation,
                executor=dg.in_process_executor if self.executor == "in_process" else None,
            )
        except (DivOrderError, dg.DagsterInvalidDefinitionError) as error:
            # Dagster shows this kind of error directly; any other would stand below the tree of all components.
            raise ComponentTreeException(f"{file}: {error}") from None
