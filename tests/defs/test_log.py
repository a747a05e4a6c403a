"""The log of a run on a terminal."""

import dagster as dg
import pytest

from dagster_divorder.defs.log import COLUMNS, short_lines


def test_lines_have_time_and_message_and_fit_a_terminal(capfd: pytest.CaptureFixture[str]) -> None:
    @dg.asset
    def words(context: dg.AssetExecutionContext) -> None:
        context.log.debug("not said")
        context.log.info("words: " + "some more " * 20)
        context.log.warning("odd words")

    defs = dg.Definitions(assets=[words], loggers={"console": short_lines})
    job = defs.resolve_implicit_global_asset_job_def()
    assert job.execute_in_process(run_config={"loggers": {"console": {}}}).success
    lines = capfd.readouterr().err.splitlines()
    assert max(map(len, lines)) <= COLUMNS
    said = [line[9:] for line in lines]
    assert said[0].startswith("INFO words: some more") and said[-1] == "WARNING odd words"
    assert " ".join(said[:-1]) == "INFO words: " + " ".join(["some more"] * 20)
    assert {line[:9] for line in lines[1:-1]} == {" " * 9}
