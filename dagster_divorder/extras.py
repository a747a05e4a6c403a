"""Packages of the extras in pyproject.toml. Only this module imports them, so that the error for a missing package
always has the line that installs it."""

from __future__ import annotations

import importlib
import importlib.util
from typing import Any

from dagster_divorder.errors import InputError

EXTRAS = {
    "accelerate": ("tensor-parallel", "accelerate", "deep.tensor_parallel needs"),
    "imageio_ffmpeg": ("films", "imageio-ffmpeg", "films need"),
    "obstore": ("objects", "obstore", "s3://, gs://, az:// and https:// URLs need"),
    "ray": ("ray", "ray", 'engine.address = "ray" needs'),
}
"""Import name of a package -> (extra, name for pip, feature that needs it)."""


def why_missing(package: str) -> str | None:
    """The feature that needs a package, and how to install the package; None if it is installed."""
    if importlib.util.find_spec(package):
        return None
    extra, name, needed = EXTRAS[package]
    return f"{needed} {name}, which is not installed: pip install 'dagster-divorder[{extra}]'"


def load_extra(module: str) -> Any:
    """Imports a package of an extra, or one of its modules.

    Raises:
        InputError: it is not installed, or cannot be imported.
    """
    package = module.partition(".")[0]
    if missing := why_missing(package):
        raise InputError(missing)
    try:
        return importlib.import_module(module)
    except (ImportError, OSError) as error:  # OSError: one of its own libraries does not load
        extra, name, needed = EXTRAS[package]
        raise InputError(
            f"{needed} {name}, which is installed but cannot be imported ({error}): pip install --force-reinstall "
            f"'dagster-divorder[{extra}]'"
        ) from error
