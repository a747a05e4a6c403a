"""A logger for terminals: time and message of what a run says, in lines of at most 100 columns.

Dagster's own `console` begins each line with 110 columns of date, job and run id.
"""

import logging
import textwrap

import dagster as dg

COLUMNS, LINE = 100, "{asctime} {levelname} {dagster_meta[orig_message]}"


class _Lines(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        lines = super().format(record).splitlines()
        return "\n".join(textwrap.fill(line, COLUMNS, subsequent_indent=" " * 9) for line in lines)


@dg.logger
def short_lines(context: dg.InitLoggerContext) -> logging.Logger:
    """Run config selects it: `{"loggers": {"console": {}}}`."""
    handler = logging.StreamHandler()
    handler.setFormatter(_Lines(LINE, "%H:%M:%S", style="{"))
    logger = logging.Logger("divorder", logging.INFO)
    logger.addHandler(handler)
    return logger
