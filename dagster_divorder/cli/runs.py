"""Commands that make an order and show it: plan, run, summary, report, prune, compare, prove."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING

from dagster_divorder.cli.verb import Verb, add_refit, argument, flag, settings_of
from dagster_divorder.errors import InputError, SettingsError
from dagster_divorder.units import byte_size
from dagster_divorder.view.answer import Answer, Line, Part, TextTable

if TYPE_CHECKING:
    from dagster_divorder.settings import Settings


def plan(settings: Settings, *, everything: bool = False) -> Answer:
    """What a run would do, by stage. everything: with all evidence."""
    from dagster_divorder.pipeline.plan import make_plan
    from dagster_divorder.stages import GRAPH

    planned = make_plan(GRAPH, settings, *(GRAPH.upstream(settings) if everything else ()))
    rows = [
        {
            "stage": stage.stage if GRAPH[stage.stage].asset else f"  {stage.stage}",
            "documents": f"{stage.documents:,}",
            "why": stage.why + (f" (unless {stage.unless})" if stage.unless else ""),
        }
        for stage in planned.stages
    ]
    parts: list[Part] = [
        f"{planned.records:,} records in the input, {planned.new_records:,} of them new",
        "",
        TextTable(rows),
    ]
    if planned.refusal:
        parts += ["", Line(planned.refusal, "bad")]
    return Answer(parts, asdict(planned))


def run(settings: Settings, stages: Sequence[str] = ()) -> Answer:
    """Runs every stage that an output needs and shows the summary; or runs the named stages, with all that they read,
    and shows these. With DAGSTER_HOME set, Dagster runs them.

    Raises:
        InputError: there is no such stage. SettingsError: the settings do not have a named stage.
    """
    from dagster_divorder.core.order.strategy import one_of
    from dagster_divorder.stages import GRAPH, run_all

    for stage in stages:
        if not GRAPH[one_of("stage", stage, GRAPH)].when(settings):
            raise SettingsError(
                f"these settings have no stage {stage}; expected the settings that it is for, such as "
                "selection.method for subset_selection: divorder.example.toml has every key"
            )
    if os.environ.get("DAGSTER_HOME"):
        from dagster_divorder.defs.home import materialise

        materialise(settings, stages)
    else:
        run_all(settings, stages=GRAPH.needed(settings, *stages) if stages else None)
    return summary(settings, stages)


def summary(settings: Settings, stages: Sequence[str] = ()) -> Answer:
    """What the last run made, or what the named stages show."""
    from dagster_divorder.summary import show_stages, summarise

    return show_stages(settings, stages) if stages else summarise(settings)


def prove(settings: Settings) -> Answer:
    """Makes and shows training_evidence. Raises InputError: `evidence.tokens` is unset."""
    if settings.evidence.tokens is None:
        raise InputError(
            "evidence.tokens is unset, so nothing is trained; set it to the tokens of an epoch, such as 4_000_000, "
            "and heldout.documents to the share for validation, such as 0.01"
        )
    return run(settings, ["training_evidence"])


def report(settings: Settings, *, everything: bool) -> Answer:
    """Runs the stages of an output and makes the report. everything: with all evidence."""
    from dagster_divorder.stages import EVIDENCE, GRAPH, run_all

    stage = "ordering_report"
    evidence = [name for name in EVIDENCE if everything and GRAPH[name].when(settings)]
    figures = run_all(settings, stages=GRAPH.needed(settings, stage, *evidence))[stage].figures
    lines = [figures["check"], "", f"{figures['path']} ({byte_size(figures['bytes'])})"]
    if figures["missing"]:
        missing = ", ".join(figures["missing"])
        lines.append(f"missing from it: {missing}; `divorder report --all` makes them")
    names = ("path", "bytes", "better_than_shuffling", "missing")
    return Answer(lines, {name: figures[name] for name in names})


def prune(settings: Settings, *, dry_run: bool) -> Answer:
    """Prunes the store. dry_run: only shows what that would free."""
    from dagster_divorder.engine.progress import STANDARD_ERROR
    from dagster_divorder.pipeline.prune import prune as prune_store
    from dagster_divorder.stages import GRAPH
    from dagster_divorder.store.objects import store_at

    store = store_at(settings.store.path)
    with store.lock(on_wait=STANDARD_ERROR.note):
        freed = prune_store(GRAPH, store.open(), dry_run=dry_run)
    parts: list[Part] = [
        f"{'would be freed' if dry_run else 'freed'}: {byte_size(freed.bytes)}",
        f"texts of deleted documents among it: {'yes' if freed.texts else 'no'}",
    ]
    if freed.texts and not dry_run:
        parts += [
            "Cluster names, examples and pages beside the output are gone too, because they may contain their words.",
            "The next run makes them again. A bootstrap base model trained",
            "on these documents still knows some of their words: divorder run --refit model trains another.",
        ]
    return Answer(parts, {"dry_run": dry_run, "bytes": freed.bytes, "texts": freed.texts})


def _stages(does: str) -> Callable[[argparse.ArgumentParser], object]:
    shown = f"{does}, such as k_calibration; `divorder plan --all` lists them"
    return argument("stages", nargs="*", metavar="STAGE", help=shown)


VERBS = (
    Verb(
        "run",
        "runs every stage; computes only what is new",
        "divorder run",
        "a minute for 100 MB of text; seconds if nothing is new",
        lambda options: run(settings_of(options), options.stages),
        (_stages("make these stages and what they read, and show them"), add_refit),
    ),
    Verb(
        "plan",
        "shows what a run would compute and why; stores nothing",
        "divorder plan",
        "reads the input once",
        lambda options: plan(settings_of(options), everything=options.all),
        (
            flag("--all", "include all evidence, as report --all and prove make it"),
            add_refit,
        ),
    ),
    Verb(
        "summary",
        "shows what the last run made",
        "divorder summary diversity_metrics",
        "a second",
        lambda options: summary(settings_of(options), options.stages),
        (_stages("show what these stages made, instead"),),
    ),
    Verb(
        "report",
        "runs what an output needs and writes a page of charts beside it",
        "divorder report",
        "seconds after a run; --all makes all evidence, minutes",
        lambda options: report(settings_of(options), everything=options.all),
        (flag("--all", "first make all evidence for the report; takes longer"),),
    ),
    Verb(
        "prune",
        "removes what the current input and settings do not need",
        "divorder prune --dry-run",
        "seconds",
        lambda options: prune(settings_of(options), dry_run=options.dry_run),
        (flag("--dry-run", "only show what it would free"),),
    ),
)
COMPARING = (
    Verb(
        "compare",
        "measures every pair of strategies",
        "divorder compare",
        "about as long as a run; grows with the pairs",
        lambda options: run(settings_of(options), ["strategy_comparison"]),
    ),
    Verb(
        "prove",
        "trains small models in several orders (`evidence`) and shows which differences exceed noise",
        "divorder prove",
        "minutes to hours; shows the time left",
        lambda options: prove(settings_of(options)),
    ),
)
