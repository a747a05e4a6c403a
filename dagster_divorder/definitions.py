"""The Dagster code location of one corpus: assets without a prefix, from the settings that `load_settings` finds."""

from __future__ import annotations

import sys
import warnings

import dagster as dg

from dagster_divorder.defs.factory import build_definitions
from dagster_divorder.defs.log import short_lines

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
