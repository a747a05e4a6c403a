"""Every form of a batch against a slow, obvious version of it. Against TRL's: tests/write/exports/test_readers.py."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils._pytree import tree_leaves

from dagster_divorder.errors import InputError
from dagster_divorder.readers.forms import FORMS
from dagster_divorder.torch import SequenceDataset
from tests.conftest import examples
from tests.readers.made import Stream, exported
from tests.write.exports.made import masks_of, rows_of


def slow_row(documents: list[list[int]], length: int, padding: int) -> dict[str, list[int]]:
    """One row token by token: ids, the next token as label, position in the document, whether it is a token."""
    ids, positions, real = [], [], []
    for document in documents:
        for position, token in enumerate(document):
            ids.append(token)
            positions.append(position)
            real.append(1)
    while len(ids) < length:
        ids.append(padding)
        positions.append(positions[-1] + 1)
        real.append(0)
    labels = [after if is_token else -100 for after, is_token in zip(ids[1:], real[1:], strict=True)]
    return {
        "ids": ids,
        "positions": positions,
        "real": real,
        "next": labels,
    }


def slow(form: str, rows: Stream, length: int, padding: int, padded: bool) -> Any:
    table = [slow_row(row, length, padding) for row in rows]

    def of(name: str) -> torch.Tensor:
        return torch.tensor([row[name] for row in table])

    if form == "plain":
        if not padded:
            return {"input_ids": of("ids"), "labels": of("ids")}
        labels = of("ids").where(of("real") == 1, torch.tensor(-100))
        return {"input_ids": of("ids"), "labels": labels, "attention_mask": of("real")}
    if form == "torchtitan":
        return {"input": of("ids")[:, :-1], "positions": of("positions")[:, :-1]}, of("next")
    documents = [document for row in rows for document in row]
    ends = [0]
    for document in documents:
        ends.append(ends[-1] + len(document))
    numbered = [number for number, document in enumerate(documents) for _ in document]
    return {
        "input_ids": torch.tensor([[token for document in documents for token in document]]),
        "labels": torch.tensor([[token for document in documents for token in [-100, *document[1:]]]]),
        "position_ids": torch.tensor([[at for document in documents for at in range(len(document))]]),
        "seq_idx": torch.tensor([numbered], dtype=torch.int32),
        "cu_seq_lens_q": torch.tensor(ends, dtype=torch.int32),
        "cu_seq_lens_k": torch.tensor(ends, dtype=torch.int32),
        "max_length_q": max(map(len, documents)),
        "max_length_k": max(map(len, documents)),
    }


@pytest.mark.parametrize("form", FORMS)
@settings(max_examples=examples(30), deadline=None)
@given(data=st.data(), masked=st.booleans())
def test_a_form_is_what_a_slow_version_of_it_says(form: str, data: st.DataObject, masked: bool) -> None:
    corpus = {
        "lengths": data.draw(st.lists(st.integers(1, 9), min_size=2, max_size=8)),
        "length": data.draw(st.integers(2, 6)),
        "method": data.draw(st.sampled_from(["concat", "best_fit"])),
        "epochs": data.draw(st.integers(1, 2)),
        "masked": masked,
    }
    with exported("parquet", corpus) as (path, stream):
        dataset = SequenceDataset(path, form=form)
        rows = data.draw(st.lists(st.integers(0, len(stream) - 1), min_size=1, max_size=4))
        padding, length = dataset.export.manifest["tokenizer"]["padding"], corpus["length"]
        expected = slow(form, [stream[row] for row in rows], length, padding, dataset.export.padded)
        if masked:
            without_untrained(form, expected, corpus, rows)
        batch = dataset.collate(dataset.__getitems__(rows))
        torch.testing.assert_close(batch, expected, rtol=0, atol=0)
        assert not isinstance(batch, dict) or list(batch) == list(expected)
        assert all(leaf.is_contiguous() for leaf in tree_leaves(batch) if isinstance(leaf, torch.Tensor))


def without_untrained(form: str, batch: Any, corpus: dict[str, Any], rows: list[int]) -> None:
    """Put -100 where a batch of rows has a label that is not trained on."""
    written = rows_of(**corpus, index=False)
    masks = [masks_of(written)[written.epochs.reshape(-1)[row]] for row in rows]
    padded = torch.tensor([[*mask, *[False] * (corpus["length"] - len(mask))] for mask in masks])
    if form == "torchtitan":
        batch[1][~padded[:, 1:]] = -100
    else:
        flat = torch.tensor([[trained for mask in masks for trained in mask]])
        batch["labels"][~(flat if form == "flattened" else padded)] = -100


def test_an_unknown_form_is_refused_with_those_there_are() -> None:
    with pytest.raises(InputError, match="no form 'packed'; expected one of plain, flattened, torchtitan"):
        SequenceDataset("nowhere", form="packed")
    with pytest.raises(InputError, match="collate was given a list of rows"):
        SequenceDataset.collate([{}, {}])
