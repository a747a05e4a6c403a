"""Dagster's history in SQLite, for `storage` in dagster.yaml: the same files as Dagster's own class, written faster.

Dagster opens a connection for every event and every query. When the last connection to a WAL database closes, SQLite
copies the log into the database and removes the log, which needs a flush. Dagster makes each run's database with 21
statements and all 88 migration scripts. Here connections stay open, and a run's database gets the index's tables at
once. Existing tables are not compared with the migrations at each start (Dagster only checks that tables exist).
A run with nothing new opens 9 connections instead of 365 (docs/decisions/speed.md).

A commit flushes nothing (`synchronous = NORMAL`): a killed process loses nothing, and a machine that loses power may
lose the events of the last seconds, never the database. Either class can go on with the files of the other.
"""

from __future__ import annotations

import os
import sqlite3
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import closing, contextmanager
from functools import cached_property
from typing import Any, ClassVar

import sqlalchemy
from dagster._core.events.log import EventLogEntry
from dagster._core.storage.event_log.sqlite.sqlite_event_log import INDEX_SHARD_NAME, SqliteEventLogStorage
from dagster._core.storage.runs.sqlite.sqlite_run_storage import SqliteRunStorage
from dagster._core.storage.schedules.sqlite.sqlite_schedule_storage import SqliteScheduleStorage
from dagster._core.storage.sqlite import SQLITE_BUSY_TIMEOUT_SECONDS, create_db_conn_string
from dagster._core.storage.sqlite_storage import (
    DagsterSqliteStorage,
    _event_logs_directory,
    _runs_directory,
    _schedule_directory,
)
from dagster._serdes import ConfigurableClassData

OPEN_RUNS = 16
"""Run databases that a process keeps open; a webserver may read hundreds of runs."""


class SqliteHistory(DagsterSqliteStorage):
    """Runs, events and schedules under `base_dir`."""

    def __init__(self, base_dir: str, inst_data: ConfigurableClassData | None = None) -> None:
        super(DagsterSqliteStorage, self).__init__()
        self.base_dir, self._inst_data = base_dir, inst_data
        self._run_storage = _Runs.from_local(_runs_directory(base_dir))
        self._event_log_storage = _Events(_event_logs_directory(base_dir))
        self._schedule_storage = _Schedules.from_local(_schedule_directory(base_dir))

    @classmethod
    def from_config_value(cls, inst_data: ConfigurableClassData, config_value: Any) -> SqliteHistory:
        return cls.from_local(inst_data=inst_data, **config_value)


def _engine(address: str) -> sqlalchemy.Engine:
    """An engine whose connections stay open."""
    engine = sqlalchemy.create_engine(address, connect_args={"timeout": SQLITE_BUSY_TIMEOUT_SECONDS})

    @sqlalchemy.event.listens_for(engine, "connect")
    def flush_no_commit(connection: sqlite3.Connection, _: object) -> None:
        connection.execute("PRAGMA synchronous = NORMAL")

    return engine


def _has_tables(database: str) -> bool:
    """Whether Dagster has made its tables in a database."""
    if not os.path.exists(database):
        return False
    with closing(sqlite3.connect(database, timeout=SQLITE_BUSY_TIMEOUT_SECONDS)) as connection:
        try:
            return connection.execute("SELECT 1 FROM alembic_version").fetchone() is not None
        except sqlite3.OperationalError:
            return False


class _Made:
    """A storage whose database `<database>.db` is opened without migrations if its tables exist."""

    database: ClassVar[str]

    @classmethod
    def from_local(cls, base_dir: str, inst_data: ConfigurableClassData | None = None) -> Any:
        if _has_tables(os.path.join(base_dir, f"{cls.database}.db")):
            return cls(create_db_conn_string(base_dir, cls.database), inst_data)  # type: ignore[call-arg]
        return super().from_local(base_dir, inst_data)  # type: ignore[misc]


class _Runs(_Made, SqliteRunStorage):
    database = "runs"

    @cached_property
    def _engine(self) -> sqlalchemy.Engine:
        return _engine(self._conn_string)

    @contextmanager
    def connect(self) -> Iterator[sqlalchemy.Connection]:
        with self._engine.begin() as connection:
            yield connection

    def dispose(self) -> None:
        self._engine.dispose()


class _Schedules(_Made, SqliteScheduleStorage):
    database = "schedules"


class _Events(SqliteEventLogStorage):
    def __init__(self, base_dir: str) -> None:
        self._engines: OrderedDict[str, sqlalchemy.Engine] = OrderedDict()
        self._tables: set[str] = set()
        super().__init__(base_dir)

    @contextmanager
    def _connect(self, shard: str) -> Iterator[sqlalchemy.Connection]:
        with self._db_lock:
            if shard not in self._engines:
                self._engines[shard] = _engine(self.conn_string_for_shard(shard))
                self._initdb(self._engines[shard])
                runs = [other for other in self._engines if other != INDEX_SHARD_NAME]
                for oldest in runs[:-OPEN_RUNS]:
                    self._engines.pop(oldest).dispose()
            self._engines.move_to_end(shard)
            with self._engines[shard].begin() as connection:
                yield connection

    def _initdb(self, engine: sqlalchemy.Engine, for_index_shard: bool = False) -> None:
        database, index = str(engine.url.database), self.path_for_shard(INDEX_SHARD_NAME)
        if database == index:
            if not _has_tables(database):
                super()._initdb(engine, for_index_shard)
        elif not os.path.exists(database):
            _copy_tables(index, database)
        elif not _has_tables(database):
            super()._initdb(engine)

    def has_table(self, table_name: str) -> bool:
        # Dagster asks before it writes the tags of each event.
        if table_name not in self._tables and super().has_table(table_name):
            self._tables.add(table_name)
        return table_name in self._tables

    def store_event(self, event: EventLogEntry) -> None:
        super().store_event(event)
        # A page that shows a run reads it when this file changes. New events are in SQLite's log beside it.
        os.utime(self.path_for_shard(event.run_id))

    def wipe(self) -> None:
        self.dispose()
        super().wipe()

    def dispose(self) -> None:
        super().dispose()
        with self._db_lock:
            while self._engines:
                self._engines.popitem()[1].dispose()


def _copy_tables(index: str, database: str) -> None:
    """Make a run's database with the tables of the index, all or none of them."""
    with closing(sqlite3.connect(database, timeout=SQLITE_BUSY_TIMEOUT_SECONDS, isolation_level=None)) as run:
        run.execute("PRAGMA journal_mode = WAL")
        run.execute("PRAGMA synchronous = NORMAL")
        run.execute("ATTACH ? AS made", (index,))
        run.execute("BEGIN IMMEDIATE")
        if run.execute("SELECT 1 FROM main.sqlite_master").fetchone() is None:
            made = run.execute(
                "SELECT sql FROM made.sqlite_master WHERE sql IS NOT NULL AND name NOT LIKE 'sqlite_%' "
                "ORDER BY type DESC"  # a table before its indexes
            )
            for (statement,) in made.fetchall():
                run.execute(statement)
            run.execute("INSERT INTO main.alembic_version SELECT * FROM made.alembic_version")
        run.execute("COMMIT")
