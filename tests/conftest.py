"""Shared fixtures: small corpora as real files, settings of their own, no network."""

from __future__ import annotations

import contextlib
import fcntl
import functools
import gc
import importlib.metadata
import importlib.util
import os
import pickle
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import hypothesis
import joblib
import orjson
import pytest
import tomlkit
import xxhash

os.environ["HF_HUB_OFFLINE"] = "1"
# Tests hold what a CPU gives, byte for byte: a machine with a GPU hides it.
os.environ["CUDA_VISIBLE_DEVICES"] = ""
# Tests run in several processes at once (`make test`), and what they multiply or tokenise is small: threads would only
# wait.
os.environ.update(
    dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "RAYON_NUM_THREADS"), "1")
)

from dagster_divorder.core import kernels
from dagster_divorder.corpus import cut, inputs
from dagster_divorder.engine.progress import Silent
from dagster_divorder.models import bootstrap
from dagster_divorder.pipeline import run
from dagster_divorder.settings import Settings
from dagster_divorder.stages.topics import gradient_embeddings
from dagster_divorder.store.local import LocalStore
from dagster_divorder.store.state import State, changing, load_state

# Syncing tiny files to disk is most of the time of a run, and no test cuts the power.
os.fsync = lambda descriptor: None
# Nor is memory short between the stages of tiny runs; searching the large heap of a test process for what can be given
# back is a tenth of their time.
run.give_back_memory = lambda: None
# Nor is anything installed meanwhile: what is takes a twentieth of their time to find out.
importlib.metadata.version = functools.cache(importlib.metadata.version)

# Modules and tests stay: the collector need not look at them while they are collected, nor ever after.
gc.disable()

# A shell's background job ignores Ctrl-C, and so would every process that the tests start and stop.
signal.signal(signal.SIGINT, signal.default_int_handler)

ROOT = Path(__file__).parents[1]
NOMINAL = 40
# Without a deadline: a machine that is busy otherwise is no failure.
hypothesis.settings.register_profile("usual", max_examples=NOMINAL // 2, deadline=None)
hypothesis.settings.register_profile("quick", max_examples=NOMINAL // 4, deadline=None)
hypothesis.settings.register_profile("long", max_examples=10 * NOMINAL, deadline=None)
hypothesis.settings.load_profile("usual")


def examples(nominal: int) -> int:
    """How many examples of a property: half of the nominal number, a quarter of it in `make test-fast`, and ten times
    as many in `make test-long`."""
    return max(1, nominal * hypothesis.settings().max_examples // NOMINAL)


def is_long() -> bool:
    """Whether this is `make test-long`."""
    return hypothesis.settings.get_current_profile_name() == "long"


SLOW = ("faults", "ui", "law", "bad_input", "pipeline", "defs", "engine")
"""Folders of tests that run whole pipelines, in the order in which they are begun: no long one is left for the end."""

LONGEST = (
    "test_walk.py",
    "test_kill.py",
    "test_tutorial.py",
    "test_every_stage.py",
    "test_notebook.py",
    "test_warm.py",
)
"""Files that take half a minute or more, which are begun first, the longest of them first."""


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Folders none of whose tests would be chosen are not imported: they import Dagster, and more."""
    marks = config.option.markexpr
    unwanted = (*(SLOW if "not slow" in marks else ()), *(["cluster"] if "not cluster" in marks else []))
    return (
        True if collection_path.name in unwanted and collection_path.parent == Path(__file__).parent else None
    )


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """Processes of `pytest -n auto`, of 2 GB each: one a core, and one more where slow tests wait for Dagster and for
    browsers."""
    return min(8, max(2, joblib.cpu_count()) + ("not slow" not in config.option.markexpr))


MEMORY = Path("/dev/shm")


def keep_files_in_memory(config: pytest.Config) -> None:
    """On a disk the many small files of a run are a fifth of its time. Paths of Ray's sockets would be too long there.
    To look at what a test has left: `--basetemp FOLDER`."""
    if "not cluster" not in config.option.markexpr or not os.access(MEMORY, os.W_OK):
        return
    if shutil.disk_usage(MEMORY).free > 4 << 30:
        folder = tempfile.mkdtemp(prefix="divorder-tests-", dir=MEMORY)
        # As /tmp is: what another user may read is a test's to say.
        os.chmod(folder, 0o755)
        os.environ["TMPDIR"] = tempfile.tempdir = folder
        config.add_cleanup(lambda: shutil.rmtree(folder, ignore_errors=True))


LARGE_PACKAGES = ("torch, transformers.models.llama.modeling_llama", "dagster, sklearn.covariance, umap")


def compile_before_others_do() -> None:
    """Compile in a fresh environment what each of several processes would: the bytecode of large packages, which are
    installed without, and the kernels."""
    torch = importlib.util.find_spec("torch")
    bytecode = torch and torch.origin and importlib.util.cache_from_source(torch.origin)
    if bytecode and not (sys.dont_write_bytecode or Path(bytecode).exists()):
        importing = [
            subprocess.Popen([sys.executable, "-c", f"import {names}"], stderr=subprocess.DEVNULL)
            for names in LARGE_PACKAGES
        ]
        for process in importing:
            process.wait()
    compiled = Path(kernels.__file__).parent / "__pycache__"
    if not list(compiled.glob("*.nbi")):
        subprocess.run([sys.executable, "-m", "dagster_divorder.warm"], check=True)


def pytest_configure(config: pytest.Config) -> None:
    """Let one process at a time compile a kernel for new types: the others then find it in Numba's cache."""
    os.environ.pop("DAGSTER_HOME", None)  # With it, `divorder run` is a run of Dagster.
    if "not slow" not in config.option.markexpr:  # The fast tests do not import Dagster.
        config.addinivalue_line("filterwarnings", "error::dagster.SupersessionWarning:dagster_divorder")
    if "PYTEST_XDIST_WORKER" not in os.environ:
        keep_files_in_memory(config)
        if config.getoption("numprocesses", None):
            compile_before_others_do()
        return
    from numba.core.dispatcher import Dispatcher

    compile_or_load, locked = Dispatcher.compile, set[str]()

    def compile_alone(self: Any, signature: Any) -> Any:
        module = self.py_func.__code__.co_filename
        if module in locked or not Path(module).is_file():
            return compile_or_load(self, signature)
        with open(module, "rb") as source:
            fcntl.flock(source, fcntl.LOCK_EX)
            locked.add(module)
            try:
                return compile_or_load(self, signature)
            finally:
                locked.remove(module)

    Dispatcher.compile = compile_alone


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with the longest files; then with the slow folders, whose tests are all marked slow, before tests are
    chosen by their marks; then with the slow files of others."""

    def rank(item: pytest.Item) -> int:
        folder = item.path.parent.name
        if folder in SLOW:
            return SLOW.index(folder)
        return len(SLOW) + (item.get_closest_marker("slow") is None)

    longest = {name: at for at, name in enumerate(LONGEST)}
    items.sort(key=lambda item: (longest.get(item.path.name, len(LONGEST)), rank(item)))
    for item in items:
        if rank(item) < len(SLOW):
            item.add_marker("slow")
        if item.path.parent.name == "cluster":
            item.add_marker("cluster")


def pytest_collection_finish() -> None:
    gc.freeze()
    # By default a test process would search its objects for cycles for a twentieth of its time.
    gc.set_threshold(50_000, 20, 50)
    gc.enable()


@pytest.fixture(autouse=True)
def no_process_in_a_fast_test(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise AssertionError("a test that starts a process has to be marked slow")

    if not any(map(request.node.get_closest_marker, ("slow", "cluster"))):
        monkeypatch.setattr(subprocess.Popen, "__init__", refuse)


@functools.lru_cache(100)
def training(train: Callable[..., Any], key: str) -> tuple[dict[str, bytes], dict[str, Any]]:
    """What a training has written and returned, by what decides it: nothing before it has run."""
    return {}, {}


def known(train: Callable[..., Any], key: object, directory: Path, *given: Any, **how: Any) -> Any:
    """A training into a directory, which is among what is given: copied where the same was trained before."""
    files, kept = training(train, xxhash.xxh3_128_hexdigest(pickle.dumps(key)))
    if not files:
        kept["returned"] = train(*given, **how)
        files |= {path.name: path.read_bytes() for path in directory.iterdir()}
    directory.mkdir(parents=True, exist_ok=True)
    for name, data in files.items():
        (directory / name).write_bytes(data)
    return kept["returned"]


@functools.cache
def remembering(kind: Any) -> Any:
    """A kind of model of gradients that computes those of the same window once a process: a backward pass of each
    document is most of the time of a run that selects."""
    import torch

    known: dict[tuple[str, bytes], Any] = {}

    class Remembering(kind):  # type: ignore[misc]
        def __call__(self, ids: Any, lengths: Any) -> Any:
            weights = [each.float().numpy() for each in self.module.state_dict().values()]
            about = pickle.dumps((weights, self.dims, self.seed, list(self.parameters)))
            model = xxhash.xxh3_128_hexdigest(about)
            keys = [(model, ids[row, :length].tobytes()) for row, length in enumerate(lengths.tolist())]
            if missing := [row for row, key in enumerate(keys) if key not in known]:
                found = super().__call__(ids[missing], lengths[missing])
                known.update(zip((keys[row] for row in missing), found, strict=True))
            return torch.stack([known[key] for key in keys])

    return Remembering


@pytest.fixture(autouse=True, scope="module")
def one_training_for_the_same_texts(request: pytest.FixtureRequest) -> Iterator[None]:
    """Most whole pipelines run on the same few corpora, and training is a fifth of their time. That the same
    texts give the same bytes is proved in tests/models and tests/law."""
    trains = request.path.parent.name in ("models", "law")
    with pytest.MonkeyPatch.context() as patch:
        if not trains:
            remember_trainings(patch)
        yield


def remember_trainings(patch: pytest.MonkeyPatch) -> None:
    train_table = bootstrap.train

    def known_table(texts: Sequence[str], directory: Path, *, progress: object = None, **how: int) -> Any:
        key = (list(texts), bootstrap.TOKENIZER_BYTES, sorted(how.items()))
        return known(train_table, key, directory, texts, directory, **how)

    patch.setattr(bootstrap, "train", known_table)
    load = gradient_embeddings.Gradients.load

    def load_remembering(self: Any) -> Any:
        model = load(self)
        model.__class__ = remembering(type(model))
        return model

    patch.setattr(gradient_embeddings.Gradients, "load", load_remembering)
    # Nor do tests of what is done with gradients need a thousand dims.
    patch.setattr(gradient_embeddings, "DIMS", 64)


TOPICS = {
    "sea": "wave tide boat harbour salt gull net anchor sail reef",
    "kitchen": "oven bread flour yeast butter knead crust loaf bake salt",
    "garden": "soil seed root prune bloom hedge spade mulch worm rain",
    "rail": "train track signal platform guard wagon steam bridge timetable rain",
}


@functools.cache
def topic_text(topic: str, number: int, words: int) -> str:
    """A text of one topic, different for every number."""
    vocabulary = TOPICS[topic].split()
    chosen = [vocabulary[(number * 7 + at * (at + number)) % len(vocabulary)] for at in range(words)]
    return f"{topic} {number}: " + " ".join(chosen)


def topic_records(per_topic: int = 60, start: int = 0) -> list[dict[str, Any]]:
    """Records of four topics in blocks, lengths from 5 to some 160 words, with a source, a score and a flag."""
    return [
        {
            "text": topic_text(topic, number, 5 + (number * number) % 157),
            "source": f"{topic}.example",
            "score": number / 7,
            "checked": number % 3 == 0,
        }
        for topic in TOPICS
        for number in range(start, start + per_topic)
    ]


def topic_chats(per_topic: int = 12) -> list[dict[str, Any]]:
    """Conversations of one to three short questions, each with its answer, of four topics in blocks, with a source."""
    chats = []
    for topic in TOPICS:
        for number in range(per_topic):
            words = [3 + number * (turn + 1) % 9 for turn in range(2 * (1 + number % 3))]
            texts = [topic_text(topic, 10 * number + turn, count) for turn, count in enumerate(words)]
            roles = ("user", "assistant") * len(texts)
            messages = [{"role": role, "content": text} for role, text in zip(roles, texts, strict=False)]
            chats.append({"messages": messages, "source": topic})
    return chats


def load_script(path: Path) -> Any:
    """A Python file outside of any package, as a module that its dataclasses find by its name."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec and spec.loader
    sys.modules[path.stem] = module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def write_jsonl(path: Path, records: Iterable[dict[str, Any]]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"".join(orjson.dumps(record) + b"\n" for record in records))
    return path


def read_jsonl(path: Path) -> list[Any]:
    return [orjson.loads(line) for line in path.read_bytes().splitlines()]


class Notes(Silent):
    """Progress that keeps what is said."""

    def __init__(self) -> None:
        self.said: list[str] = []

    def note(self, message: str) -> None:
        self.said.append(message)


@pytest.fixture(scope="session")
def runner() -> Iterator[Any]:
    """A process in which `divorder` is imported, and from which its runs are forked."""
    from tests.faults.runner import Runner

    with contextlib.closing(Runner()) as runner:
        yield runner


@pytest.fixture
def small_fragments(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small corpora have several fragments."""
    monkeypatch.setattr(inputs, "BLOCK_BYTES", 4096)
    monkeypatch.setattr(cut, "MEAN_LINES", 10)
    monkeypatch.setattr(cut, "HARD_LINES", 20)


@pytest.fixture
def no_matrix_units(monkeypatch: pytest.MonkeyPatch) -> None:
    """A processor on which models run in float32, so that vectors can be compared closely."""
    import torch

    monkeypatch.setattr(torch.cpu, "get_capabilities", dict)


def variables_without(*beginnings: str) -> dict[str, str]:
    """The environment without the variables whose names begin so."""
    return {name: value for name, value in os.environ.items() if not name.startswith(beginnings)}


def over(base: dict[str, Any], sections: dict[str, Any]) -> dict[str, Any]:
    """Sections of settings with others laid over them."""
    return base | {
        name: {**base.get(name, {}), **of} if isinstance(of, dict) else of for name, of in sections.items()
    }


SMALL: dict[str, Any] = {
    "input": {"paths": ["docs.jsonl"]},
    "store": {"path": "store"},
    "output": {"path": "curated", "sidecars": ()},
    "advanced": {"vocab_size": 512, "token_dims": 16},
    "clusters": {"k": 4},
    "sequence": {"length": 128, "batch": 4},
}
"""Settings for a small corpus."""


def small_toml(**sections: Any) -> str:
    """A settings file for a small corpus beside it; sections given as keyword arguments are merged in."""
    return tomlkit.dumps(over(SMALL, sections))


def small_settings(folder: Path, **sections: Any) -> Settings:
    """The same as settings, for a corpus in a folder."""
    here = {
        "input": {"paths": [str(folder / "docs.jsonl")]},
        "store": {"path": folder / "store"},
        "output": {"path": folder / "curated"},
        "order": {"frozen_tokens": 0},
    }
    return Settings(**over(over(SMALL, here), sections))


def changed(settings: Settings, **sections: dict[str, Any]) -> Settings:
    """Settings with other values in some sections."""
    made = {name: getattr(settings, name).model_copy(update=of) for name, of in sections.items()}
    return settings.model_copy(update=made)


@pytest.fixture
def make_settings(tmp_path: Path) -> Callable[..., Settings]:
    """`small_settings` under tmp_path."""
    return functools.partial(small_settings, tmp_path)


def copy_fits(source: Path, target: Path) -> None:
    """Make a store that has the fits of another one, and nothing else."""
    results = load_state(LocalStore(source)).results
    fits = {stage: [result for result in known if "fit" in result.files] for stage, known in results.items()}
    changing(LocalStore(target).open(), lambda state: State(results=fits))
    shutil.copytree(source / "fits", target / "fits")
