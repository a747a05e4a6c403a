"""Every ordering strategy: the laws they share, the edge cases, bad input; what shuffles of large
corpora keep, and epochs: each another order, items nearly an epoch apart; prefixes that carry the whole's mix."""

import inspect
import itertools
import re

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from scipy.sparse import csr_matrix

from dagster_divorder.core.order import STRATEGIES
from dagster_divorder.core.order.epochs import BLOCK, BLOCKS, plan_epochs
from dagster_divorder.core.order.strategy import StrategyOptions
from dagster_divorder.errors import InputError
from tests.conftest import examples
from tests.orders import epoch_orders, items_of, order

every_strategy = pytest.mark.parametrize("strategy", STRATEGIES)
quick = settings(deadline=None, max_examples=examples(15))
laws = settings(deadline=None, max_examples=examples(25))


@st.composite
def problems(draw: st.DrawFn) -> tuple[csr_matrix, list[int]]:
    """Random rows: empty ones, stored zeros, unsorted columns, up to three groups in any column order."""
    groups = draw(st.lists(st.integers(0, 2), min_size=1, max_size=8))
    groups = np.unique(groups, return_inverse=True)[1].tolist()
    columns = st.integers(0, len(groups) - 1)
    rows = draw(st.lists(st.dictionaries(columns, st.integers(0, 50) | st.just(10_000)), max_size=25))
    indptr = np.cumsum([0] + [len(row) for row in rows])
    indices = np.array([column for row in rows for column in row], np.int32)
    data = np.array([count for row in rows for count in row.values()], np.int64)
    return csr_matrix((data, indices, indptr), shape=(len(rows), len(groups))), groups


@every_strategy
@given(problem=problems(), seed=st.integers(0, 5))
@example(problem=(csr_matrix((0, 0)), []), seed=0)
@example(problem=(csr_matrix((0, 3)), [0, 0, 0]), seed=0)
@quick
def test_is_a_permutation_and_leaves_its_input_alone(strategy, problem, seed):
    counts, groups = problem
    before = counts.copy()
    result = order(counts, groups, strategy=strategy, seed=seed)
    assert result.dtype == np.int64
    assert sorted(result) == list(range(counts.shape[0]))
    for part in ("data", "indices", "indptr"):
        assert np.array_equal(getattr(counts, part), getattr(before, part))


@pytest.mark.parametrize("strategy", sorted(set(STRATEGIES) - {"original"}))
def test_another_seed_gives_another_order(strategy):
    # More items than the pool of `balanced` holds, and some of each kind.
    lengths, labels = np.tile(np.arange(1, 751), 2), np.tile([0, 1, 2], 500)
    counts = csr_matrix((lengths, labels, np.arange(1501)), shape=(1500, 3))
    assert not np.array_equal(
        order(counts, [0, 0, 0], strategy=strategy, seed=0),
        order(counts, [0, 0, 0], strategy=strategy, seed=1),
    )


@pytest.mark.parametrize("strategy", sorted(set(STRATEGIES) - {"original", "within_shard", "buffer"}))
def test_equal_items_do_not_keep_the_order_of_the_input(strategy):
    """Two kinds of items: the rank correlation of an item's place with its number is within chance, four deviations."""
    counts = csr_matrix(np.tile([[2, 1, 0, 3, 0], [0, 1, 2, 0, 3]], (1500, 1)))
    made = order(counts, [0, 0, 0, 1, 1], strategy=strategy, seed=3)
    for kind in (0, 1):
        numbers = made[made % 2 == kind]
        assert abs(np.corrcoef(numbers, np.arange(len(numbers)))[0, 1]) < 4 / np.sqrt(len(numbers))
        followed = np.diff(numbers) == 2
        assert followed.mean() < 0.02


@every_strategy
def test_options_have_defaults_and_a_line_that_says_what_they_trade(strategy):
    chosen = STRATEGIES[strategy].with_options()
    models = chosen.Options.__mro__[: chosen.Options.__mro__.index(StrategyOptions)]
    source = "".join(map(inspect.getsource, models))
    for name, field in chosen.Options.model_fields.items():
        assert chosen.options[name] == field.default
        assert re.search(rf'    {name}: .*\n    """', source), name


def test_the_label_is_the_largest_value_of_group_0():
    rows = np.array([[0, 9, 1, 0], [5, 9, 0, 5], [0, 9, 0, 0], [0, 9, 0, 2], [3, 0, 7, 1]])
    # Column 1 is another group; item 0 belongs to column 2, item 1 to column 0 (the first of equals), 2 to column 0.
    result = order(csr_matrix(rows), [0, 1, 0, 0], strategy="round_robin", within_cluster="original")
    assert result.tolist() == [1, 0, 3, 2, 4]


GOOD = csr_matrix(np.array([[1, 0, 2], [0, 3, 1]]))
BAD_OPTIONS: dict[str, tuple[dict[str, object], str]] = {
    "strategy": ({"strategy": "balancd"}, "balancd.*balanced"),
    "within_cluster": (
        {"strategy": "stratified", "within_cluster": "length"},
        "within_cluster is 'length'; expected 'random' or 'original'",
    ),
    "negative seed": ({"seed": -1}, "seed is -1"),
    "lambda": ({"strategy": "f2", "f2_lambda": -1}, "f2_lambda is -1; expected greater than or equal to 0"),
    "lambda of true": ({"strategy": "f2", "f2_lambda": True}, "f2_lambda is True; expected a number, not"),
    "block strategy": (
        {"strategy": "block_shuffle", "block_strategy": "f33"},
        "block_strategy is 'f33'; expected 'balanced', 'f1', 'f2' or 'f3'",
    ),
    "no options": ({"shards": 3}, "'balanced' has no option 'shards'; it has none"),
    "unknown option": (
        {"strategy": "buffer", "bufer": 3},
        "'buffer' has no option 'bufer'; its options are buffer; did you mean 'buffer'",
    ),
    "too many shards": ({"strategy": "within_shard", "shards": 2**62}, "shards is 46.*904; expected"),
}


@pytest.mark.parametrize(("options", "message"), BAD_OPTIONS.values(), ids=BAD_OPTIONS)
def test_a_bad_option_is_named(options, message):
    with pytest.raises(InputError, match=message):
        order(GOOD, [0, 0, 1], **options)


def test_counts_that_cannot_be_used_are_refused():
    with pytest.raises(InputError, match="coarser unit"):
        order(GOOD * 2**61, [0, 0, 1])
    with pytest.raises(InputError, match=r"item 0 has 0\.3 tokens"):
        order(GOOD * 0.3, [0, 0, 1], strategy="token_share_greedy")


def sorted_corpus(items: int, values: int = 8) -> tuple[csr_matrix, list[int]]:
    """Items of one token, sorted by trait value, as a corpus read source by source is."""
    codes = np.arange(items) * values // items
    return csr_matrix((np.ones(items, int), codes, np.arange(items + 1)), shape=(items, values)), [0] * values


@pytest.mark.parametrize("strategy", [None, "f1", "f3"])
@given(items=st.integers(1, 300), batch=st.integers(1, 40), seed=st.integers(0, 3))
@laws
def test_block_shuffle_keeps_the_batches_of_the_other_strategy(strategy, items, batch, seed):
    corpus = sorted_corpus(items, min(4, items))
    options = {"seed": seed}
    other = order(*corpus, strategy=strategy or "balanced", **options).tolist()
    named = {"block_strategy": strategy} if strategy else {}
    shuffled = order(*corpus, strategy="block_shuffle", batch=batch, **named, **options).tolist()
    whole = items // batch * batch
    blocks = {tuple(other[i : i + batch]) for i in range(0, whole, batch)}
    assert {tuple(shuffled[i : i + batch]) for i in range(0, whole, batch)} == blocks
    assert shuffled[whole:] == other[whole:]


@given(items=st.integers(1, 300), shards=st.integers(1, 40), seed=st.integers(0, 3))
@laws
def test_within_shard_lets_no_item_leave_its_shard(items, shards, seed):
    made = order(*sorted_corpus(items, 1), strategy="within_shard", shards=shards, seed=seed)
    home = np.arange(items) * shards // items
    assert np.array_equal(home[made], home)


@given(items=st.integers(1, 300), buffer=st.integers(1, 400), seed=st.integers(0, 3))
@laws
def test_the_buffer_moves_no_item_far_forward(items, buffer, seed):
    made = order(*sorted_corpus(items, 1), strategy="buffer", buffer=buffer, seed=seed)
    assert sorted(made) == list(range(items)) and (made - np.arange(items) < buffer).all()


@pytest.mark.parametrize("shards", [1, 2, 3, 16, 61, 64, 1000])
def test_the_grid_shuffle_brings_items_everywhere(shards):
    """The mean distance between place and item is that of a shuffle, a third of all, whatever the grid's shape."""
    moved = [
        np.abs(
            order(*sorted_corpus(600, 1), strategy="grid_shuffle", shards=shards, seed=seed) - np.arange(600)
        )
        for seed in range(10)
    ]
    assert np.mean(moved) == pytest.approx(200, rel=0.06)


def sequences(items: int, values: int = 12) -> tuple[csr_matrix, np.ndarray]:
    """Items of 100 tokens over two trait groups."""
    random = np.random.default_rng(items)
    parts = [random.multinomial(100, random.dirichlet(np.full(values, 0.3)), items) for _ in range(2)]
    return csr_matrix(np.concatenate(parts, axis=1)), np.repeat([0, 1], values)


@every_strategy
@given(items=st.integers(1, 200), seed=st.integers(0, 2))
@settings(max_examples=examples(10), deadline=None)
def test_every_epoch_is_a_permutation_and_the_first_is_the_strategys(strategy, items, seed):
    counts, groups = sequences(items, 3)
    options = {"strategy": strategy, "seed": seed}
    orders = epoch_orders(counts, groups, 3, **options)
    assert orders.shape == (3, items)
    assert orders.dtype == np.int64
    assert (np.sort(orders, axis=1) == np.arange(items)).all()
    assert np.array_equal(orders[0], order(counts, groups, **options))
    assert np.array_equal(orders[:2], epoch_orders(counts, groups, 2, **options))


def test_a_first_epoch_that_is_given_has_its_blocks_ordered_anew():
    counts, groups = sequences(200, 3)
    first = np.random.default_rng(0).permutation(200)
    plan = plan_epochs(items_of(counts, groups), first=first)
    assert plan.order(0) is first
    blocks = [
        np.sort(made.reshape(-1)[begin:end])
        for made in (first, plan.order(1))
        for begin, end in itertools.pairwise(np.arange(7) * 200 // 6)
    ]
    half = len(blocks) // 2
    assert half == 200 // BLOCK
    assert all((one == other).all() for one, other in zip(blocks[:half], blocks[half:], strict=True))


@pytest.mark.slow
@every_strategy
@pytest.mark.parametrize("items", [BLOCK, 3000])
def test_an_item_comes_again_after_nearly_an_epoch(strategy, items):
    counts, groups = sequences(items)
    orders = epoch_orders(counts, groups, 3, strategy=strategy, batch=16)
    moved = np.diff(np.argsort(orders, axis=1), axis=0)
    blocks = min(BLOCKS, items // BLOCK)
    assert moved.min() > -items / blocks - 16
    # Another order each time, not the same one again.
    assert (moved == 0).mean() < 0.25


def packed_sequences(n_items: int) -> tuple[csr_matrix, np.ndarray]:
    """2048 tokens of three documents each, 100 clusters of uneven size and 20 length bins."""
    random = np.random.default_rng(0)
    cuts = np.sort(random.integers(1, 2048, (n_items, 2)), axis=1)
    tokens = np.diff(cuts, axis=1, prepend=0, append=2048)
    clusters = random.choice(100, (n_items, 3), p=random.dirichlet(np.ones(100)))
    columns = np.concatenate([clusters, 100 + random.integers(0, 20, (n_items, 3))], axis=1)
    rows = np.arange(n_items).repeat(6)
    counts = csr_matrix((np.tile(tokens, 2).ravel(), (rows, columns.ravel())), shape=(n_items, 120))
    return counts, np.repeat([0, 1], [100, 20])


def test_items_far_from_the_mix_do_not_gather_at_an_end():
    """A tenth of the sequences are of one cluster each; exact f3 leaves them for the end."""
    counts, groups = packed_sequences(4_000)
    rows = counts.toarray()
    pure = np.arange(0, 4000, 10)
    for item, cluster in zip(pure, np.random.default_rng(1).integers(0, 100, len(pure)), strict=True):
        rows[item, :100] = 0
        rows[item, cluster] = 2048
    drifting, even = (
        np.isin(order(csr_matrix(rows), groups, strategy=strategy), pure).reshape(10, 400).sum(axis=1)
        for strategy in ("f3", "balanced")
    )
    assert drifting[0] < 10 and drifting[-1] > 80
    assert ((even - 40) ** 2 / 40).sum() / 9 < 1.5


def test_what_coordinates_tell_is_balanced_within_rows_that_are_equal():
    """A hidden trait that drifts with the input: rows say nothing of it, one coordinate does."""
    random = np.random.default_rng(0)
    counts = csr_matrix((np.full(4000, 10), random.integers(0, 5, 4000), np.arange(4001)), shape=(4000, 5))
    hidden = random.normal(size=(4000, 3)) + np.linspace(-2, 2, 4000)[:, np.newaxis]
    batches = {
        name: np.linalg.norm(hidden[made].reshape(40, 100, 3).mean(axis=1), axis=1).mean()
        for name, made in (
            ("shuffled", order(counts, [0] * 5, strategy="random")),
            ("balanced", order(counts, [0] * 5)),
            ("balanced with coordinates", order(counts, [0] * 5, coordinates=10 * hidden)),
            ("f3 with coordinates", order(counts, [0] * 5, strategy="f3", coordinates=10 * hidden)),
        )
    }
    assert batches["balanced"] < 1.3 * batches["shuffled"]
    assert batches["balanced with coordinates"] < 0.15 * batches["shuffled"]
    assert batches["f3 with coordinates"] < 0.15 * batches["shuffled"]
