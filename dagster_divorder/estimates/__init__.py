"""Estimates time, memory and disk of a first run, for Python: `dagster_divorder.estimate`."""

from __future__ import annotations

import os
from collections.abc import Sequence

from dagster_divorder.estimates.first_run import Estimate, make_estimate
from dagster_divorder.propose import settings_for


def estimate(
    paths: str | os.PathLike[str] | Sequence[str | os.PathLike[str]] = (),
    *,
    config: str | os.PathLike[str] | None = None,
    stages: Sequence[str] = (),
    size: int | None = None,
) -> Estimate:
    """Estimate the time of each stage, memory and disk of a first run, from runs on a small part of the input.

    Args:
        paths: files, folders, globs or URLs; by default those of the settings.
        config: settings file, as for `load_settings`; without one, the settings that `divorder init` would write.
        stages: to run; by default all stages of an output.
        size: bytes of a corpus of such files, to estimate instead of the given files.

    Raises:
        InputError: the input cannot be read, or has no usable record.
        DivOrderError: any error of a run.
    """
    several = [paths] if isinstance(paths, str | os.PathLike) else paths
    return make_estimate(settings_for([os.fspath(path) for path in several], config), *stages, size=size)
