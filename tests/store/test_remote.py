"""Object stores by URL: what their errors mean, and that no secret is repeated."""

from __future__ import annotations

import pickle
import sys

import pytest
from obstore.exceptions import AlreadyExistsError, GenericError, PermissionDeniedError, PreconditionError

from dagster_divorder.errors import DamagedFileError, DiskFullError, DivOrderError, InputError, StoreError
from dagster_divorder.store.remote import connect, explain, explained

URL = "s3://bucket/prefix"


def answered(status: int, code: str = "", query: str = "") -> str:
    """A message as obstore's are."""
    body = (
        f'<?xml version="1.0"?>\n<Error><Code>{code}</Code><Message>Sesame99</Message></Error>'
        if code
        else ""
    )
    return (
        f"Generic S3 error: Error performing GET http://host:1/bucket/a{query} in 5.3ms - Server returned non-2xx "
        f"status code: {status} Something: {body}\n\nDebug source:\nGeneric {{ signature: Sesame99 }}"
    )


@pytest.mark.parametrize(
    ("message", "parts"),
    [
        (answered(403, "InvalidAccessKeyId"), ["InvalidAccessKeyId", "check AWS_ACCESS_KEY_ID"]),
        (
            answered(404, "NoSuchBucket"),
            ["NoSuchBucket", "no bucket 'bucket' is", "make it", "AWS_ENDPOINT_URL"],
        ),
        (answered(403, "QuotaExceeded"), ["no space left", "QuotaExceeded"]),
        (answered(418, query="?X-Amz-Signature=Sesame99"), ["418", "check AWS_ACCESS_KEY_ID"]),
        (
            "Generic S3 error: Error performing GET http://127.0.0.1:1/b?sig=Sesame99 in 1s, after 3 retries - HTTP "
            "error: error sending request\n\nDebug source:\nSesame99",
            ["cannot be reached", "AWS_ENDPOINT_URL", "error sending request"],
        ),
        (
            "Generic S3 error: Error performing PUT http://169.254.169.254/latest/api/token in 3s - HTTP error",
            ["no credentials were found", "AWS_ACCESS_KEY_ID"],
        ),
    ],
)
def test_errors_say_what_to_do_and_no_secret(message: str, parts: list[str]) -> None:
    explanation = explain(GenericError(message), URL)
    assert URL in explanation and "Sesame99" not in explanation
    assert all(part in explanation for part in parts), explanation


def test_errors_become_ours_and_conditions_stay_what_they_are() -> None:
    with pytest.raises(InputError, match="AccessDenied") as caught, explained(URL, InputError):
        raise PermissionDeniedError(answered(403, "AccessDenied"))
    assert caught.value.__suppress_context__
    with pytest.raises(DiskFullError), explained(URL):
        raise GenericError(answered(507))
    with pytest.raises(StoreError, match="no bucket"), explained(URL):
        raise FileNotFoundError(answered(404, "NoSuchBucket"))
    for condition in (AlreadyExistsError, PreconditionError, FileNotFoundError):
        with pytest.raises(condition), explained(URL):
            raise condition(answered(412, "PreconditionFailed"))


def test_connecting_asks_for_nothing_and_says_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AZURE_STORAGE_ACCOUNT_NAME", "AZURE_STORAGE_ACCOUNT"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.delenv("AWS_ACCESS_KEY_ID", raising=False)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "Sesame99")
    with pytest.raises(
        InputError, match="Missing AccessKeyId; check its variables, such as AWS_ACCESS_KEY_ID"
    ):
        connect(URL)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key")
    assert "Sesame99" not in repr(connect(URL))
    with pytest.raises(InputError, match="AZURE_STORAGE_ACCOUNT_NAME"):
        connect("az://container/prefix")
    monkeypatch.setitem(sys.modules, "obstore", None)
    with pytest.raises(InputError, match=r"pip install 'dagster-divorder\[objects\]'"):
        connect(URL)


@pytest.mark.parametrize("endpoint", ["", "Sesame99", "://x", "http://", "ftp://host", " http://host"])
def test_an_endpoint_that_is_none_is_refused_and_not_repeated(
    endpoint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", endpoint)
    with pytest.raises(InputError, match=r"AWS_ENDPOINT_URL is not a server.s URL") as caught:
        connect(URL)
    assert "Sesame99" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("GET http://who:Sesame99@host:1/b in 1 s", "GET http://...@host:1/b in 1 s"),
        ("('s3://who:Sesame99@b/x', 'gs://b/y')", "('s3://...@b/x', 'gs://b/y')"),
        ("https://host/a?X-Amz-Signature=Sesame99&b=1, again", "https://host/a?... again"),
        ("az://c/x?sv=1&sig=Sesame99", "az://c/x?..."),
        ("hf://datasets/org/name@main/a", "hf://datasets/org/name@main/a"),
        ("s3://b/part-?.jsonl is missing", "s3://b/part-?.jsonl is missing"),
        ("is it full? key=value", "is it full? key=value"),
        ("write to me@example.org", "write to me@example.org"),
    ],
)
def test_no_error_holds_what_is_secret_in_a_url(text: str, shown: str) -> None:
    for kind in (DivOrderError, InputError, DamagedFileError):
        error = kind(text)
        assert str(error) == str(kind(str(error))) == str(pickle.loads(pickle.dumps(error))) == shown
