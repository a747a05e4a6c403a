"""Turns texts into token ids with the fastest engine that gives the reference's ids.

Directories here hold a saved tokenizer (`models.pretrained.save_tokenizer`, `models.bootstrap`), whose tokenizer.json
says everything. Letters: n texts, T tokens.
Guarantee: the ids of Hugging Face `tokenizers` without special tokens, truncation, padding or BPE dropout; special
tokens spelled out in a text are text. The ids do not depend on threads, processes or the division into calls.
Cost (mixture.jsonl on 2 cores): gigatoken some 110 MB/s for text not seen before, `tokenizers` 2.6.
Known weakness: gigatoken has no WordPiece or Unigram.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import orjson
import pyarrow as pa
from numpy.typing import NDArray

from dagster_divorder.engine.base import is_out_of_memory
from dagster_divorder.errors import InputError
from dagster_divorder.models.checkpoint import CONFIG, TOKENIZER, first_line, read_object
from dagster_divorder.models.conformance import conformance_texts

if TYPE_CHECKING:
    import gigatoken
    from tokenizers import Tokenizer

Engine = Literal["gigatoken", "tokenizers"]
Ids = tuple[NDArray[np.unsignedinteger], NDArray[np.int64]]
"""(ids of all texts end to end, (T,); number of ids of each text, int64 (n,))."""

Encode = Callable[["Sequence[bytes] | pa.Array"], Ids]
"""A function from one or more texts in UTF-8 to their ids."""

SAMPLE_BYTES = 1 << 20
"""Bytes of the corpus sample that are compared: half a second of the reference."""

MAX_IDS = 1 << 24
"""Most ids of a tokenizer: far above any vocabulary, and both engines load one of this size in seconds."""

BATCH_CHARACTERS = 1 << 20
"""Characters in a batch: `tokenizers` keeps some 100 bytes a token until a batch is read."""


class Encoder:
    """A tokenizer and the engine that runs it.

    reason: why this engine was chosen. vocab_size: one more than the largest id. id_dtype: uint16 if every id fits,
    else uint32.
    """

    def __init__(self, tokens: Mapping[str, int], encode: Encode, engine: Engine, reason: str) -> None:
        self._encode = encode
        self.engine = engine
        self.reason = reason
        self.vocab_size = 1 + max(tokens.values(), default=-1)
        self.id_dtype = np.dtype(np.uint16 if self.vocab_size <= 1 << 16 else np.uint32)

    def encode(self, texts: Sequence[str] | pa.Array) -> Ids:
        """Ids as id_dtype. An Arrow array, large_string (n,) without nulls, is read without a copy. InputError for text
        that is not valid Unicode (a lone surrogate)."""
        if not len(texts):
            return np.empty(0, self.id_dtype), np.empty(0, np.int64)
        if not isinstance(texts, pa.Array):
            texts = in_utf8(texts)
        ids, lengths = self._encode(texts)
        return ids.astype(self.id_dtype), lengths


def in_utf8(texts: Sequence[str]) -> list[bytes]:
    """
    Raises:
        InputError: a text holds a lone surrogate.
    """
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
    control: bool = False,
) -> Encoder:
    """A saved tokenizer. control: special tokens spelled out in a text become control tokens; otherwise they are text.

    engine: `auto` is gigatoken if it loads this tokenizer and gives the reference's ids on the conformance texts and on
    the first SAMPLE_BYTES of `sample`, else tokenizers. A named engine is not compared; workers name the engine that
    `auto` chose.

    Raises:
        InputError: there is no usable tokenizer.json.
    """
    directory = Path(directory)
    content, reason = check_ids(directory), "asked for"
    added = content.get("added_tokens") or []
    if engine == "gigatoken":
        fast = gigatoken_encode(load_gigatoken(content, control=control))
        # Loading the reference for its vocabulary would take as long as tokenising a megabyte.
        tokens = {**{token["content"]: token["id"] for token in added}, **content["model"]["vocab"]}
        return Encoder(tokens, fast, engine, reason)
    reference = load_reference(directory)
    reference.encode_special_tokens = not control
    tokens = reference.get_vocab(with_added_tokens=True)

    def slow(texts: Sequence[bytes] | pa.Array) -> Ids:
        ids: list[NDArray[np.uint32]] = []
        strings = texts.to_pylist() if isinstance(texts, pa.Array) else [text.decode() for text in texts]
        for batch in in_batches(strings):
            with explained(directory / TOKENIZER, "cannot encode a text"):
                encodings = reference.encode_batch_fast(batch, add_special_tokens=False)
            ids += [np.array(encoding.ids, np.uint32) for encoding in encodings]
        return np.concatenate(ids), np.fromiter(map(len, ids), np.int64, len(ids))

    if engine == "auto":
        try:
            fast = gigatoken_encode(load_gigatoken(content, control=control))
            texts = [*conformance_texts(token["content"] for token in added), *capped(sample, SAMPLE_BYTES)]
            encoded = in_utf8(texts)
            ids, expected = (
                np.split(ids, np.cumsum(lengths)[:-1]) for ids, lengths in (fast(encoded), slow(encoded))
            )
            compared = zip(texts, ids, expected, strict=True)
            differs = (text for text, own, other in compared if not np.array_equal(own, other))
            if (text := next(differs, None)) is None:
                return Encoder(tokens, fast, "gigatoken", f"gave the reference's ids on {len(texts):,} texts")
            reason = f"gigatoken differs from tokenizers on {text[:60]!r}"
        except Exception as error:
            if is_out_of_memory(error):  # the engine must not depend on free memory
                raise
            reason = f"gigatoken cannot run it: {first_line(error)}"
    return Encoder(tokens, slow, "tokenizers", reason)


def check_ids(directory: Path) -> dict[str, Any]:
    """The content of tokenizer.json.

    Raises:
        InputError: it is damaged, or has an id that libraries would allocate too much memory for.
    """
    path = directory / TOKENIZER
    content = read_object(path)
    model, added = content.get("model"), content.get("added_tokens") or []
    if (
        not isinstance(model, dict)
        or not isinstance(added, list)
        or not all(isinstance(each, dict) for each in added)
    ):
        raise InputError(
            f"{path} is not a tokenizer that tokenizers can load; save it again with a recent transformers"
        )
    known = vocabulary.items() if isinstance(vocabulary := model.get("vocab"), dict) else ()
    for token, number in (*known, *((each.get("content"), each.get("id")) for each in added)):
        if type(number) is not int or not 0 <= number < MAX_IDS:
            raise InputError(
                f"{path} gives the token {token!r} the id {number!r}; expected a whole number from 0 to "
                f"{MAX_IDS - 1:,}: download or save the model again"
            )
    return content


def load_reference(directory: Path) -> Tokenizer:
    """A saved tokenizer, run by `tokenizers`.

    Raises:
        InputError: no usable tokenizer.json.
    """
    from tokenizers import Tokenizer

    with explained(directory / TOKENIZER, "is not a tokenizer that tokenizers can load"):
        return Tokenizer.from_file(str(directory / TOKENIZER))


@contextmanager
def panics_as_errors() -> Iterator[None]:
    """Turns a Rust panic, which is no Exception, into a RuntimeError."""
    try:
        yield
    except BaseException as error:
        if type(error).__name__ == "PanicException":
            raise RuntimeError(f"panic: {error}") from error
        raise


@contextmanager
def explained(path: Path, fault: str) -> Iterator[None]:
    """Turns an error of tokenizers into an InputError, unless memory ran out."""
    try:
        with panics_as_errors():
            yield
    except Exception as error:
        if is_out_of_memory(error):
            raise
        raise InputError(
            f"{path} {fault} ({error}); save it again with a recent transformers, or update tokenizers"
        ) from error


def load_gigatoken(content: dict[str, Any], *, control: bool) -> gigatoken.Tokenizer:
    """gigatoken for a tokenizer.json. control: see `load_encoder`; without, it does not know special tokens."""
    import gigatoken

    added = [token for token in content.get("added_tokens") or [] if control or not token["special"]]
    content = {**content, "post_processor": None, "added_tokens": added}
    with panics_as_errors():
        return gigatoken.Tokenizer.from_json(orjson.dumps(content).decode())


def gigatoken_encode(tokenizer: gigatoken.Tokenizer) -> Encode:
    def encode(texts: Sequence[bytes] | pa.Array) -> Ids:
        import awkward

        with panics_as_errors():
            ids = tokenizer.backend.encode_batch(
                awkward.from_arrow(texts) if isinstance(texts, pa.Array) else texts
            )
        return awkward.to_numpy(awkward.flatten(ids)), awkward.to_numpy(awkward.num(ids))

    return encode


def capped(texts: Iterable[str], limit: int) -> Iterator[str]:
    """The first `limit` bytes of texts; the last text is truncated."""
    for text in texts:
        text = text[:limit]
        yield text
        limit -= len(text.encode(errors="replace"))
        if limit <= 0:
            break


def in_batches(texts: Sequence[str]) -> Iterator[Sequence[str]]:
    """Texts in batches of some BATCH_CHARACTERS."""
    batch = np.cumsum([len(text) for text in texts]) // BATCH_CHARACTERS
    _, starts = np.unique(batch, return_index=True)
    for first, last in pairwise([*starts.tolist(), len(texts)]):
        yield texts[first:last]


def special_ids(directory: Path) -> dict[str, int | None]:
    """Ids of the `eos`, `bos` and `pad` tokens of a saved tokenizer; None if it names none."""
    named, reference = read_object(directory / CONFIG), load_reference(directory)
    tokens = {special: named.get(f"{special}_token") for special in ("eos", "bos", "pad")}
    return {special: reference.token_to_id(token) if token else None for special, token in tokens.items()}
