"""How results, figures and settings look on Dagster's pages."""

import base64
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import dagster as dg

from dagster_divorder.pipeline.stage import Link, Picture, Shown, Table, Text
from dagster_divorder.settings import Settings
from dagster_divorder.settings.sections import RULES

PICTURE_BYTES = 300_000
"""A picture shown inside the page is made smaller until it takes no more: Dagster keeps it with every run's events."""

PICTURE_WIDTH = 1080
"""Pixels that Dagster shows side by side on a common screen; it cuts off what is beyond."""

SETTINGS_NOTE = (
    "To change settings, edit this file (or the environment, DIVORDER_...) and reload definitions. The launchpad takes "
    "one for its run alone: refit, what is to be learnt from the present corpus again, such as [clusters]."
)

FIT = dg.Enum("Fit", [dg.EnumValue(name) for name in RULES])


def result_metadata(shown: Shown, figures: Mapping[str, Any]) -> dict[str, Any]:
    """What a stage shows of a result, and then the figures that it does not show in a form of its own."""
    others = {
        name: _figure(value)
        for name, value in figures.items()
        if name not in shown and value not in (None, "", [], {}) and not _is_table(value)
    }
    return {name: _value(value) for name, value in shown.items()} | others


def _value(shown: Table | Picture | Text | Link | float) -> Any:
    if isinstance(shown, Table):
        return table(shown.rows)
    if isinstance(shown, Picture):
        return picture(shown.file, shown.what)
    if isinstance(shown, Text):
        return dg.MetadataValue.md(shown.markdown)
    # A browser opens no files for a page; a path can be copied.
    return dg.MetadataValue.path(str(shown.path)) if isinstance(shown, Link) else readable(shown)


def _is_table(value: Any) -> bool:
    """Whether a figure is shown by the stage in a form of its own, if at all."""
    if isinstance(value, list):
        return not all(isinstance(one, str) for one in value)
    return isinstance(value, dict) and any(isinstance(one, (dict, list)) for one in value.values())


def table(rows: list[dict[str, Any]]) -> dg.MetadataValue[Any]:
    """Rows as a Dagster table; numbers are rounded to what a person reads. Without rows, a word."""
    if not rows:
        return dg.MetadataValue.text("none")
    records = [{name: readable(value) for name, value in row.items()} for row in rows]
    return dg.MetadataValue.table([dg.TableRecord(record) for record in records])


def picture(file: Path, what: str) -> dg.MarkdownMetadataValue:
    """A PNG file inside the page, with `what` it shows as its text; smaller than the file where that is too large."""
    data = base64.b64encode(_within_bounds(file.read_bytes())).decode()
    return dg.MetadataValue.md(f"![{what}](data:image/png;base64,{data})")


def _within_bounds(png: bytes) -> bytes:
    """A PNG of at most PICTURE_BYTES and PICTURE_WIDTH: of less width and height, and with fewer colours."""
    import io

    from PIL import Image

    original = Image.open(io.BytesIO(png))
    share = min(1.0, PICTURE_WIDTH / original.width)
    if share == 1.0 and len(png) <= PICTURE_BYTES:
        return png
    while True:
        size = (max(1, round(original.width * share)), max(1, round(original.height * share)))
        file = io.BytesIO()
        smaller = original.convert("RGB").resize(size, Image.Resampling.LANCZOS)
        # Ten times as fast as the median cut, and no larger; the search for a smaller file takes as long as the rest.
        smaller.quantize(128, Image.Quantize.FASTOCTREE).save(file, "PNG")
        if len(file.getvalue()) <= PICTURE_BYTES:
            return file.getvalue()
        share *= 0.8


def _figure(value: Any) -> Any:
    """A figure as people read it; several by name as one line."""
    if isinstance(value, dict) and value and not any(isinstance(v, (dict, list)) for v in value.values()):
        return ", ".join(f"{name} {_said(readable(v))}" for name, v in value.items() if v is not None)
    return readable(value)


def _said(value: Any) -> str:
    return f"{value:,}" if isinstance(value, (int, float)) and not isinstance(value, bool) else str(value)


def readable(value: Any) -> Any:
    """A number rounded to what a person reads; a dash for None."""
    if value is None:
        return "-"
    return float(f"{value:.4g}") if isinstance(value, float) else value


def settings_resource(settings: Settings, file: Path | None) -> dg.ResourceDefinition:
    """The settings as assets take them, with the `refit` of a run's configuration; the launchpad shows the
    description."""
    return dg.ResourceDefinition(
        lambda context: settings.refitting(*context.resource_config["refit"]),
        config_schema={"refit": dg.Field([FIT], default_value=[], is_required=False)},
        description=f"{settings_file(file)}. {SETTINGS_NOTE}",
    )


def settings_file(file: Path | None) -> str:
    """Where settings come from, for people."""
    return str(file) if file else "no file; defaults and environment"


def settings_table(settings: Settings) -> dg.MetadataValue[Any]:
    """The settings that are not at their defaults."""
    values: dict[str, Any] = {}
    for name, given in settings.model_dump(mode="json", exclude_defaults=True).items():
        values |= (
            {f"{name}.{key}": of for key, of in given.items()} if isinstance(given, dict) else {name: given}
        )
    return table([{"setting": name, "value": json.dumps(value)} for name, value in values.items()])
