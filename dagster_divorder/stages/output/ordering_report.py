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

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from dagster_divorder.core.arrow import is_number
from dagster_divorder.core.measure import cluster_mix
from dagster_divorder.core.measure.along import binned, quantiles_along
from dagster_divorder.core.measure.largest import Largest, largest
from dagster_divorder.core.measure.packed import ReadRuns, RunCounter, runs_in_order
from dagster_divorder.core.measure.worst_windows import sequence_variation, window_contents
from dagster_divorder.core.order.traits import column_codes
from dagster_divorder.core.packing import PackedSequences, sequence_counts
from dagster_divorder.errors import MissingStageError
from dagster_divorder.pipeline.graph import OUTPUT
from dagster_divorder.pipeline.run import Run
from dagster_divorder.pipeline.stage import (
    File,
    Link,
    Made,
    PerDocument,
    Picture,
    Shown,
    Table,
    Text,
    WholeCorpus,
    counts,
    versions,
)
from dagster_divorder.settings import Settings
from dagster_divorder.settings.places import id_and_revision
from dagster_divorder.stages.corpus.chat_template import reading, template_of
from dagster_divorder.stages.corpus.fields import built_in, load_fields
from dagster_divorder.stages.corpus.ids import own_ids
from dagster_divorder.stages.evidence.strategy_comparison import load_comparison
from dagster_divorder.stages.evidence.training_evidence import load_evidence
from dagster_divorder.stages.measure.diversity_metrics import (
    load_verdict,
    read_in_order,
)
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
from dagster_divorder.stages.text.loss_mask import load_loss_mask
from dagster_divorder.stages.topics import ari_comparison, k_calibration
from dagster_divorder.stages.topics.cluster_map import load_map
from dagster_divorder.stages.topics.cluster_names import load_names
from dagster_divorder.stages.topics.clusters import cluster_sizes
from dagster_divorder.stages.topics.components import chosen_kind
from dagster_divorder.store.sample import beginnings, contents
from dagster_divorder.store.state import Receipt
from dagster_divorder.view.drawing import stamped
from dagster_divorder.view.report.numbers import (
    LENGTH_QUANTILES,
    Agreement,
    Card,
    Evidence,
    Example,
    MapPoints,
    Numbers,
    StageRun,
    TraitAlong,
    marked_parts,
)
from dagster_divorder.view.words import READ, clip, count, number, output_label, percent
from dagster_divorder.write.curated import write_beside

PAGE = "ordering_report.html"
CLOUD = "cluster_cloud.png"
SECTIONS = (
    *("strategy_comparison", "k_calibration", "ari_comparison", "cluster_map"),
    *("training_evidence", "set_diversity"),
)
"""Evidence with a section of its own. Other evidence gets a section like its page in Dagster."""
RUN_FIGURES = {*counts(0, 0), "seconds", "documents_per_second"}
"""Figures of every stage about its last run."""
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


def _write_ordering_report(run: Run) -> Made:
    from dagster_divorder.view.report.sections import report

    (evidence, missing), manifest = at_hand(run), load_manifest(run)
    shown = numbers(run, manifest, evidence, missing)
    page, sections = report(shown)
    figures = {
        "path": str(run.settings.output.path / PAGE),
        "bytes": len(page),
        "beside": [CLOUD] if "cluster_map" in evidence else [],
        "check": " ".join(shown.check.sentences),
        "better_than_shuffling": shown.check.passed if shown.check.compared else None,
        "sections": sections,
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
    for stage in dict.fromkeys([*SECTIONS, *run.graph.evidence]):
        try:
            evidence[stage] = run.receipt(stage)
        except MissingStageError as error:
            if run.graph[stage].when(run.settings):
                missing[stage] = str(error).partition(";")[0]
    if "cluster_map" in evidence and "places" not in evidence["cluster_map"].files:
        missing["cluster_map"] = evidence["cluster_map"].facts["note"].partition(";")[0]
    return evidence, missing


def numbers(
    run: Run, manifest: Mapping[str, Any], evidence: Mapping[str, Receipt], missing: Mapping[str, str]
) -> Numbers:
    """Everything that the report shows. evidence, missing: see `at_hand`."""
    settings, verdict, corpus = run.settings, load_verdict(run), _load_corpus(run)
    metrics, traits = verdict.metrics, corpus.stream.traits
    tokens = traits.tokens
    coloured = largest(traits.counted, traits.codes["cluster"], traits.sizes()["cluster"], COLOURED)
    sizes = cluster_sizes(run)
    documents = sizes[coloured.values].tolist()
    batches = metrics["sequences"]["windows"]["batch"]
    still = list(settings.order.traits)[:WORST_TRAITS]
    calibrated = evidence.get("k_calibration")
    return Numbers(
        settings=settings,
        manifest=manifest,
        tokens=int(traits.counted.sum()),
        trained_tokens=run.receipt("token_counts").figures.get("trained_tokens"),
        space=chosen_kind(run),
        check=verdict,
        drift=load_stationarity(run),
        distinct={name: binned(distinct, BINS) for name, (_, distinct) in corpus.orders.items()},
        lengths={
            name: quantiles_along(
                np.arange(len(runs.length)),
                runs.length,
                tokens[runs.document],
                LENGTH_COLUMNS,
                LENGTH_QUANTILES,
            )
            for name, (runs, _) in corpus.orders.items()
        },
        clusters=_along(corpus, "cluster", corpus.names, coloured, "smaller clusters"),
        cluster_numbers=coloured.values,
        cluster_documents=[*documents, int(sizes.sum()) - sum(documents)],
        other_clusters=coloured.others,
        categories=[
            _along(corpus, field, names, largest(traits.counted, codes, len(names), KEPT), "other values")
            for field, (codes, names) in corpus.categories.items()
        ],
        worst=[
            *(
                _worst_batch(corpus, trait, batches[trait])
                for trait in still
                if len(corpus.packed) and not batches[trait]["partial"]
            ),
            *_worst_sequences(corpus),
        ],
        alone=int((np.diff(corpus.packed.indptr) == 1).sum()),
        strategies=load_comparison(run) if "strategy_comparison" in evidence else None,
        calibration=(
            k_calibration.load_table(run.store, calibrated.files["fit"]),
            calibrated.facts["notes"],
        )
        if calibrated
        else None,
        agreement=_agreement(run, evidence["ari_comparison"]) if "ari_comparison" in evidence else None,
        map=_map(corpus, coloured) if "cluster_map" in evidence else None,
        trained=load_evidence(run) if "training_evidence" in evidence else None,
        chosen=_tables(run, "subset_selection") if settings.selects else {},
        diversity=_tables(run, "set_diversity") if "set_diversity" in evidence else {},
        others=[_as_shown(run, receipt) for stage, receipt in evidence.items() if stage not in SECTIONS],
        runs=_stage_runs(run, evidence),
        missing={stage: (run.graph[stage].evidence, why) for stage, why in missing.items()},
    )


def _as_shown(run: Run, receipt: Receipt) -> Evidence:
    stage = run.graph[receipt.stage]
    pictures, tables = {}, {}
    # Times and numbers of new documents are left out, because they differ from run to run.
    figures = {name: value for name, value in receipt.figures.items() if name not in RUN_FIGURES}
    for name, shown in stage.show(run, receipt).items():
        if isinstance(shown, Picture):
            pictures[shown.what] = shown.file.read_bytes()
        elif isinstance(shown, Table):
            tables[name] = shown.rows
        elif isinstance(shown, Link):
            figures[name] = str(shown.path)
        else:
            figures[name] = shown.markdown if isinstance(shown, Text) else shown
    return Evidence(
        stage.name, stage.evidence, stage.description_under(run.settings), figures, tables, pictures
    )


def _tables(run: Run, stage: str) -> dict[str, list[dict[str, Any]]]:
    """The tables that a stage shows, by name."""
    shown = run.graph[stage].show(run, run.receipt(stage))
    return {name: table.rows for name, table in shown.items() if isinstance(table, Table)}


def _stage_runs(run: Run, evidence: Mapping[str, Receipt]) -> list[StageRun]:
    """The last run of each stage before this one, including stages without an asset."""
    runs = []
    for name in run.graph.needed(run.settings, "ordering_report", *evidence):
        if name != "ordering_report":
            receipt, part = run.receipt(name), not run.graph[name].asset
            documents, seconds = receipt.figures["documents"], receipt.figures["seconds"]
            written = _last_written(run, receipt)
            runs.append(StageRun(name, part, documents, receipt.facts["computed"], seconds, written))
    return runs


def _last_written(run: Run, receipt: Receipt) -> str:
    """When the newest file of a stage's result was written; "" if no file is left."""
    stage, files = run.graph[receipt.stage], receipt.files
    if isinstance(stage, PerDocument):
        files = stage.files(run, receipt.key).present()
    folders = {file.rpartition("/")[0] for file in files.values()}
    stats = {name: stat for folder in folders for name, stat in run.store.stats(folder).items()}
    newest = max((stats[file].modified for file in files.values() if file in stats), default=None)
    return "" if newest is None else time.strftime("%Y-%m-%d %H:%M", time.localtime(newest))


@dataclass(frozen=True, eq=False)
class _Corpus:
    """The stream and its orders. names: of the clusters. orders: see `read_in_order`. epochs: orders of the sequences,
    int64 (E, S). edges: inner edges of the bins of every numeric trait, including the length. categories: the source
    and the balanced fields that are not numeric: codes int32 (M,), names by code. tokens_of: counts the tokens of runs
    that shares are of."""

    run: Run
    names: Sequence[str]
    stream: TrainingStream
    packed: PackedSequences
    epochs: np.ndarray
    orders: Mapping[str, tuple[ReadRuns, np.ndarray]]
    edges: Mapping[str, np.ndarray]
    categories: Mapping[str, tuple[np.ndarray, Sequence[str]]]
    tokens_of: RunCounter

    @property
    def noun(self) -> str:
        """What shares are of."""
        return "token" if self.stream.traits.trained is None else "trained token"


def _load_corpus(run: Run) -> _Corpus:
    stream, packed, epochs = load_stream(run), load_packed(run), load_sequence_order(run)
    traits, settings = stream.traits, run.settings
    edges = {
        trait: inner
        for trait, inner in load_edges(run).items()
        if trait in built_in(settings) or is_number(load_fields(run, trait).column(trait).type)
    }
    categories: dict[str, tuple[np.ndarray, Sequence[str]]] = {}
    for field in dict.fromkeys([settings.input.source_field, *settings.order.traits]):
        if field is None or field in built_in(settings) or field in edges:
            continue
        if field in traits.codes:
            categories[field] = traits.codes[field], traits.names[field]
        else:
            coded = column_codes(load_fields(run, field).column(field), bins=1, name=f"field {field!r}")
            categories[field] = stream.of_items(coded.codes), coded.names
    orders = read_in_order(run, traits)
    tokens_of = run_counter(run, stream.view)
    return _Corpus(run, load_names(run), stream, packed, epochs, orders, edges, categories, tokens_of)


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


def _worst_batch(corpus: _Corpus, trait: str, batch: Mapping[str, Any]) -> Card:
    """batch: the deviation of batches of the sequences at every position (`WindowDeviation`)."""
    packed, traits = corpus.packed, corpus.stream.traits
    counted = corpus.tokens_of(packed)
    total = int(counted.sum())
    epoch, start = divmod(batch["worst_start"], total)
    # The batch may continue into the next epoch.
    runs = np.concatenate(
        [runs_in_order(packed.indptr, order)[0] for order in corpus.epochs[epoch : epoch + 2]]
    )
    window = batch["window_tokens"]
    if corpus.run.settings.whole_windows:
        sizes = np.diff(np.concatenate([[0], np.cumsum(counted)])[packed.indptr])
        order = np.concatenate(corpus.epochs[epoch : epoch + 2])
        bounds = np.concatenate([[0], np.cumsum(sizes[order])])
        first = int(np.searchsorted(bounds, start))
        window = int(bounds[min(first + corpus.run.settings.sequence.batch, len(order))] - start)
    runs, inside = window_contents(runs, counted, start, window)
    documents, tokens = _by_document(packed.document[runs], inside)
    codes, values = traits.codes[trait], traits.sizes()[trait]
    shares = np.bincount(codes[documents], tokens, values) / tokens.sum()
    whole = np.bincount(codes, traits.counted, values) / traits.counted.sum()
    value = int(np.abs(shares - whole).argmax())
    over = shares[value] > whole[value]
    chosen = codes[documents] == value if over else np.ones(len(documents), bool)
    return Card(
        f"The worst batch for {trait}",
        f"It starts at {percent(start / total)} of the {corpus.noun}s"
        f"{f' of epoch {epoch + 1}' if len(corpus.epochs) > 1 else ''} and holds {count(len(documents), 'document')}. "
        f"{_named(corpus, trait, value)} makes up {percent(shares[value])} of its {corpus.noun}s, but "
        f"{percent(whole[value])} of the corpus’s. The largest documents {'of that kind' if over else 'in it'}:",
        _largest(corpus, documents[chosen], tokens[chosen]),
    )


def _worst_sequences(corpus: _Corpus) -> list[Card]:
    """The sequences whose clusters differ most from the corpus's; none if the plan is empty."""
    packed, traits = corpus.packed, corpus.stream.traits
    if not len(packed):
        return []
    counted = corpus.tokens_of(packed)
    counts, _ = sequence_counts(
        packed, {"cluster": traits.codes["cluster"]}, {"cluster": traits.sizes()["cluster"]}, counted
    )
    variation = sequence_variation(counts)
    place = np.empty(len(packed), np.int64)
    place[first_reads(corpus.epochs)] = np.arange(len(place))
    cards: dict[int, Card] = {}
    # Equally distant sequences come in the order of training.
    for sequence in np.lexsort((place, -variation))[:WORST_CANDIDATES].tolist():
        runs = slice(packed.indptr[sequence], packed.indptr[sequence + 1])
        documents, tokens = _by_document(packed.document[runs], counted[runs])
        row = int(corpus.stream.view.document_row[documents[tokens.argmax()]])
        if row in cards:
            continue
        clusters = int(counts.indptr[sequence + 1] - counts.indptr[sequence])
        cards[row] = Card(
            f"Sequence {number(place[sequence] + 1)} of {number(len(place))}",
            f"{percent(variation[sequence])} of its {corpus.noun}s would have to change to match the corpus. It holds "
            f"{count(clusters, 'cluster')} and {count(len(documents), 'document')}. The largest:",
            _largest(corpus, documents, tokens)[:1],
        )
        if len(cards) == WORST_SEQUENCES:
            break
    return list(cards.values())


def _by_document(documents: np.ndarray, tokens: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(documents int64 (n,), tokens of each): sums over the runs of a document, in the order of their first runs."""
    unique, first, inverse = np.unique(documents, return_index=True, return_inverse=True)
    order = np.argsort(first)
    return unique[order], np.bincount(inverse, tokens)[order].astype(np.int64)


def _largest(corpus: _Corpus, documents: np.ndarray, tokens: np.ndarray) -> list[tuple[str, Example]]:
    """The documents with the most tokens, of equal ones the first: (a line about it, the beginning of its text).
    tokens: counted tokens of each document in the window, int64 (n,)."""
    chosen = np.argsort(-tokens, kind="stable")[:WORST_DOCUMENTS]
    view, traits = corpus.stream.view, corpus.stream.traits
    rows = view.document_row[documents[chosen]]
    texts = _examples(corpus.run, rows)
    mask = load_loss_mask(corpus.run)
    trained = [None] * len(rows) if mask is None else mask.tokens(rows).tolist()
    codes, names = corpus.categories.get(corpus.run.settings.input.source_field or "", (None, ()))
    shown = []
    ids = own_ids(corpus.run, corpus.stream.record(documents[chosen]))
    for document, own_id, inside, text, answer in zip(
        documents[chosen], ids, tokens[chosen].tolist(), texts, trained, strict=True
    ):
        whole, noun = int(traits.counted[document]), corpus.noun
        part = count(inside, noun) if inside == whole else f"{number(inside)} of {count(whole, noun)}"
        if traits.trained is not None:
            part += f", {count(int(traits.tokens[document]), 'token')} in all"
        elif answer is not None:
            part += f", {number(answer)} trained on"
        known = [] if own_id is None else [clip(own_id, 60)]
        source = [] if codes is None else [clip(names[codes[document]], 60)]
        cluster = corpus.names[traits.codes["cluster"][document]]
        shown.append((" · ".join([*known, part, cluster, *source]), text))
    return shown


def _examples(run: Run, rows: np.ndarray) -> list[Example]:
    """The beginnings of the texts of document rows; with a loss mask, of what the model reads, part by part."""
    if not run.settings.masked:
        return beginnings(run.store, run.view, rows, READ).to_pylist()
    from dagster_divorder.models.chat_tokens import as_read

    read = [
        as_read(document, template_of(run), run.settings.chats.train_on)
        for document in contents(run.store, run.view.documents, rows).to_pylist()
    ]
    return [marked_parts(conversation.text, conversation.spans) for conversation in read]


def _named(corpus: _Corpus, trait: str, value: int) -> str:
    """A trait's value in words, for the beginning of a sentence."""
    if trait == "cluster":
        return f"The cluster “{corpus.names[value]}”"
    if trait == "length":
        edges = [number(edge) for edge in corpus.edges["length"].tolist()]
        if not edges:
            return "Every length"
        if value == 0:
            return f"The length below {edges[0]} tokens"
        if value == len(edges):
            return f"The length of {edges[-1]} tokens and more"
        return f"The length from {edges[value - 1]} to below {edges[value]} tokens"
    return f"The {trait} “{clip(corpus.stream.traits.names[trait][value], 60)}”"


def _agreement(run: Run, receipt: Receipt) -> Agreement:
    store, fit = run.store, receipt.files["fit"]
    heatmap = f"{fit}/{ari_comparison.HEATMAP}"
    return Agreement(
        receipt.figures,
        ari_comparison.load_rows(store, fit, ari_comparison.PAIRS),
        ari_comparison.load_rows(store, fit, ari_comparison.DISAGREE),
        store.read(heatmap) if store.exists(heatmap) else None,
    )


def _map(corpus: _Corpus, coloured: Largest) -> MapPoints:
    shown, documents = load_map(corpus.run), corpus.run.receipt("cluster_map").facts["of_documents"]
    row = np.full(len(corpus.names), len(coloured.values), np.int64)
    row[coloured.values] = np.arange(len(coloured.values))
    rows = row[shown.labels]
    # A cluster without tokens has no colour; its documents are empty.
    visible = rows < coloured.count
    return MapPoints(shown.xy[visible], rows[visible], documents)


def _show_ordering_report(run: Run, receipt: Receipt) -> Shown:
    sections, missing = (
        Text("\n".join(f"- {item}" for item in receipt.figures[name]) or "nothing")
        for name in ("sections", "missing")
    )
    return {"path": Link(run.settings.output.path / PAGE), "sections": sections, "missing": missing}


def _ordering_report_settings(settings: Settings) -> dict[str, Any]:
    # The settings that the report shows.
    embedding, advanced = settings.embedding, settings.advanced
    base, deep = (id_and_revision(name)[0] for name in (settings.model.base, settings.deep_model))
    sections = {name: getattr(settings, name) for name in ("packing", "sequence")}
    return {
        **{name: section.model_dump(mode="json") for name, section in sections.items()},
        "order": settings.order.written,
        "model": [base, advanced.vocab_size, advanced.token_dims, deep],
        "vectors": [embedding.kind, embedding.pooling, settings.components, str(embedding.path)],
        "k": settings.clusters.number or "auto",
        "source_field": settings.input.source_field,
        "output": str(settings.output.path),
        "seed": settings.seed,
    }


def _ordering_report_inputs(run: Run) -> dict[str, Any]:
    output = run.receipt(OUTPUT).key
    evidence, missing = at_hand(run)
    ids = ["ids"] if run.settings.input.id_field else []
    stages = ("clusters", "cluster_names", "diversity_metrics", "stationarity", "traits")
    return {
        **versions(run, *stages, *ids, *stream_reads(run.settings)),
        "output": output,
        "evidence": {stage: receipt.version for stage, receipt in evidence.items()},
        "missing": missing,
        **reading(run),
    }


ORDERING_REPORT = WholeCorpus(
    name="ordering_report",
    version=8,
    group="report",
    kinds={"html", "matplotlib"},
    description="A report to send to others: one HTML file beside the output. Settings, comparison with shuffling, "
    "before and after, the worst windows and their documents, and the available evidence. It opens in any browser, "
    "without a network.",
    reads=lambda settings: (
        *("raw_docs", "centroids", "clusters", "cluster_names", "bin_edges", "traits"),
        *stream_reads(settings),
        *("greedy_order", "packed_sequences", "sequence_order", "stationarity", "diversity_metrics", OUTPUT),
        *(["ids"] if settings.input.id_field else []),
    ),
    shows_evidence=True,
    settings=_ordering_report_settings,
    inputs=_ordering_report_inputs,
    quotes=("*",),
    publish=_publish_report,
    doing="drawing the report",
    compute=_write_ordering_report,
    show=_show_ordering_report,
)
