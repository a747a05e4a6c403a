"""`divorder explore QUESTION`: questions about a corpus. Each runs only the stages that answer it."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from dagster_divorder.cli.verb import Options, Verb, settings_of, wrapped
from dagster_divorder.errors import SettingsError
from dagster_divorder.view.answer import Answer, Line, Part, TextTable

if TYPE_CHECKING:
    from dagster_divorder.pipeline.run import Run
    from dagster_divorder.store.state import Receipt

ROWS = 20
"""Rows of a printed table; JSON has all of them."""
CELL = 60
"""Characters of a text in a table."""


class Result(NamedTuple):
    """A stage's answer to a question. sentences: the answer first. columns: columns of `rows` to print, by heading.
    files: pictures and films. more: the noun for rows that are not printed."""

    sentences: Sequence[str]
    rows: Sequence[Mapping[str, Any]] = ()
    columns: Mapping[str, str] = {}
    files: Sequence[object] = ()
    more: str = ""
    figures: Mapping[str, Any] = {}


class Question(NamedTuple):
    """asks: the question in words. stage: the stage that answers it. lines: settings that the stage needs, to copy."""

    name: str
    asks: str
    cost: str
    stage: str
    answer: Callable[[Run, Receipt], Result]
    lines: str = ""


def explore(options: Options) -> Answer:
    """Runs the stages that a question needs and answers it.

    Raises:
        SettingsError: settings that the answering stage needs are unset.
    """
    from dagster_divorder.stages import GRAPH, open_run, run_all
    from dagster_divorder.view.words import cells

    question, settings = QUESTIONS[options.question], settings_of(options)
    if question.lines and not GRAPH[question.stage].when(settings):
        raise SettingsError(
            f"`explore {question.name}` needs settings that are unset; add these lines to the settings file:\n\n"
            f"{question.lines}"
        )
    receipts = run_all(settings, stages=GRAPH.needed(settings, question.stage))
    run = open_run(settings)
    result = question.answer(run, run.receipt(question.stage))
    answer, *sentences = result.sentences
    parts: list[Part] = [Line(answer, "strong"), *sentences]
    if result.rows:
        rows = [{head: row[name] for name, head in result.columns.items()} for row in result.rows[:ROWS]]
        parts += ["", TextTable(cells(rows, CELL))]
    if result.more and len(result.rows) > ROWS:
        parts.append(f"and {len(result.rows) - ROWS:,} more {result.more}: --json")
    files = [str(file) for file in result.files]
    if files:
        parts += ["", *files]
    data = {
        "question": question.name,
        "answer": list(result.sentences),
        "figures": dict(result.figures),
        "rows": list(result.rows),
        "files": files,
    }
    return Answer(parts, data, ran=(settings, receipts))


def _clusters(run: Run, receipt: Receipt) -> Result:
    from dagster_divorder.stages.topics.k_calibration import DISTINCT, PICTURE, load_table
    from dagster_divorder.view.words import count

    facts, fit = receipt.facts, receipt.files["fit"]
    rows, notes = load_table(run.store, fit), list(facts["notes"])
    if facts["recommended"]:
        answer = f"{facts['k']:,} clusters: the largest number whose silhouette is close to the best."
    else:
        why = next(note for note in notes if note.startswith("no clear number"))
        notes.remove(why)
        answer = f"{why[0].upper()}{why[1:]}."
    return Result(
        [
            answer,
            *notes,
            f"clusters.k is {run.settings.clusters.k!r}; measured on {count(facts['documents'], 'document')}.",
            "Clusters in a sequence: what an order with this many clusters gives, against shuffling.",
        ],
        [{**row, "taken": row["k"] == facts["k"]} for row in rows],
        {
            "k": "k",
            "silhouette": "silhouette",
            "spread": "± over the fits",
            DISTINCT: "clusters in a sequence",
            f"{DISTINCT}, shuffled": "shuffled",
            "taken": "taken",
        },
        [run.store.local(f"{fit}/{PICTURE}")],
        "numbers",
        receipt.figures,
    )


def _spaces(run: Run, receipt: Receipt) -> Result:
    from dagster_divorder.stages.topics import ari_comparison

    facts, fit = receipt.facts, receipt.files["fit"]
    first, second = facts["spaces"]
    pictures = [f"{fit}/{name}" for name in (ari_comparison.HEATMAP, ari_comparison.MAPS)]
    return Result(
        [
            facts["conclusion"],
            f"Both kinds are clustered into {facts['k']:,}; {facts['matched_documents']:.0%} of "
            f"{facts['measured_documents']:,} documents are in matching clusters.",
            f"embedding.kind is {run.settings.embedding.kind!r}; by this comparison: embedding.kind = "
            f'"{facts["chosen"]}"',
            *([facts["note"]] if facts["note"] else []),
        ],
        ari_comparison.load_pairs(run.store, fit),
        {first: f"{first} cluster", second: f"{second} cluster", "documents": "documents in both"},
        [run.store.local(name) for name in pictures if run.store.exists(name)],
        "pairs of matching clusters",
        receipt.figures,
    )


def _map(run: Run, receipt: Receipt) -> Result:
    from dagster_divorder.stages.topics.cluster_map import SIDECAR
    from dagster_divorder.stages.topics.cluster_names import load_names
    from dagster_divorder.stages.topics.clusters import cluster_sizes
    from dagster_divorder.store.output_manifests import read_manifest
    from dagster_divorder.view.words import count

    figures, sizes = receipt.figures, cluster_sizes(run).tolist()
    on_map, documents = figures["on_map"], figures["of_documents"]
    corpus = f"{count(documents, 'document')} in {count(len(sizes), 'cluster')}"
    rows = [
        {"cluster": name, "documents": size, "share": f"{size / max(documents, 1):.1%}"}
        for name, size in zip(load_names(run), sizes, strict=True)
    ]
    note = [figures["note"]] if figures["note"] else []
    manifest = read_manifest(run.settings.output.path) or {}
    files: list[object] = [
        run.store.local(receipt.files[name]) for name in ("picture", "map") if name in receipt.files
    ]
    if manifest.get("map") == receipt.version:
        files.append(run.settings.output.path / SIDECAR)
    return Result(
        [
            f"There is no map: {figures['note']}"
            if on_map is None
            else f"{on_map:,} of {corpus} are on the map.",
            *([f"{corpus}; the picture shows only their sizes"] if on_map is None else note),
        ],
        sorted(rows, key=lambda row: -int(row["documents"])),
        {name: name for name in ("cluster", "documents", "share")},
        files,
        "clusters",
        figures,
    )


def _diversity(run: Run, receipt: Receipt) -> Result:
    from dagster_divorder.stages.measure.set_diversity import load_groups
    from dagster_divorder.stages.mix.subset_selection import vectors_stage
    from dagster_divorder.stages.topics.cluster_names import load_names
    from dagster_divorder.view.words import count

    groups, distinct = load_groups(run), run.corpus.documents
    whole, names = groups[0], load_names(run)
    vectors = receipt.figures.get("vectors") or vectors_stage(run.settings).removesuffix("_embeddings")
    sampled = "" if whole["documents"] == distinct else f", a random sample of {distinct:,}"
    rows = [
        {**row, "value": names[int(row["value"])] if row["of"] == "cluster" else row["value"]}
        for row in groups
    ]
    chosen = [
        f"The selection: {row['vendi']:.1f}, {row['documents']:,} documents."
        for row in groups
        if (row["of"], row["value"]) == ("corpus", "chosen")
    ]
    return Result(
        [
            f"By {vectors} vectors the corpus is as diverse as {whole['vendi']:.1f} unrelated documents (its Vendi "
            f"score, from {count(whole['documents'], 'document')}{sampled}).",
            *chosen,
            "Smaller sets score lower: compare sets of similar size.",
        ],
        rows,
        {"of": "of", "value": "which", "documents": "documents", "vendi": "Vendi score"}
        | ({"all without it": "all without it"} if run.settings.input.source_field else {}),
        more="sources and clusters",
        figures=receipt.figures,
    )


def _selected(run: Run, receipt: Receipt) -> Result:
    from dagster_divorder.stages.mix.subset_selection import load_choices

    figures, rows = receipt.figures, load_choices(run)
    records, tokens = len(run.view), run.receipt("token_counts").figures["tokens"]
    left_out = ", ".join(
        f"{reason}: {count:,}" for reason, count in figures["reasons"].items() if reason != "selected"
    )
    return Result(
        [
            f"{figures['method']} chooses {figures['selected_records']:,} of {records:,} records, "
            f"{figures['selected_tokens']:,} of {tokens:,} tokens. Vendi score: {figures['vendi_selected']:.1f}; as "
            f"many at random: {figures['vendi_random']:.1f}.",
            *([figures["note"]] if figures.get("note") else []),
            *([f"Others: {left_out}."] if left_out else []),
        ],
        rows,
        {name: name for name in ("choice", "documents", "tokens", "vendi", "used")}
        | ({"mean quality": "mean quality"} if run.settings.selection.quality else {}),
        [run.store.local(receipt.files["picture"])] if "picture" in receipt.files else [],
        "choices",
        figures,
    )


def _films(run: Run, receipt: Receipt) -> Result:
    from dagster_divorder.view.words import count

    films, note = receipt.figures["films"], receipt.figures["note"]
    answer = (
        f"{count(len(films), 'film')} of how training sequences are read, shuffled and in order."
        if films
        else note
    )
    return Result(
        [answer, *([note] if films and note else [])],
        files=[run.settings.output.path / name for name in films],
        figures={name: receipt.figures[name] for name in ("films", "frames", "fps", "note")},
    )


def _proxy(run: Run, receipt: Receipt) -> Result:
    from dagster_divorder.stages.evidence.gradient_proxy import load_proxies

    rows, figures = load_proxies(run), receipt.figures
    gradients = run.settings.gradients
    if not rows:
        return Result([f"The agreement could not be measured: {figures['note']}."], figures=figures)
    used = next(row for row in rows if row["used"])
    tenth, half = (name for name in used if name.startswith("chosen alike"))
    return Result(
        [
            f"Gradients of the last {gradients.layers:,} blocks in {gradients.dims:,} dims rank a document's likes as "
            f"those of all {figures['parameters']:,} parameters do with a correlation of {used['Spearman']:.2f}, and "
            f"choose {used[tenth]:.0%} of the tenth that those choose, where chance would choose 10%.",
            f"{figures['documents_measured']:,} documents; the settings are gradients.layers and gradients.dims.",
        ],
        rows,
        {
            "blocks": "last blocks",
            "dims": "dims",
            "parameters": "parameters",
            "Spearman": "Spearman",
            tenth: "alike of a tenth",
            half: "of a half",
            "used": "used",
        },
        figures=figures,
    )


QUESTIONS = {
    question.name: question
    for question in (
        Question(
            "k",
            "how many clusters fit the corpus?",
            "vectors, then 3 fits of each number: seconds to minutes",
            "k_calibration",
            _clusters,
        ),
        Question(
            "ari",
            "do two kinds of vectors find the same topics, and is the costlier one worth it?",
            "deep vectors of every document: minutes to hours",
            "ari_comparison",
            _spaces,
        ),
        Question(
            "map",
            "what are the topics, and how close are they to each other?",
            "clusters, then UMAP of 20,000 documents at most: a minute",
            "cluster_map",
            _map,
        ),
        Question(
            "vendi",
            "how diverse is the corpus, in all and by source and cluster?",
            "clusters, then seconds; with a selection also an order",
            "set_diversity",
            _diversity,
        ),
        Question(
            "selection",
            "which records does a budget choose, and what do other methods choose?",
            "vectors of every document; by gradients as long as training on the corpus",
            "subset_selection",
            _selected,
            '[selection]\nmethod = "spokes"      # or "random", "quality", "semdedup"\n'
            'documents = 1000       # or tokens = 1_000_000\nvectors = "shallow"    # or "deep", "gradient"',
        ),
        Question(
            "proxy",
            "do projected gradients of the last blocks agree with this model's full gradients?",
            "the model (a minute to train the bootstrap one), then 20 to 200 documents forwards and backwards; at "
            "least 80 bytes of memory a parameter",
            "gradient_proxy",
            _proxy,
        ),
        Question(
            "films",
            "what does the order change, as films?",
            "an output, then a minute of drawing; pip install 'dagster-divorder[films]'",
            "ordering_animation",
            _films,
        ),
    )
}


def _add(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "question", choices=QUESTIONS, metavar="QUESTION", help=f"one of {', '.join(QUESTIONS)}"
    )
    listed = [
        wrapped(line, 16)
        for question in QUESTIONS.values()
        for line in (f"  {question.name:<13} {question.asks}", f"{'':<16}cost: {question.cost}")
    ]
    parser.description = "\n".join([parser.description or "", "", "questions:", *listed])


VERBS = (
    Verb(
        "explore",
        f"answers a question about the corpus: {', '.join(QUESTIONS)}",
        "divorder explore map",
        "seconds to hours by question: explore --help",
        explore,
        _add,
        runs=True,
    ),
)
