"""What deploy/ says: nobody outside of the machine reaches it, no secret is known to all, and any user can run it."""

from __future__ import annotations

import re
from pathlib import Path

import yaml

DEPLOY = Path(__file__).parent.parent / "deploy"


def test_ports_are_open_to_this_machine_alone() -> None:
    services = yaml.safe_load((DEPLOY / "compose.yaml").read_text())["services"]
    ports = [port for service in services.values() for port in service.get("ports", [])]
    assert len(ports) == 2
    assert all(port.startswith("127.0.0.1:") for port in ports)


def test_a_secret_that_is_not_set_is_refused_with_a_sentence() -> None:
    text = (DEPLOY / "compose.yaml").read_text()
    variables = re.findall(r"\$\{(\w+)([^}]*)\}", text)
    assert {name for name, _ in variables} == {"S3_SECRET", "POSTGRES_PASSWORD"}
    for _, otherwise in variables:
        assert re.fullmatch(r":\?set it to a \w+ of your own, .+", otherwise)
    assert not re.search(r"(PASSWORD|SECRET\w*): *[\w\"'](?!\$\{)", text)


def test_the_folders_of_the_image_that_are_written_to_are_writable_for_any_user() -> None:
    text = (DEPLOY / "Dockerfile").read_text()
    (variables,) = re.findall(r"^ENV (HOME=.*)$", text, re.MULTILINE)
    assert dict(part.split("=") for part in variables.split()).keys() == {
        "HOME",
        "DAGSTER_HOME",
        "NUMBA_CACHE_DIR",
    }
    # After the kernels are compiled into one of them.
    warmed = text.partition("dagster_divorder.warm && ")[2].partition("\n")[0]
    assert warmed == 'chmod -R a+rwX "$HOME" "$DAGSTER_HOME" "$NUMBA_CACHE_DIR"'
