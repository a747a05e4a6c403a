"""Figures of a schedule, as the stage `schedule` gives them, made by hand."""

from __future__ import annotations

from typing import Any

import numpy as np


def measured(
    traits: tuple[str, ...] = ("cluster", "length", "source"), *, seed: int = 0, **changed: Any
) -> dict[str, Any]:
    """Figures of an order along two folds of `quality`."""
    random = np.random.default_rng(seed)
    progress = (np.arange(100) + 0.5) / 100
    asked = np.where(progress < 0.5, 2 * progress, 2 - 2 * progress)
    achieved = np.clip(asked + random.normal(0, 0.02, 100), 0, 1)
    curves = {
        "progress": progress,
        "asked": asked,
        "achievable": np.clip(asked, 0.03, 0.97),
        "achieved": achieved,
        "low": np.clip(achieved - 0.05, 0, 1),
        "high": np.clip(achieved + 0.05, 0, 1),
        "raw": 5 * achieved,
    }
    scale = {
        "curves": {name: values.tolist() for name, values in curves.items()},
        "off": {"achieved": 0.021, "achievable": 0.004, "shuffled": 0.023},
        "deviation": {"asked": 0.031, "achievable": 0.012, "shuffled": 0.033},
        "traits": {
            trait: {
                "moved": 0.121,
                "batch": 0.023,
                "shuffled": 0.045,
                "worst": 0.04,
                "worst_shuffled": 0.09,
                "balanced": trait != "score",
            }
            for trait in traits
        },
        "along": {
            trait: {
                "batch": (0.023 + random.normal(0, 0.002, 10)).tolist(),
                "shuffled": (0.045 + random.normal(0, 0.004, 10)).tolist(),
                "moved": np.abs(np.linspace(-0.25, 0.25, 10)).tolist(),
            }
            for trait in traits
        },
        "seam": [{"achieved": -0.91, "asked": -0.93}],
    }
    return {
        "score": "quality",
        "shape": "zigzag",
        "options": {"folds": 2, "descending": False},
        "strength": 1.0,
        "window": {"share": 0.03125, "sequences": 188.0, "batches": 5.9},
        "records": 15_000,
        "missing": 0,
        "epochs": "each",
        "scales": {"sequences": scale, "documents": scale},
        **changed,
    }
