"""The asset external_embeddings, and that an output is made from it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import dagster as dg
import numpy as np

from tests.defs.conftest import metadata_of

Load = Callable[[], dg.Definitions]


def test_it_shows_what_was_read_and_clusters_follow(config: Path, load: Load) -> None:
    config.write_text(config.read_text() + '[embedding]\nkind = "external"\npath = "vectors.npy"\npca = 4\n')
    np.save(config.parent / "vectors.npy", np.random.default_rng(0).normal(size=(120, 6)))
    defs = load()
    with dg.DagsterInstance.ephemeral() as instance:
        run = dg.materialize(
            list(defs.assets or []),  # type: ignore[arg-type]
            selection=dg.AssetSelection.assets("clusters").upstream(),
            instance=instance,
        )
    assert run.success
    metadata = metadata_of(run)
    assert "shallow_embeddings" not in metadata
    shown = {name: value.value for name, value in metadata["external_embeddings"].items()}
    assert (shown["rows"], shown["dim"], shown["dtype"]) == (120, 6, "float64")
    assert (shown["path"], shown["read"]) == (
        str(config.parent / "vectors.npy"),
        "first run with these vectors",
    )
    clusters = metadata["clusters"]
    assert (clusters["vectors"].value, clusters["pca"].value) == ("external_embeddings", 4)
    assert 0.5 < float(clusters["explained_variance"].value) < 1
