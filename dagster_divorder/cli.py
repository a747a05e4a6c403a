"""The `divorder` command: what each of its commands takes, and says."""

from __future__ import annotations

import argparse
import codecs
import gc
import io
import os
import re
import signal
import sys
import webbrowser
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from dagster_divorder import __version__
from dagster_divorder.errors import DivOrderError, InputError, MissingStageError, StoreError, printable
from dagster_divorder.settings import DEFAULT_FILE, Settings, load_settings
from dagster_divorder.settings.places import as_place, is_url

Command = Callable[[argparse.Namespace], str | tuple[str, bool]]
"""From the options that were given to what is printed, and, of a command that tests something, whether it passed."""


def main(arguments: list[str] | None = None) -> int:
    """Entry point; returns the exit status."""
    # Modules and lists of texts, which hold no cycles, are otherwise searched for them over and over.
    gc.set_threshold(10_000, 20, 20)
    _prepare_streams()
    try:
        try:
            return _run(_parser().parse_args(arguments))
        finally:
            sys.stdout.flush()
    except BrokenPipeError:
        # Whoever read the output has closed it, as `head` does.
        _drop_output()
        return 128 + signal.SIGPIPE


def _prepare_streams() -> None:
    """Standard streams that are closed lead nowhere, and a character that one cannot show is escaped, as TOML has it:
    \\u20ac."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            # The lowest free number is this one. The next file opened would have it otherwise, and be printed into.
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)
    sys.stdout = sys.stdout or open(1, "w", encoding="utf-8")  # noqa: SIM115
    sys.stderr = sys.stderr or open(2, "w", encoding="utf-8")  # noqa: SIM115
    codecs.register_error("divorder", _escaped)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="divorder")


def _escaped(error: UnicodeError) -> tuple[str, int]:
    assert isinstance(error, UnicodeEncodeError)
    codes = map(ord, error.object[error.start : error.end])
    return "".join(f"\\u{code:04x}" if code < 1 << 16 else f"\\U{code:08x}" for code in codes), error.end


def _drop_output() -> None:
    """What is left in the buffers has nowhere to go."""
    for stream in (sys.stdout, sys.stderr):
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def _parser() -> argparse.ArgumentParser:
    shared = argparse.ArgumentParser(add_help=False)
    config = "TOML settings file (default: DIVORDER_CONFIG, then divorder.toml)"
    # Before or after the command; where it is not given, it must not take away what was given in the other place.
    shared.add_argument("--config", default=argparse.SUPPRESS, help=config)
    parser = argparse.ArgumentParser(
        prog="divorder",
        description="Order training data so that every window of training carries the corpus's own mix.",
        parents=[shared],
    )
    parser.add_argument("--version", action="version", version=f"divorder {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")

    def command(name: str, what: str, run: Command) -> argparse.ArgumentParser:
        made = commands.add_parser(name, help=what, description=what, parents=[shared])
        made.set_defaults(run=run)
        return made

    starting = command(
        "init",
        "write divorder.toml for a corpus, from what its records hold",
        lambda options: init(options.paths, _config(options) or DEFAULT_FILE),
    )
    starting.add_argument(
        "paths", nargs="+", metavar="FILE_OR_FOLDER", help="JSONL or Parquet; globs in quotes"
    )
    command("run", "run every stage, without Dagster; only what is new is computed", _by_settings(run))
    command("summary", "show what the last run made", _by_settings(summary))
    command("plan", "show what a run would compute, and why; stores nothing", _by_settings(plan))
    command(
        "compare",
        "run every pair of the strategies in `comparison`, and show the table",
        _by_settings(compare),
    )
    command(
        "prove",
        "train small models in several orders (`evidence`), and show what of the differences is beyond noise",
        _by_settings(prove),
    )
    reporting = command(
        "report",
        "run what an output needs, and write the report beside it",
        lambda options: report(_settings(options), everything=options.all, browse=options.open),
    )
    reporting.add_argument(
        "--all", action="store_true", help="first make all evidence that the report can show; takes longer"
    )
    reporting.add_argument("--open", action="store_true", help="then open it, and the films, in a browser")
    verifying = command(
        "verify",
        "what trainers read of an export, or of the plan before it is exported, and how to keep its order",
        verify,
    )
    verifying.add_argument(
        "export", nargs="?", type=as_place, help="folder or URL of an export, such as data/exports/parquet"
    )
    verifying.add_argument("--trainer", metavar="NAME", help="one trainer in full; without it a line on each")
    for name, what in (
        ("world-size", "data-parallel ranks"),
        ("micro-batch", "sequences that a rank reads at a time"),
        ("workers", "loader processes of a rank"),
        ("nodes", "machines"),
    ):
        verifying.add_argument(f"--{name}", type=int, metavar="N", help=what)
    finding = command(
        "where",
        "show which documents some steps or sequences read, or where documents are read",
        lambda options: where(_settings(options), options.step, options.sequence, options.id),
    )
    cutting = command(
        "cut",
        "settings under which the rest of the training is planned without some documents",
        lambda options: cut(_settings(options), options.step, options.id, options.resume_at),
    )
    for asked in (finding, cutting):
        asked.add_argument(
            "--step", type=_numbers, default=(), metavar="A[..B]", help="steps of training, from 0"
        )
        asked.add_argument("--id", nargs="+", default=(), help="documents, by your own ids or record ids")
    finding.add_argument("--sequence", type=_numbers, default=(), metavar="A[..B]", help="sequences, from 0")
    cutting.add_argument(
        "--resume-at", type=int, metavar="STEP", help="the checkpoint's step; default: the first of --step"
    )
    losing = command(
        "loss",
        "the loss of a causal model on held-out documents, source by source",
        lambda options: loss(options.model, options.heldout),
    )
    losing.add_argument("model", help="directory or Hugging Face id")
    losing.add_argument(
        "heldout", type=Path, help="folder of an output, or a Parquet file of source and text"
    )
    resuming = command(
        "shards",
        "list the files of an export for a trainer that reads them in a row, the one in which it was interrupted first",
        lambda options: shards(options.export, options.steps, options.sequences, options.tokens),
    )
    resuming.add_argument("export", type=Path, help="folder of an export, such as data/exports/parquet")
    consumed = resuming.add_mutually_exclusive_group(required=True)
    consumed.add_argument("--steps", type=int, metavar="N", help="that were taken, of the plan's batches")
    consumed.add_argument("--sequences", type=int, metavar="N", help="that were read")
    consumed.add_argument("--tokens", type=int, metavar="N", help="that were read, padding among them")
    mixing = command(
        "grid-shuffle",
        "shuffle the sequences of exports that are larger than memory, and in no planned order, into another",
        lambda options: grid_shuffle(options.exports, options.out, options.memory, options.seed),
    )
    mixing.add_argument(
        "exports",
        nargs="+",
        type=Path,
        metavar="EXPORT",
        help="folder of an export, such as data/exports/parquet",
    )
    mixing.add_argument(
        "out", type=Path, help="folder of the shuffled one; a run that was broken off goes on there"
    )
    mixing.add_argument(
        "--memory", type=_gigabytes, default="2", metavar="GB", help="of sequences at a time (default: 2)"
    )
    mixing.add_argument("--seed", type=int, default=0)
    pruning = command(
        "prune",
        "remove what neither the current input nor settings need",
        lambda options: prune(_settings(options), dry_run=options.dry_run),
    )
    pruning.add_argument("--dry-run", action="store_true", help="only show what would be freed")
    return parser


def _config(options: argparse.Namespace) -> str | None:
    return getattr(options, "config", None)


def _settings(options: argparse.Namespace) -> Settings:
    return load_settings(_config(options))


def _by_settings(said: Callable[[Settings], str]) -> Command:
    return lambda options: said(_settings(options))


def _run(options: argparse.Namespace) -> int:
    try:
        said = options.run(options)
        text, passed = (said, True) if isinstance(said, str) else said
        _print(printable(text))
    except DivOrderError as error:
        print(f"divorder: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("divorder: stopped; the next run goes on where this one was", file=sys.stderr)
        return 130
    return 0 if passed else 1


def _print(text: str) -> None:
    try:
        print(text, flush=True)
    except BrokenPipeError:
        raise
    except OSError as error:
        # Tried once more at the end otherwise.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise StoreError(
            f"standard output cannot be written to: {error.strerror}; send it elsewhere"
        ) from None


def run(settings: Settings) -> str:
    """Run every stage; the summary."""
    from dagster_divorder.pipeline import run_all

    run_all(settings)
    return summary(settings)


def verify(options: argparse.Namespace) -> tuple[str, bool]:
    """What trainers read of an export or a plan, and whether they can keep its order."""
    from dagster_divorder.verify import verify as held_against

    asked = {name: getattr(options, name) for name in ("world_size", "micro_batch", "workers", "nodes")}
    passed, text = held_against(_settings(options), options.export, options.trainer, **asked)
    return text, passed


def _numbers(text: str) -> range:
    """`1200` or `1200..1210`, both ends among them."""
    match = re.fullmatch(r"(\d+)(?:\.\.(\d+))?", text, re.ASCII)
    numbers = range(int(match[1]), int(match[2] or match[1]) + 1) if match else range(0)
    if not numbers:
        raise argparse.ArgumentTypeError(
            f"{text!r} is not A or A..B, with whole numbers from 0, B not below A"
        )
    return numbers


def _gigabytes(text: str) -> int:
    """An amount of memory in GB -> bytes."""
    try:
        size = int(float(text) * 1e9)
    except (ValueError, OverflowError):
        size = 0
    if size < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no amount of memory; expected gigabytes, such as 0.5")
    return size


def where(settings: Settings, steps: range, sequences: range, ids: Sequence[str]) -> str:
    """What some steps or sequences read, or where some documents are read; a line a run of tokens."""
    from dagster_divorder.forensics import where as find
    from dagster_divorder.view.words import clip

    found = find(settings, steps=steps, sequences=sequences, ids=ids)
    lines = ["step  sequence  offset  tokens  of document             id  source, cluster: first words"]
    for row in found.to_dict("records"):
        of = f"{row['start']:,}..{row['start'] + row['tokens']:,} of {row['document_tokens']:,}"
        about = ", ".join(clip(part) for part in (row["source"], row["cluster_name"]) if part)
        numbers = (
            f"{row['step']:>4,}  {row['sequence']:>8,}  {row['offset']:>6,}  {row['tokens']:>6,}  {of:<22}"
        )
        lines.append(f"{numbers}  {clip(row['id'])}  {about}: {clip(row['first_words'], 60)}")
    return "\n".join(lines)


def cut(settings: Settings, steps: range, ids: Sequence[str], resume_at: int | None) -> str:
    """The lines of settings that cut documents out of the rest of a training."""
    import json

    from dagster_divorder.forensics import cut as without

    order, batch = without(settings, steps=steps, ids=ids, resume_at=resume_at).order, settings.sequence.batch
    at = order.frozen_tokens // (batch * settings.sequence.length)
    return "\n".join(
        [
            f"# {len(order.cut):,} documents are cut out of what is read from step {at:,} on: put these lines into the "
            "settings, and run",
            "[order]",
            f"frozen_tokens = {order.frozen_tokens}",
            f"cut = {json.dumps(order.cut, indent=2, ensure_ascii=False)}",
        ]
    )


def loss(model: str, heldout: Path) -> str:
    """The loss by source as a table, and what its aggregate is worth."""
    from dagster_divorder.models.validation import loss_by_source

    found = loss_by_source(model, heldout)
    table = found.to_string(index=False, float_format="{:.4f}".format)
    return f"{table}\n\n{found.attrs['composition']}"


def shards(export: Path, steps: int | None, sequences: int | None, tokens: int | None) -> str:
    """The files of an export from where a training goes on, a line each, after a line that says where that is."""
    from dagster_divorder.readers.export import read_export_manifest
    from dagster_divorder.readers.shards import rotate_shards

    manifest = read_export_manifest(export)
    length = manifest["sequence_length"]
    read = (
        steps * manifest["batch"] if steps is not None else sequences if tokens is None else tokens // length
    )
    found = rotate_shards(export, read or 0)
    return "\n".join(
        [
            f"# skip {found.offset:,} sequences ({found.offset * length:,} tokens) of the first file; all files were "
            f"read {found.passed:,} times before",
            *map(str, found.files),
        ]
    )


def grid_shuffle(exports: Sequence[Path], out: Path, memory: int, seed: int) -> str:
    """Shuffle exports on disk; a line on the result."""
    from dagster_divorder.engine.progress import Bar
    from dagster_divorder.grid import grid_shuffle as shuffle

    made = shuffle(exports, out, memory=memory, seed=seed, progress=Bar())
    size = sum(entry["bytes"] for entry in made["files"].values())
    return (
        f"{made['rows']:,} sequences in {len(made['rows_of_files']):,} files of {out} ({size / 1e6:,.1f} MB)"
    )


def init(paths: Sequence[str], file: str) -> str:
    """Write a settings file; a few lines of text on it."""
    from dagster_divorder.propose import write_settings

    settings, whys = write_settings(paths, Path(file))
    texts = [repr(block.text_field) for block in settings.input.each]
    option = "" if file == DEFAULT_FILE else f" --config {file}"
    return "\n".join(
        [
            f"wrote {file}: the text is in {' and '.join(dict.fromkeys(texts))}, every window will carry the corpus's "
            f"mix of {', '.join(settings.order.traits)}",
            *(
                f"{text if len(texts) > 1 else 'that field'} is taken as it is {why}"
                for text, why in zip(texts, whys, strict=True)
            ),
            "look it over, then:",
            f"  divorder{option} plan    # what a run would compute",
            f"  divorder{option} run     # the order, in {settings.output.path}",
        ]
    )


def plan(settings: Settings) -> str:
    """A page of text on what a run would do."""
    from dagster_divorder.pipeline.plan import make_plan
    from dagster_divorder.stages import GRAPH
    from dagster_divorder.view.words import table_line

    made = make_plan(settings)
    widths = (22, 12, 10)
    lines = [
        "",
        f"{made.records:,} records in the input, {made.new_records:,} of them never seen",
        "",
        table_line(list(zip(("stage", "documents", "seconds"), widths, strict=True))) + "  why",
    ]
    for stage in made.stages:
        seconds = "?" if stage.seconds is None else f"{stage.seconds:.1f}"
        name = stage.stage if GRAPH[stage.stage].asset else f"  {stage.stage}"
        cells = list(zip((name, f"{stage.documents:,}", seconds), widths, strict=True))
        unless = f" (unless {stage.unless})" if stage.unless else ""
        lines.append(f"{table_line(cells)}  {stage.why}{unless}")
    return "\n".join([*lines, "", *_bytes_by_part("disk in use", made.disk)])


def compare(settings: Settings) -> str:
    """Make strategy_comparison and what it needs; its table, a pair of strategies a line."""
    from dagster_divorder.pipeline import Run, run_all
    from dagster_divorder.stages import GRAPH
    from dagster_divorder.stages.strategy_comparison import load_comparison
    from dagster_divorder.store.connect import store_of
    from dagster_divorder.view.words import aligned, as_shown

    receipts = run_all(settings, stages=GRAPH.needed(settings, "strategy_comparison"))
    rows = load_comparison(Run(settings, store_of(settings.store)))
    return "\n".join(
        [
            "",
            f"{receipts['raw_docs'].figures['documents']:,} documents, {receipts['token_counts'].figures['tokens']:,} "
            f"tokens; packed by concat into sequences of {settings.sequence.length:,} tokens, batches of "
            f"{settings.sequence.batch:,}, {receipts['clusters'].figures['k']} clusters",
            *_epoch(receipts["repeats"].figures if "repeats" in receipts else None),
            "",
            *aligned([as_shown(row) for row in rows]),
        ]
    )


def prove(settings: Settings) -> str:
    """Make training_evidence and what it needs; its verdict and tables.

    Raises:
        InputError: `evidence.tokens` is unset.
    """
    from dagster_divorder.pipeline import Run, run_all
    from dagster_divorder.stages import GRAPH
    from dagster_divorder.stages.training_evidence import load_evidence
    from dagster_divorder.store.connect import store_of
    from dagster_divorder.view.evidence import order_rows, rate_rows, source_rows
    from dagster_divorder.view.words import aligned

    if settings.evidence.tokens is None:
        raise InputError(
            "evidence.tokens is unset, so that nothing is trained; set it to the tokens of an epoch, such as "
            "4_000_000, and heldout.share to what is validated on, such as 0.01"
        )
    run_all(settings, stages=GRAPH.needed(settings, "training_evidence"))
    summary = load_evidence(Run(settings, store_of(settings.store)))
    return "\n".join(
        [
            *("", *summary["verdict"], *summary["notes"], ""),
            *aligned(order_rows(summary)),
            *(
                "",
                *aligned(source_rows(summary)),
                "",
                "*: differs from the same sequences shuffled beyond noise",
            ),
            *(("", *aligned(rates)) if (rates := rate_rows(summary)) else ()),
        ]
    )


def report(settings: Settings, *, everything: bool, browse: bool) -> str:
    """Run what an output needs (or also all evidence), then make the report, and perhaps open it and the films in a
    browser; a few lines of text on it."""
    from dagster_divorder.pipeline import run_all
    from dagster_divorder.stages import GRAPH
    from dagster_divorder.stages.ordering_report import EVIDENCE

    stage = "ordering_report"
    evidence = [name for name in EVIDENCE if everything and GRAPH[name].when(settings)]
    made = run_all(settings, stages=GRAPH.needed(settings, stage, *evidence))[stage].figures
    lines = ["", made["check"], "", f"{made['path']} ({made['bytes'] / 1e6:,.2f} MB)"]
    if made["missing"]:
        missing = ", ".join(made["missing"])
        lines.append(f"not in it, as they were not made: {missing}; `divorder report --all` makes them")
    if browse and is_url(made["path"]):
        lines.append("it lies at a URL: copy it to this machine to open it")
    elif browse:
        page = Path(made["path"]).absolute()
        shown = [page, *sorted(page.parent.glob("ordering_animation*.mp4"))]
        opened = [webbrowser.open(path.as_uri()) for path in shown]
        if not all(opened):
            lines.append("no browser was found here: open the files by hand")
    return "\n".join(lines)


def prune(settings: Settings, *, dry_run: bool) -> str:
    """Prune the store (or say what that would do); a page of text on it."""
    from dagster_divorder.engine.progress import Bar
    from dagster_divorder.pipeline.prune import plan_prune
    from dagster_divorder.pipeline.prune import prune as prune_store
    from dagster_divorder.store.connect import store_of

    store = store_of(settings.store)
    with store.lease(wait=settings.store.wait, on_wait=Bar().note):
        freed = plan_prune(store.open()) if dry_run else prune_store(settings, store.open())
    title = "would be freed" if dry_run else "freed"
    lines = ["", *_bytes_by_part(title, freed.bytes), f"deleted documents: {freed.documents:,}"]
    if freed.documents and not dry_run:
        lines += [
            "Names of clusters, examples, and pages next to the output, which may have had words of them, are gone",
            "too; the next run makes them anew. A bootstrap base model that was trained on them still knows some of",
            'their words: model.refit = "now" trains another.',
        ]
    return "\n".join(lines)


def _bytes_by_part(title: str, parts: dict[str, int]) -> list[str]:
    rows = [*parts.items(), ("in all", sum(parts.values()))]
    return [f"{title}:", *(f"  {part:<28}{size / 1e6:>12,.1f} MB" for part, size in rows)]


def summary(settings: Settings) -> str:
    """A page of text: before and after, where the output is, and of the last run of each stage what was new, and its
    time; evidence is there where it fits these settings and this corpus.

    Raises:
        MissingStageError: the pipeline has not run to its end on this store.
    """
    from dagster_divorder.pipeline import Run
    from dagster_divorder.pipeline.stage import Table
    from dagster_divorder.stages import GRAPH
    from dagster_divorder.store.connect import store_of
    from dagster_divorder.store.receipts import load_receipt
    from dagster_divorder.view.words import ORDERS, TRAIN_ON, aligned, cells, side_by_side, table_line

    run = Run(settings, store_of(settings.store).open(create=False))
    output_stages = [stage for stage in GRAPH.needed(settings) if GRAPH[stage].asset]
    receipts = {stage: load_receipt(run.store, stage) for stage in GRAPH.upstream(settings)}
    reports = {
        stage: receipt.figures
        for stage, receipt in receipts.items()
        if receipt and (stage in output_stages or run.is_current(stage))
    }
    missing = [stage for stage in output_stages if stage not in reports]
    if missing:
        raise MissingStageError(
            f"{', '.join(missing)} never ran on {settings.store.path}; run `divorder run`, or "
            "`dagster asset materialize --select '*' -m dagster_divorder.definitions`"
        )
    raw_docs, output = reports["raw_docs"], reports["curated_output"]
    lines = [
        "",
        f"{raw_docs['records']:,} records ({raw_docs['documents']:,} distinct documents, "
        f"{reports['token_counts']['tokens']:,} tokens), {raw_docs['rejected_records']:,} rejected"
        + (
            f", {raw_docs['partial_lines']:,} cut short at the end of a file"
            if raw_docs["partial_lines"]
            else ""
        ),
        *_epoch(reports.get("repeats")),
        f"sequences of {settings.sequence.length:,} tokens, batches of {settings.sequence.batch:,}, "
        f"{reports['clusters']['k']} clusters, strategy {reports['greedy_order']['strategy']}",
        "",
        *aligned(side_by_side(reports["diversity_metrics"]["summary"])),
        "",
        f"Train on the {ORDERS[TRAIN_ON]}, without shuffling.",
        *reports["diversity_metrics"]["findings"],
        *([reports["stationarity"]["claim"]] if "stationarity" in reports else []),
        *(
            line
            for stage in ("subset_selection", "set_diversity")
            if (receipt := receipts.get(stage)) and stage in reports
            for name, of in GRAPH[stage].show(run, receipt).items()
            if isinstance(of, Table)
            for line in ("", f"{name} ({stage}):", *aligned(cells(of.rows)))
        ),
        "",
        "each stage, as it last ran:",
        table_line([("", 24), ("documents", 12), ("new", 12), ("reused", 12), ("seconds", 10)]),
    ]
    for stage, report in reports.items():
        if not GRAPH[stage].asset:
            continue
        counts = (report["documents"], report["new_documents"], report["reused_documents"])
        lines.append(
            table_line(
                [
                    (f"  {stage}", 24),
                    *((f"{number:,}", 12) for number in counts),
                    (f"{report['seconds']:.2f}", 10),
                ]
            )
        )
    state = "written" if output["written"] else "unchanged"
    lines += ["", f"output: {output['folder']} ({state}, {output['bytes'] / 1e6:,.1f} MB)"]
    page, films = reports.get("ordering_report"), reports.get("ordering_animation")
    drawn = [Path(page["path"]).name, *page["beside"]] if page else []
    drawn += films["films"] if films else []
    lines += [f"  {name}" for name in [*output["files"], "curated_meta.json", *drawn]]
    exports = reports.get("exports", {}).get("exports", ())
    if exports:
        folder = exports[0]["folder"]
        lines += [
            f"exports: {folder.rpartition('/')[0]}",
            *(f"  {of['format']} ({of['bytes'] / 1e6:,.1f} MB)" for of in exports),
        ]
        lines.append(f"who reads one in this order, and how: divorder verify {folder}")
    return "\n".join(lines)


def _epoch(repeats: Mapping[str, Any] | None) -> list[str]:
    """What an epoch reads, where that is not every record once; from the figures of `repeats`."""
    if repeats is None:
        return []
    most = repeats["most_repeats"]
    return [
        f"an epoch reads {repeats['items']:,} records, {repeats['tokens_trained_on']:,} tokens: "
        f"{repeats['left_out_records']:,} records are left out, "
        + ("none is repeated" if most < 2 else f"none is read more than {most:,} times")
    ]


if __name__ == "__main__":
    sys.exit(main())
