"""Arrays of a corpus for `within.py`, from its text, with stand-in tokens and clusters.

    python benchmarks/ordering/corpora.py newsgroups.jsonl.gz newsgroups.npz --label label --tokens words
    python benchmarks/ordering/corpora.py mixture.jsonl.gz mixture.npz
    python benchmarks/ordering/corpora.py .venv/lib/python3.11/site-packages docstrings.npz

A folder stands for the docstrings of its Python files, labelled by package. Tokens: byte-level BPE, 16,384, trained on
10 MB; with `--tokens words`, lengths are counted in words between spaces. Clusters: TF-IDF of the tokens, 64 dims of a
truncated SVD, k-means with k = 30; `other` with k = 60 and another seed. words: tokens in 1,024 buckets, CSR. vectors:
the directions in 64 dims, float32.
"""

import argparse
import ast
import gzip
import json
import random
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from scipy.sparse import csr_matrix

SAMPLE, AT_ONCE, BUCKETS = 10_000_000, 2_000, 1_024


def documents(source: Path, label: str) -> Iterator[tuple[str, str]]:
    """(text, label) of each document."""
    if source.is_dir():
        for path in sorted(source.rglob("*.py")):
            try:
                nodes = ast.walk(ast.parse(path.read_bytes()))
            except (SyntaxError, ValueError):
                continue
            for node in nodes:
                documented = isinstance(
                    node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
                )
                if documented and (text := ast.get_docstring(node)):
                    yield text, path.relative_to(source).parts[0]
        return
    with (gzip.open if source.suffix == ".gz" else open)(source, "rt", encoding="utf-8") as lines:
        for record in map(json.loads, lines):
            yield record["text"], str(record[label])


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("source", type=Path)
    parser.add_argument("arrays", type=Path)
    parser.add_argument("--label", default="source")
    parser.add_argument("--tokens", choices=["bpe", "words"], default="bpe")
    options = parser.parse_args()

    from sklearn.cluster import MiniBatchKMeans
    from sklearn.decomposition import TruncatedSVD
    from sklearn.feature_extraction.text import TfidfTransformer
    from sklearn.preprocessing import normalize
    from tokenizers import ByteLevelBPETokenizer

    texts, labels = zip(*documents(options.source, options.label), strict=True)
    sample, size = [], 0
    for at in random.Random(0).sample(range(len(texts)), len(texts)):
        sample.append(texts[at][:20_000])
        size += len(sample[-1])
        if size > SAMPLE:
            break
    tokenizer = ByteLevelBPETokenizer()
    tokenizer.train_from_iterator(sample, vocab_size=16_384, show_progress=False)
    tokens, indices, data = [], [], []
    for first in range(0, len(texts), AT_ONCE):
        for encoding in tokenizer.encode_batch(list(texts[first : first + AT_ONCE])):
            ids, counts = np.unique(np.array(encoding.ids, np.int32), return_counts=True)
            tokens.append(len(encoding.ids))
            indices.append(ids)
            data.append(counts)
    indptr = np.cumsum([0, *map(len, indices)])
    counts = csr_matrix(
        (np.concatenate(data), np.concatenate(indices), indptr),
        shape=(len(texts), tokenizer.get_vocab_size()),
    )
    weighed = TfidfTransformer(sublinear_tf=True).fit_transform(counts)
    vectors = normalize(TruncatedSVD(64, random_state=0).fit_transform(weighed))
    cluster, other = (
        MiniBatchKMeans(k, random_state=seed, batch_size=4096, n_init=3).fit_predict(vectors)
        for seed, k in ((0, 30), (1, 60))
    )
    words = csr_matrix(
        (counts.data, counts.indices.astype(np.int64) * 2_654_435_761 % 2**32 % BUCKETS, indptr),
        (len(texts), BUCKETS),
    )
    words.sum_duplicates()
    if options.tokens == "words":
        tokens = [len(text.split()) for text in texts]
    np.savez_compressed(
        options.arrays,
        tokens=np.array(tokens, np.int64),
        label=np.unique(labels, return_inverse=True)[1].astype(np.int32),
        cluster=cluster.astype(np.int32),
        other=other.astype(np.int32),
        vectors=vectors.astype(np.float32),
        word_indptr=words.indptr,
        word_indices=words.indices.astype(np.int32),
        word_data=words.data.astype(np.int32),
    )
    print(f"{len(tokens):,} documents, {sum(tokens):,} tokens, {len(set(labels))} labels")


if __name__ == "__main__":
    main()
