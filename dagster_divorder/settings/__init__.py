"""The settings: one frozen object shared by the UI, the command line, schedules and Python.

Sources, the later one wins: built-in defaults (they run the sample corpus), a TOML file, environment variables
`DIVORDER_<SECTION>__<KEY>`. The file is the one named by `DIVORDER_CONFIG`, else `divorder.toml` in the working
directory if there is one. Relative paths are relative to the file (to the working directory where there is no file).

What of them decides a stage's result the stage itself says (`Stage.settings`), and its Dagster code version carries
it: an edited settings file shows its stages as stale.
"""

from dagster_divorder.settings.loading import (
    DEFAULT_FILE,
    anchored,
    config_file,
    fixed_beginning,
    is_in,
    load_settings,
    refuse_overlap,
    valid_keys,
    written_places,
)
from dagster_divorder.settings.model import Settings
from dagster_divorder.settings.sections import KINDS, MAX_RECORD_BYTES, Embedding, Input, Model, Order, Output

__all__ = [
    "DEFAULT_FILE",
    "KINDS",
    "MAX_RECORD_BYTES",
    "Embedding",
    "Input",
    "Model",
    "Order",
    "Output",
    "Settings",
    "anchored",
    "config_file",
    "fixed_beginning",
    "is_in",
    "load_settings",
    "refuse_overlap",
    "valid_keys",
    "written_places",
]
