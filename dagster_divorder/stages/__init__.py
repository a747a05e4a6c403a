"""The stages, one a file. A stage is registered here, in an order in which all of them can run."""

from collections.abc import Iterable

from dagster_divorder.corpus.formats import recognised
from dagster_divorder.engine.progress import Progress
from dagster_divorder.pipeline.graph import Graph
from dagster_divorder.pipeline.run import Receipts, Run, run_graph
from dagster_divorder.settings import Settings
from dagster_divorder.stages.corpus.fields import FIELDS
from dagster_divorder.stages.corpus.ids import IDS
from dagster_divorder.stages.corpus.minhash import MINHASH
from dagster_divorder.stages.corpus.near_duplicates import NEAR_DUPLICATES
from dagster_divorder.stages.corpus.raw_docs import RAW_DOCS
from dagster_divorder.stages.evidence.curriculum_comparison import CURRICULUM_COMPARISON
from dagster_divorder.stages.evidence.gradient_proxy import GRADIENT_PROXY
from dagster_divorder.stages.evidence.strategy_comparison import STRATEGY_COMPARISON
from dagster_divorder.stages.evidence.training_evidence import TRAINING_EVIDENCE
from dagster_divorder.stages.measure.diversity_metrics import DIVERSITY_METRICS
from dagster_divorder.stages.measure.schedule import SCHEDULE
from dagster_divorder.stages.measure.set_diversity import SET_DIVERSITY
from dagster_divorder.stages.measure.stationarity import STATIONARITY
from dagster_divorder.stages.mix.heldout import HELDOUT
from dagster_divorder.stages.mix.heldout_copies import HELDOUT_COPIES
from dagster_divorder.stages.mix.repeats import REPEATS
from dagster_divorder.stages.mix.subset_selection import SUBSET_SELECTION
from dagster_divorder.stages.order.bin_edges import BIN_EDGES
from dagster_divorder.stages.order.frozen import FROZEN
from dagster_divorder.stages.order.greedy_order import GREEDY_ORDER
from dagster_divorder.stages.order.packed_sequences import PACKED_SEQUENCES
from dagster_divorder.stages.order.scores import SCORES
from dagster_divorder.stages.order.sequence_order import SEQUENCE_ORDER
from dagster_divorder.stages.order.traits import TRAITS
from dagster_divorder.stages.output.curated_output import CURATED_OUTPUT
from dagster_divorder.stages.output.exports import EXPORTS
from dagster_divorder.stages.output.ordering_animation import ORDERING_ANIMATION
from dagster_divorder.stages.output.ordering_report import ORDERING_REPORT
from dagster_divorder.stages.text.base_model import BASE_MODEL
from dagster_divorder.stages.text.difficulty import DIFFICULTY
from dagster_divorder.stages.text.difficulty_counts import DIFFICULTY_COUNTS
from dagster_divorder.stages.text.loss import LOSS
from dagster_divorder.stages.text.quality_scores import QUALITY_SCORES
from dagster_divorder.stages.text.text_statistics import TEXT_STATISTICS
from dagster_divorder.stages.text.token_counts import TOKEN_COUNTS
from dagster_divorder.stages.topics.ari_comparison import ARI_COMPARISON
from dagster_divorder.stages.topics.centroids import CENTROIDS
from dagster_divorder.stages.topics.cluster_map import CLUSTER_MAP
from dagster_divorder.stages.topics.cluster_names import CLUSTER_NAMES
from dagster_divorder.stages.topics.cluster_table import CLUSTER_TABLE
from dagster_divorder.stages.topics.clusters import CLUSTERS
from dagster_divorder.stages.topics.components import COMPONENTS
from dagster_divorder.stages.topics.deep_embeddings import DEEP_EMBEDDINGS
from dagster_divorder.stages.topics.deep_model import DEEP_MODEL, GRADIENT_MODEL
from dagster_divorder.stages.topics.external_embeddings import EXTERNAL_EMBEDDINGS
from dagster_divorder.stages.topics.gradient_embeddings import GRADIENT_EMBEDDINGS
from dagster_divorder.stages.topics.k_calibration import K_CALIBRATION
from dagster_divorder.stages.topics.map_fit import MAP_FIT
from dagster_divorder.stages.topics.shallow_embeddings import SHALLOW_EMBEDDINGS
from dagster_divorder.store.connect import store_of
from dagster_divorder.store.state import Receipt

GRAPH = Graph(
    (
        RAW_DOCS,
        IDS,
        BASE_MODEL,
        TOKEN_COUNTS,
        SHALLOW_EMBEDDINGS,
        DEEP_MODEL,
        DEEP_EMBEDDINGS,
        LOSS,
        GRADIENT_MODEL,
        GRADIENT_EMBEDDINGS,
        GRADIENT_PROXY,
        EXTERNAL_EMBEDDINGS,
        *COMPONENTS,
        ARI_COMPARISON,
        K_CALIBRATION,
        CENTROIDS,
        CLUSTERS,
        CLUSTER_NAMES,
        CLUSTER_TABLE,
        MAP_FIT,
        CLUSTER_MAP,
        FIELDS,
        DIFFICULTY_COUNTS,
        DIFFICULTY,
        TEXT_STATISTICS,
        BIN_EDGES,
        TRAITS,
        SCORES,
        MINHASH,
        HELDOUT,
        HELDOUT_COPIES,
        QUALITY_SCORES,
        NEAR_DUPLICATES,
        SUBSET_SELECTION,
        REPEATS,
        FROZEN,
        GREEDY_ORDER,
        PACKED_SEQUENCES,
        SEQUENCE_ORDER,
        STATIONARITY,
        EXPORTS,
        SCHEDULE,
        DIVERSITY_METRICS,
        CURATED_OUTPUT,
        STRATEGY_COMPARISON,
        CURRICULUM_COMPARISON,
        SET_DIVERSITY,
        TRAINING_EVIDENCE,
        ORDERING_ANIMATION,
        ORDERING_REPORT,
    )
)


def run_all(
    settings: Settings, progress: Progress | None = None, stages: Iterable[str] | None = None
) -> Receipts:
    """Run stages in order, by default all that an output needs, alone on the store throughout.

    Without new input nothing is computed. A second run on the same store waits for this one, or fails, as `store.wait`
    says. If a stage meets a damaged file, that is made again with a note, if need be by the stages before it.

    Raises:
        DivOrderError: says what is wrong, what was expected and what to do.
    """
    return run_graph(GRAPH, recognised(settings), progress, stages)


def run_stage(stage: str, settings: Settings, progress: Progress | None = None) -> Receipt:
    """Run one stage, with its parts, on the stored results of the stages before it; see `run_all`."""
    return run_all(settings, progress, GRAPH.step(settings, stage))[stage]


def open_run(settings: Settings) -> Run:
    """The results that the last run left in the store of these settings, to read.

    Raises:
        StoreError: the place of the store holds other files, or a store of another version.
    """
    return Run(recognised(settings), store_of(settings.store).open(create=False), GRAPH)
