"""Random histories of tiny corpora whose orders follow a score: nothing is lost, and the score is followed.

A history as in histories.py, in JSON lines or Parquet, with a section [curriculum]: every shape and its options,
points, strengths, windows, kept traits and epochs; a score of the records (normal, with ties, with gaps, of one source,
huge, constant, of text, for few), or a computed one. Some settings are refused. After each run also:

- the stage `scores` has every record's own number, and none where it has none;
- where nothing stands against it, sequences follow the schedule better than 19 of 20 shuffles of them;
- records without a score are spread over training.

python benchmarks/fuzz/curricula.py [--histories 200] [--first 0] [--folder /dev/shm]
"""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any

import histories
import numpy as np
import orjson
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
from histories import History, Sections
from pydantic import ValidationError

from dagster_divorder.core.order import STRATEGIES
from dagster_divorder.core.order.curricula import SHAPES, pieces_of
from dagster_divorder.core.order.schedule import asked_rank
from dagster_divorder.settings import Settings
from dagster_divorder.stages import open_run

SCORES = (
    "normal",
    "normal",
    "ties",
    "gaps",
    "gaps",
    "of a source",
    "huge",
    "tiny",
    "constant",
    "text",
    "few",
)
SHUFFLES = 199
FEWEST_SEQUENCES, FEWEST_SCORES = 16, 5
"""Of fewer sequences, or fewer different scores, a shuffle may follow a schedule as well."""


class Curricula(History):
    """A corpus with a score, and a schedule of it."""

    def __init__(self, number: int, folder: Path) -> None:
        self.parquet = number % 4 == 0
        self.kind = ""
        self.followed = 0
        super().__init__(number, folder)
        self.append(self.draw.choice([0, 60, 60]))

    # The corpus ----------------------------------------------------------------------------------------------------

    def record(self) -> Any:
        self.kind = self.kind or self.draw.choice(SCORES)
        record = super().record()
        return record | {"score": self.number(record["source"])}

    def number(self, source: str) -> Any:
        draw, kind = self.draw, self.kind
        number: Any = draw.gauss(0, 1)
        if kind == "ties":
            number = draw.choice([1, 2, 3])
        elif kind == "of a source":
            number += 10 * (source == "a")
        elif kind in ("huge", "tiny"):
            number *= 1e300 if kind == "huge" else 1e-300
        elif kind == "constant":
            number = 2.5
        elif kind == "text" and not self.parquet:
            number = draw.choice([number, "high", "0.5"])
        if (kind == "gaps" and draw.random() < 0.3) or (kind == "few" and draw.random() < 0.7):
            number = draw.choice([None, math.nan]) if self.parquet else None
        return number

    # The settings --------------------------------------------------------------------------------------------------

    def draw_settings(self) -> Sections:
        draw, sections = self.draw, super().draw_settings()
        sections["order"]["strategy"] = draw.choice(["balanced", *sorted(STRATEGIES.keys() - SHAPES.keys())])
        sections["sequence"] |= {
            "strategy": draw.choice(["balanced", "balanced", "random", "original", "f3"]),
            "length": draw.choice([16, 16, 32, 64]),
            "epochs": draw.choice([1, 1, 2, 3]),
        }
        sections["packing"]["method"] = draw.choice(["concat", "best_fit", "related", "none", "none"])
        if draw.random() < 0.3:
            sections["mixing"] = {}
        if draw.random() < 0.5:
            sections["selection"], sections["heldout"] = {}, {}
        return sections

    def draw_curriculum(self) -> dict[str, Any]:
        draw = self.draw
        score = draw.choice(["score"] * 6 + ["length", "length", "good", "source", "missing", None])
        if score is None:
            return {}
        shape = draw.choice([*SHAPES])
        options: dict[str, Any] = {}
        for name in SHAPES[shape].model_fields:
            if draw.random() < 0.5:
                continue
            options |= {
                "folds": {"folds": draw.choice([1, 2, 3, 5, 500])},
                "descending": {"descending": True},
                "sections": {"sections": draw.choice([1, 2, 3, 7])},
                "ratio": {"ratio": draw.choice([0.0, 0.075, 0.3, 1.0])},
                "first": {"first": draw.choice([0.0, 0.1, 0.5, 0.7, 1.0])},
                "last": {"last": draw.choice([0.0, 0.1, 0.5, 0.7])},
                "ends": {"ends": draw.choice(["low-high", "high-low", "low-low", "high-high"])},
            }.get(name, {})
        form: dict[str, Any] = {"shape": shape}
        if shape == "points":
            inner = sorted(draw.uniform(0, 1) for _ in range(draw.choice([0, 1, 3])))
            rank = [draw.choice([0.0, 0.3, 0.3, 1.0, draw.random()]) for _ in range(len(inner) + 2)]
            progress = [0.0, *inner, draw.choice([1.0] * 9 + [0.9])]
            form = {"points": tuple(zip(progress, rank, strict=True))}
        return {
            "score": score,
            **form,
            "options": options,
            "strength": draw.choice([1.0] * 6 + [0.5, 0.01, 0.0, 1.5]),
            "window": draw.choice([None, None, None, 1, 3, 1000]),
            "keep": draw.choice([(), (), (), ("source",), ("cluster", "length")]),
            "epochs": draw.choice(["together", "each"]),
        }

    def settings(self, place: str = "", **sections: dict[str, Any]) -> Settings:
        if self.parquet:
            sections["input"] = sections.get("input", {}) | {"paths": [str(self.folder / "in.parquet")]}
        return super().settings(place, **sections)

    def consume(self) -> None:
        if self.parquet:
            # The ids of rows of Parquet are not those of their lines.
            return
        super().consume()
        if self.consumed and self.sections["packing"]["method"] == "none":
            # A trainer reads records as sequences: these alone say which.
            self.consumed = self.consumed._replace(documents=[])

    def run(self) -> bool:
        try:
            self.settings()
        except ValidationError as error:
            self.said = str(error)
            assert re.search("expected|should be|remove|one of|set|options are|has none", self.said), (
                self.said
            )
            self.refused["settings"] += 1
            return False
        return super().run()

    # The laws ------------------------------------------------------------------------------------------------------

    def write(self) -> None:
        super().write()
        if self.parquet:
            pq.write_table(pa.Table.from_pylist(self.records), self.folder / "in.parquet")

    def written(self) -> list[bytes]:
        if not self.parquet:
            return super().written()
        return [orjson.dumps(row) for row in pq.read_table(self.folder / "out/curated.parquet").to_pylist()]

    def check_training(
        self, documents: pd.DataFrame, plan: pd.DataFrame, order: np.ndarray, sequences: np.ndarray
    ) -> None:
        super().check_training(documents, plan, order, sequences)
        settings = self.settings()
        if settings.curriculum.on and len(sequences[0]):
            self.check_followed(self.check_scores(settings), settings, plan, sequences)

    def check_scores(self, settings: Settings) -> np.ndarray:
        """float64 (N,), NaN for none."""
        scores = open_run(settings).arrays("scores", "scores")["score"]
        if settings.curriculum.score == "score":
            own = [float("nan") if record["score"] is None else record["score"] for record in self.records]
            assert np.array_equal(scores, np.array(own, np.float64), equal_nan=True), "other scores"
        return scores

    def check_followed(
        self, scores: np.ndarray, settings: Settings, plan: pd.DataFrame, sequences: np.ndarray
    ) -> None:
        chosen = settings.curriculum
        form = STRATEGIES[chosen.form].with_options(**chosen.shape_options).options
        pieces = pieces_of(chosen.form, form)
        each = chosen.epochs == "each" or len(sequences) == 1
        at = sequences[0] if each else sequences.reshape(-1)
        ranks = pd.Series(scores).rank(pct=True).to_numpy()[plan.document]
        scored = plan[~np.isnan(ranks)].assign(rank=ranks[~np.isnan(ranks)])
        weighted = (scored["rank"] * scored.length).groupby(scored.sequence).sum()
        mean = (
            (weighted / scored.groupby("sequence").length.sum()).reindex(range(len(sequences[0]))).to_numpy()
        )
        tokens = plan.groupby("sequence").length.sum().to_numpy()[at].astype(float)
        progress = (np.cumsum(tokens) - tokens / 2) / tokens.sum()
        achieved = mean[at]
        known = ~np.isnan(achieved)
        if (~known).sum() >= 20:
            # Evenly spread ones stray less than ones at random.
            assert abs(progress[~known].mean() - 0.5) < 4 / math.sqrt(12 * (~known).sum()), (
                "missing ones drift"
            )
        steep = pieces[:, 3] != pieces[:, 2]
        window = settings.curriculum_window(int(tokens.sum()))
        against = (
            chosen.strength < 1
            or chosen.keep
            or settings.order.frozen_tokens
            or not steep.any()
            or window > 0.25 * (pieces[:, 1] - pieces[:, 0]).min()
            or known.sum() < FEWEST_SEQUENCES
            or len(np.unique(achieved[known])) < FEWEST_SCORES
            or np.ptp(asked_rank(pieces, progress)) < 0.3
            or len(pieces) > known.sum() / 8
        )
        if not against:
            asked, achieved = asked_rank(pieces, progress)[known], achieved[known]
            random = np.random.default_rng(0)
            shuffled = [np.corrcoef(asked, random.permutation(achieved))[0, 1] for _ in range(SHUFFLES)]
            ours = np.corrcoef(asked, achieved)[0, 1]
            assert ours > np.quantile(shuffled, 0.95), f"{chosen.form} is not followed: {ours:.2f}"
            self.followed += 1


if __name__ == "__main__":
    histories.main(Curricula, 200, __doc__)
