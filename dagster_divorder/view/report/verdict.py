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
        return (
            "Whether this order beats shuffling cannot be told: nothing could be compared "
            f"({'; '.join(verdict.skipped)}).",
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
    still, moving = verdict.traits(moving=False), verdict.traits(moving=True)
    kept = [f"the corpus’s own mix{f' of {listed(still)}' if moving else ''}"] if still else []
    kept += [f"the mix that can be had of the targets for {listed(moving)}"] if moving else []
    claim = f"This order keeps the windows of training at {' and at '.join(kept)} better than shuffling does."
    before, shuffled, ours = (metrics[name] for name in ("original", "sequences_random", "sequences"))
    trait = "cluster" if "cluster" in still else (still or moving)[0]
    whose = "what can be had of its targets" if trait in moving else "the corpus’s"
    if any(c.window == "batch" for c in verdict.comparisons):
        worst = [points(of["windows"]["batch"][trait]["worst"]) for of in (ours, shuffled, before)]
        return claim, (
            f"Wherever a batch of {ours['batch']:,} sequences starts, no {trait}’s share strays from "
            f"{whose} by more than {worst[0]} percentage points, against {worst[1]} after shuffling and "
            f"{worst[2]} in the original order."
        )
    mean = [points(of["windows"]["sequence"][trait]["mean"]) for of in (ours, shuffled, before)]
    return claim, (
        f"In a sequence of {ours['sequence_length']:,} tokens the {trait} that strays most is {mean[0]} "
        f"percentage points off {'its targets ' if trait in moving else ''}on average, against {mean[1]} after "
        f"shuffling and {mean[2]} in the original order; there are too few batches to compare."
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
        tiles=_tiles(judgement.metrics, judgement.sequences.traits(moving=True)),
    )


def _tiles(metrics: dict[str, dict[str, Any]], moving: list[str]) -> list[_Tile]:
    """moving: traits whose mix moves, which have a tile each."""

    def tile(what: str, unit: str, value: Any, shown: Any = number) -> _Tile:
        return _Tile(
            what,
            unit,
            *(shown(value(metrics[name])) for name in ("sequences", "sequences_random", "original")),
        )

    tiles = [tile("In a sequence", "clusters on average", lambda of: of["split"]["mean"])]
    if not metrics["sequences"]["windows"]["batch"]["cluster"]["partial"]:
        tiles += [
            tile(
                "In the worst batch",
                "percentage points off, for one cluster",
                lambda of: of["windows"]["batch"]["cluster"]["worst"],
                points,
            ),
            tile(
                "In the mean batch",
                "% of its tokens would have to change",
                lambda of: of["windows"]["batch"]["cluster"]["mean_tv"],
                points,
            ),
            *(
                tile(
                    "In the worst batch",
                    f"percentage points off what can be had of the targets for {trait}",
                    lambda of, trait=trait: of["windows"]["batch"][trait]["worst"],
                    points,
                )
                for trait in moving
            ),
        ]
    tiles.append(
        tile(
            "Up to any point",
            "tokens off the mix, on average",
            lambda of: of["prefix"]["mean"],
        )
    )
    return tiles
