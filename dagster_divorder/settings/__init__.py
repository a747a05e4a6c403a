"""Settings: one frozen object shared by the UI, the command line, schedules and Python.

Sources, later ones win: built-in defaults (they run the sample corpus), a TOML file, environment variables
`DIVORDER_<SECTION>__<KEY>`. `DIVORDER_CONFIG` names the file; the default is `divorder.toml` in the working directory,
if it exists. Relative paths are relative to the file, or to the working directory without a file.

Each stage names the settings that decide its result (`Stage.settings`). They are part of its Dagster code version, so
that Dagster shows stages as stale after an edit of the settings file.
"""

from dagster_divorder.settings.loading import anchored, load_settings
from dagster_divorder.settings.model import Settings

__all__ = ["Settings", "anchored", "load_settings"]
