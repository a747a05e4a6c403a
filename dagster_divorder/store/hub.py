"""Datasets of the Hugging Face Hub by URL, `hf://datasets/owner/name[@revision][/path]`: commits and files.

Endpoint and token are huggingface_hub's: HF_ENDPOINT, HF_TOKEN, or the token of `hf auth login`. All reads use one
commit. A slash in a revision is written %2F.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import unquote

from dagster_divorder.errors import InputError
from dagster_divorder.store.disk import DISK_FULL

if TYPE_CHECKING:
    from huggingface_hub import HfApi

_URL = re.compile(r"hf://datasets/([\w.-]+/[\w.-]+)(?:@([^/]+))?(?:/(.*))?", re.DOTALL)


class Dataset(NamedTuple):
    """A dataset `owner/name`, a revision of it, and a path in it ("" for all of it)."""

    name: str
    revision: str
    path: str


def dataset(url: str) -> Dataset:
    """Raises InputError: the URL names no dataset."""
    match = _URL.fullmatch(url)
    if not match:
        raise InputError(
            f"{url} names no dataset of the Hub; expected hf://datasets/owner/name, perhaps with @revision, and a path"
        )
    return Dataset(match[1], unquote(match[2] or "main"), (match[3] or "").strip("/"))


def api() -> HfApi:
    from huggingface_hub import HfApi

    return HfApi(endpoint=os.environ.get("HF_ENDPOINT"))


@contextlib.contextmanager
def explained(url: str) -> Iterator[None]:
    """Turns errors of huggingface_hub into InputError. Raises FileNotFoundError: there is no such file or folder;
    OSError: the disk is full, unchanged."""
    from huggingface_hub import errors

    try:
        yield
        return
    except errors.RemoteEntryNotFoundError:
        raise FileNotFoundError(url) from None
    except errors.RevisionNotFoundError:
        why = f"the dataset has no revision {dataset(url).revision!r}; name an existing one"
    except errors.RepositoryNotFoundError:
        why = (
            f"there is no dataset {dataset(url).name} on the Hub, or your token (HF_TOKEN, `hf auth login`) may not "
            "read it; check both, and the dataset's terms"
        )
    except errors.HfHubHTTPError as error:
        why = (
            f"the Hub answered {error.response.status_code}; check the token in HF_TOKEN, or run again later"
        )
    except (errors.HFValidationError, errors.HTTPError, OSError, RuntimeError) as error:
        if isinstance(error, OSError) and error.errno in DISK_FULL:
            raise
        why = (
            f"the Hub cannot be reached: {error}; check the name, the network, HF_ENDPOINT and HF_HUB_OFFLINE"
        )
    raise InputError(f"{url}: {why}")


def fetch(url: str, commit: str, folder: Path) -> Path:
    """Fetches a file of a commit into a folder; returns its path there. Raises InputError: the Hub cannot be read
    from; FileNotFoundError: there is no such file."""
    parsed, at = dataset(url), {"revision": commit, "local_dir": folder}
    with explained(url):
        return Path(api().hf_hub_download(parsed.name, parsed.path, repo_type="dataset", **at))
