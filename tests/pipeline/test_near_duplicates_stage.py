"""The stage `near_duplicates`: groups of near copies, and what stands apart and is chosen by them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pytest

from dagster_divorder import load_results, run_all
from dagster_divorder.core.text.near_duplicates import THRESHOLD
from dagster_divorder.corpus import ingest
from dagster_divorder.engine.progress import Silent
from dagster_divorder.errors import InputError
from dagster_divorder.pipeline.run import Run
from dagster_divorder.settings import Settings
from dagster_divorder.stages import GRAPH, open_run
from tests.conftest import topic_records, write_jsonl
from tests.twins import minhash as slow

Make = Callable[..., Settings]


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    """Sixty documents; of the sixth two more with a word added, one of these twice; of the eleventh another."""
    records = topic_records(15)
    near = [
        {**records[at], "text": f"{records[at]['text']} {word}"}
        for at, word in ((5, "ebb"), (5, "flow"), (10, "x"))
    ]
    return write_jsonl(tmp_path / "docs.jsonl", [*records, *near, near[0]])


def ran(settings: Settings, *stages: str) -> Run:
    run_all(settings, Silent(), GRAPH.needed(settings, *stages) if stages else None)
    return open_run(settings)


def texts_of(corpus: Path) -> list[str]:
    return [orjson.loads(line)["text"] for line in corpus.read_bytes().splitlines()]


def test_groups_are_those_of_all_pairs_however_the_documents_came(
    corpus: Path, make_settings: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ingest, "FRAGMENT_ROWS", 7)
    settings = make_settings(input={"paths": [str(corpus)], "source_field": "source"})
    lines = corpus.read_bytes().splitlines(keepends=True)
    corpus.write_bytes(b"".join(lines[:20]))
    ran(settings, "near_duplicates")
    # The others come before those that are known.
    corpus.write_bytes(b"".join([*lines[20:], *lines[:20]]))
    run = ran(settings, "near_duplicates")
    assert run.receipt("minhash").figures["new_documents"] == len(set(lines)) - 20

    found, texts = load_results(settings.store.path).near_duplicates, texts_of(corpus)
    assert found.group.tolist() == slow.groups(texts, THRESHOLD)
    assert found["first"].tolist() == [at == of for at, of in enumerate(found.group)]
    similarity = [slow.similarity(texts[of], text) for of, text in zip(found.group, texts, strict=True)]
    assert found.similarity.tolist() == [np.float32(of) for of in similarity]

    figures = run.receipt("near_duplicates").figures
    tokens = run.column("token_counts", "lengths")[run.view.document_row]
    of_text = {text: at for at, text in reversed(list(enumerate(texts)))}
    copies = [at for at in of_text.values() if found.group[at] != at]
    assert figures["near_copies"] == len(copies)
    assert figures["near_copy_tokens"] == tokens[copies].sum()
    shown = GRAPH["near_duplicates"].show(run, run.receipt("near_duplicates"))
    largest = shown["groups"].rows[0]
    assert largest["documents"] == figures["largest_group"]
    assert largest["begins"] in " ".join(texts[found.group[texts.index(largest["begins"])]].split())
    assert sum(row["near copies"] for row in shown["sources"].rows) == len(copies)


def test_nothing_of_it_runs_where_it_is_not_asked_for(make_settings: Make) -> None:
    assert {"minhash", "near_duplicates"}.isdisjoint(GRAPH.needed(make_settings()))
    assert "near_duplicates" in GRAPH.needed(make_settings(order={"separate_copies": "near"}))


def test_near_copies_stand_apart_as_equal_texts_do(tmp_path: Path, make_settings: Make) -> None:
    records = topic_records(60)
    near = [{**record, "text": f"{record['text']} again and again"} for record in records[::4]]
    corpus = write_jsonl(tmp_path / "docs.jsonl", records + near)
    pairs = [
        (4 * at, len(records) + at)
        for at, copy in enumerate(near)
        if slow.similarity(records[4 * at]["text"], copy["text"]) >= THRESHOLD
    ]

    def nearest(separate: bool | str) -> tuple[float, float, int]:
        """Of two copies in the documents' order and in that of the sequences; and how many repeat another."""
        settings = make_settings(
            input={"paths": [str(corpus)]},
            order={"separate_copies": separate},
            sequence={"length": 64, "batch": 4},
            output={"path": tmp_path / f"{separate}_out"},
        )
        receipts = run_all(settings, Silent())
        results = load_results(settings.store.path)
        place = results.documents.position.to_numpy()
        sequences = results.sequences[results.sequences.start == 0].set_index("document").position
        return (
            min(abs(place[at] - place[of]) for at, of in pairs),
            min(abs(sequences[at] - sequences[of]) for at, of in pairs),
            receipts["sequence_order"].figures["copies"]["copies"],
        )

    equal, nearly = nearest(True), nearest("near")
    assert nearly[0] > 4 * equal[0]
    assert nearly[1] > 4 * equal[1]
    assert (equal[2], nearly[2]) == (0, len(pairs))


def test_of_near_copies_one_at_most_is_chosen(corpus: Path, make_settings: Make) -> None:
    group = np.array(slow.groups(texts_of(corpus), THRESHOLD))
    kinds = len(np.unique(group))

    def chosen(separate: Any, documents: int) -> Any:
        settings = make_settings(
            input={"paths": [str(corpus)]},
            selection={"method": "random", "vectors": "shallow", "documents": documents},
            order={"separate_copies": separate},
        )
        ran(settings, "subset_selection")
        return load_results(settings.store.path).selection

    assert chosen(True, kinds + 3).selected.sum() == kinds + 3
    near = chosen("near", kinds)
    assert np.flatnonzero(near.selected).tolist() == np.unique(group).tolist()
    assert set(near.reason[~near.selected]) == {"copy of another record"}
    with pytest.raises(InputError, match=rf"selection\.documents is {kinds + 1}, and there are {kinds} "):
        chosen("near", kinds + 1)
