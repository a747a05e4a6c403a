"""The chat template that renders conversations, and checkpoints that are known from the last run."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from dagster_divorder.chats.template import ChatTemplate
from dagster_divorder.pipeline.run import Run
from dagster_divorder.settings import Settings
from dagster_divorder.store.state import load_receipt

BOOTSTRAP = "bootstrap"


def find_checkpoint(
    run: Run, stage: str, locate: Callable[[Settings], Path | None], describe: Callable[[Path], Any]
) -> dict[str, Any]:
    """Facts of `stage` that name a checkpoint: the `directory` that `locate` finds, the `signature` of its files, and
    their `content` as `describe` gives it, or as the last run knew it for the same files. Empty where `locate` finds
    none."""
    from dagster_divorder.models.checkpoint import signature

    memo = f"checkpoint of {stage}"
    if memo not in run.memo:
        directory = locate(run.settings)
        if directory is None:
            return {}
        # Before anything is read: the next run sees what changes meanwhile.
        files, last = signature(directory), load_receipt(run.store, stage)
        identity = {"directory": str(directory), "signature": files}
        known = last.facts if last and files else {}
        same = "content" in known and identity.items() <= known.items()
        run.memo[memo] = {**identity, "content": known["content"] if same else describe(directory)}
    checkpoint: dict[str, Any] = run.memo[memo]
    return checkpoint


def locate_base(settings: Settings) -> Path | None:
    """The folder of the checkpoint that `model.base` names; None for the bootstrap model, which the fit holds."""
    from dagster_divorder.models.checkpoint import locate

    return None if settings.model.base == BOOTSTRAP else locate(settings.model.base)


def chat_facts(run: Run) -> dict[str, Any]:
    """Facts of raw_docs: what the checkpoint of `model.base` says of conversations; empty if no input holds any."""
    from dagster_divorder.models.chat_templates import describe_chats

    if not run.settings.has_chats:
        return {}
    return find_checkpoint(run, "raw_docs", locate_base, describe_chats)


def template_of(run: Run) -> ChatTemplate | None:
    """The template of `model.base`, or of `chats.template`; None if no input holds conversations."""
    if not run.settings.has_chats:
        return None
    if "chat_template" not in run.memo:
        from dagster_divorder.models.chat_templates import BOOTSTRAP, chat_template

        model = chat_facts(run).get("content", BOOTSTRAP)
        run.memo["chat_template"] = chat_template(model, run.settings.chats.template)
    template: ChatTemplate = run.memo["chat_template"]
    return template


def reading(run: Run) -> dict[str, Any]:
    """The part of a key that names how a model reads documents and which of their tokens are trained; empty if all are
    plain texts."""
    template = template_of(run)
    fingerprint = template.fingerprint if template else None
    return {"reading": [fingerprint, run.settings.chats.train_on]} if run.settings.has_chats else {}
