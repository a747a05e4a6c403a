"""The output folder, local or at a URL (store/folders.py): whole files, listed in a manifest that is written last.

`curated_meta.json` is the manifest. It lists every file with its size and sha256, and carries a hash of itself. All
files are first written under temporary names, those of a URL into the temporary folder, so a full disk leaves the
old output intact. Then the files are published, the manifest last. Files that only the old output had are removed.
Before a commit replaces the first old file, it marks the old manifest as `replaced_by` the new key. A run killed during
the commit leaves no valid manifest, so a mixture of two outputs is never taken for one output.

An output belongs to one store. The store keeps a *ledger* of the names that it writes into a folder. It notes a name
before it writes the file, so a later run can tidy up an interrupted commit. A run removes only files in the ledger. It
overwrites only files in the ledger or in a sound manifest of this store.
"""

from __future__ import annotations

import contextlib
import hashlib
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import IO, Any

from dagster_divorder.engine.base import Engine
from dagster_divorder.engine.progress import Progress, Silent, counted
from dagster_divorder.errors import InputError, StoreError
from dagster_divorder.settings import Settings
from dagster_divorder.settings.places import Place, as_place, real_place
from dagster_divorder.store.base import Store
from dagster_divorder.store.disk import scratch
from dagster_divorder.store.folder import LocalFolder, temporary_name
from dagster_divorder.store.folders import WritableFolder, folder_at
from dagster_divorder.store.manifests import HEAD_BYTES, NEIGHBOUR, REPLACED_BY
from dagster_divorder.store.output_manifests import MANIFEST, is_whole, manifest_bytes, read_manifest
from dagster_divorder.store.state import State, changing, load_state

RECORDS = re.compile(r"curated(-\d{5,})?\.(jsonl|parquet)")
"""Names of record files."""
BESIDE = (
    "ordering_report.html",
    "cluster_cloud.png",
    "ordering_animation.mp4",
    "ordering_animation_umap.mp4",
)
"""Files beside an output that show it but are not part of it. A run that replaces the output removes them."""


def _own_names(store: Store, place: Place, name: str = MANIFEST) -> set[str]:
    """Names in an output folder that this store may overwrite and remove. name: the manifest's name."""
    manifest = read_manifest(place, name, replaced=True)
    noted = load_state(store).outputs.get(real_place(place))
    if not manifest:
        return set(noted or ())
    owner = manifest["store"]
    # A moved store keeps its output; so does a store that was deleted and recreated in its place.
    if owner["id"] != store.id and owner["path"] != store.real_place:
        raise InputError(
            f"{place} holds the output of another store, {owner['path']}; an output belongs to one store: set "
            f"{_setting(name)} to another folder, or move the files of {place} away"
        )
    by_manifest = {*manifest["files"], name}
    if noted is None:
        # The store was recreated, or the output was moved. The files beside it belong to this store too.
        return by_manifest | {*BESIDE} & folder_at(place).sizes().keys()
    return by_manifest | set(noted)


def _setting(manifest: str) -> str:
    return "output.path" if manifest == MANIFEST else "exports.path"


def refuse_strangers(
    store: Store, place: Place, wanted: Callable[[str], object], manifest: str = MANIFEST
) -> set[str]:
    """The names that the store may overwrite and remove in an output folder.

    Raises:
        InputError: the folder holds a file of a `wanted` name that this store has not written, or another's output.
    """
    folder = folder_at(place)
    with folder.explaining():
        names = sorted(folder.contents())
    if not names:
        return set()
    own = _own_names(store, place, manifest)
    if strangers := [name for name in names if wanted(name) and name not in own]:
        setting = _setting(manifest)
        raise InputError(
            f"{folder.where(strangers[0])} is there and was not written by this store; {setting} must be a folder "
            f"without such files: move the file away, or set {setting} to another folder"
        )
    return own


def refuse_foreign_files(store: Store, settings: Settings) -> None:
    """`refuse_strangers` for all files of a run with these settings; called before any computation."""
    output = settings.output
    names = {MANIFEST, "order.npy", "packed_sequences.parquet", "sequence_order.npy", "rejects.jsonl"}
    names |= {"ordering_comparison.png"} if "plot" in output.sidecars else set()
    names |= {"heldout.parquet", "heldout_removed.jsonl"} if settings.holds_out else set()
    names |= {"left_out.parquet"} if settings.selects else set()
    refuse_strangers(store, output.path, lambda name: name in names or RECORDS.fullmatch(name))


def write_beside(store: Store, place: Place, files: Mapping[str, bytes]) -> None:
    """Write files of BESIDE next to an output; skips unchanged ones. Raises: see `refuse_strangers`."""
    refuse_strangers(store, place, files.__contains__)
    _note(store, place, files)
    folder = folder_at(place)
    sizes = folder.sizes()
    changed = [
        name for name, data in files.items() if sizes.get(name) != len(data) or folder.read(name) != data
    ]
    if changed:
        folder.write({name: files[name] for name in changed})


def remove_beside(store: Store) -> list[str]:
    """Remove the files that this store has written next to its outputs; returns their names."""
    removed = []
    for place, noted in load_state(store).outputs.items():
        folder = folder_at(as_place(place))
        with folder.explaining():
            present = {*BESIDE} & {*noted} & folder.sizes().keys()
            own = present & _own_names(store, folder.place) if present else present
            folder.delete(own)
            removed += sorted(own)
    return removed


def _noted(store: Store, place: Place) -> set[str]:
    """The names in the store's ledger of a folder."""
    return set(load_state(store).outputs.get(real_place(place), ()))


def _note(store: Store, place: Place, names: Collection[str], *, only: bool = False) -> None:
    """Add names to the store's ledger of a folder. only: drop the earlier names."""
    real = real_place(place)

    def note(state: State) -> State:
        kept = [] if only else state.outputs.get(real, [])
        return replace(state, outputs={**state.outputs, real: sorted({*kept, *names})})

    changing(store, note)


@dataclass(slots=True)
class OutputFolder:
    """Files of one output, under temporary names until `commit`.

    A context manager; its exit removes uncommitted files. manifest: the manifest's name. extends: whether files of the
    published output may be taken over. folder: where files are published; here: where they are written first, the same
    folder or a temporary one. published: manifest entries of the files to take over, by name. staged: temporary names,
    by name.
    """

    store: Store
    path: Place
    manifest: str = MANIFEST
    extends: bool = False
    staged: dict[str, str] = field(default_factory=dict)
    entries: dict[str, dict[str, Any]] = field(default_factory=dict)
    _temporary: list[str] = field(default_factory=list)
    _opened: contextlib.ExitStack = field(default_factory=contextlib.ExitStack)
    folder: WritableFolder = field(init=False)
    here: LocalFolder = field(init=False)
    published: dict[str, dict[str, Any]] = field(init=False)

    def __post_init__(self) -> None:
        self.folder = folder_at(self.path)
        self.published = (
            (read_manifest(self.path, self.manifest) or {}).get("files", {}) if self.extends else {}
        )

    def __enter__(self) -> OutputFolder:
        with self._opened:
            here = self.path
            if not isinstance(here, Path):
                # Below the scratch folder, so that its neighbour is too.
                here = self._opened.enter_context(scratch()) / "output"
            self.here = LocalFolder(here)
            with self.folder.explaining(), self.here.explaining():
                self.here.prepare()
                self.store.sweep(self.folder)
            self._opened = self._opened.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        with self._opened, contextlib.suppress(StoreError), self.here.explaining():
            self.here.delete(self._temporary)

    def stage(self, name: str, write: Callable[[IO[bytes]], Any]) -> None:
        """Write one file by `write(file)` and hash its bytes.

        Raises:
            StoreError: the disk is full or the folder not writable; the old output is still whole.
        """
        with self.explaining(name):
            self.entries[name] = write_hashed(self.here, name, self._draw(name), write)

    def take_over(self, name: str, content: str) -> bool:
        """Reuse a whole published file whose entry has this `content`, without writing it again; returns whether there
        is one. A file at a URL keeps its name."""
        known = self.published.items()
        earlier = next((each for each, entry in known if entry.get("content") == content), None)
        if earlier is None or not is_whole(self.path, {earlier: self.published[earlier]}, self.manifest):
            return False
        if earlier != name:
            if self.here.place != self.path:
                return False
            with self.here.explaining(name):
                if not self.here.link(earlier, self._draw(name)):
                    del self.staged[name]
                    return False
        self.entries[name] = self.published[earlier]
        return True

    def _draw(self, name: str) -> str:
        """A new temporary name for a file, in the same folder; `commit` gives the file its final name."""
        temporary = (NEIGHBOUR if name.startswith(NEIGHBOUR) else "") + temporary_name()
        self.staged[name] = temporary
        self._temporary.append(temporary)
        return temporary

    @contextlib.contextmanager
    def explaining(self, name: str = "") -> Iterator[None]:
        """Turns an OSError from writing into a StoreError. Removes the temporary files first, so the message counts
        their space as free."""
        with self.here.explaining(name):
            try:
                yield
            except OSError:
                self.here.delete(self._temporary)
                raise

    def stage_each(
        self,
        engine: Engine,
        write: Callable[[Any, IO[bytes]], Any],
        items: Mapping[str, Any],
        progress: Progress | None = None,
        **needs: Any,
    ) -> None:
        """Write files in workers by `write(item, file)`. items: by file name. Raises: see `stage`."""
        tasks = [(name, self._draw(name), item) for name, item in items.items()]
        with self.explaining():
            entries = engine.each(partial(_write_staged, self.here, write), tasks, **needs)
            written = counted(progress or Silent(), "writing files", entries, len(tasks), "files")
            self.entries |= dict(zip(items, written, strict=True))

    def commit(self, about: dict[str, Any]) -> dict[str, Any]:
        """Publish every staged file, the manifest last; then remove files that only the old output had. Files beside
        another output are removed first.

        Returns the manifest: `about`, the store and the files.

        Raises:
            InputError: the commit would overwrite a file that this store has not written.
            StoreError: the disk is full or the folder not writable; the old output is still whole.
        """
        owner = {"id": self.store.id, "path": self.store.real_place}
        manifest = about | {"store": owner, "files": self.entries}
        data = manifest_bytes(manifest)
        with self.explaining(self.manifest):
            write_hashed(self.here, self.manifest, self._draw(self.manifest), lambda file: file.write(data))
        own = refuse_strangers(self.store, self.path, self.staged.__contains__, self.manifest)
        # After a move of the output, the ledger lacks the names in the manifest.
        _note(self.store, self.path, own | self.staged.keys())
        stale = _noted(self.store, self.path) - {self.manifest, *self.entries, *BESIDE}
        with self.folder.explaining():
            replaced = read_manifest(self.path, self.manifest, replaced=True)
            if replaced and replaced["key"] != manifest["key"]:
                self.folder.delete({*BESIDE} & own)
            if replaced and any(
                replaced["files"].get(file, entry)["sha256"] != entry["sha256"]
                for file, entry in self.entries.items()
            ):
                marked = manifest_bytes({**replaced, REPLACED_BY: manifest["key"]})
                self.folder.write({self.manifest: marked})
            self.folder.publish(self.here.sources(self.staged), self.manifest, stale)
        tidy(self.store, self.path, self.entries, self.manifest)
        return manifest


def write_hashed(
    folder: LocalFolder, name: str, temporary: str, write: Callable[[IO[bytes]], Any]
) -> dict[str, Any]:
    """Write a file under a temporary name in a folder; returns the manifest entry of what it then holds."""
    with folder.create(name, temporary) as file:
        write(file)
    with open(folder.source(temporary), "rb") as file:
        head = hashlib.sha256(file.read(HEAD_BYTES)).hexdigest()
        file.seek(0)
        sha256 = hashlib.file_digest(file, "sha256").hexdigest()
        return {"bytes": file.tell(), "sha256": sha256, "head": head}


def _write_staged(
    folder: LocalFolder, write: Callable[[Any, IO[bytes]], Any], task: tuple[str, str, Any]
) -> dict[str, Any]:
    name, temporary, item = task
    return write_hashed(folder, name, temporary, partial(write, item))


def tidy(store: Store, path: Place, files: Iterable[str], manifest: str = MANIFEST) -> None:
    """Remove leftovers of an interrupted write or commit from an output folder. files: names in its manifest."""
    kept = {manifest, *files}
    noted = _noted(store, path)
    folder = folder_at(path)
    with folder.explaining():
        folder.delete(noted - kept - {*BESIDE})
        store.sweep(folder)
    # An up-to-date output may be read-only, so without leftovers nothing is written into it.
    _note(store, path, kept | (noted & {*BESIDE}), only=True)
