"""`divorder run` with DAGSTER_HOME: the run is one of Dagster's, and its UI shows it."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence
from pathlib import Path

import dagster as dg

from dagster_divorder.defs.assets import assets
from dagster_divorder.defs.pipeline import Pipeline
from dagster_divorder.errors import DivOrderError
from dagster_divorder.settings import Settings, anchored
from dagster_divorder.stages import GRAPH

LOG = {"loggers": {"console": {"config": {"log_level": "INFO"}}}}


def materialise(settings: Settings, stages: Sequence[str] = ()) -> None:
    """Materialise the assets of stages and of all that they read, by default of an output, on the instance of
    DAGSTER_HOME. A stage without an asset is made by the asset that it belongs to.

    Raises:
        DivOrderError: as `run_all`; or Dagster's instance cannot be used.
    """
    pipeline = Pipeline(GRAPH, anchored(settings, Path.cwd()))
    wanted = set(GRAPH.needed(settings, *stages))
    keys = [
        pipeline.key(name) for name in pipeline.specs if not wanted.isdisjoint(GRAPH.step(settings, name))
    ]
    home = Path(os.environ["DAGSTER_HOME"]).expanduser()
    try:
        # Relative folders in dagster.yaml start at the working directory.
        with contextlib.chdir(home), dg.DagsterInstance.get() as instance:
            dg.materialize(assets(pipeline), selection=keys, instance=instance, run_config=LOG)
    except dg.Failure as failure:
        raise failure.__cause__ or failure from None
    except dg.DagsterExecutionInterruptedError:
        raise KeyboardInterrupt from None
    except (OSError, dg.DagsterError) as error:
        said = str(error).strip().partition("\n")[0]
        raise DivOrderError(
            f"Dagster cannot run with DAGSTER_HOME {str(home)!r}: {said}; expected the absolute path of a folder with "
            "dagster.yaml; unset it to run without Dagster"
        ) from error
