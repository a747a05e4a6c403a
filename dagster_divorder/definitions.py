"""The Dagster code location of one corpus: assets without a prefix, from the settings that `load_settings` finds."""

from __future__ import annotations

import atexit
import gc
import sys
import warnings

import dagster as dg

# The code location has its processes to itself. Only it may set what follows.
# By default Python searches modules and events for cycles again and again, first while it imports these modules.
gc.set_threshold(10_000, 20, 20)
# It would search everything once more at its end, for half a second.
atexit.register(gc.freeze)

from dagster_divorder.defs.factory import build_definitions  # noqa: E402
from dagster_divorder.defs.log import short_lines  # noqa: E402

# Our use of a selection of `*` is stable.
warnings.filterwarnings("ignore", category=dg.BetaWarning)

try:
    # Assets picked by hand run in one process too.
    defs = dg.Definitions.merge(
        build_definitions(),
        dg.Definitions(executor=dg.in_process_executor, loggers={"console": short_lines}),
    )
except dg.DagsterInvalidDefinitionError as error:
    # Commands end with one sentence.
    message = f"divorder: {error}"
    sys.excepthook = lambda kind, raised, trace: print(message, file=sys.stderr)
    raise
