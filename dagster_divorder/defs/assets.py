"""One factory over the stages: a Dagster asset runs its stage with progress in the run's log, and shows its result."""

import base64
from pathlib import Path
from typing import Any

import dagster as dg

from dagster_divorder.defs.jobs import STORE, store_names
from dagster_divorder.engine.progress import Log
from dagster_divorder.errors import DivOrderError
from dagster_divorder.pipeline.graph import Graph
from dagster_divorder.pipeline.run import Run, run_stage
from dagster_divorder.pipeline.stage import Link, Picture, Stage, Table, Text
from dagster_divorder.settings import Settings
from dagster_divorder.store.local import LocalStore
from dagster_divorder.store.receipts import Receipt, load_receipt

PICTURE_BYTES = 300_000
"""A picture shown inside the page is made smaller until it takes no more: Dagster keeps it with every run's events."""

PICTURE_WIDTH = 1080
"""Pixels that Dagster shows side by side on a common screen; it cuts off what is beyond."""


def assets(graph: Graph, settings: Settings) -> list[dg.AssetsDefinition]:
    """An asset for every stage that these settings have and that is one."""
    return [_asset(graph, settings, name, reads) for name, reads in graph.asset_upstream(settings).items()]


def _asset(graph: Graph, settings: Settings, name: str, reads: tuple[str, ...]) -> dg.AssetsDefinition:
    stage = graph[name]
    # What clusters are made by is no evidence, but a part of how they come about.
    group = "embedding" if stage.group == "evidence" and name in graph.needed(settings) else stage.group

    @dg.asset(
        name=name,
        deps=reads,
        # Its parts have no asset of their own, so an edit of their settings shows here.
        code_version="+".join(graph[part].fingerprint(settings) for part in graph.step(settings, name)),
        description=stage.description,
        group_name=group,
        kinds=set(stage.kinds),
    )
    def asset(
        context: dg.AssetExecutionContext, settings: dg.ResourceParam[Settings]
    ) -> dg.MaterializeResult[Any]:
        return _materialize(context, settings, stage, graph)

    return asset


def _materialize(
    context: dg.AssetExecutionContext, settings: Settings, stage: Stage, graph: Graph
) -> dg.MaterializeResult[Any]:
    """Run the stage; say whether its result has changed, where it lies, and what a person sees of it."""
    store = LocalStore(settings.store.path)
    before = _version(store, stage.name)
    # Of a run, whoever started it, which store it writes to: by that the sensor tells its own.
    context.instance.add_run_tags(context.run.run_id, {STORE: store_names(store)[0]})
    receipt = run_stage(stage.name, settings, Log(context.log.info), graph)
    figures = receipt.figures
    changed = receipt.version != before
    context.log.info(
        f"{stage.name}: {figures['documents']:,} documents, {figures['new_documents']:,} new, "
        f"{figures['reused_documents']:,} reused, {figures['seconds']:.2f} s"
        f"{'' if changed else '; the same result as before'}"
    )
    metadata = {
        name: _figure(value)
        for name, value in figures.items()
        if value not in (None, "", [], {}) and not _is_table(value)
    }
    if figures["new_documents"] and figures["seconds"]:
        metadata["new_documents_per_second"] = _readable(figures["new_documents"] / figures["seconds"])
    metadata |= {"changed": changed, "stored_files": table(_stored(store, receipt))}
    shown = stage.show(Run(settings, store, graph=graph), receipt)
    metadata |= {name: _metadata(value) for name, value in shown.items()}
    return dg.MaterializeResult(metadata=metadata, data_version=dg.DataVersion(receipt.version))


def _is_table(value: Any) -> bool:
    """Whether a figure is shown by the stage in a form of its own, if at all."""
    if isinstance(value, list):
        return not all(isinstance(one, str) for one in value)
    return isinstance(value, dict) and any(isinstance(one, (dict, list)) for one in value.values())


def _metadata(shown: Table | Picture | Text | Link) -> Any:
    if isinstance(shown, Table):
        return table(shown.rows)
    if isinstance(shown, Picture):
        return picture(shown.file, shown.what)
    return (
        dg.MetadataValue.md(shown.markdown) if isinstance(shown, Text) else dg.MetadataValue.path(shown.path)
    )


def table(rows: list[dict[str, Any]]) -> dg.MetadataValue[Any]:
    """Rows as a Dagster table; numbers are rounded to what a person reads. Without rows, a word."""
    if not rows:
        return dg.MetadataValue.text("none")
    records = [{name: _readable(value) for name, value in row.items()} for row in rows]
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
        smaller.quantize(128).save(file, "PNG", optimize=True)
        if len(file.getvalue()) <= PICTURE_BYTES:
            return file.getvalue()
        share *= 0.8


def _version(store: LocalStore, stage: str) -> str | None:
    try:
        receipt = load_receipt(store, stage)
    except DivOrderError:
        return None
    return receipt.version if receipt else None


def _stored(store: LocalStore, receipt: Receipt) -> list[dict[str, Any]]:
    """Where the result lies: its named files, or the folder of its files, one a fragment."""
    named = receipt.files or {"a file a fragment": f"stages/{receipt.stage}/{receipt.key}"}
    return [{"what": name, "path": str(store.path(file))} for name, file in named.items()]


def _figure(value: Any) -> Any:
    """A figure as people read it; several by name as one line."""
    if isinstance(value, dict) and value and not any(isinstance(v, (dict, list)) for v in value.values()):
        return ", ".join(f"{name} {_said(_readable(v))}" for name, v in value.items() if v is not None)
    return _readable(value)


def _said(value: Any) -> str:
    return f"{value:,}" if isinstance(value, (int, float)) and not isinstance(value, bool) else str(value)


def _readable(value: Any) -> Any:
    if value is None:
        return "-"
    return float(f"{value:.4g}") if isinstance(value, float) else value
