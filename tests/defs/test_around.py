"""What stands around our assets in a project: assets downstream of them, and what one run sets otherwise."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import dagster as dg
import pytest

from dagster_divorder import build_definitions, load_results
from dagster_divorder.errors import SettingsError
from dagster_divorder.pipeline.plan import make_plan
from dagster_divorder.readers.export import Export
from dagster_divorder.results import Results
from dagster_divorder.settings import Settings, load_settings
from dagster_divorder.settings.places import Url
from dagster_divorder.stages import GRAPH
from tests.defs.conftest import make_corpus, metadata_of, unsynced, versions_of

AROUND = """
[exports]
formats = ["parquet", "mds"]
path = "exports"
[mixing]
total_tokens = 4000
[mixing.weights]
"sea.example" = 0.5
"kitchen.example" = 0.3
"""
SHARES = {"sea.example": 0.4, "kitchen.example": 0.6}
OUTPUT, EXPORTS = dg.AssetKey(["news", "curated_output"]), dg.AssetKey(["news", "exports"])
CURATED = dg.AssetSelection.assets(OUTPUT, EXPORTS).upstream()
AS_PARQUET = dg.AssetIn(EXPORTS, metadata={"format": "parquet"})


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = make_corpus(tmp_path_factory.mktemp("around"))
    file.write_text(file.read_text() + AROUND)
    return file


@pytest.fixture(scope="module")
def instance() -> Iterator[dg.DagsterInstance]:
    with dg.DagsterInstance.ephemeral() as ephemeral:
        yield ephemeral


@pytest.fixture(scope="module")
def defs(config: Path) -> dg.Definitions:
    return build_definitions(config, key_prefix="news")


def run(
    defs: dg.Definitions,
    instance: dg.DagsterInstance,
    selection: Any,
    *others: dg.AssetsDefinition,
    **config: Any,
) -> dg.ExecuteInProcessResult:
    """Assets of ours and others, run in this process. config: what the run sets otherwise."""
    return dg.materialize(
        [*(defs.assets or ()), *others],
        selection=selection,
        instance=instance,
        run_config={"resources": {"news_divorder": {"config": config}}} if config else None,
        raise_on_error=False,
    )


def why_failed(result: dg.ExecuteInProcessResult) -> str:
    """The message of what ended a run."""
    assert not result.success
    (event,) = [event for event in result.all_events if event.is_run_failure]
    error = (
        event.job_failure_data.error
        or event.job_failure_data.first_step_failure_event.step_failure_data.error
    )
    while error.cause:
        error = error.cause
    return error.message


def why_refused(project: dg.Definitions) -> str:
    """The message of definitions that do not load."""
    with pytest.raises(dg.DagsterInvalidDefinitionError) as refused:
        dg.Definitions.validate_loadable(project)
    return str(refused.value.__cause__)


@dg.asset(ins={"exports": AS_PARQUET})
def rows(exports: Export) -> dg.MaterializeResult:
    return dg.MaterializeResult(metadata={"rows": len(exports), "plan": exports.plan})


@dg.asset(ins={"curated_output": dg.AssetIn(OUTPUT)})
def looked_at(curated_output: Results) -> int:
    return len(curated_output.documents)


@dg.asset(deps=[EXPORTS])
def after() -> None: ...


@pytest.fixture(scope="module")
def made(defs: dg.Definitions, instance: dg.DagsterInstance) -> dg.ExecuteInProcessResult:
    """The first run: the output, the export, and assets downstream."""
    downstream = (rows, looked_at, after)
    result = run(defs, instance, CURATED | dg.AssetSelection.assets(*downstream), *downstream)
    assert result.success
    return result


def test_assets_downstream_run_after_ours_and_get_open_results(
    made: dg.ExecuteInProcessResult, config: Path
) -> None:
    assert made.output_for_node("looked_at") == 120
    (event,) = [event for event in made.get_asset_materialization_events() if event.asset_key == rows.key]
    shown = event.materialization.metadata
    assert shown["rows"].value > 10
    steps = [event.step_key for event in made.get_step_success_events()]
    assert steps.index("after") > steps.index("news__exports")


def handed_over(
    defs: dg.Definitions, instance: dg.DagsterInstance, key: dg.AssetKey, kind: Any, **metadata: Any
) -> Any:
    """What an asset downstream gets, run alone."""

    def look(value):
        seen.append(value)

    seen: list[Any] = []
    look.__annotations__ = {} if kind is None else {"value": kind}
    alone = dg.asset(ins={"value": dg.AssetIn(key, metadata=metadata)})(look)
    result = run(defs, instance, [alone], alone)
    return seen[0] if result.success else why_failed(result)


@pytest.mark.usefixtures("made")
def test_the_annotation_decides_what_is_handed_over(
    defs: dg.Definitions, instance: dg.DagsterInstance, config: Path
) -> None:
    folder = config.parent
    assert len(handed_over(defs, instance, OUTPUT, Results).documents) == 120
    assert isinstance(handed_over(defs, instance, OUTPUT, None), Results)
    # The only format that it reads.
    assert handed_over(defs, instance, EXPORTS, Export).path == folder / "exports/parquet"
    assert isinstance(handed_over(defs, instance, EXPORTS, None), Export)
    assert handed_over(defs, instance, EXPORTS, Path, format="mds") == folder / "exports/mds"
    assert handed_over(defs, instance, OUTPUT, Path) == folder / "curated"


@pytest.mark.usefixtures("made")
@pytest.mark.parametrize(
    ("asset", "kind", "metadata", "message"),
    [
        (
            "curated_output",
            int,
            {},
            "cannot be passed as Int; annotate .*results.Results, pathlib.Path$",
        ),
        ("curated_output", Export, {}, "cannot be passed as Export"),
        (
            "clusters",
            Path,
            {},
            "news/clusters cannot be passed .* one of dagster_divorder.results.Results$",
        ),
        ("exports", Path, {}, 'names none of them; name one: AssetIn(metadata={"format": "parquet"})'),
        ("exports", Export, {"format": "olmo"}, "has the formats parquet, mds, but the AssetIn names olmo"),
        (
            "exports",
            Export,
            {"format": "mds"},
            "has the format mds, which only its own trainer reads; Export reads parquet",
        ),
        ("cluster_map", Results, {}, "news/cluster_map has no result in .*; materialise it first"),
    ],
)
def test_what_cannot_be_handed_over_is_refused(
    defs: dg.Definitions, instance: dg.DagsterInstance, asset: str, kind: Any, metadata: Any, message: str
) -> None:
    message = message.replace("(", r"\(").replace(")", r"\)")
    assert re.search(message, handed_over(defs, instance, dg.AssetKey(["news", asset]), kind, **metadata))


@pytest.mark.parametrize(
    ("argument", "message"),
    [
        (
            dg.AssetIn(OUTPUT, dagster_type=int),
            "late, argument value: news/curated_output cannot be passed",
        ),
        (
            dg.AssetIn(EXPORTS, dagster_type=Path),
            "late, argument value: news/exports has the formats parquet, mds",
        ),
    ],
)
def test_what_cannot_be_handed_over_is_refused_when_definitions_load(
    defs: dg.Definitions, argument: dg.AssetIn, message: str
) -> None:
    @dg.asset(ins={"value": argument})
    def late(value): ...

    project = dg.Definitions.merge(defs, dg.Definitions(assets=[rows, looked_at, after, late]))
    assert message in why_refused(project)


def test_a_folder_at_a_url_is_not_handed_over(config: Path) -> None:
    settings = load_settings(config)
    remote = settings.model_copy(
        update={"exports": settings.exports.model_copy(update={"path": Url("s3://bucket/exports")})}
    )
    project = dg.Definitions.merge(
        build_definitions(remote, key_prefix="news"), dg.Definitions(assets=[rows])
    )
    assert "lies at s3://bucket/exports/parquet, but Export needs local files" in why_refused(project)


@pytest.mark.usefixtures("made")
def test_a_notebook_loads_an_asset(defs: dg.Definitions) -> None:
    assert isinstance(defs.load_asset_value(OUTPUT), Results)
    export = defs.load_asset_value(EXPORTS, python_type=Export, metadata={"format": "parquet"})
    assert isinstance(export, Export) and len(export) > 10


def of(*assets: str) -> dg.AssetSelection:
    return dg.AssetSelection.assets(*(["news", asset] for asset in assets))


@pytest.mark.usefixtures("made")
@pytest.mark.parametrize(
    ("given", "selection", "message"),
    [
        (
            {"weights": {"web": 0.5}},
            CURATED,
            "weights is 'web'; expected one of sea.example, kitchen.example",
        ),
        (
            {"weights": {"sea.example": -1.0}},
            CURATED,
            "weights.sea.example is -1.0; expected a finite number",
        ),
        ({"weights": dict.fromkeys(SHARES, 0.0)}, CURATED, "which leaves no share above 0"),
        (
            {"weights": SHARES},
            of("raw_docs"),
            "leaves out repeats, greedy_order, .* exports, .*, which would keep the weights",
        ),
        (
            {"weights": SHARES},
            of("exports"),
            "leaves out repeats, .* curated_output, which would keep the weights",
        ),
        ({"weights": SHARES}, CURATED - of("exports"), "leaves out exports, which would keep the weights"),
        ({"refit": ["k_calibration"]}, of("clusters"), "k_calibration learns, but this run leaves it out"),
        ({"refit": ["bins"]}, of("raw_docs"), "refit names 'bins', which repeats learns"),
    ],
)
def test_what_one_run_may_not_set_is_refused_before_anything_is_made(
    defs: dg.Definitions, instance: dg.DagsterInstance, given: Any, selection: Any, message: str
) -> None:
    result = run(defs, instance, selection, **given)
    assert re.search(message, why_failed(result))
    assert not result.get_asset_materialization_events()


@pytest.mark.parametrize(
    "given", [{"refit": ["cluster"]}, {"weight": {}}, {"weights": {"sea.example": "half"}}]
)
def test_a_run_has_no_other_configuration(
    defs: dg.Definitions, instance: dg.DagsterInstance, given: Any
) -> None:
    with pytest.raises(dg.DagsterInvalidConfigError):
        run(defs, instance, CURATED, **given)


@pytest.mark.parametrize(
    ("sections", "message"),
    [
        ({}, "mixing.weights is unset; expected a table of shares, such"),
        (
            {"mixing": {"weights": "sqrt"}},
            "mixing.weights is 'sqrt', a rule for all values; expected a table",
        ),
    ],
)
def test_shares_of_one_run_are_of_a_table(sections: Any, message: str) -> None:
    with pytest.raises(SettingsError, match=f"the share of 'web' for one run, and {message}"):
        Settings(**sections).weighting({"web": 0.5})


def test_no_other_base_model_under_frozen_tokens() -> None:
    with pytest.raises(SettingsError, match=r"'model', and order.frozen_tokens is 512: .* leave 'model' out"):
        Settings(order={"frozen_tokens": 512}).refitting("bins", "model")


def test_shares_of_one_run_reach_all_that_they_concern_and_the_next_run_goes_back(
    made: dg.ExecuteInProcessResult, defs: dg.Definitions, instance: dg.DagsterInstance, config: Path
) -> None:
    usual, output = versions_of(made), load_results(config.parent / "store")
    assert "news/repeats" not in unsynced(defs, instance)
    result = run(defs, instance, CURATED, weights={"sea.example": 0.1})
    assert result.success
    otherwise = versions_of(result)
    assert {asset.removeprefix("news/") for asset in otherwise if otherwise[asset] != usual[asset]} == {
        "repeats",
        "greedy_order",
        "packed_sequences",
        "sequence_order",
        "diversity_metrics",
        "curated_output",
        "exports",
    }
    documents = output.documents
    tokens = (documents["tokens"] * documents["repeats"]).groupby(documents["source"]).sum() / 4000
    assert tokens["sea.example"] == pytest.approx(0.25, abs=0.01)
    told = metadata_of(result)["news/repeats"]["for_this_run_alone"].value
    assert told == "mixing.weights.sea.example 0.5 -> 0.1"
    # What the settings file says is not what was made: the UI and the plan both say so.
    assert "news/repeats" in unsynced(defs, instance)
    planned = {
        stage.stage: (stage.scope, stage.why) for stage in make_plan(GRAPH, load_settings(config)).stages
    }
    assert planned["repeats"] == planned["sequence_order"] == ("nothing", "kept from other settings")
    assert planned["clusters"] == ("nothing", "up to date")
    assert planned["curated_output"] == ("all", "output.path holds the output of other settings or files")

    back = run(defs, instance, CURATED)
    assert versions_of(back) == {asset: usual[asset] for asset in versions_of(back)}
    assert "news/repeats" not in unsynced(defs, instance)
    assert "for_this_run_alone" not in metadata_of(back)["news/repeats"]
