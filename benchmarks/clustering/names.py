"""Whether names of clusters say what the clusters are about: label words among them, function words not.

python benchmarks/clustering/names.py ../shared/data/newsgroups.jsonl.gz --k 20 30 50
python benchmarks/clustering/names.py ../shared/data/mixture.jsonl.gz --k 30 100 --show

Labels: of how many of the 20 newsgroups a word of WORDS begins a word of the name of the cluster that holds most of the
group. Function words: how many of the names' words are in scikit-learn's English list, or among the 50 that most
documents use of a language with 1,000 documents or more (`lang`; sources docs_*, which are templates, left out).
"""

from __future__ import annotations

import argparse
import gzip
import tempfile
from collections import defaultdict
from pathlib import Path

import numpy as np
import orjson
import pyarrow as pa
from sklearn.feature_extraction.text import ENGLISH_STOP_WORDS

from dagster_divorder import Settings, run_all
from dagster_divorder.core.topics.terms import count_words
from dagster_divorder.engine.progress import Silent
from dagster_divorder.stages import GRAPH, open_run
from dagster_divorder.stages.topics.cluster_names import CHARACTERS, load_names

WORDS = {
    "alt.atheism": "atheis",
    "comp.graphics": "graphic image",
    "comp.os.ms-windows.misc": "windows",
    "comp.sys.ibm.pc.hardware": "pc ibm hardware motherboard",
    "comp.sys.mac.hardware": "mac apple",
    "comp.windows.x": "window xterm x11",
    "misc.forsale": "sale forsale",
    "rec.autos": "auto car",
    "rec.motorcycles": "motorcycle bike",
    "rec.sport.baseball": "baseball",
    "rec.sport.hockey": "hockey",
    "sci.crypt": "crypt encrypt key",
    "sci.electronics": "electronic circuit",
    "sci.med": "med",
    "sci.space": "space",
    "soc.religion.christian": "christ god",
    "talk.politics.guns": "gun",
    "talk.politics.mideast": "israel armenian mideast",
    "talk.politics.misc": "politic",
    "talk.religion.misc": "religio christ god",
}
"""Beginnings of words, of each label: from its name."""
LANGUAGE, MOST_USED = 1_000, 50


def function_words(records: list[dict[str, str]]) -> set[str]:
    texts = defaultdict(list)
    for record in records:
        if not record.get("source", "").startswith("docs_"):
            texts[record.get("lang", "en")].append(record["text"][:CHARACTERS])
    found = set(ENGLISH_STOP_WORDS)
    for language, some in texts.items():
        if language != "en" and len(some) >= LANGUAGE:
            words = count_words(pa.array(some[: 3 * LANGUAGE], pa.large_string()))
            documents = (words.counts > 0).sum(axis=0)
            found |= {words.vocabulary[at] for at in np.argsort(-documents, kind="stable")[:MOST_USED]}
    return found


def named(records: list[dict[str, str]], labels: np.ndarray, names: list[str]) -> tuple[int, list[str]]:
    """Labels with a word of theirs in the name, and those without, each with that name."""
    truth = np.array([record["label"] for record in records])
    missed = []
    for label, words in WORDS.items():
        name = names[np.bincount(labels[truth == label]).argmax()]
        if not any(word.startswith(tuple(words.split())) for word in name.split(", ")):
            missed.append(f"{label}: {name}")
    return len(WORDS) - len(missed), missed


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("corpus", type=Path)
    parser.add_argument("--k", type=int, nargs="+", default=[30])
    parser.add_argument("--show", action="store_true", help="print the names")
    options = parser.parse_args()
    if not options.corpus.exists():
        raise SystemExit(f"{options.corpus} is not there; give a JSONL file, plain or .gz")
    with (gzip.open if options.corpus.suffix == ".gz" else open)(options.corpus, "rb") as file:
        records = [orjson.loads(line) for line in file]
    stop = function_words(records)
    with tempfile.TemporaryDirectory() as folder:
        for k in options.k:
            settings = Settings(
                input={"paths": [str(options.corpus)]},
                store={"path": Path(folder) / "store"},
                output={"path": Path(folder) / "out"},
                clusters={"k": k},
            )
            run_all(settings, Silent(), GRAPH.needed(settings, "cluster_names"))
            run = open_run(settings)
            names = load_names(run)
            words = [word for name in names for word in name.split(", ")]
            print(f"k = {k}: {sum(word in stop for word in words)} function words of {len(words)}")
            if "label" in records[0]:
                count, missed = named(records, run.column("clusters", "labels"), names)
                print(f"  {count} of {len(WORDS)} labels; not {'; '.join(missed)}")
            if options.show:
                print("  " + "\n  ".join(names))


if __name__ == "__main__":
    main()
