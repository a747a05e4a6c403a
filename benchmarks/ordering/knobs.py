"""What each knob of `balanced` and of `document_items` does on a real corpus, one at a time.

python benchmarks/ordering/knobs.py --arrays CORPUS.npz      (or --store STORE; see documents.py)
"""

from itertools import chain

from documents import HEADER, Corpus, arguments, row

from dagster_divorder.core.order import balanced, items, order
from dagster_divorder.core.order.items import document_items

SWEEPS = {
    "DOCUMENT_WEIGHT": (items, (1.0, 30.0, 100.0, 300.0, 1000.0)),
    "COARSE_LENGTH_BINS": (items, (1, 4, 8, 16, 32)),
    "PASSES": (balanced, (0, 2, 4, 8, 16)),
    "MIN_POOL": (balanced, (1, 64, 256, 1024, 4096)),
    "LENGTH_WEIGHT": (balanced, (0.0, 0.02, 0.15, 0.5, 1.5)),
}


def main() -> None:
    options = arguments(__doc__).parse_args()
    print(HEADER)
    for length_bins in options.length_bins:
        corpus = Corpus(options, length_bins)
        for name, value in chain.from_iterable([(n, v) for v in values] for n, (_, values) in SWEEPS.items()):
            module = SWEEPS[name][0]
            default = getattr(module, name)
            setattr(module, name, value)
            try:
                made = document_items(corpus.tokens, corpus.codes)
                result = corpus.measure(
                    lambda seed, made=made: order(made, seed=seed),
                    options.seeds,
                )
            finally:
                setattr(module, name, default)
            mark = " (default)" if value == default else ""
            print(row(f"{name} = {value:g}{mark}", length_bins, *result), flush=True)


if __name__ == "__main__":
    main()
