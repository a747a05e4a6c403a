"""Topics of single examples, fitted once to a sample: a trait for streams.

Letters: N examples, D dims, k topics.

Texts become vectors of their words, without a model (`core/vectors/text_vectors.py`); given vectors are scaled to
length 1. Both are clustered by spherical k-means (`core/topics/cluster.py`).

Guarantee: the same sample in the same order, k and seed give the same topics, whatever the number of threads; the topic
of an example depends only on it and the fitted topics.
Cost: docs/decisions/topics.md.
Known weakness: a text with no word of the sample gets topic 0.
"""

from __future__ import annotations

import json
import os
import random
import uuid
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import asdict, dataclass, replace
from hashlib import blake2b
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dagster_divorder.core.checks import whole_number
from dagster_divorder.core.topics.cluster import ClusterFit, assign, fit, most_points
from dagster_divorder.core.topics.terms import characteristic_terms, count_words, short_names
from dagster_divorder.core.vectors import text_vectors
from dagster_divorder.core.vectors.text_vectors import TextVectors, beginning
from dagster_divorder.core.vectors.unit import unit_rows
from dagster_divorder.errors import InputError, StoreError

VERSION = 1
"""Version of the file format."""
METADATA = "divorder.topics"

SAMPLE = 20_000
"""Examples of a sample that are kept, drawn at random; more if k-means uses more."""
BLOCK_TEXTS = 4096


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class Topics:
    """Topics of texts or of vectors, as `fit_topics` returns them. Topic 0 is the largest in the sample.

    names: k strings, the words that set a topic apart from the others, such as "bread, oven, yeast"; () for topics of
    vectors. Topics can be pickled; `save` writes them as safetensors.
    """

    clusters: ClusterFit
    names: tuple[str, ...]
    texts: TextVectors | None

    @property
    def k(self) -> int:
        """The number of topics."""
        return len(self.clusters.centroids)

    def predict(self, examples: Iterable[str] | ArrayLike) -> NDArray[np.int32]:
        """The topic of each example, int32 (N,) in [0, k).

        examples: any iterable of strings; or numbers (N, D) if the topics were fitted to vectors.

        A text with no word of the vocabulary gets topic 0, and so does a vector of zeros.

        Raises:
            InputError: a single text or vector, a table, a text that is not a string, vectors of another D, NaN or
                infinity.
        """
        several = _several(examples)
        if self.texts is None:
            return self._labels(
                self._units(several if isinstance(several, np.ndarray) else _stacked(list(several)))
            )
        labels, first, iterator = [np.empty(0, np.int32)], 0, iter(several)
        while block := list(islice(iterator, BLOCK_TEXTS)):
            labels.append(self._labels(self.texts.vectors(_texts(block, first))))
            first += len(block)
        return np.concatenate(labels)

    def __call__(self, example: str | ArrayLike) -> int:
        """The topic of one example, a string or a vector (D,), as `predict` gives it.

        Raises:
            InputError: as `predict`.
        """
        if self.texts is None:
            return int(self._labels(self._units(_stacked([example])))[0])
        return int(self._labels(self.texts.vectors(_texts([example])))[0])

    def _units(self, vectors: NDArray[Any]) -> NDArray[np.float32]:
        dims = len(self.clusters.centre)
        if len(vectors) and vectors.shape[1] != dims:
            raise InputError(
                f"the vectors have {vectors.shape[1]} dims and the topics are of vectors with {dims}; embed with the "
                "same model as the sample, or fit the topics again"
            )
        return _unit(vectors).reshape(len(vectors), dims)

    def _labels(self, units: NDArray[np.float32]) -> NDArray[np.int32]:
        # A vector at the centre gets label 0.
        units[~units.any(axis=1)] = self.clusters.centre
        return assign(units, self.clusters)[0]

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the topics to a file, atomically, and replaces an existing one. The same topics give the same bytes.

        Raises:
            StoreError: the file cannot be written.
        """
        path = Path(path)
        temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
        try:
            temporary.write_bytes(_pack(self))
            os.replace(temporary, path)
        except OSError as error:
            temporary.unlink(missing_ok=True)
            raise StoreError(
                f"topics cannot be written to {path}: {error.strerror}; name a file in a folder that exists and has "
                "room"
            ) from error

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Topics:
        """Reads topics that `save` wrote.

        Raises:
            InputError: the file cannot be read.
            StoreError: the file holds no topics or topics of another version, or is damaged.
        """
        try:
            data = Path(path).read_bytes()
        except OSError as error:
            raise InputError(
                f"topics cannot be read from {path}: {error.strerror}; expected a file that Topics.save wrote"
            ) from error
        return _unpack(data, str(path))

    def __reduce__(self) -> tuple[Any, ...]:
        return _unpack, (_pack(self), "the pickle")

    def __repr__(self) -> str:
        return f"Topics(k={self.k}, of {'vectors' if self.texts is None else 'texts'})"


def fit_topics(sample: Iterable[str] | ArrayLike, k: int = 30, *, seed: int = 0) -> Topics:
    """Fits k topics to a sample of a stream; they make a trait for `balance`.

    sample: any iterable of strings, or numbers (N, D). It is read once, to its end; 20,000 random examples are kept, or
    256 k if that is more. Only the first 16,384 characters of a text count. Texts without words and vectors of zeros
    are left out.

    Raises:
        InputError: the sample has fewer distinct examples than k, is a single text or a table, mixes texts with others,
            or has rows of different lengths, NaN or infinity; k is below 1; seed is outside [0, 2**63).

    >>> sample = ["tide and wave", "oven and bread", "a tide, a wave", "bread, oven", "wave, sea, tide"]
    >>> topics = fit_topics(sample, k=2)
    >>> topics.names
    ('tide, wave', 'bread, oven')
    >>> topics.predict(["a wave of the tide", "the sea", "an oven for bread"])
    array([0, 0, 1], dtype=int32)
    """
    k, seed = whole_number("k", k, 1), whole_number("seed", seed, 0, (1 << 63) - 1)
    kept = _drawn(sample, max(SAMPLE, most_points(k, "faiss")), seed)
    texts = None
    if isinstance(kept, np.ndarray):
        units = _unit(kept)
    else:
        import pyarrow as pa

        words = count_words(pa.array(kept, pa.large_string()))
        texts = text_vectors.fit(kept, words, seed=seed)
        units = texts.vectors(kept)
    directed = units.any(axis=1)
    if directed.sum() < k:
        useless = "vectors of zeros" if texts is None else "texts without a word"
        raise InputError(
            f"the sample has {len(units)} examples, {len(units) - directed.sum()} of them {useless}, and k is {k}; "
            "expected at least k usable ones: give a larger sample or a smaller k"
        )
    clusters = fit(units[directed], k, seed=seed)
    if clusters.note:
        raise InputError(f"{clusters.note}; give a larger sample or a smaller k")
    topics = Topics(clusters=clusters, names=(), texts=texts)
    if texts is None:
        return topics
    names = short_names(characteristic_terms(words, topics._labels(units), k))
    return replace(topics, names=tuple(names))


def _drawn(sample: Iterable[str] | ArrayLike, most: int, seed: int) -> list[str] | NDArray[Any]:
    """At most `most` random examples of a sample: beginnings of texts, or vectors (n, D)."""
    several = _several(sample)
    if isinstance(several, np.ndarray):
        if len(several) > most:
            several = several[np.sort(np.random.default_rng(seed).choice(len(several), most, replace=False))]
        return several
    # Vitter's algorithm R: at any time each example so far is kept with the same probability.
    kept: list[Any] = []
    rng = random.Random(seed)
    of_texts = False
    for number, example in enumerate(several):
        of_texts = of_texts or (not number and isinstance(example, str))
        if of_texts:
            example = beginning(*_texts([example], number))
        if number < most:
            kept.append(example)
        elif (place := int(rng.random() * (number + 1))) < most:
            kept[place] = example
    if not kept:
        raise InputError("the sample is empty; expected texts or vectors, k of them or more")
    return kept if of_texts else _stacked(kept)


def _several(examples: Any) -> Any:
    """Vectors (N, D) as an array, other examples as an iterator."""
    # Iterating over a table gives its columns; the order of a set differs from process to process.
    refused = isinstance(examples, str | bytes | Mapping | Set)
    refused |= hasattr(examples, "columns") or hasattr(examples, "column_names")
    shape = getattr(examples, "shape", None)
    if refused or shape == () or not hasattr(examples, "__iter__"):
        raise InputError(
            f"the examples are {_shown(examples)}; expected several texts or vectors in an order of their own: a list, "
            "an array, a column of a table, a generator. topics(example) gives the topic of one"
        )
    if hasattr(examples, "to_pylist"):  # Arrow scalars are not strings.
        return iter(examples.to_pylist())
    return _numbers(examples, "the array", 2) if shape is not None and len(shape) == 2 else iter(examples)


def _texts(examples: Sequence[Any], first: int = 0) -> Sequence[str]:
    for number, example in enumerate(examples, first):
        if not isinstance(example, str):
            raise InputError(
                f"example {number} is {_shown(example)}; topics of texts take a str: decode bytes, and leave out "
                'examples without text, or give ""'
            )
    return examples


def _stacked(examples: Sequence[Any]) -> NDArray[Any]:
    rows = [_numbers(example, f"example {number}", 1) for number, example in enumerate(examples)]
    for number, row in enumerate(rows):
        if len(row) != len(rows[0]):
            raise InputError(
                f"example {number} has {len(row)} numbers and example 0 has {len(rows[0])}; expected "
                "the same number in each"
            )
    return np.stack(rows) if rows else np.empty((0, 0))


def _numbers(value: Any, name: str, dims: int) -> NDArray[Any]:
    """A value as a C-contiguous array with `dims` axes; only the first of two axes may be empty."""
    try:
        array = np.asarray(value)
    except (TypeError, ValueError, RuntimeError):
        array = np.array(None)
    if array.dtype.kind in "fiu" and array.ndim == dims and array.shape[-1]:
        return np.ascontiguousarray(array)
    shown = (
        _shown(value) if array.dtype == object or not array.ndim else f"{array.dtype} of shape {array.shape}"
    )
    raise InputError(
        f"{name} is {shown}; expected numbers {'(N, D)' if dims == 2 else '(D,)'}, or a str where topics are of texts; "
        "a tensor as tensor.detach().float().cpu().numpy()"
    )


def _shown(value: Any) -> str:
    return "None" if value is None else f"a {type(value).__name__}, {' '.join(repr(value).split())[:80]}"


def _unit(vectors: NDArray[Any]) -> NDArray[np.float32]:
    bad = np.flatnonzero(~np.isfinite(vectors).all(axis=1))
    if len(bad):
        raise InputError(
            f"vector {bad[0]} holds NaN or infinity; expected finite numbers: embed it again or leave it out"
        )
    return unit_rows(vectors) if len(vectors) else np.empty(vectors.shape, np.float32)


def _pack(topics: Topics) -> bytes:
    """The topics as safetensors: arrays, and everything else in one entry of the metadata."""
    from safetensors.numpy import save

    clusters = asdict(topics.clusters)
    arrays = {name: clusters.pop(name) for name in ("centre", "centroids", "sizes")}
    kind = "vectors" if topics.texts is None else "texts"
    if topics.texts is not None:
        arrays |= {f"texts.{name}": array for name, array in asdict(topics.texts).items()}
    info = {"version": VERSION, "kind": kind, "names": list(topics.names), "clusters": clusters}
    return save(arrays, {METADATA: json.dumps({**info, "hash": _hash(info, arrays)})})


def _unpack(data: bytes, where: str) -> Topics:
    from safetensors.numpy import load

    try:
        size = int.from_bytes(data[:8], "little")
        info = json.loads(json.loads(data[8 : 8 + size])["__metadata__"][METADATA])
        version, hashed = info["version"], info.pop("hash")
    except (ValueError, KeyError, TypeError):
        raise StoreError(
            f"{where} holds no topics, or its header is damaged; expected a file that Topics.save wrote: copy it "
            "again, or fit the topics again"
        ) from None
    if version != VERSION:
        raise StoreError(
            f"{where} holds topics of version {version} and this package reads version {VERSION}; fit them again, or "
            "use the package that wrote them"
        )
    try:
        arrays: dict[str, Any] = {name: np.array(array) for name, array in load(data).items()}
    except Exception as error:  # safetensors has no common base class of errors
        arrays, hashed = {}, repr(error)
    if hashed != _hash(info, arrays):
        raise StoreError(f"{where} is damaged: its hash differs; copy it again, or fit the topics again")
    texts = {
        name.removeprefix("texts."): arrays.pop(name) for name in list(arrays) if name.startswith("texts.")
    }
    return Topics(
        clusters=ClusterFit(**arrays, **info["clusters"]),
        names=tuple(info["names"]),
        texts=TextVectors(**texts) if texts else None,
    )


def _hash(info: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]) -> str:
    digest = blake2b(json.dumps(info).encode(), digest_size=16)
    for name, array in sorted(arrays.items()):
        digest.update(repr((name, array.dtype.str, array.shape)).encode())
        digest.update(np.ascontiguousarray(array).data)
    return digest.hexdigest()
