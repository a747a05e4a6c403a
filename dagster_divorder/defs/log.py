"""A logger for terminals: time, step and message of what a run says, in lines of at most 100 columns.

Dagster's own `console` begins each line with 110 columns of date, job and run id.
"""

import logging
import textwrap

import dagster as dg

COLUMNS = 100


class _Lines(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        said = record.__dict__["dagster_meta"]
        step, message = said["step_key"], said["orig_message"]
        head = "" if step is None or message.startswith(step) else f"{step}: "
        level = f"{record.levelname} " if record.levelno >= logging.WARNING else ""
        first, *rest = f"{self.formatTime(record, '%H:%M:%S')} {level}{head}{message}".splitlines()
        return "\n".join([*textwrap.wrap(first, COLUMNS, subsequent_indent=" " * 9), *rest])


@dg.logger
def short_lines(context: dg.InitLoggerContext) -> logging.Logger:
    """Time, step and message, without dates, names of jobs and ids of runs. Run config selects it:
    `{"loggers": {"console": {}}}`."""
    handler = logging.StreamHandler()
    handler.setFormatter(_Lines())
    logger = logging.Logger("divorder", logging.INFO)
    logger.addHandler(handler)
    return logger
