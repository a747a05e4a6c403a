"""The report's page, its parts and the measures that people read: safe whatever a corpus holds, the same bytes for the
same numbers, right numbers and units."""

from __future__ import annotations

import base64
import io
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
import pytest
from PIL import Image
from scipy.sparse import csr_matrix

from dagster_divorder.core.measure import WINDOWS, Feature, beats_shuffling, measure
from dagster_divorder.core.measure import stationarity as held_against_shuffles
from dagster_divorder.core.measure.along import Binned
from dagster_divorder.core.measure.windows import Counts
from dagster_divorder.view import drawing, words
from dagster_divorder.view.charts import before_and_after, drift, stretches
from dagster_divorder.view.measures import (
    SUMMARY,
    beside_shuffled,
    definitions,
    in_short,
    measures,
    summary_row,
)
from dagster_divorder.view.report import sections
from dagster_divorder.view.report.html import Section, page, rendered
from dagster_divorder.view.report.sections import TraitAlong
from dagster_divorder.view.shown import Chart, Link, Panel, Picture, Series, Table, Text
from dagster_divorder.view.verdict import Verdict
from tests.view.html_page import check

STYLE = (Path(sections.__file__).parent / "templates" / "style.css").read_text()

HOSTILE = (
    "<script>alert(1)</script>\"' onload=x </style></svg><img src=x onerror=alert(1)> $x_{$ {{ 7 * 7 }} ]]>"
)


def a_page(*made: Section, title: str = "How it was ordered") -> bytes:
    run = sections.last_run([], {HOSTILE: HOSTILE}, {})
    return page(
        [*made, run],
        title=title,
        output_label="corpus · 2026-11-22 · output 0123abcd",
        facts="facts",
        head="",
        footer=["end"],
    )


def body(section: Section) -> str:
    return "\n".join(rendered(section))


def lengths(*categories: TraitAlong) -> Section:
    quantiles = np.sort(np.random.default_rng(0).integers(1, 5000, (40, 5)), axis=1).astype(float)
    return sections.along_training({"original": quantiles, "sequences": quantiles}, categories)


def clusters_along(*mixes: np.ndarray) -> TraitAlong:
    """Clusters with these shares in each order, the first the original one."""
    values = mixes[0].shape[1]
    names = [f"cluster {number}" for number in range(values)]
    orders = ("original", "sequences_random", "sequences")[: len(mixes)]
    return TraitAlong("cluster", names, dict(zip(orders, mixes, strict=True)))


def bars(*mixes: np.ndarray, line: Binned | None = None) -> Section:
    line = line or Binned(*np.ones((4, 1)))
    along = dict(zip(("original", "sequences_random", "sequences"), mixes, strict=False))
    metrics, sequences = dict.fromkeys(along, measured()), dict.fromkeys(along, line)
    names = [f"cluster {number}" for number in range(mixes[0].shape[1])]
    return Section(
        "bars", "", "", before_and_after(metrics | {"sequences": measured()}, along, sequences, names)
    )


def measured() -> dict[str, Any]:
    """The figures of three sequences of 64 tokens."""
    counts = Counts.of(np.arange(0, 7, 2), [0, 1] * 3, [32] * 6, 2)
    return measure({"cluster": counts}, range(3), sequence_length=64, batch=2).figures


@pytest.mark.filterwarnings("error")
def test_no_text_of_a_corpus_becomes_markup(tmp_path: Path) -> None:
    shares = np.full((5, 2), 0.5, np.float32)
    orders = dict.fromkeys(("original", "sequences_random", "sequences"), shares)
    trait = TraitAlong(HOSTILE, [HOSTILE, "日本 $y"], orders)
    two, picture = np.array([[0.2, 0.4, 0.6], [0.1, 0.2, 0.3]]), tmp_path / "picture.png"
    Image.new("RGB", (2, 2)).save(picture)
    everything = {
        HOSTILE: Table([{HOSTILE: HOSTILE, "odd": True}]),
        "chart": Chart(
            [Panel(HOSTILE, lambda axes: None)], HOSTILE, HOSTILE, legend=[Series(HOSTILE, "ink")]
        ),
        "picture": Picture(picture, HOSTILE),
        "text": Text(f"**{HOSTILE}**"),
        "link": Link(Path(HOSTILE)),
        "number": 7.5,
    }
    made = a_page(
        bars(shares, shares, shares),
        lengths(trait),
        sections.clusters(trait, two, [3, 4], 2, {}),
        Section("a-stage", HOSTILE, HOSTILE, everything),
        title=HOSTILE,
    )
    found = check(made)
    assert "script" not in {tag for tag, _ in found.elements}
    assert found.text.count("<script>alert(1)</script>") > 10
    assert "{{ 7 * 7 }}" in found.text and "49" not in found.text
    assert "**" not in found.text and "7.5" in found.text


def test_what_shows_nothing_or_turns_the_writing_is_left_out() -> None:
    assert words.clip("a\u202eb\x00c\u200bd\x1b[31m\ne\t f") == "abcd[31m e f"
    assert words.clip("word " * 100, 22) == "word word word word …"
    assert words.clip("x" * 500, 100) == "x" * 100 + " …"
    assert words.clip("", 10) == ""
    # White space that is left out does not make a long text look whole.
    assert words.clip("a" + " " * 5000 + "b", 100).endswith("…")


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (None, "–"),
        (float("nan"), "–"),
        (0.0, "0"),
        (1234567, "1,234,567"),
        (12345.6, "12,346"),
        (2.23912, "2.24"),
        (0.0012345, "0.00123"),
        (0.0000012, "1.2e-06"),
    ],
)
def test_numbers_are_short(value: float | None, said: str) -> None:
    assert words.number(value) == said


def test_a_chart_is_the_same_whatever_the_users_style_in_the_pages_colours_and_typeface() -> None:
    first = body(lengths())
    with mpl.rc_context({"font.size": 30, "svg.fonttype": "path", "savefig.bbox": "tight"}):
        before = dict(mpl.rcParams)
        assert body(lengths()) == first
        assert dict(mpl.rcParams) == before
    assert "font-family" not in first
    assert not re.search(r"#[0-9a-f]{6}", first)
    used = set(re.findall(r"var\(--([a-z]+)\)", first))
    assert {"muted", "rule", "original", "sequences"} <= used <= set(drawing.COLOURS)
    check(a_page(lengths()))


def luminance(colour: str) -> float:
    """Relative luminance, as WCAG 2 has it."""
    digits = colour[1:] if len(colour) == 7 else "".join(2 * digit for digit in colour[1:])
    channels = np.array([int(digits[at : at + 2], 16) / 255 for at in (0, 2, 4)])
    linear = np.where(channels <= 0.04045, channels / 12.92, ((channels + 0.055) / 1.055) ** 2.4)
    return float(linear @ [0.2126, 0.7152, 0.0722])


def contrast(one: str, other: str) -> float:
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


def test_text_and_lines_stand_out_in_light_in_dark_and_on_paper() -> None:
    palettes = [
        dict(re.findall(r"--([a-z-]+): (#[0-9a-f]+)", of)) for of in re.findall(r":root {(.*?)}", STYLE, re.S)
    ]
    assert len(palettes) == 3
    for palette in palettes:
        for ground in ("ground", "surface"):
            for text in ("ink", "muted", "accent", "original"):
                assert contrast(palette[text], palette[ground]) >= 4.5, (text, ground)
            for line in ("shuffled", "curated", "sequences"):
                assert contrast(palette[line], palette[ground]) >= 3, (line, ground)
        for stamp in ("good", "bad", "open"):
            assert contrast(palette[stamp], palette[f"{stamp}-ground"]) >= 4.5


def test_numbers_of_a_chart_can_be_searched() -> None:
    """The mean is the one that is measured, so the same in every place, not that of what is drawn."""
    values = np.arange(1, 5)
    binned = Binned(values / 5, values * 2.0, values * 1.0, values * 1.0)
    made = body(bars(np.eye(4, dtype=np.float32), np.full((4, 4), 0.25), line=binned))
    assert ">original order: 2.00<" in made
    assert "on average: original order: 2.00; training sequences shuffled: 2.00" in made


def opened(uri: str) -> Image.Image:
    return Image.open(io.BytesIO(base64.b64decode(uri.removeprefix("data:image/png;base64,"))))


def test_a_strip_is_as_dark_as_the_share() -> None:
    mix = np.array([[0.0], [0.001], [0.216], [1.0]])
    made = body(sections.clusters(clusters_along(mix, mix, mix), np.ones((1, 3)), [1], 1, {}))
    drawn = np.asarray(opened(re.findall(r'src="([^"]+)"', made)[0]))
    assert drawn.shape == (1, 4, 4)
    assert drawn[0, :, 3].tolist() == [0, round(255 * 0.1), round(255 * 0.6), 255]


def test_clusters_keep_their_colours() -> None:
    """In the bar and in the table."""
    mix = np.eye(5, dtype=np.float32)[[3, 1, 4, 0, 2]]
    colours = drawing.cluster_colours(5)
    shown = np.rint(255 * colours).astype(int)
    uri = re.findall(r'<image href="([^"]+)"', body(bars(mix)))[0]
    columns = np.asarray(opened(uri).convert("RGB"))[0][: len(mix)]
    assert np.abs(columns.astype(int) - shown[[3, 1, 4, 0, 2]]).max() <= 1
    swatches = re.findall(
        r'style="background:#(\w+)"',
        body(sections.clusters(clusters_along(mix, mix, mix), colours, [1] * 5, 5, {})),
    )
    assert swatches == ["".join(f"{channel:02x}" for channel in colour) for colour in shown.tolist()]


def a_check(
    ours: float, shuffled: float, sequences: int = 1000, traits: Sequence[str] = ("cluster",)
) -> Verdict:
    def figures(worst: float) -> dict[str, Any]:
        both = {trait: {"mean": worst / 2, "worst": worst} for trait in ("cluster", *traits)}
        return {
            "windows": dict.fromkeys(WINDOWS, both),
            "seam": both,
            "sequences": sequences,
            "batches": sequences // 4,
            "batch": 4,
            "batch_tv": both,
        }

    found = beats_shuffling(figures(ours), figures(shuffled), traits)
    worst = {"original": 0.9, "curated": 1.0, "sequences_random": shuffled, "sequences": ours}
    metrics = {name: figures(of) for name, of in worst.items()}
    return Verdict(
        check=found, metrics=metrics, traits=[*traits] or ["cluster"], remedy="balance fewer traits"
    )


def test_the_check_is_two_sentences() -> None:
    claim, because = a_check(0.0412, 0.142, traits=["source", "cluster"]).sentences
    assert "better than shuffling" in claim
    assert (
        "batch of 4 sequences starts, the share of every value of source is within 4.12 percentage" in because
    )
    assert "of the corpus's; shuffled: 14.20; in the original order: 90.00" in because
    claim, because = a_check(0.2, 0.1).sentences
    failed = "cluster: sequence, batch, 10 batches and batch across the seam"
    assert claim == f"Shuffling keeps these windows nearer to the mix than this order: {failed}."
    assert because == "What to do: balance fewer traits."


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("values", [["sea", HOSTILE], ["", "$x_{$"]])
def test_an_order_of_several_stretches_is_checked_and_shown_against_their_mixes(values: list[str]) -> None:
    mixes = {
        "trait": HOSTILE,
        "values": values,
        "ends": [0.25, 0.3, 1.0],
        "asked": [[0.9, 0.1], [0.5, 0.5], [0.2, 0.8]],
        "achieved": [[0.88, 0.12], [0.24, 0.76], [0.2, 0.8], [0.16, 0.84]],
    }
    of = a_check(0.0412, 0.142)
    of.metrics["sequences"] |= {"mixes": mixes}
    claim, because = of.sentences
    assert "at the mix of their stretch, in all 3, better than shuffling inside it does" in claim
    assert "within 4.12 percentage points of the stretch's" in because
    made = check(a_page(Section("mix", "Mix", "", {"mix": stretches(mixes)})))
    assert len(made.all("figure")) == 1 and not made.all("script")
    assert "at most 4.00 percentage points apart" in stretches(mixes).what


@pytest.mark.parametrize(
    ("sequences", "said"),
    [
        (39, "39 sequences make 9 batches of 4, and it takes 10. sequence.batch = 2 makes 19."),
        (7, "7 sequences make 1 batch of 4, and it takes 10. No batch size makes 10"),
        (3, "3 sequences make 0 batches of 4"),
    ],
)
def test_too_few_batches_cannot_tell(sequences: int, said: str) -> None:
    of = a_check(0.1, 0.2, sequences)
    assert not of.compared and not of.passed
    assert said in " ".join(of.sentences) and of.sentences[0].startswith("Too few batches to tell")
    assert "fewer than 10" in of.check.notes[0]
    assert a_check(0.1, 0.2, 40).passed
    # Nor can a trait of one value.
    of = a_check(0.1, 0.2, traits=())
    assert not of.compared and "has one value in all documents" in of.sentences[0]


def test_a_corpus_has_a_name_and_an_output_a_label() -> None:
    assert words.corpus_name(["/data/corpora/wiki.jsonl.gz"]) == "corpora/wiki"
    assert words.corpus_name(["/data/corpora/a/one.jsonl", "/data/corpora/b/two.jsonl"]) == "corpora"
    assert words.corpus_name(["/a/one.jsonl", "/b/two.jsonl"]) == "2 files"
    assert words.corpus_name(["x.jsonl"]) == "x" and words.corpus_name(["/.hidden"]) == ".hidden"
    manifest = {"input": {"files": ["/c/wiki.jsonl"]}, "date": "2026-11-22", "key": "0123abcd" * 4}
    assert words.output_label(manifest) == "c/wiki · 2026-11-22 · output 0123abcd"


def test_what_drifts_is_drawn_by_tenths() -> None:
    """Also where a feature is called as no page should be, has no tenths, or nothing can be told."""
    random = np.random.default_rng(0)
    features = [
        Feature("still", "vector", random.random((500, 2)), seen=True),
        Feature(HOSTILE, "vector", np.arange(500)[:, np.newaxis]),
    ]
    found = held_against_shuffles(features, 500, batch=50)
    chart = drift(found)
    assert chart.panels[0].title == HOSTILE
    assert f"Farthest tenth: {HOSTILE}" in chart.what
    shown = check(a_page(Section("drift", "What drifts", "", {"chart": chart})))
    assert "script" not in {tag for tag, _ in shown.elements}
    alike = Feature("of one value", "mix", csr_matrix(np.ones((500, 1), int)))
    assert len(drift(held_against_shuffles([alike, features[0]], 500, batch=50)).panels) == 1
    assert not drift(held_against_shuffles(features, 5, batch=2)).panels


def test_every_trait_has_a_measure_whatever_it_is_called() -> None:
    row = {
        "order": "sequences",
        "batch TV of cluster": 0.1,
        "worst share of clusters": 0.2,
        "batch TV of a\n b": None,
    }
    assert [(name, known.label, known.show(row[name])) for name, known in measures(row).items()] == [
        ("batch TV of cluster", "batch TV of cluster, mean, %", "10.00"),
        ("worst share of clusters", "share error of clusters, worst batch, points", "20.00"),
        ("batch TV of a\n b", "batch TV of a b, mean, %", "–"),
    ]


@pytest.mark.parametrize("batches", [10, 9])
def test_the_summary_has_traits_in_their_order_and_no_batches_where_they_are_too_few(batches: int) -> None:
    traits = {"cluster": [0, 1, 0, 1] * 5, "of batches": [0, 0, 1, 1] * 5}
    counts = {
        name: Counts.of(np.arange(2 * batches + 1), codes[: 2 * batches], [10] * 2 * batches, 2)
        for name, codes in traits.items()
    }
    figures = measure(counts, range(2 * batches), batch=2).figures
    shown = ["of batches", "cluster"]
    row = summary_row("original", figures, shown)
    of_traits = [f"{measure} of {trait}" for trait in shown for measure in ("batch TV", "worst share")]
    assert list(row) == ["order", *of_traits, *SUMMARY]
    assert row["distinct clusters a sequence"] == 1.0
    known = batches == 10
    assert row["batch TV of cluster"] == (0.0 if known else None)
    assert row["batch TV of of batches"] == (0.5 if known else None)
    first = in_short(beside_shuffled(row, row))
    of_batches = ["batch TV of of batches, mean", "share error of of batches, worst batch"]
    assert [beside.measure.name for beside in first] == [
        *([*of_batches, "batch TV of cluster, mean"] if known else []),
        *("clusters in a sequence, mean", "prefix deviation, mean"),
    ]
    last = definitions(first)[-1]
    assert last == "prefix deviation, mean: distance of everything read so far from the corpus's mix"
    assert all(len(line) <= 100 for line in definitions(beside_shuffled(row, row)))
