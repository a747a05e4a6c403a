"""Object stores by URL: connections, and messages for their errors.

Credentials come only from the provider's own environment variables, such as AWS_ACCESS_KEY_ID. Messages repeat only the
code of a server's answer, so messages hold no secret.

obstore repeats requests while a server is overloaded, restarting or out of reach; this module sees errors after that.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator
from datetime import timedelta
from typing import TYPE_CHECKING

from dagster_divorder.errors import DiskFullError, DivOrderError, InputError, StoreError
from dagster_divorder.extras import load_extra

if TYPE_CHECKING:
    from obstore.store import ObjectStore

CREDENTIALS = {
    "s3": "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY",
    "gs": "GOOGLE_SERVICE_ACCOUNT",
    "az": "AZURE_STORAGE_ACCOUNT_NAME and AZURE_STORAGE_ACCOUNT_KEY",
}
_ENDPOINTS = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT", "AZURE_STORAGE_ENDPOINT")
_FULL = {
    "507",
    "QuotaExceeded",
    "XMinioStorageFull",
    "InsufficientStorage",
    "StorageQuotaExceeded",
    "AccountIsFull",
}
_NO_BUCKET = ("NoSuchBucket", "ContainerNotFound")
RETRY_SECONDS = 120.0


def connect(url: str, retry_seconds: float = RETRY_SECONDS) -> ObjectStore:
    """The objects below a URL, such as s3://bucket/prefix or https://host; no request is sent yet.

    Endpoint and credentials come from the environment. Unanswered requests are repeated for `retry_seconds`. Raises
    InputError: obstore refuses the URL or the environment, or is not installed."""
    stores = load_extra("obstore.store")
    for name in _ENDPOINTS:
        if not re.match(r"https?://[^\s/]", os.environ.get(name, "http://host")):
            raise InputError(
                f"{name} is not a server's URL; expected one such as http://127.0.0.1:9000: set or unset it"
            )
    retries = {
        "max_retries": 1000,
        "retry_timeout": timedelta(seconds=retry_seconds),
        "backoff": {"max_backoff": timedelta(seconds=5)},
    }
    try:
        # `from_url` would treat Amazon's https addresses as buckets.
        make = stores.HTTPStore.from_url if url.startswith(("http://", "https://")) else stores.from_url
        return make(url, client_options={"allow_http": True}, retry_config=retries)
    except Exception as error:
        raise InputError(
            f"{url} cannot be reached with this environment: {_first_line(error)}; check its variables, such as "
            f"{CREDENTIALS.get(url.partition('://')[0], 'AWS_ENDPOINT_URL')}"
        ) from None


@contextlib.contextmanager
def explained(url: str, error_class: type[DivOrderError] = StoreError) -> Iterator[None]:
    """Turns an object store's errors into this package's: `error_class`, or DiskFullError if the bucket is full.
    Raises FileNotFoundError: the object is missing; unchanged. A missing bucket is explained. obstore's
    AlreadyExistsError and PreconditionError, unchanged: callers that set a condition handle these errors."""
    exceptions = load_extra("obstore.exceptions")
    try:
        yield
    except (exceptions.AlreadyExistsError, exceptions.PreconditionError):
        raise
    except FileNotFoundError as error:
        if _code(error) not in _NO_BUCKET:
            raise
        raise error_class(explain(error, url)) from None
    except exceptions.BaseError as error:
        # The message omits the answer, which may hold a signature.
        raise (DiskFullError if _code(error) in _FULL else error_class)(explain(error, url)) from None


def explain(error: Exception, url: str) -> str:
    """A message for an obstore error at a URL, with the remedy and without secrets."""
    code, status = _code(error), _status(error)
    scheme, _, rest = url.partition("://")
    bucket, who = rest.partition("/")[0], CREDENTIALS.get(scheme, "the credentials")
    if "169.254." in str(error) or "metadata.google" in str(error):
        return f"{url}: no credentials were found; set {who} in the environment"
    if not status:
        return (
            f"{url} cannot be reached: {_first_line(error)}; check the network, its proxies and the endpoint "
            f"(AWS_ENDPOINT_URL), and run again: it continues from here"
        )
    if code in _FULL:
        remedy = "no space left; raise the quota or free space"
    elif status == "404":
        remedy = f"no bucket {bucket!r} is at this endpoint; make it, or check the URL and AWS_ENDPOINT_URL"
    else:
        remedy = (
            f"check {who} in the environment, their permissions, the bucket {bucket!r}, this machine's clock and the "
            "server"
        )
    return f"{url}: the server answered {code}: {remedy}, then run again: it continues from here"


def _code(error: Exception) -> str:
    """The code in an XML answer of S3 or Azure, such as AccessDenied; else the status, such as 507."""
    match = re.search(r"<Code>(\w+)</Code>", str(error))
    return match[1] if match else _status(error)


def _status(error: Exception) -> str:
    match = re.search(r"status code: (\d{3})", str(error))
    return match[1] if match else ""


def _first_line(error: BaseException) -> str:
    """The beginning of an obstore message, without the server's answer and without queries, which may be signed."""
    return re.sub(r"\?\S*", "", str(error).partition("\n")[0].partition(": <?xml")[0])[:300]
