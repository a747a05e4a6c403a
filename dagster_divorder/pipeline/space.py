"""The space that documents are clustered in: which stage's vectors, and how they are seen.

Letters: N accepted records, n rows, D dims of the space.

With `embedding.pca` (`deep.pca`) vectors are seen along their principal components, which are a pinned fit of their
own, made when a space is first asked for. They are fitted again as clusters are: when the corpus has doubled or hardly
any of its documents are left (`clusters.refit = "auto"`), or on request. Everything that hangs on the space then has
another key.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import IO, Any

import numpy as np
import orjson

from dagster_divorder.core.cluster import needs_refit
from dagster_divorder.core.pca import Pca
from dagster_divorder.engine.local import count_workers
from dagster_divorder.errors import MissingStageError
from dagster_divorder.pipeline.raw_docs import load_view
from dagster_divorder.pipeline.refresh import corpus_sketch, reason_of_another_corpus, sketch_file
from dagster_divorder.pipeline.run import Run, content_hash
from dagster_divorder.pipeline.sample import document_index, rows_by_id
from dagster_divorder.settings import Settings
from dagster_divorder.store.arrays import pack, unpack
from dagster_divorder.store.fits import Fit, pin, pinned, read_fit
from dagster_divorder.store.local import LocalStore
from dagster_divorder.store.receipts import Receipt, load_receipt
from dagster_divorder.store.stages import StageFiles
from dagster_divorder.store.view import Fragment, View, offsets

STAGE_OF = {
    "shallow": "shallow_embeddings",
    "deep": "deep_embeddings",
    "external": "external_embeddings",
}

RESULTS = "results"
_EMBEDDINGS = re.compile(rf"{RESULTS}/embeddings-[0-9a-f]{{32}}\.npy")

PCA_ROWS = 1 << 16
PCA_BYTES = 1 << 28
"""Components are fitted to at most so many documents, and bytes of float32 vectors; the fit takes three times that."""

ARRAYS = "components.safetensors"
INFO = "pca.json"


@dataclass(frozen=True, slots=True)
class Components:
    """Pinned principal components, the number of documents when they were fitted, and how many were asked for."""

    fit: Fit
    pca: Pca
    documents: int
    asked: int

    @property
    def note(self) -> str | None:
        """Why there are fewer than asked for, None if there are not."""
        dims, found = self.pca.axes.shape
        if found == self.asked:
            return None
        return (
            f"{self.asked:,} principal components are asked for; {found:,} are all that {self.documents:,} documents "
            f"of {dims:,} dims have"
        )


@dataclass(frozen=True, slots=True)
class Space:
    """Vectors as they are clustered.

    `stage` made them; `version` is that of its result; `centre`: take away what all documents share before clustering
    (components have done so); `components`: None where vectors are seen as they are.
    """

    stage: str
    files: StageFiles
    version: str
    centre: bool
    components: Components | None = None

    @property
    def key(self) -> str:
        """Names what the vectors of a fragment depend on besides the fragment."""
        return space_key(self.files.key, self.components)

    def each(self, fragments: Sequence[Fragment]) -> Iterator[tuple[Fragment, np.ndarray]]:
        """Vectors float32 (rows, D) fragment by fragment, in the order given."""
        for fragment, arrays in self.files.each(fragments):
            yield fragment, self.see(arrays["vectors"])

    def see(self, stored: np.ndarray) -> np.ndarray:
        """Vectors float32 (n, D) of this space, of vectors as the stage stores them."""
        vectors = stored.astype(np.float32, copy=False)
        if self.components is None:
            return vectors
        from dagster_divorder.core.pca import project

        return project(vectors, self.components.pca, threads=count_workers(0))

    def rows(self, view: View, rows: np.ndarray) -> np.ndarray:
        """Vectors of some document rows, float32 (n, D), in the order of `rows`."""
        start = offsets(view.documents)
        by_row = np.argsort(rows)
        ordered = rows[by_row]
        cuts = np.searchsorted(ordered, start)
        # Of no row at all the first fragment still tells the dims.
        wanted = np.flatnonzero(np.diff(cuts)).tolist() or [0]
        parts = np.empty((0, 0), dtype=np.float32)
        for at, (_, arrays) in zip(
            wanted, self.files.each([view.documents[at] for at in wanted]), strict=True
        ):
            low, high = cuts[at : at + 2]
            vectors = self.see(arrays["vectors"][ordered[low:high] - start[at]])
            if not parts.size:
                parts = np.empty((len(rows), vectors.shape[1]), dtype=np.float32)
            parts[by_row[low:high]] = vectors
        return parts

    def fits(self) -> dict[str, str]:
        """Folders of the fits that the space hangs on, by name, for a receipt's `files`."""
        return {"pca": self.components.fit.folder} if self.components else {}

    def report(self) -> dict[str, Any]:
        """What a person wants to know of the space."""
        shown: dict[str, Any] = {"vectors": self.stage}
        if self.components:
            pca = self.components.pca
            shown |= {
                "pca": pca.axes.shape[1],
                "explained_variance": pca.explained,
                "pca_fitted": f"to {self.components.documents:,} documents ({self.components.fit.reason})",
                **({"pca_note": self.components.note} if self.components.note else {}),
            }
        return shown


def chosen_kind(run: Run) -> str:
    """The kind of vectors that are clustered: `embedding.kind`, or what ari_comparison chose."""
    kind = run.settings.embedding.kind
    return str(run.receipt("ari_comparison").report["chosen"]) if kind == "auto" else kind


def chosen_vectors(run: Run) -> Receipt:
    """The receipt of the stage whose vectors are clustered. MissingStageError as in `chosen_space`."""
    return run.receipt(STAGE_OF[chosen_kind(run)])


def chosen_space(run: Run) -> Space:
    """The space that documents are clustered in.

    Raises:
        MissingStageError: its stage has not run with these settings.
    """
    return load_space(run, chosen_kind(run))


def load_space(run: Run, kind: str, *, refit: bool = False) -> Space:
    """The space of a kind of vectors, `shallow`, `deep` or `external`; with `refit` its components are fitted again.
    Raises as `chosen_space`."""
    receipt = run.receipt(STAGE_OF[kind])
    files = StageFiles(run.store, receipt.stage, receipt.key)
    plain = Space(receipt.stage, files, receipt.version, is_centred(run.settings, kind))
    count = run.settings.components[kind]
    if not count:
        return plain
    view = load_view(run)
    components = load_components(run, kind, receipt.key)
    reason = _reason_to_fit(run, components, view, refit)
    if reason:
        components = _pin_components(run, kind, plain, view, reason)
    return replace(plain, centre=False, components=components)


def is_centred(settings: Settings, kind: str) -> bool:
    """Whether what all documents share is taken away before vectors of a kind are clustered."""
    return kind != "shallow" or settings.embedding.pooling != "mean"


def space_key(vectors_key: str, components: Components | None) -> str:
    """`Space.key` of vectors under a stage key, seen along components if there are some."""
    return content_hash(vectors_key, components.fit.hash) if components else vectors_key


def load_components(run: Run, kind: str, vectors_key: str) -> Components | None:
    """The pinned components of the vectors under a stage key, None if there are none yet."""
    refit = run.settings.clusters.refit == "now"
    fit = pinned(run.store, "pca", _pca_recipe(run.settings, kind, vectors_key), refit=refit)
    if fit is None:
        return None
    files = read_fit(run.store, fit)
    arrays, info = unpack(files[ARRAYS]), orjson.loads(files[INFO])
    pca = Pca(mean=arrays["mean"], axes=arrays["axes"], explained=info["explained"])
    return Components(fit, pca, info["documents"], run.settings.components[kind])


def _reason_to_fit(run: Run, current: Components | None, view: View, refit: bool) -> str | None:
    if refit:
        return "asked for by clusters.refit"
    if current is None:
        return "first run with these settings and vectors"
    if run.settings.clusters.refit != "auto":
        return None
    another = reason_of_another_corpus(run, view, current.fit, "clusters")
    return another or needs_refit(current.documents, int(view.used_documents().sum()), 0.0, None)


def _pin_components(run: Run, kind: str, space: Space, view: View, reason: str) -> Components:
    from dagster_divorder.core.pca import fit

    count = run.settings.components[kind]
    run.progress.note(f"fitting {count} principal components of the {kind} vectors ({reason})")
    ids, _ = document_index(run.store, view)
    rows = rows_by_id(ids, view)
    width = next(space.each(view.documents[:1]))[1].shape[1]
    documents, rows = len(rows), rows[: min(PCA_ROWS, max(1, PCA_BYTES // (4 * width)))]
    pca = fit(space.rows(view, rows), count)
    info = {"documents": documents, "explained": pca.explained}
    files = {
        ARRAYS: pack({"mean": pca.mean, "axes": pca.axes}),
        INFO: orjson.dumps(info),
        **sketch_file(corpus_sketch(run, view)),
    }
    made = pin(run.store, "pca", _pca_recipe(run.settings, kind, space.files.key), files, reason)
    found = Components(made, pca, documents, count)
    if found.note:
        run.progress.note(found.note)
    return found


def _pca_recipe(settings: Settings, kind: str, vectors_key: str) -> str:
    return f"{settings.components[kind]}-{vectors_key}"


def receipt_of_vectors(store: LocalStore, clusters: Receipt) -> Receipt:
    """The receipt of the vectors that clusters were made from. MissingStageError where it is gone."""
    for stage in STAGE_OF.values():
        if stage in clusters.uses and (receipt := load_receipt(store, stage)):
            return receipt
    raise MissingStageError(f"the vectors of the clusters in {store.root} are gone; run the pipeline again")


def embeddings_file(receipt: Receipt) -> str:
    """Name in the store of the vectors gathered into one file."""
    return f"{RESULTS}/embeddings-{receipt.version}.npy"


def map_vectors(store: LocalStore, view: View, receipt: Receipt) -> np.ndarray:
    """Vectors of the accepted records in input order, as stored, (N, D), memory-mapped read-only.

    `receipt` is that of a stage of vectors. The first call writes them to one file in the store, fragment by fragment;
    later ones map it. Who calls this holds the store's lease, or knows that the file is there.
    """
    name = embeddings_file(receipt)
    if not store.exists(name):
        files = StageFiles(store, receipt.stage, receipt.key)
        for old in store.list(RESULTS):
            if _EMBEDDINGS.fullmatch(old):
                store.delete(old)
        store.put(name, lambda file: _write_vectors(file, view, files))
    return np.load(store.path(name), mmap_mode="r", allow_pickle=False)


def _write_vectors(file: IO[bytes], view: View, files: StageFiles) -> None:
    """A .npy file of the vectors of the records, each run of neighbours where it belongs."""
    records = np.argsort(view.document_row, kind="stable")
    cuts = np.searchsorted(view.document_row, offsets(view.documents), sorter=records)
    begin = 0
    for at, (_, arrays) in enumerate(files.each(view.documents)):
        vectors = arrays["vectors"]
        if not at:
            about = {
                "descr": vectors.dtype.str,
                "fortran_order": False,
                "shape": (len(view), vectors.shape[1]),
            }
            np.lib.format.write_array_header_1_0(file, about)
            begin = file.tell()
        of = np.sort(records[cuts[at] : cuts[at + 1]])
        rows = view.document_row[of] - offsets(view.documents)[at]
        for run in np.split(np.arange(len(of)), np.flatnonzero(np.diff(of) != 1) + 1):
            file.seek(begin + int(of[run[0]]) * vectors[0].nbytes)
            file.write(vectors[rows[run]].tobytes())
