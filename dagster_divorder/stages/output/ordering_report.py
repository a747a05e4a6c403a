"""ordering_report: one HTML file beside the output that shows the settings, the result, and the evidence.

It needs the same stages as an output. It shows the evidence that exists for these settings and this corpus, and lists
the commands that make the rest. `ordering_report.html`, and `cluster_cloud.png` if there is a map, are written to
`output.path` completely or not at all; the output's manifest does not list them.

The page is made again only if something that it shows has changed. Times and memory of stages differ from run to run,
so neither key nor version includes them: a page shows the figures of the run that made it.

Letters: N records, J trait values, C slices of the dataset, S sequences.
Cost: a few passes over the records for each order; O(N log N) for the lengths.
Memory: some 80 bytes a record beside C J numbers.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any

import numpy as np

from dagster_divorder.core.arrow import is_number
from dagster_divorder.core.measure import cluster_mix, packed_counts
from dagster_divorder.core.measure.along import Largest, binned, largest, quantiles_along
from dagster_divorder.core.measure.runs import ReadRuns, RunCounter, runs_in_order
from dagster_divorder.core.measure.windows import Laid
from dagster_divorder.core.order.traits import column_codes
from dagster_divorder.core.packing import PackedSequences
from dagster_divorder.corpus.sample import beginnings, contents
from dagster_divorder.errors import MissingStageError, without_secrets
from dagster_divorder.pipeline.changes import DECIDES_NOTHING, given_settings
from dagster_divorder.pipeline.graph import OUTPUT
from dagster_divorder.pipeline.run import Run, stage_row, stages_table
from dagster_divorder.pipeline.stage import (
    File,
    Link,
    Made,
    Picture,
    Shown,
    Table,
    Text,
    WholeCorpus,
    counts,
    versions,
)
from dagster_divorder.settings import Settings
from dagster_divorder.stages import EVIDENCE
from dagster_divorder.stages.corpus.chat_template import reading, template_of
from dagster_divorder.stages.corpus.fields import built_in, load_fields
from dagster_divorder.stages.corpus.ids import own_ids
from dagster_divorder.stages.measure.diversity_metrics import load_verdict, read_in_order
from dagster_divorder.stages.measure.stationarity import load_stationarity
from dagster_divorder.stages.mix.repeats import (
    TrainingStream,
    load_stream,
    run_counter,
    stream_reads,
)
from dagster_divorder.stages.order.bin_edges import load_edges
from dagster_divorder.stages.order.packed_sequences import batch_tokens, load_packed
from dagster_divorder.stages.order.sequence_order import first_reads, load_sequence_order
from dagster_divorder.stages.output.curated_output import load_manifest
from dagster_divorder.stages.topics.cluster_names import load_names
from dagster_divorder.stages.topics.clusters import cluster_sizes
from dagster_divorder.store.state import Receipt
from dagster_divorder.view.drawing import OTHERS, cluster_colours, data_uri, stamped
from dagster_divorder.view.report import sections
from dagster_divorder.view.report.html import Section, part, table
from dagster_divorder.view.report.sections import TraitAlong
from dagster_divorder.view.verdict import Verdict
from dagster_divorder.view.words import READ, cells, clip, count, number, output_label, percent
from dagster_divorder.write.curated import write_beside

PAGE = "ordering_report.html"
CLOUD = "cluster_cloud.png"
MAIN = (
    *("model.base", "embedding.kind", "clusters.k", "order.strategy", "order.traits", "packing.method"),
    *("sequence.length", "sequence.batch", "sequence.strategy", "seed"),
)
"""Settings that every page shows."""
SHOWN = tuple(
    name
    for name in Settings.model_fields
    if name not in {*DECIDES_NOTHING, "output", "exports", "engine", "evidence"}
)
"""Sections of settings that the page shows."""
RUN_FIGURES = {*counts(0, 0), "seconds", "documents_per_second"}
"""Figures of every stage about its last run."""
LENGTH_QUANTILES = (0.1, 0.25, 0.5, 0.75, 0.9)
LENGTH_COLUMNS, BINS = 100, 100
"""Slices of the dataset in the chart of lengths; bins of sequences."""
COLUMNS = (60, 240)
"""Fewest and most slices of a bar and of a strip. In between, a slice is a batch."""
COLOURED = 60
"""Most clusters with a colour and a row of their own; all smaller clusters share one."""
KEPT = 20
"""Most values of any other category with a row of their own."""
WORST_TRAITS, WORST_DOCUMENTS, WORST_SEQUENCES = 4, 3, 5
"""Most traits whose worst batch is shown, documents shown for each, and worst sequences shown, each with another
document."""
WORST_CANDIDATES = 1000
"""Candidates for the worst sequences; many, because a single book fills hundreds."""
PARTS = 6
"""Most parts of a conversation that are shown."""

Example = str | Sequence[tuple[str, bool]]
"""A text, or its parts, each with whether it is trained on."""
Window = tuple[str, str, list[tuple[str, Example]]]
"""A window: its title, a lead, and its largest documents: facts and text of each."""


def _write_ordering_report(run: Run) -> Made:
    (evidence, missing), manifest, verdict = at_hand(run), load_manifest(run), load_verdict(run)
    shown = _sections(run, manifest, verdict, evidence, missing)
    page = sections.report(manifest, verdict, _trained_tokens(run), shown)
    figures = {
        "path": str(run.settings.output.path / PAGE),
        "bytes": len(page),
        "beside": [CLOUD] if "cluster_map" in evidence else [],
        "check": " ".join(verdict.sentences),
        "better_than_shuffling": verdict.passed if verdict.compared else None,
        "sections": [section.title for section in shown],
        "missing": list(missing),
    }
    files = {"page": File(page, "html")}
    if "cluster_map" in evidence:
        files["cloud"] = File(stamped(run.read("cluster_map", "picture"), output_label(manifest)), "png")
    return Made(files, {"beside": figures["beside"]}, figures)


def _publish_report(run: Run, receipt: Receipt) -> None:
    files = {PAGE: run.store.read_verified(receipt.files["page"])}
    if CLOUD in receipt.facts["beside"]:
        files[CLOUD] = run.store.read_verified(receipt.files["cloud"])
    write_beside(run.store, run.settings.output.path, files)


def at_hand(run: Run) -> tuple[dict[str, Receipt], dict[str, str]]:
    """(stage -> receipt of its evidence for these settings and this corpus; stage -> why its evidence is missing)."""
    evidence, missing = {}, {}
    for stage in EVIDENCE:
        try:
            evidence[stage] = run.receipt(stage)
        except MissingStageError as error:
            if run.graph[stage].when(run.settings):
                missing[stage] = str(error).partition(";")[0]
    return evidence, missing


def _trained_tokens(run: Run) -> int | None:
    """None if no input holds conversations."""
    return run.receipt("token_counts").figures.get("trained_tokens")


def _asked(settings: Settings) -> dict[str, str]:
    """MAIN, and all other shown settings that are not at their defaults, by name."""

    shown = {name: reduce(getattr, name.split("."), settings) for name in MAIN}
    for section, values in given_settings(settings).items():
        if section in SHOWN:
            keys = values if isinstance(values, dict) else {"": values}
            shown |= {f"{section}.{key}".rstrip("."): value for key, value in keys.items()}
    return {
        name: without_secrets(value if isinstance(value, str) else json.dumps(value, ensure_ascii=False))
        for name, value in shown.items()
    }


def _sections(
    run: Run,
    manifest: Mapping[str, Any],
    verdict: Verdict,
    evidence: Mapping[str, Receipt],
    missing: Mapping[str, str],
) -> list[Section]:
    """All sections, in reading order. evidence, missing: see `at_hand`."""
    settings, corpus, graph = run.settings, _load_corpus(run), run.graph
    traits, metrics, k = corpus.stream.traits, verdict.metrics, manifest["k"]
    coloured = largest(traits.counted, traits.codes["cluster"], traits.sizes()["cluster"], COLOURED)
    clusters = _along(corpus, "cluster", corpus.names, coloured, "smaller clusters")
    colours = np.concatenate([cluster_colours(k)[coloured.values], [OTHERS]])[: len(clusters.names)]
    sizes = cluster_sizes(run)
    documents = sizes[coloured.values].tolist()
    lengths = {
        name: quantiles_along(
            np.arange(len(runs.length)),
            runs.length,
            traits.tokens[runs.document],
            LENGTH_COLUMNS,
            LENGTH_QUANTILES,
        )
        for name, (runs, _) in corpus.orders.items()
    }
    categories = [
        _along(corpus, field, names, largest(traits.counted, codes, len(names), KEPT), "other values")
        for field, (codes, names) in corpus.categories.items()
    ]
    worst = [
        _worst_batch(corpus, trait)
        for trait in verdict.traits[:WORST_TRAITS]
        if len(corpus.packed) > settings.sequence.batch
    ]
    worst += _worst_sequences(corpus)
    chosen = [stage for stage in ("subset_selection", "repeats") if graph[stage].when(settings)]
    rows = [
        stage_row(name, run.receipt(name).figures)
        for name in graph.needed(settings, "ordering_report", *evidence)
        if graph[name].asset and name != "ordering_report"
    ]
    return [
        sections.asked(_asked(settings), settings.counts_trained),
        sections.bars(
            clusters,
            colours,
            {name: binned(distinct, BINS) for name, (_, distinct) in corpus.orders.items()},
            metrics,
            k,
        ),
        sections.windows(verdict),
        *(
            [sections.stretches(metrics["sequences"], settings.curriculum.score)]
            if verdict.stretches > 1
            else []
        ),
        sections.drift(load_stationarity(run)),
        *([sections.worst(worst, _notes(corpus))] if worst else []),
        sections.along(lengths, categories),
        sections.clusters(clusters, colours, [*documents, int(sizes.sum()) - sum(documents)], k),
        *(_as_shown(run, receipt) for receipt in [*map(run.receipt, chosen), *evidence.values()]),
        sections.last_run(
            stages_table(rows).rows,
            manifest["delta"],
            {stage: (EVIDENCE[stage], why) for stage, why in missing.items()},
        ),
    ]


def _as_shown(run: Run, receipt: Receipt) -> Section:
    """What a stage shows of its result, and its figures."""
    stage, parts = run.graph[receipt.stage], []
    own_name = stage.name.replace("_", " ").capitalize()
    # Times and numbers of new documents are left out, because they differ from run to run.
    figures = {name: value for name, value in receipt.figures.items() if name not in RUN_FIGURES}
    for name, shown in stage.show(run, receipt).items():
        match shown:
            case Picture(file, what):
                parts.append(part("picture", data_uri(file.read_bytes()), what))
            case Table(rows):
                parts.append(table(f"{own_name}: {name.replace('_', ' ')}", cells(rows)))
            case Text(markdown):
                parts.append(part("text", markdown.splitlines()))
                figures.pop(name, None)
            case Link(path):
                figures[name] = str(path)
            case value:
                figures[name] = value
    plain = [
        {"figure": name.replace("_", " "), "value": "; ".join(value) if name == "notes" else value}
        for name, value in figures.items()
        if name == "notes" or isinstance(value, (str, float, int))
    ]
    title = EVIDENCE.get(stage.name, own_name)
    return Section(
        stage.name.replace("_", "-"),
        title[0].upper() + title[1:],
        stage.description,
        [*parts, table(f"{own_name}: figures", cells(plain))],
    )


@dataclass(frozen=True, eq=False)
class _Corpus:
    """The stream and its orders. names: of the clusters. orders: see `read_in_order`. epochs: orders of the sequences,
    int64 (E, S). categories: the source and the balanced fields that are not numeric: codes int32 (M,), names by code.
    tokens_of: counts the tokens of runs that shares are of."""

    run: Run
    names: Sequence[str]
    stream: TrainingStream
    packed: PackedSequences
    epochs: np.ndarray
    orders: Mapping[str, tuple[ReadRuns, np.ndarray]]
    categories: Mapping[str, tuple[np.ndarray, Sequence[str]]]
    tokens_of: RunCounter

    @property
    def noun(self) -> str:
        """What shares are of."""
        return "token" if self.stream.traits.trained is None else "trained token"


def _load_corpus(run: Run) -> _Corpus:
    stream, packed, epochs = load_stream(run), load_packed(run), load_sequence_order(run)
    traits, settings = stream.traits, run.settings
    categories: dict[str, tuple[np.ndarray, Sequence[str]]] = {}
    for field in dict.fromkeys([settings.input.source_field, *settings.order.traits]):
        if field is None or field in built_in(settings):
            continue
        if field in load_edges(run) and is_number(load_fields(run, field).column(field).type):
            continue
        if field in traits.codes:
            categories[field] = traits.codes[field], traits.names[field]
        else:
            coded = column_codes(load_fields(run, field).column(field), bins=1, name=f"field {field!r}")
            categories[field] = stream.of_items(coded.codes), coded.names
    orders = read_in_order(run, traits)
    tokens_of = run_counter(run, stream.record_of)
    return _Corpus(run, load_names(run), stream, packed, epochs, orders, categories, tokens_of)


def _along(corpus: _Corpus, trait: str, names: Sequence[str], shown: Largest, others: str) -> TraitAlong:
    """Where each value of a trait lies in each order. others: the name for all smaller values."""
    total = int(corpus.stream.traits.counted.sum())
    window = batch_tokens(corpus.run, corpus.packed, corpus.tokens_of(corpus.packed))
    columns = max(1, min(total, int(np.clip(total // window, *COLUMNS))))
    kept = [names[value] for value in shown.values.tolist()]
    tokens = shown.tokens.tolist()
    if shown.others:
        kept.append(f"{shown.others:,} {others}")
        tokens.append(shown.other_tokens)
    mixes = {
        name: cluster_mix(
            np.arange(len(runs.length)),
            corpus.tokens_of(runs),
            shown.codes[runs.document],
            max(1, shown.count),
            columns,
        )
        for name, (runs, _) in corpus.orders.items()
    }
    return TraitAlong(trait, kept, np.array(tokens) / max(total, 1), mixes)


def _laid(corpus: _Corpus, trait: str, order: np.ndarray) -> Laid:
    traits = corpus.stream.traits
    codes, sizes = {trait: traits.codes[trait]}, traits.sizes()
    return Laid.of(packed_counts(corpus.packed, codes, sizes, corpus.tokens_of(corpus.packed))[trait], order)


def _worst_batch(corpus: _Corpus, trait: str) -> Window:
    packed, traits = corpus.packed, corpus.stream.traits
    counted, batch = corpus.tokens_of(packed), corpus.run.settings.sequence.batch
    order = corpus.epochs.ravel()
    first = int(_laid(corpus, trait, order).sliding(batch).worst.argmax())
    epoch, start = divmod(first, len(packed))
    # The batch may continue into the next epoch.
    runs, _ = runs_in_order(packed.indptr, order[first : first + batch])
    inside = counted[runs]
    documents, tokens = _by_document(packed.document[runs], inside)
    codes, values = traits.codes[trait], traits.sizes()[trait]
    shares = np.bincount(codes[documents], tokens, values) / tokens.sum()
    whole = np.bincount(codes, traits.counted, values) / traits.counted.sum()
    value = int(np.abs(shares - whole).argmax())
    over = shares[value] > whole[value]
    name = corpus.names[value] if trait == "cluster" else traits.names[trait][value]
    chosen = codes[documents] == value if over else np.ones(len(documents), bool)
    return (
        f"The worst batch for {trait}",
        f"It starts at {percent(start / len(packed))} of the sequences"
        f"{f' of epoch {epoch + 1}' if len(corpus.epochs) > 1 else ''} and holds {count(len(documents), 'document')}. "
        f"The {trait} “{clip(name, 60)}” makes up {percent(shares[value])} of its {corpus.noun}s, but "
        f"{percent(whole[value])} of the corpus’s. The largest documents {'of that kind' if over else 'in it'}:",
        _largest(corpus, documents[chosen], tokens[chosen]),
    )


def _worst_sequences(corpus: _Corpus) -> list[Window]:
    """The sequences whose clusters differ most from the corpus's; none if the plan is empty."""
    packed, traits = corpus.packed, corpus.stream.traits
    if not len(packed):
        return []
    counted = corpus.tokens_of(packed)
    variation = _laid(corpus, "cluster", np.arange(len(packed))).sliding(1).tv
    place = np.empty(len(packed), np.int64)
    place[first_reads(corpus.epochs)] = np.arange(len(place))
    windows: dict[int, Window] = {}
    # Equally distant sequences come in the order of training.
    for sequence in np.lexsort((place, -variation))[:WORST_CANDIDATES].tolist():
        runs = slice(packed.indptr[sequence], packed.indptr[sequence + 1])
        documents, tokens = _by_document(packed.document[runs], counted[runs])
        row = int(corpus.stream.record_of[documents[tokens.argmax()]])
        if row in windows:
            continue
        clusters = len(np.unique(traits.codes["cluster"][documents]))
        windows[row] = (
            f"Sequence {number(place[sequence] + 1)} of {number(len(place))}",
            f"{percent(variation[sequence])} of its {corpus.noun}s would have to change to match the corpus. It holds "
            f"{count(clusters, 'cluster')} and {count(len(documents), 'document')}. The largest:",
            _largest(corpus, documents, tokens)[:1],
        )
        if len(windows) == WORST_SEQUENCES:
            break
    return list(windows.values())


def _notes(corpus: _Corpus) -> list[str]:
    """Notes below the worst windows."""
    alone, bold = int((np.diff(corpus.packed.indptr) == 1).sum()), _trained_tokens(corpus.run) is not None
    of_one = (
        f"{number(alone)} of {number(len(corpus.packed))} sequences hold tokens of only one document, which no order "
        "of whole documents can mix; packing.piece_tokens cuts long documents"
    )
    return [*([of_one] if alone else []), *(["Bold: trained on"] if bold else [])]


def _by_document(documents: np.ndarray, tokens: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(documents int64 (n,), tokens of each): sums over the runs of a document, in the order of their first runs."""
    unique, first, inverse = np.unique(documents, return_index=True, return_inverse=True)
    order = np.argsort(first)
    return unique[order], np.bincount(inverse, tokens)[order].astype(np.int64)


def _largest(corpus: _Corpus, documents: np.ndarray, tokens: np.ndarray) -> list[tuple[str, Example]]:
    """The documents with the most tokens, of equal ones the first: (a line about it, the beginning of its text).
    tokens: counted tokens of each document in the window, int64 (n,)."""
    chosen = np.argsort(-tokens, kind="stable")[:WORST_DOCUMENTS]
    traits, records = corpus.stream.traits, corpus.stream.record(documents[chosen])
    texts = _examples(corpus.run, records)
    codes, names = corpus.categories.get(corpus.run.settings.input.source_field or "", (None, ()))
    shown = []
    ids = own_ids(corpus.run, records)
    for document, own_id, inside, text in zip(
        documents[chosen], ids, tokens[chosen].tolist(), texts, strict=True
    ):
        whole, noun = int(traits.counted[document]), corpus.noun
        size = count(inside, noun) if inside == whole else f"{number(inside)} of {count(whole, noun)}"
        if traits.trained is not None:
            size += f", {count(int(traits.tokens[document]), 'token')} in all"
        known = [] if own_id is None else [clip(own_id, 60)]
        source = [] if codes is None else [clip(names[codes[document]], 60)]
        cluster = corpus.names[traits.codes["cluster"][document]]
        shown.append((" · ".join([*known, size, cluster, *source]), text))
    return shown


def _examples(run: Run, rows: np.ndarray) -> list[Example]:
    """The beginnings of the texts of document rows; with a loss mask, of what the model reads, part by part."""
    if not run.settings.masked:
        return beginnings(run.records, run.view, rows, READ).to_pylist()
    from dagster_divorder.models.chat_tokens import as_read

    read = [
        as_read(document, template_of(run), run.settings.chats.train_on)
        for document in contents(run.view.fragments, rows, run.records.texts).to_pylist()
    ]
    return [_parts(conversation.text, conversation.spans) for conversation in read]


def _parts(text: str, spans: Sequence[tuple[int, int]]) -> Example:
    """The first PARTS parts of a text whose characters in `spans`, rising, are trained on."""
    parts, at = [], 0
    for first, last in spans[:PARTS]:
        parts += [(text[at:first], False), (text[first:last], True)]
        at = last
    return [(words, trained) for words, trained in [*parts, (text[at:], False)] if words.strip()][:PARTS]


def _show_ordering_report(run: Run, receipt: Receipt) -> Shown:
    listed = {
        name: Text("\n".join(f"- {item}" for item in receipt.figures[name]))
        for name in ("sections", "missing")
        if receipt.figures[name]
    }
    return {"path": Link(run.settings.output.path / PAGE), **listed}


def _decided_by(run: Run) -> dict[str, Any]:
    output = run.receipt(OUTPUT).key
    evidence, missing = at_hand(run)
    ids = ["ids"] if run.settings.input.id_field else []
    stages = ("clusters", "cluster_names", "diversity_metrics", "stationarity", "traits")
    return {
        "asked": _asked(run.settings),
        "path": str(run.settings.output.path),
        **versions(run, *stages, *ids, *stream_reads(run.settings)),
        "output": output,
        "evidence": {stage: receipt.version for stage, receipt in evidence.items()},
        "missing": missing,
        **reading(run),
    }


ORDERING_REPORT = WholeCorpus(
    name="ordering_report",
    version=10,
    description="A report to send to others: one HTML file beside the output. Settings, comparison with shuffling, "
    "before and after, the worst windows and their documents, and the available evidence. It opens in any browser, "
    "without a network.",
    reads=lambda settings: (
        *("raw_docs", "centroids", "clusters", "cluster_names", "bin_edges", "traits"),
        *stream_reads(settings),
        *("greedy_order", "packed_sequences", "sequence_order", "stationarity", "diversity_metrics", OUTPUT),
        *(["ids"] if settings.input.id_field else []),
    ),
    settings=(*SHOWN, "input.paths", "input.max_reject_share", "order.frozen_tokens", "order.append"),
    decided_by=_decided_by,
    quotes=True,
    publish=_publish_report,
    doing="drawing the report",
    compute=_write_ordering_report,
    show=_show_ordering_report,
)
