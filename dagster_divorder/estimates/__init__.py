"""What a first run would take, for Python: `divorder.estimate`."""

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
    """Time a stage, memory and disk of a first run, measured by running the stages on a small part of the input.

    Args:
        paths: files, folders, globs or URLs; none: those of the settings.
        config: settings file, as `load_settings` takes it; where there is none, what `divorder init` would write.
        stages: that are to be made; default: all that an output needs.
        size: bytes of files as these, for a corpus that is so large in place of this one.

    Raises:
        InputError: the input cannot be read, or holds nothing to use.
        DivOrderError: what a run would raise.
    """
    several = [paths] if isinstance(paths, str | os.PathLike) else paths
    return make_estimate(settings_for([os.fspath(path) for path in several], config), *stages, size=size)
