"""Reports a command's stages to Dagster: to the instance of DAGSTER_HOME or to a webserver."""

from __future__ import annotations

import argparse
import os
import sys
from dataclasses import asdict, replace
from urllib.parse import urlsplit

from dagster_divorder.cli.verb import Options
from dagster_divorder.defs import HOME
from dagster_divorder.engine.progress import STANDARD_ERROR
from dagster_divorder.errors import SettingsError, printable, without_secrets
from dagster_divorder.view.answer import Answer
from dagster_divorder.view.words import count


def add_reporting(parser: argparse.ArgumentParser) -> None:
    """Adds the options of a report."""
    group = parser.add_argument_group("Dagster")
    group.add_argument(
        "--report-to",
        type=_web_address,
        metavar="URL",
        help="show the run in Dagster's UI at this webserver, such as http://localhost:3000 (default: the instance "
        "of DAGSTER_HOME, if set)",
    )
    group.add_argument(
        "--key-prefix",
        action="extend",
        type=lambda text: text.split("/"),
        default=[],
        metavar="PREFIX",
        help="key prefix of the corpus's assets in Dagster, such as news or news/daily; repeat for more parts",
    )


def check_options(options: Options) -> None:
    """Check the options of a report before anything runs.

    Raises:
        SettingsError: a key prefix without a place to report to, or a prefix that assets cannot have.
    """
    if prefix := getattr(options, "key_prefix", []):
        from dagster_divorder.pipeline.graph import check_key_prefix

        check_key_prefix(prefix)
        if not _reports(options):
            raise SettingsError(
                f"--key-prefix names assets in Dagster, but nothing is reported to Dagster: set {HOME} or give "
                f"--report-to"
            )


def reported(answer: Answer, options: Options, begun: float) -> Answer:
    """The answer with the report of its stages, and a line on standard error. begun: start of the command, in seconds
    since the epoch."""
    if answer.ran is None:
        return answer
    if not _reports(options):
        return replace(answer, data={**answer.data, "reported": None})
    with STANDARD_ERROR("reporting to Dagster"):
        from dagster_divorder.defs.reporting import report_run
        from dagster_divorder.stages import GRAPH

        report = report_run(
            GRAPH, *answer.ran, begun=begun, key_prefix=options.key_prefix, url=options.report_to
        )
    if report.assets:
        first, last = report.assets[0], report.assets[-1]
        failed = f", failed: {', '.join(report.failed)}" if report.failed else ""
        _say(
            f"reported to Dagster at {report.to}: {count(len(report.assets), 'asset')}, {first} to {last}; "
            f"{count(report.checks, 'check')}{failed}"
        )
    if report.error:
        _say(
            f"divorder: the report to Dagster at {report.to} is incomplete: {report.error}; the results are stored; "
            f"run the same command to report them again"
        )
    return replace(answer, data={**answer.data, "reported": asdict(report)})


def _say(line: str) -> None:
    print(printable(line), file=sys.stderr)


def _reports(options: Options) -> bool:
    return bool(options.report_to or os.environ.get(HOME))


def _web_address(text: str) -> str:
    try:
        usable = urlsplit(text).scheme in ("http", "https") and bool(urlsplit(text).hostname)
    except ValueError:
        usable = False
    if not usable:
        raise argparse.ArgumentTypeError(
            f"{without_secrets(text)!r} is not a webserver's address; expected one such as http://localhost:3000"
        )
    return text
