"""The chat template that renders conversations."""

from __future__ import annotations

from typing import Any

from dagster_divorder.chats.template import ChatTemplate
from dagster_divorder.pipeline.run import Run
from dagster_divorder.settings import Settings

NOT_RENDERED = {"text", "template"}
"""Forms of records that no chat template renders."""


def template_of(run: Run) -> ChatTemplate | None:
    """The template of `model.base`, or of `chats.template`; None if no input holds conversations."""
    if "chat_template" not in run.memo:
        run.memo["chat_template"] = template_under(run.settings)
    template: ChatTemplate | None = run.memo["chat_template"]
    return template


def reading(run: Run) -> dict[str, Any]:
    """The part of a key that names how a model reads documents and which of their tokens are trained; empty if all are
    plain texts."""
    template = template_of(run)
    fingerprint = template.fingerprint if template else None
    return {"reading": [fingerprint, run.settings.chats.train_on]} if run.settings.masked else {}


def template_under(settings: Settings) -> ChatTemplate | None:
    """As `template_of`, without a run."""
    from dagster_divorder.models.chat_templates import chat_template
    from dagster_divorder.models.checkpoint import locate

    if settings.forms <= NOT_RENDERED:
        return None
    base = settings.model.base
    return chat_template(None if base == "bootstrap" else locate(base), settings.chats.template)
