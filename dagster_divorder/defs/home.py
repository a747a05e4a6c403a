"""`divorder run` with DAGSTER_HOME: the run is one of Dagster's, and its UI shows it."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence
from pathlib import Path

import dagster as dg

from dagster_divorder.defs.assets import assets
from dagster_divorder.defs.pipeline import Pipeline
from dagster_divorder.errors import DivOrderError, SettingsError
from dagster_divorder.settings import Settings, anchored
from dagster_divorder.stages import GRAPH


def materialise(settings: Settings, stages: Sequence[str] = ()) -> None:
    """Materialise the assets of stages and of all that they read, by default of an output, on the instance of
    DAGSTER_HOME. A stage without an asset is made by the asset that it belongs to.

    Raises:
        DivOrderError: as `run_all`; or a blocking check failed. SettingsError: DAGSTER_HOME cannot be used.
    """
    home = Path(os.environ["DAGSTER_HOME"]).expanduser()
    if not (home.is_absolute() and home.is_dir()):
        raise SettingsError(
            f"DAGSTER_HOME is {str(home)!r}; expected the absolute path of a folder, such as that of dagster.yaml; "
            "unset it to run without Dagster"
        )
    pipeline = Pipeline(GRAPH, anchored(settings, Path.cwd()))
    steps = {name: GRAPH.step(settings, name) for name in pipeline.specs}
    holders = [next(name for name, parts in steps.items() if stage in parts) for stage in stages]
    wanted = GRAPH.needed(settings, *holders)
    keys = [pipeline.key(name) for name in pipeline.specs if name in wanted]
    try:
        # Relative folders in dagster.yaml start at the working directory.
        with contextlib.chdir(home), dg.DagsterInstance.get() as instance:
            log = {"loggers": {"console": {"config": {"log_level": "INFO"}}}}
            dg.materialize(assets(pipeline), selection=keys, instance=instance, run_config=log)
    except dg.Failure as failure:
        raise failure.__cause__ or failure from None
    except dg.DagsterExecutionInterruptedError:
        raise KeyboardInterrupt from None
    except dg.DagsterError as error:
        said = str(error).strip().partition("\n")[0]
        raise DivOrderError(f"{said} (Dagster, DAGSTER_HOME {home}; unset it to run without)") from error
