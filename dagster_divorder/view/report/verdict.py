"""The verdict, in two sentences and four numbers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from dagster_divorder.core.metrics import Verdict
from dagster_divorder.view.report.html import Markup, fill
from dagster_divorder.view.report.words import listed, number, points

_VERDICT = """\
<div class="verdict">
<p class="stamp {{ 'good' if passed else 'bad' if compared else 'open' }}">\
<span aria-hidden="true">{{ '✓' if passed else '✗' if compared else '?' }}</span> {{ stamp }}</p>
<p class="claim">{{ claim }}</p>
{% if because %}
<p class="because">{{ because }}</p>
{% endif %}
</div>
<dl class="tiles">
{% for tile in tiles %}
<div>
<dt>{{ tile.what }}</dt>
<dd><b>{{ tile.ours }}</b> {{ tile.unit }}
<span class="than">shuffled {{ tile.shuffled }}<br>original {{ tile.original }}</span></dd>
</div>
{% endfor %}
</dl>
"""


@dataclass(frozen=True, kw_only=True)
class Judgement:
    """sequences, documents: the verdicts on the packed sequences in their order, and on the documents in theirs.

    metrics: by order, see `pipeline.diversity_metrics.load_metrics`. remedy: what to change where the verdict is bad.
    """

    sequences: Verdict
    documents: Verdict
    metrics: dict[str, dict[str, Any]]
    remedy: str

    @property
    def compared(self) -> bool:
        """Whether the corpus is large enough to tell."""
        return bool(self.sequences.comparisons)

    @property
    def passed(self) -> bool:
        return self.compared and self.sequences.passed


@dataclass(frozen=True)
class _Tile:
    what: str
    unit: str
    ours: str
    shuffled: str
    original: str


def sentences(judgement: Judgement) -> tuple[str, str]:
    """The verdict: what is claimed, and the figure that shows it (or what to do)."""
    verdict, metrics = judgement.sequences, judgement.metrics
    if not judgement.compared:
        skipped = "; ".join(verdict.skipped) or "no trait keeps still"
        return (
            f"Whether this order beats shuffling cannot be told: nothing could be compared ({skipped}).",
            f"Its sequences hold {number(metrics['sequences']['split']['mean'])} distinct clusters on average, "
            f"against {number(metrics['sequences_random']['split']['mean'])} after shuffling.",
        )
    if not verdict.passed:
        failed = list(
            dict.fromkeys(f"{c.trait} in any {c.window}" for c in verdict.comparisons if not c.passed)
        )
        return (
            f"This order does not beat shuffling in {listed(failed)}.",
            f"What to do: {judgement.remedy}.",
        )
    largest = verdict.comparisons[-1].window
    claim = "This order keeps the windows of training at the corpus’s own mix better than shuffling does."
    before, shuffled, ours = (
        metrics[name]["windows"][_window(metrics, largest)]["cluster"]
        for name in ("original", "sequences_random", "sequences")
    )
    if ours["partial"] or not ours["positions"]:
        return claim, ""
    return claim, (
        f"Wherever a {_called(metrics, largest)} starts, no cluster’s share strays from the corpus’s by more than "
        f"{points(ours['worst'])} percentage points, against {points(shuffled['worst'])} after shuffling and "
        f"{points(before['worst'])} in the original order."
    )


def section(judgement: Judgement) -> Markup:
    """The verdict as the top of the page."""
    claim, because = sentences(judgement)
    stamp = "Better than shuffling" if judgement.passed else "Not better than shuffling"
    return fill(
        _VERDICT,
        passed=judgement.passed,
        compared=judgement.compared,
        stamp=stamp if judgement.compared else "Too small to tell",
        claim=claim,
        because=because,
        tiles=_tiles(judgement.metrics),
    )


def _window(metrics: dict[str, dict[str, Any]], largest: str) -> str:
    """The window that the verdict speaks of: a batch, where it was compared."""
    return "batch" if "batch" in largest else largest


def _called(metrics: dict[str, dict[str, Any]], largest: str) -> str:
    of = metrics["sequences"]
    if _window(metrics, largest) == "batch":
        return f"batch of {of['batch']:,} sequences"
    return f"sequence of {of['sequence_length']:,} tokens"


def _tiles(metrics: dict[str, dict[str, Any]]) -> list[_Tile]:
    def tile(what: str, unit: str, value: Any, shown: Any = number) -> _Tile:
        return _Tile(
            what, unit, *(shown(value(metrics[name])) for name in ("sequences", "sequences_random", "original"))
        )

    tiles = [tile("In a sequence", "clusters on average", lambda of: of["split"]["mean"])]
    if not metrics["sequences"]["windows"]["batch"]["cluster"]["partial"]:
        tiles += [
            tile(
                "In the worst batch",
                "points is a cluster’s share off",
                lambda of: of["windows"]["batch"]["cluster"]["worst"],
                points,
            ),
            tile(
                "In the mean batch",
                "% of the tokens are not as in the corpus",
                lambda of: of["windows"]["batch"]["cluster"]["mean_tv"],
                points,
            ),
        ]
    tiles.append(tile("At any point of training", "tokens is the prefix off, on average", lambda of: of["prefix"]["mean"]))
    return tiles
