"""Texts to token ids, with the fastest engine that is proved to give the reference's ids.

Letters: n texts, T tokens.
Guarantee: the ids of Hugging Face `tokenizers` without special tokens, truncation or padding; special tokens
spelled out in a text are text. The same ids for any number of threads, processes and any division into calls.
Cost (mixture.jsonl on 2 cores): gigatoken some 110 MB/s for text not seen before, `tokenizers` 2.6. Memory: 4 bytes a
token beside the result, and up to BATCH_CHARACTERS of text in `tokenizers`' own objects.
Sources: gigatoken (Roed 2026); tokenizers (Hugging Face). Known weakness: gigatoken has no WordPiece or
Unigram.

Both use threads of their own, which RAYON_NUM_THREADS limits.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from dagster_divorder.engine.memory import is_out_of_memory
from dagster_divorder.errors import InputError
from dagster_divorder.models.checkpoint import TOKENIZER, read_object
from dagster_divorder.models.conformance import conformance_texts

if TYPE_CHECKING:
    from tokenizers import Tokenizer

Engine = Literal["gigatoken", "tokenizers"]
Ids = tuple[NDArray[np.unsignedinteger], NDArray[np.int64]]
"""Ids of all texts end to end, (T,), and the number of each, int64 (n,)."""

Encode = Callable[["Sequence[bytes] | pa.Array"], Ids]
"""Of texts in UTF-8, one or more."""

SAMPLE_BYTES = 1 << 20
"""Of the corpus sample, this much is compared: half a second of the reference."""

MAX_IDS = 1 << 24
"""No vocabulary is near it, and both engines still load one in seconds."""

BATCH_CHARACTERS = 1 << 20
"""`tokenizers` keeps some 100 bytes a token until a batch is read out."""


class Encoder:
    """A tokenizer and the engine that runs it.

    `engine`, and `reason` why it is that one; `vocab_size`, one more than the largest id; `id_dtype`, uint16
    where every id fits, else uint32; `eos_id`, the id that ends a document, or None.
    """

    def __init__(
        self, directory: Path, tokens: Mapping[str, int], encode: Encode, engine: Engine, reason: str
    ) -> None:
        self._encode = encode
        self.engine = engine
        self.reason = reason
        self.vocab_size = 1 + max(tokens.values(), default=-1)
        self.id_dtype = np.dtype(np.uint16 if self.vocab_size <= 1 << 16 else np.uint32)
        self.eos_id = _special_id(directory, tokens, "eos")

    def encode(self, texts: Sequence[str] | pa.Array) -> Ids:
        """Ids as id_dtype. An Arrow array, large_string (n,) without nulls, is read where it lies.

        InputError for a text that is not valid Unicode (a lone surrogate).
        """
        if not len(texts):
            return np.empty(0, self.id_dtype), np.empty(0, np.int64)
        if not isinstance(texts, pa.Array):
            texts = _in_utf8(texts)
        ids, lengths = self._encode(texts)
        return ids.astype(self.id_dtype), lengths


def _in_utf8(texts: Sequence[str]) -> list[bytes]:
    try:
        return [text.encode() for text in texts]
    except UnicodeEncodeError as error:
        at = next(at for at, text in enumerate(texts) if re.search("[\ud800-\udfff]", text))
        raise InputError(
            f"text {at} of {len(texts)} holds a lone surrogate ({error.reason}); expected valid Unicode: "
            "replace it with text.encode('utf-8', 'replace').decode()"
        ) from error


def load_encoder(
    directory: Path | str,
    engine: Literal["auto", "gigatoken", "tokenizers"] = "auto",
    *,
    sample: Iterable[str] = (),
) -> Encoder:
    """The tokenizer of a checkpoint directory.

    `auto` takes gigatoken if it loads this tokenizer and gives the reference's ids on the conformance texts and
    on the first SAMPLE_BYTES of `sample`, else tokenizers. A named engine is taken as it is: workers name the
    one that `auto` found.

    Raises:
        InputError: no usable tokenizer.json, unknown engine, or gigatoken asked for by name and unable.
    """
    if engine not in ("auto", *get_args(Engine)):
        raise InputError(f"engine is {engine!r}; expected auto, {', '.join(get_args(Engine))}")
    directory = Path(directory)
    content = _content(directory)
    if engine == "gigatoken":
        try:
            fast = _gigatoken_encode(content)
            # Loading the reference for its vocabulary takes as long as tokenising a megabyte.
            added = {token["content"]: token["id"] for token in content.get("added_tokens") or []}
            tokens = {**added, **content["model"]["vocab"]}
        except Exception as error:
            raise InputError(
                f"gigatoken cannot run the tokenizer of {directory} ({error}); use tokenizers"
            ) from error
        return Encoder(directory, tokens, fast, engine, "asked for")
    reference = _load_reference(directory)
    reference.encode_special_tokens = True
    tokens = reference.get_vocab(with_added_tokens=True)
    slow = _reference_encode(reference, directory)
    if engine == "tokenizers":
        return Encoder(directory, tokens, slow, engine, "asked for")
    try:
        fast = _gigatoken_encode(content)
        texts = [
            *conformance_texts(token["content"] for token in content.get("added_tokens") or []),
            *capped(sample, SAMPLE_BYTES),
        ]
        reason = _difference(fast, slow, texts)
    except Exception as error:
        if is_out_of_memory(error):  # which engine a tokenizer has must not depend on that
            raise
        reason = f"gigatoken cannot run it: {str(error).partition(chr(10))[0]}"
    if reason:
        return Encoder(directory, tokens, slow, "tokenizers", reason)
    return Encoder(directory, tokens, fast, "gigatoken", f"gave the reference's ids on {len(texts):,} texts")


def _content(directory: Path) -> dict[str, Any]:
    """tokenizer.json, with ids that a table can have rows for: libraries make room for the largest one, or abort."""
    path = directory / TOKENIZER
    content = read_object(path)
    model, added = content.get("model"), content.get("added_tokens") or []
    objects = isinstance(added, list) and all(isinstance(token, dict) for token in added)
    if not isinstance(model, dict) or not objects:
        raise InputError(
            f"{path} is not a tokenizer that tokenizers can load; save it again with a recent transformers"
        )
    vocabulary = model.get("vocab")
    known = vocabulary.items() if isinstance(vocabulary, dict) else ()
    for token, number in (*known, *((token.get("content"), token.get("id")) for token in added)):
        if type(number) is not int or not 0 <= number < MAX_IDS:
            raise InputError(
                f"{path} gives the token {token!r} the id {number!r}; expected a whole number from 0 to "
                f"{MAX_IDS - 1:,}: fetch or save the model again"
            )
    return content


def load_reference(directory: Path) -> Tokenizer:
    """The tokenizer of a checkpoint as `tokenizers` runs it, with nothing on that would cut or lengthen a text.

    Raises:
        InputError: no usable tokenizer.json.
    """
    _content(directory)
    return _load_reference(directory)


def _load_reference(directory: Path) -> Tokenizer:
    from tokenizers import Tokenizer

    with _explained(directory / TOKENIZER, "is not a tokenizer that tokenizers can load"):
        reference = Tokenizer.from_file(str(directory / TOKENIZER))
    reference.no_truncation()
    reference.no_padding()
    return reference


@contextmanager
def _panics_as_errors() -> Iterator[None]:
    """A Rust panic, which is no Exception, becomes a RuntimeError."""
    try:
        yield
    except BaseException as error:
        if type(error).__name__ == "PanicException":
            raise RuntimeError(f"panic: {error}") from error
        raise


@contextmanager
def _explained(path: Path, what: str) -> Iterator[None]:
    """An error of tokenizers becomes an InputError, unless memory ran out."""
    try:
        with _panics_as_errors():
            yield
    except Exception as error:
        if is_out_of_memory(error):
            raise
        raise InputError(
            f"{path} {what} ({error}); save it again with a recent transformers, or update tokenizers"
        ) from error


def _reference_encode(reference: Tokenizer, directory: Path) -> Encode:
    def encode(texts: Sequence[bytes] | pa.Array) -> Ids:
        each: list[NDArray[np.uint32]] = []
        plain = texts.to_pylist() if isinstance(texts, pa.Array) else [text.decode() for text in texts]
        for batch in _batches(plain):
            with _explained(directory / TOKENIZER, "cannot encode a text"):
                found = reference.encode_batch_fast(batch, add_special_tokens=False)
            each += [np.array(encoding.ids, np.uint32) for encoding in found]
        return np.concatenate(each), np.fromiter(map(len, each), np.int64, len(each))

    return encode


def _gigatoken_encode(content: dict[str, Any]) -> Encode:
    """gigatoken without the special tokens, so that it cannot find them in a text."""
    import gigatoken

    plain = [token for token in content.get("added_tokens") or [] if not token["special"]]
    content = {**content, "added_tokens": plain, "truncation": None, "padding": None, "post_processor": None}
    with _panics_as_errors():
        encode_batch = gigatoken.Tokenizer.from_json(json.dumps(content)).backend.encode_batch

    def encode(texts: Sequence[bytes] | pa.Array) -> Ids:
        import awkward

        with _panics_as_errors():
            found = encode_batch(awkward.from_arrow(texts) if isinstance(texts, pa.Array) else texts)
        return awkward.to_numpy(awkward.flatten(found)), awkward.to_numpy(awkward.num(found))

    return encode


def _difference(fast: Encode, slow: Encode, texts: list[str]) -> str:
    """Where two engines first differ, in words, or ""."""
    given = _in_utf8(texts)
    found, expected = (
        np.split(ids, np.cumsum(lengths)[:-1]) for ids, lengths in (encode(given) for encode in (fast, slow))
    )
    for text, one, other in zip(texts, found, expected, strict=True):
        if not np.array_equal(one, other):
            return f"gigatoken differs from tokenizers on {text[:60]!r}"
    return ""


def capped(texts: Iterable[str], limit: int) -> Iterator[str]:
    """The texts of the first `limit` bytes, the last one cut."""
    for text in texts:
        text = text[:limit]
        yield text
        limit -= len(text.encode(errors="replace"))
        if limit <= 0:
            break


def _batches(texts: Sequence[str]) -> Iterator[Sequence[str]]:
    """Texts in parts of some BATCH_CHARACTERS."""
    part = np.cumsum([len(text) for text in texts]) // BATCH_CHARACTERS
    _, starts = np.unique(part, return_index=True)
    for first, last in pairwise([*starts.tolist(), len(texts)]):
        yield texts[first:last]


def token_spans(
    directory: Path, texts: Sequence[str]
) -> Iterator[tuple[NDArray[np.int64], NDArray[np.int64]]]:
    """Where the tokens of each text begin and end in it, in characters, int64 (tokens,) each. Tokens of one character,
    of which a byte-level tokenizer may make several, all have its place.

    Raises:
        InputError: tokenizer.json cannot be read, or cannot encode a text.
    """
    reference = _load_reference(directory)
    reference.encode_special_tokens = True
    for batch in _batches(texts):
        with _explained(directory / TOKENIZER, "cannot encode a text"):
            found = reference.encode_batch(batch, add_special_tokens=False)
        for encoding in found:
            spans = np.array(encoding.offsets, np.int64).reshape(-1, 2)
            yield spans[:, 0], spans[:, 1]


def special_ids(directory: Path) -> dict[str, int | None]:
    """Ids of the `eos`, `bos` and `pad` tokens of a tokenizer's directory, None of one that it does not name.

    Raises:
        InputError: tokenizer.json cannot be read.
    """
    tokens = _load_reference(directory).get_vocab(with_added_tokens=True)
    return {name: _special_id(directory, tokens, name) for name in ("eos", "bos", "pad")}


def _special_id(directory: Path, tokens: Mapping[str, int], name: str) -> int | None:
    """The id of the token that tokenizer_config.json names (as `eos_token`), else the first that config.json gives."""
    path = directory / "tokenizer_config.json"
    token = read_object(path).get(f"{name}_token") if path.is_file() else None
    if isinstance(token, dict):
        token = token.get("content")
    found = tokens.get(token) if isinstance(token, str) else None
    path = directory / "config.json"
    if found is None and path.is_file():
        found = read_object(path).get(f"{name}_token_id")
        found = found[0] if isinstance(found, list) and found else found
    return found if isinstance(found, int) else None
