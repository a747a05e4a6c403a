"""The stages, one a file. A stage is registered here, in an order in which all of them can run."""

from dagster_divorder.pipeline.graph import Graph
from dagster_divorder.stages.ari_comparison import ARI_COMPARISON
from dagster_divorder.stages.base_model import BASE_MODEL
from dagster_divorder.stages.bin_edges import BIN_EDGES
from dagster_divorder.stages.centroids import CENTROIDS
from dagster_divorder.stages.cluster_map import CLUSTER_MAP
from dagster_divorder.stages.cluster_names import CLUSTER_NAMES
from dagster_divorder.stages.cluster_table import CLUSTER_TABLE
from dagster_divorder.stages.clusters import CLUSTERS
from dagster_divorder.stages.components import COMPONENTS
from dagster_divorder.stages.curated_output import CURATED_OUTPUT
from dagster_divorder.stages.deep_embeddings import DEEP_EMBEDDINGS
from dagster_divorder.stages.deep_model import DEEP_MODEL, GRADIENT_MODEL
from dagster_divorder.stages.difficulty import DIFFICULTY
from dagster_divorder.stages.difficulty_counts import DIFFICULTY_COUNTS
from dagster_divorder.stages.diversity_metrics import DIVERSITY_METRICS
from dagster_divorder.stages.exports import EXPORTS
from dagster_divorder.stages.external_embeddings import EXTERNAL_EMBEDDINGS
from dagster_divorder.stages.fields import FIELDS
from dagster_divorder.stages.frozen import FROZEN
from dagster_divorder.stages.gradient_embeddings import GRADIENT_EMBEDDINGS
from dagster_divorder.stages.gradient_proxy import GRADIENT_PROXY
from dagster_divorder.stages.greedy_order import GREEDY_ORDER
from dagster_divorder.stages.heldout import HELDOUT
from dagster_divorder.stages.heldout_copies import HELDOUT_COPIES
from dagster_divorder.stages.ids import IDS
from dagster_divorder.stages.k_calibration import K_CALIBRATION
from dagster_divorder.stages.map_fit import MAP_FIT
from dagster_divorder.stages.minhash import MINHASH
from dagster_divorder.stages.near_duplicates import NEAR_DUPLICATES
from dagster_divorder.stages.ordering_animation import ORDERING_ANIMATION
from dagster_divorder.stages.ordering_report import ORDERING_REPORT
from dagster_divorder.stages.packed_sequences import PACKED_SEQUENCES
from dagster_divorder.stages.quality_scores import QUALITY_SCORES
from dagster_divorder.stages.raw_docs import RAW_DOCS
from dagster_divorder.stages.repeats import REPEATS
from dagster_divorder.stages.sequence_order import SEQUENCE_ORDER
from dagster_divorder.stages.set_diversity import SET_DIVERSITY
from dagster_divorder.stages.shallow_embeddings import SHALLOW_EMBEDDINGS
from dagster_divorder.stages.stationarity import STATIONARITY
from dagster_divorder.stages.strategy_comparison import STRATEGY_COMPARISON
from dagster_divorder.stages.subset_selection import SUBSET_SELECTION
from dagster_divorder.stages.token_counts import TOKEN_COUNTS
from dagster_divorder.stages.training_evidence import TRAINING_EVIDENCE
from dagster_divorder.stages.traits import TRAITS

GRAPH = Graph(
    (
        RAW_DOCS,
        IDS,
        BASE_MODEL,
        TOKEN_COUNTS,
        SHALLOW_EMBEDDINGS,
        DEEP_MODEL,
        DEEP_EMBEDDINGS,
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
        BIN_EDGES,
        TRAITS,
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
        DIVERSITY_METRICS,
        CURATED_OUTPUT,
        EXPORTS,
        STRATEGY_COMPARISON,
        SET_DIVERSITY,
        TRAINING_EVIDENCE,
        ORDERING_ANIMATION,
        ORDERING_REPORT,
    )
)
