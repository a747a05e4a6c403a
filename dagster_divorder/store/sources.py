"""Input files: local, or at a URL of an object store, a web server or the Hugging Face Hub.

A source is a `Path` or a `RemoteFile`. Both have `name`, `suffix` and `str()`, and `open_source` opens a raw, seekable
file. A RemoteFile is one version of a file. Its tag names the version: the ETag; the time of writing if the server
gives none; the blob on the Hub.

Datasets of the Hub have URLs `hf://datasets/owner/name[@revision][/path]`; a slash in a revision is written %2F. All
reads use one commit. Endpoint and token are huggingface_hub's: HF_ENDPOINT, HF_TOKEN, or the token of `hf auth login`.

Opening a RemoteFile fetches it whole into the temporary folder (TMPDIR), or raises InputError if its tag has changed.
A process keeps the file that it fetched last: columns, first records and then all records of a file take one fetch.
"""

from __future__ import annotations

import contextlib
import functools
import io
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from dagster_divorder.errors import InputError
from dagster_divorder.extras import load_extra
from dagster_divorder.settings.places import WEB
from dagster_divorder.store.disk import DISK_FULL, explaining_full_disk, temporary_folder
from dagster_divorder.store.remote import RETRY_SECONDS, connect, explained

if TYPE_CHECKING:
    from obstore import ObjectMeta
    from obstore.store import ObjectStore

PIECE_BYTES = 8 << 20
_HUB = re.compile(r"hf://datasets/([\w.-]+/[\w.-]+)(?:@([^/]+))?(?:/(.*))?", re.DOTALL)


@dataclass(frozen=True, slots=True)
class RemoteFile:
    """A version of a file at a URL. size: bytes. tag: names the version. commit: on the Hub."""

    url: str
    size: int
    tag: str
    commit: str = ""

    def __str__(self) -> str:
        return self.url

    @property
    def name(self) -> str:
        return PurePosixPath(self.url).name

    @property
    def suffix(self) -> str:
        return PurePosixPath(self.url).suffix

    def fetch(self, folder: Path) -> Path:
        """Fetches the file into a folder; returns its path there. Raises InputError: the file has changed, or
        reading from the server fails; FileNotFoundError: the file is gone; DiskFullError: the folder is full."""
        with explaining_full_disk(folder):
            if self.commit:
                name, _, path = dataset(self.url)
                with explained_hub(self.url) as hub:
                    return Path(hub.hf_hub_download(name, path, **at_commit(self.commit), local_dir=folder))
            with explained(self.url, InputError), open(folder / "copy", "wb") as file:
                answer = load_extra("obstore").get(*bucket(self.url))
                if identity(described(self.url, answer.meta)) != identity(self):
                    raise InputError(
                        f"{self.url} was changed since it was listed; run again when nothing writes to it"
                    )
                file.writelines(answer.stream(min_chunk_size=PIECE_BYTES))
            return folder / "copy"


class _Copy:
    """A file at a URL on this machine's disk."""

    def __init__(self, file: RemoteFile) -> None:
        self.path = file.fetch(temporary_folder(self))


_copy = functools.lru_cache(maxsize=1)(_Copy)

Source = Path | RemoteFile


def open_source(source: Source) -> io.FileIO:
    """A raw, seekable file. Raises OSError: a local file cannot be opened, or a file at a URL is gone; InputError,
    DiskFullError: see `RemoteFile.fetch`."""
    if isinstance(source, Path):
        return open(source, "rb", buffering=0)
    copy = _copy(source)  # stays while it is opened, whatever another thread fetches
    return open(copy.path, "rb", buffering=0)


def identity(source: Source) -> tuple[int | str, ...]:
    """Values that differ once a file is changed or replaced; the size comes first. Raises OSError: a local file
    cannot be inspected."""
    if isinstance(source, RemoteFile):
        return source.size, source.tag
    status = os.stat(source)
    # Programs cannot set the change time, so it reveals a replaced file that has the old modification time.
    return status.st_size, status.st_dev, status.st_ino, status.st_mtime_ns, status.st_ctime_ns


def described(url: str, meta: ObjectMeta) -> RemoteFile:
    """The file at a URL, from a server's description."""
    # Azure's lists have no quotes, but Azure's other answers do. Some web servers give no tags.
    return RemoteFile(url, meta["size"], (meta["e_tag"] or str(meta["last_modified"])).strip('"'))


def bucket(url: str, retry_seconds: float = RETRY_SECONDS) -> tuple[ObjectStore, str]:
    """The bucket or web server of a URL, and the key in it. Connections are reused, since opening one takes about
    20 ms. retry_seconds, and errors: as in `connect`."""
    scheme, _, path = url.partition("://")
    name, _, key = path.partition("/")
    if scheme in WEB:  # keys of object stores are not quoted
        key = unquote(key)
    pairs = tuple(item for item in os.environ.items() if item[0].startswith(("AWS_", "AZURE_", "GOOGLE_")))
    return _connected(f"{scheme}://{name}", os.getpid(), pairs, retry_seconds), key.strip("/")


@functools.lru_cache(maxsize=16)
def _connected(
    origin: str, process: int, environment: tuple[tuple[str, str], ...], retry_seconds: float
) -> ObjectStore:
    return connect(origin, retry_seconds)


def dataset(url: str) -> tuple[str, str, str]:
    """A dataset `owner/name`, a revision of it, and a path in it ("" for all of it). Raises InputError: the URL names
    no dataset."""
    match = _HUB.fullmatch(url)
    if not match:
        raise InputError(
            f"{url} names no dataset of the Hub; expected hf://datasets/owner/name, perhaps with @revision, and a path"
        )
    return match[1], unquote(match[2] or "main"), (match[3] or "").strip("/")


def at_commit(revision: str) -> dict[str, str]:
    """Arguments of huggingface_hub for a revision of a dataset."""
    return {"repo_type": "dataset", "revision": revision}


@contextlib.contextmanager
def explained_hub(url: str) -> Iterator[Any]:
    """The Hub, with its errors as InputError. Raises FileNotFoundError: there is no such file or folder; OSError: the
    disk is full, unchanged."""
    from huggingface_hub import HfApi, errors

    try:
        yield HfApi()
    except errors.RemoteEntryNotFoundError:
        raise FileNotFoundError(url) from None
    except (errors.HTTPError, errors.HFValidationError, OSError, RuntimeError) as error:
        if isinstance(error, OSError) and error.errno in DISK_FULL:
            raise
        # Without queries, which may be signed.
        said = " ".join(re.sub(r"\?\S*", "", str(error)).split())[:400]
        raise InputError(
            f"{url} cannot be read from the Hub ({type(error).__name__}: {said}); check dataset and revision, the "
            f"token (HF_TOKEN, `hf auth login`), the network, HF_ENDPOINT and HF_HUB_OFFLINE"
        ) from None
