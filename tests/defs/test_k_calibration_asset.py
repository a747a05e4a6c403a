"""The asset k_calibration: in the way of clusters where they ask for it, evidence where they do not."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import dagster as dg
import pytest

from tests.defs.conftest import metadata_of, rows_of

Load = Callable[[], dg.Definitions]


def upstream(defs: dg.Definitions, name: str) -> set[str]:
    return {key.to_user_string() for key in defs.resolve_asset_graph().get(dg.AssetKey(name)).parent_keys}


@pytest.fixture
def auto(config: Path) -> Path:
    text = config.read_text().replace("sidecars = []", "")
    config.write_text(text.replace("k = 4", "k = [3, 5, 200]"))
    return config


def test_clusters_read_it_where_k_is_auto(load: Load, config: Path) -> None:
    assert upstream(load(), "clusters") == {"shallow_embeddings"}
    config.write_text(config.read_text().replace("k = 4", 'k = "auto"'))
    assert upstream(load(), "clusters") == {"shallow_embeddings", "k_calibration"}


def test_it_shows_table_and_picture_and_clusters_follow(auto: Path, load: Load) -> None:
    defs = load()
    with dg.DagsterInstance.ephemeral() as instance:
        run = dg.materialize(
            list(defs.assets or []),  # type: ignore[arg-type]
            selection=dg.AssetSelection.assets("clusters").upstream(),
            instance=instance,
        )
    assert run.success
    metadata = metadata_of(run)
    shown = metadata["k_calibration"]
    assert [row["k"] for row in rows_of(shown["calibration"])] == [3, 5]
    assert shown["auto_takes"].value == metadata["clusters"]["k"].value
    assert shown["notes"].value == ["200 not tried: there are only 120 documents"]
    assert str(shown["picture"].value).startswith("![silhouettes](data:image/png;base64,")
