"""Settings of earlier versions, and their replacements."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

BEHIND = '(it follows the id: "org/name@revision")'
LOOKS = "(a third of advanced.settle_seconds, from 4 to 30)"
FIFTH = "(a fifth of the documents must change)"
RENAMED: dict[str, str] = {
    "model.refit": "refit.model",
    "deep.refit": "refit.decoder",
    "order.refit": "refit.bins",
    "clusters.refit": "refit.clusters",
    "cluster_map.refit": "refit.cluster_map",
    "ari_comparison.refit": "refit.ari_comparison",
    "k_calibration.refit": "refit.k_calibration",
    "model.vocab_size": "advanced.vocab_size",
    "model.dim": "advanced.token_dims",
    "model.revision": BEHIND,
    "deep.revision": BEHIND,
    "deep.train_tokens": "advanced.decoder_tokens",
    "deep.stored": "advanced.stored",
    "gradients.stored": "advanced.stored",
    "deep.device": "engine.device",
    "evidence.device": "engine.device",
    "engine.kind": "engine.address",
    "k_calibration.values": "clusters.k",
    "output.plot": "output.sidecars",
    "heldout.share": "heldout.documents",
    "heldout.paths": "heldout.documents",
    "clusters.algorithm": "clusters.method",
    "clusters.metric": "clusters.method",
    "deep.pca": "embedding.pca",
    "ari_comparison.sample": "advanced.silhouette_documents",
    "k_calibration.sample": "advanced.silhouette_documents",
    "k_calibration.fits": "(each number has three fits)",
    "cluster_map.sample": "advanced.map_documents",
    "animation.frames": "advanced.film_frames",
    "animation.fps": "(30 a second)",
    "automation.interval_seconds": LOOKS,
    "advanced.interval_seconds": LOOKS,
    "automation.settle_seconds": "advanced.settle_seconds",
    "mixing.exponent": "(it is the number in mixing.weights: weights = 0.3)",
    "ari_comparison.spaces": "(shallow vectors are compared with those of embedding.path, or with deep ones)",
    "store.cache_bytes": "(half of the free disk of store.cache; 64 GB where that is unset)",
    "gradients.max_tokens": "(768, or the context of the model)",
    "selection.steps": "(20 at most)",
    "selection.rate": "(1)",
    "selection.tolerance": "(1e-4)",
    "selection.start": "(uniform weights)",
    "ari_comparison.refresh": FIFTH,
    "k_calibration.refresh": FIFTH,
}
"""Old key -> new key, or a remark in brackets if no key replaces it."""


def refuse_renamed(given: Mapping[str, Any]) -> None:
    """
    Raises:
        ValueError: settings have names of earlier versions; the message names all with their replacements.
    """
    old = [f"{section}.{key}" for section, keys in given.items() if isinstance(keys, Mapping) for key in keys]
    if problems := list(filter(None, map(renamed, old))):
        raise ValueError("; ".join(problems))


def renamed(key: str) -> str:
    """The message for a key of an earlier version; "" for any other key."""
    new = RENAMED.get(key)
    if new is None:
        return ""
    if new.startswith("("):
        return f"{key} is no longer a setting {new}; remove it"
    section, _, name = new.partition(".")
    refit = f'; "now" for one run: divorder run --refit {name}' if section == "refit" else ""
    where = f" ({name}, under [{section}] in a file)" if name else ""
    return f"{key} is now {new}{where}{refit}"
