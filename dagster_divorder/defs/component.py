"""`DivOrderComponent`: a corpus in a folder of a Dagster project, in YAML or Python.

Every `dg` command imports this module, so the code that builds definitions is imported only when it is needed.
Annotations are evaluated, because Dagster derives the schema of the YAML from them.
"""

import os
import re
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import click
import dagster as dg
from dagster.components.component_scaffolding import scaffold_component
from dagster.components.core.component_tree import ComponentTreeException
from dagster.components.core.defs_module import ComponentLoc, ComponentPath, find_defs_or_component_yaml
from pydantic import BaseModel, Field

from dagster_divorder.errors import DivOrderError, SettingsError

if TYPE_CHECKING:
    from dagster_divorder.settings import Settings

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
        folder = request.target_path.parent if request.append else request.target_path
        try:
            _write_settings(request.params, folder / CONFIG, request.project_root or Path.cwd())
        except DivOrderError as error:
            # `dg` refuses an existing folder, so the next try would fail.
            with suppress(OSError):
                folder.rmdir()
            raise click.ClickException(str(error)) from None
        attributes = {"config": CONFIG, "key_prefix": re.sub(r"\W", "_", folder.name, flags=re.ASCII)}
        scaffold_component(request, attributes)
        if request.scaffold_format == "python":
            file = folder / "component.py"
            values = ", ".join(f'{name}="{value}"' for name, value in attributes.items())
            returned = f"DivOrderComponent:\n    return DivOrderComponent({values})"
            file.write_text(file.read_text().replace("DivOrderComponent: ...", returned))


def _write_settings(params: ScaffoldParams, file: Path, project: Path) -> None:
    from dagster_divorder.propose import Proposal, blank, look, write_settings
    from dagster_divorder.settings.loading import refuse_unwritable
    from dagster_divorder.view.answer import as_text

    if params.paths:
        proposal = Proposal(blocks=look(params.paths, params.text_field))
        write_settings(proposal, file, project=project)
        click.echo(as_text(proposal.warnings), nl=False)
    else:
        refuse_unwritable(file, new=True)
        file.write_text(blank(file.parent, project), encoding="utf-8")


@dg.scaffold_with(DivOrderScaffolder)
@dataclass(kw_only=True)
class DivOrderComponent(dg.Component, dg.Resolvable):
    """Orders a corpus of training data so that every window of training carries the corpus's own mix.

    Its assets make a curated order of the records, exports for trainers, and evidence. A run computes only what is new.
    `dg scaffold defs dagster_divorder.DivOrderComponent news --paths 'data/news/*.jsonl'` writes settings for a corpus;
    without `--paths`, the settings say what to fill in.
    """

    settings: Annotated[
        dict[str, Any] | None,
        dg.Resolver.default(
            description="The settings, in the same tables as divorder.toml. Paths are relative to this file's folder. "
            "Give either settings or config.",
            examples=[
                {
                    "input": {"paths": ["{{ context.project_root }}/data/news/*.jsonl"]},
                    "store": {"path": "{{ context.project_root }}/divorder/news/store"},
                    "output": {"path": "{{ context.project_root }}/divorder/news/curated"},
                }
            ],
        ),
    ] = None
    config: Annotated[
        str | None,
        dg.Resolver.default(
            description="The settings file, relative to this file's folder.",
            examples=[CONFIG, "{{ context.project_root }}/news.toml"],
        ),
    ] = None
    key_prefix: Annotated[
        str | list[str] | None,
        dg.Resolver.default(
            description="First parts of every asset key, separated by /. Joined by underscores, they also begin the "
            "names of jobs, sensors, schedules and groups. Each corpus of a project needs its own.",
            examples=["news", "training/news"],
        ),
    ] = None
    upstream: Annotated[
        dict[str, list[dg.ResolvedAssetKey]],
        dg.Resolver.default(
            description="By asset of ours, the assets of the project that write its input. Their updates start a run.",
            examples=[{"raw_docs": ["crawl/pages"]}],
        ),
    ] = field(default_factory=dict)
    automation: Annotated[
        bool,
        dg.Resolver.default(
            description="Whether runs start automatically: by a sensor on new input and updates upstream, "
            "and by a daily schedule (initially off).",
            examples=[False],
        ),
    ] = True

    def build_defs(self, context: dg.ComponentLoadContext) -> dg.Definitions:
        """The definitions of the corpus.

        Raises:
            ComponentTreeException: as `build_definitions`.
        """
        from dagster_divorder.defs.factory import build_definitions

        file = _file(context.component_loc)
        try:
            return build_definitions(
                self._load(file),
                file=self._config(file) or file,
                key_prefix=self._prefix,
                upstream=self.upstream,
                automation=self.automation,
            )
        except (DivOrderError, dg.DagsterInvalidDefinitionError) as error:
            # Dagster shows this kind of error directly; any other would stand below the tree of all components.
            raise ComponentTreeException(f"{file or 'DivOrderComponent'}: {error}") from None

    @property
    def _prefix(self) -> list[str]:
        given = self.key_prefix
        parts = given if isinstance(given, list) else [] if given is None else [given]
        # A template such as {{ env.YEAR }} gives a number.
        return [part for given in parts for part in str(given).split("/")]

    def _load(self, file: Path | None) -> "Settings":
        from dagster_divorder.settings import load_settings

        if (self.settings is None) == (self.config is None):
            which = "neither" if self.config is None else "both"
            raise SettingsError(f"expected either settings or config; the component has {which}")
        return load_settings(self._config(file) or self.settings, within=file)

    def _config(self, file: Path | None) -> Path | None:
        folder = file.parent if file else Path.cwd()
        return None if self.config is None else folder / os.path.expanduser(self.config)


def _file(loc: ComponentLoc) -> Path | None:
    """The file of a component; None if it has none."""
    if not isinstance(loc, ComponentPath):
        return None
    path = loc.file_path
    return find_defs_or_component_yaml(path) if path.is_dir() else path
